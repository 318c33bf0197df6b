//! Texts by key → typed values. A bad text is noted as a fault and the built-in value taken
//! instead, so that reading goes on and all faults are found in one go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::fault::{Fault, Origin};
use super::load::shown;
use crate::limits::RateWindows;

/// One key's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) text: String,
    pub(super) origin: Origin,
    /// The text when neither file nor environment say anything.
    pub(super) built_in: String,
}

pub(super) struct Reader<'a> {
    values: &'a BTreeMap<String, Given>,
    /// The form of every key that was read; the manual's test compares.
    pub(super) forms: BTreeMap<&'static str, String>,
    pub(super) faults: Vec<Fault>,
    pub(super) warnings: Vec<String>,
    bad: BTreeSet<&'static str>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(values: &'a BTreeMap<String, Given>) -> Reader<'a> {
        Reader {
            values,
            forms: BTreeMap::new(),
            faults: Vec::new(),
            warnings: Vec::new(),
            bad: BTreeSet::new(),
        }
    }

    pub(super) fn given(&self, key: &str) -> &'a Given {
        self.values.get(key).expect("every key that is read stands in config/sluice.yml")
    }

    /// A value of its own form: `parse` gives `None` for a text that is not of it.
    pub(super) fn read<T>(
        &mut self,
        key: &'static str,
        form: String,
        parse: impl Fn(&'a str) -> Option<T>,
    ) -> T {
        let given = self.given(key);
        let value = parse(given.text.trim()).unwrap_or_else(|| {
            self.bad.insert(key);
            self.faults.push(Fault::BadValue {
                key: key.to_owned(),
                value: shown(key, given.text.clone()),
                wanted: form.clone(),
                origin: given.origin.clone(),
            });
            parse(given.built_in.trim()).expect("built-in values are good: a test reads them all")
        });
        self.forms.insert(key, form);
        value
    }

    pub(super) fn number(
        &mut self,
        key: &'static str,
        unit: &str,
        range: RangeInclusive<u64>,
    ) -> u64 {
        let form = format!("{unit}, {} to {}", range.start(), range.end());
        self.read(key, form, |text| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = if digits { text.parse().ok()? } else { return None };
            range.contains(&number).then_some(number)
        })
    }

    /// As `number`, with 0 for "no limit".
    pub(super) fn limit(&mut self, key: &'static str, unit: &str, max: u64) -> Option<u64> {
        Some(self.number(key, unit, 0..=max)).filter(|limit| *limit > 0)
    }

    pub(super) fn size(
        &mut self,
        key: &'static str,
        unit: &str,
        range: RangeInclusive<u64>,
    ) -> usize {
        let number = self.number(key, unit, range);
        usize::try_from(number).unwrap_or(usize::MAX)
    }

    pub(super) fn short(&mut self, key: &'static str, unit: &str, least: u16) -> u16 {
        let number = self.number(key, unit, u64::from(least)..=u64::from(u16::MAX));
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    pub(super) fn flag(&mut self, key: &'static str) -> bool {
        self.read(key, "true or false".into(), |text| match text.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        })
    }

    /// One of `choices`, whatever its case; gives its number.
    pub(super) fn choice(&mut self, key: &'static str, choices: &[&str]) -> usize {
        let form = match choices {
            [one] => (*one).to_owned(),
            [others @ .., last] => format!("{} or {last}", others.join(", ")),
            [] => String::new(),
        };
        let find = |text: &str| choices.iter().position(|choice| choice.eq_ignore_ascii_case(text));
        self.read(key, form, find)
    }

    /// `None` when empty.
    pub(super) fn text(&mut self, key: &'static str) -> Option<&'a str> {
        self.read(key, "text".into(), |text| Some((!text.is_empty()).then_some(text)))
    }

    /// What nobody is shown; `None` when empty.
    pub(super) fn secret(&mut self, key: &'static str) -> Option<&'a str> {
        self.read(key, "secret".into(), |text| Some((!text.is_empty()).then_some(text)))
    }

    /// As `secret`, made of base64.
    pub(super) fn secret_bytes(&mut self, key: &'static str, least: usize) -> Option<Vec<u8>> {
        self.read(key, "secret".into(), |text| {
            if text.is_empty() {
                return Some(None);
            }
            let bytes = STANDARD.decode(text).ok()?;
            (bytes.len() >= least).then_some(Some(bytes))
        })
    }

    /// Names out of `known`, each at most once; their numbers in the order in which they stand.
    pub(super) fn order(&mut self, key: &'static str, known: &[&str]) -> Vec<usize> {
        let form = format!("names out of {} in their order", known.join(", "));
        self.read(key, form, |text| {
            let mut order = Vec::new();
            for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                let number = known.iter().position(|known| known.eq_ignore_ascii_case(name))?;
                if order.contains(&number) {
                    return None;
                }
                order.push(number);
            }
            Some(order)
        })
    }

    pub(super) fn folder(&mut self, key: &'static str) -> &'a str {
        self.read(key, "folder".into(), |text| (!text.is_empty()).then_some(text))
    }

    /// One or more servers; empty is none.
    pub(super) fn hosts(&mut self, key: &'static str) -> Vec<(String, u16)> {
        self.read(key, "host:port,host:port,…".into(), |text| {
            let host = |text: &str| {
                let (host, port) = text.rsplit_once(':')?;
                let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
                let host = bare.unwrap_or(host);
                let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
                (!host.is_empty()).then(|| (host.to_owned(), port))
            };
            let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
            texts.map(host).collect()
        })
    }

    /// What may stand before every key of a store: no braces, for they decide the slot.
    pub(super) fn key_prefix(&mut self, key: &'static str) -> &'a str {
        let fits = |text: &str| text.len() <= 200 && !text.contains(['{', '}']);
        self.read(key, "text without braces".into(), |text| fits(text).then_some(text))
    }

    pub(super) fn file(&mut self, key: &'static str) -> PathBuf {
        self.read(key, "file".into(), |text| (!text.is_empty()).then(|| text.into()))
    }

    /// Names, parted by commas; any are taken.
    pub(super) fn list(&mut self, key: &'static str) -> Vec<String> {
        self.read(key, "names".into(), |text| {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            Some(names.map(str::to_owned).collect())
        })
    }

    pub(super) fn address(&mut self, key: &'static str) -> IpAddr {
        self.read(key, "IP address".into(), |text| {
            let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
            match text {
                "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
                _ => bare.unwrap_or(text).parse().ok(),
            }
        })
    }

    /// Windows of messages and of bytes.
    pub(super) fn rate(&mut self, key: &'static str) -> RateWindows {
        let form = "messages:seconds,bytes:bytes:seconds,…".into();
        self.read(key, form, RateWindows::parse)
    }

    /// Windows of `things`.
    pub(super) fn counts(&mut self, key: &'static str, things: &str) -> RateWindows {
        let form = format!("{things}:seconds,{things}:seconds,…");
        self.read(key, form, RateWindows::parse_counts)
    }

    /// The same; `None` when empty.
    pub(super) fn counts_or_none(
        &mut self,
        key: &'static str,
        things: &str,
    ) -> Option<RateWindows> {
        let form = format!("{things}:seconds,{things}:seconds,… or empty");
        self.read(key, form, |text| match text {
            "" => Some(None),
            text => RateWindows::parse_counts(text).map(Some),
        })
    }

    /// Names out of `known`, or `*` for all; tells for each whether it is there.
    pub(super) fn names<const N: usize>(
        &mut self,
        key: &'static str,
        known: [&str; N],
    ) -> [bool; N] {
        let form = format!("names out of {}, or *", known.join(", "));
        self.read(key, form, |text| {
            if text == "*" {
                return Some([true; N]);
            }
            let mut there = [false; N];
            for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                there[known.iter().position(|known| *known == name)?] = true;
            }
            Some(there)
        })
    }

    /// `host:port`, several with commas, as Kafka's and Redis's clients take them.
    pub(super) fn servers(&mut self, key: &'static str) -> String {
        self.read(key, "host:port, several with commas".into(), |text| {
            let good = |server: &str| {
                let (host, port) = server.trim().rsplit_once(':')?;
                let port = port.parse::<u16>().ok()?;
                (!host.is_empty() && port > 0).then_some(())
            };
            text.split(',').map(good).collect::<Option<Vec<()>>>()?;
            Some(text.to_owned())
        })
    }

    /// A name of a topic, or the beginning of one.
    pub(super) fn topic(&mut self, key: &'static str) -> String {
        self.read(key, "letters, digits, dot, _ and -".into(), |text| {
            let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            (text.len() <= 200 && text.chars().all(good)).then(|| text.to_owned())
        })
    }

    /// Settings for somebody else; a semicolon in a value is written with a backslash.
    pub(super) fn pairs(&mut self, key: &'static str) -> Vec<(String, String)> {
        self.read(key, "name:value;name:value;…".into(), |text| {
            let hidden = text.replace("\\;", "\0");
            let pairs = hidden.split(';').map(str::trim).filter(|pair| !pair.is_empty());
            let pair = |pair: &str| {
                let (name, value) = pair.split_once(':')?;
                let value = value.trim().replace('\0', ";");
                (!name.trim().is_empty()).then(|| (name.trim().to_owned(), value))
            };
            pairs.map(pair).collect()
        })
    }

    pub(super) fn fault(&mut self, text: String) {
        self.faults.push(Fault::Contradiction(text));
    }

    /// Notes that values contradict each other, unless one of them is faulty itself.
    pub(super) fn contradiction(&mut self, keys: &[&'static str], text: &str) {
        if keys.iter().any(|key| self.bad.contains(key)) {
            return;
        }
        let values = keys.iter().map(|key| {
            let given = self.given(key);
            format!("{key} = {:?} (from {})", shown(key, given.text.clone()), given.origin)
        });
        let values = values.collect::<Vec<String>>().join(", ");
        self.faults.push(Fault::Contradiction(format!("{values}: {text}")));
    }
}
