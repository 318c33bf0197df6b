//! From files and environment to one text per key, and on to the rooms.

use std::collections::BTreeMap;
use std::path::Path;

use super::fault::{Fault, Faults, Origin};
use super::foreign::{self, SECRET, SECRETS, Why};
use super::placeholder::{Env, resolve, variable};
use super::reader::{Given, Reader};
use super::tree::{self, Leaf};
use super::{Config, rooms};

/// The settings with their built-in values, as an operator reads them.
pub const BUILT_IN: &str = include_str!("../../config/sluice.yml");

/// A good configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub config: Config,
    /// One sentence each, for the log.
    pub warnings: Vec<String>,
    /// What differs from the built-in values, by key.
    pub changed: Vec<Changed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub key: String,
    pub value: String,
    pub origin: Origin,
}

/// The process's own environment. A value that is no UTF-8 can't be right for any key; its odd
/// bytes are replaced, so that the fault can show it.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Reads `file`, or only the built-in values when there is none.
pub fn load(file: Option<&Path>, env: &Env<'_>) -> Result<Loaded, Faults> {
    let leaves = match file {
        None => Vec::new(),
        Some(path) => read_file(path).map_err(|fault| Faults(vec![fault]))?,
    };
    let mut gathered = Gathered::default();
    let own = gathered.sort(leaves);
    gathered.settle(own, file, env);
    gathered.unused_warning();
    gathered.finish()
}

fn read_file(path: &Path) -> Result<Vec<Leaf>, Fault> {
    std::fs::read_to_string(path)
        .map_err(|fault| fault.to_string())
        .and_then(|yaml| tree::leaves(&yaml))
        .map_err(|fault| Fault::File { path: path.to_owned(), fault })
}

/// Raw texts of the built-in file, by key.
pub(super) fn built_in() -> BTreeMap<String, String> {
    tree::leaves(BUILT_IN)
        .expect("the built-in file is good YAML: a test reads it")
        .into_iter()
        .map(|leaf| (leaf.key, leaf.text.unwrap_or_default()))
        .collect()
}

/// Seeds' short keys are TBMQ's long ones without `mqtt.`.
fn long_form(key: &str) -> String {
    if key.starts_with("rate-limits.") { format!("mqtt.{key}") } else { key.to_owned() }
}

struct Gathered {
    built_in: BTreeMap<String, String>,
    values: BTreeMap<String, Given>,
    /// TBMQ's keys that the file has and that have no effect, with their raw texts.
    unused: Vec<(String, String, Why)>,
    faults: Vec<Fault>,
    warnings: Vec<String>,
}

impl Default for Gathered {
    fn default() -> Gathered {
        Gathered {
            built_in: built_in(),
            values: BTreeMap::new(),
            unused: Vec::new(),
            faults: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Gathered {
    /// Takes the file's own settings out, and notes the rest as unused or unknown.
    fn sort(&mut self, leaves: Vec<Leaf>) -> BTreeMap<String, String> {
        let mut own: BTreeMap<String, String> = BTreeMap::new();
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        for Leaf { key: written, text } in leaves {
            let key = long_form(&written);
            if text.is_none() && self.is_section(&key) {
                continue;
            }
            let text = text.unwrap_or_default();
            if let Some(again) = seen.insert(key.clone(), written.clone()) {
                self.faults.push(Fault::Twice { key: written, again });
            } else if self.built_in.contains_key(&key) {
                own.insert(key, text);
            } else {
                self.sort_foreign(key, text);
            }
        }
        own
    }

    /// Is `key` not a setting but the beginning of some?
    fn is_section(&self, key: &str) -> bool {
        let beginning = format!("{key}.");
        self.built_in.keys().any(|known| known.starts_with(&beginning))
            || foreign::why(&beginning).is_some()
    }

    fn sort_foreign(&mut self, key: String, text: String) {
        let ours = || self.built_in.keys().map(String::as_str);
        let slip = foreign::slip(&key, ours());
        match (foreign::why(&key), slip) {
            (Some(why), None) => self.unused.push((key, text, why)),
            (Some(_) | None, _) => {
                let nearest = slip.or_else(|| foreign::nearest(&key, ours()));
                let nearest = nearest.unwrap_or_default().to_owned();
                self.faults.push(Fault::UnknownKey { key, nearest });
            }
        }
    }

    /// Gives every key its text: from the file, else from the environment, else built in.
    fn settle(&mut self, mut own: BTreeMap<String, String>, file: Option<&Path>, env: &Env<'_>) {
        for (key, built_in_raw) in &self.built_in {
            let built_in = resolve(built_in_raw, &|_| None)
                .expect("built-in values need no variable: a test resolves them all")
                .text;
            let (raw, from) = match (own.remove(key), file) {
                (Some(raw), Some(path)) => (raw, Origin::File(path.to_owned())),
                (Some(_) | None, _) => (built_in_raw.clone(), Origin::BuiltIn),
            };
            self.warnings.extend(overruled(key, &raw, built_in_raw, &from, env));
            let given = match resolve(&raw, env) {
                Ok(resolved) => {
                    let variables = resolved.variables.join(", ");
                    let origin = if variables.is_empty() { from } else { Origin::Env(variables) };
                    Given { text: resolved.text, origin, built_in }
                }
                Err(fault) => {
                    self.faults.push(Fault::BadValue {
                        key: key.clone(),
                        value: shown(key, raw),
                        wanted: format!("a value that can be resolved: {fault}"),
                        origin: from.clone(),
                    });
                    Given { text: built_in.clone(), origin: Origin::BuiltIn, built_in }
                }
            };
            self.values.insert(key.clone(), given);
        }
    }

    /// One warning for all of TBMQ's keys that have no effect.
    fn unused_warning(&mut self) {
        let named = |wanted: Why| {
            let keys = self.unused.iter().filter(move |(_, _, why)| *why == wanted);
            keys.map(|(key, _, _)| key.as_str()).collect::<Vec<&str>>().join(", ")
        };
        let parts = [
            ("not in this version: ", named(Why::NotYet)),
            ("without meaning here: ", named(Why::Never)),
        ];
        let parts = parts.iter().filter(|(_, keys)| !keys.is_empty());
        let text = parts.map(|(head, keys)| format!("{head}{keys}")).collect::<Vec<String>>();
        if !text.is_empty() {
            self.warnings.push(format!("settings without effect; {}", text.join("; ")));
        }
    }

    fn finish(mut self) -> Result<Loaded, Faults> {
        let mut reader = Reader::new(&self.values);
        let config = rooms::read(&mut reader);
        self.faults.append(&mut reader.faults);
        self.warnings.append(&mut reader.warnings);
        if !self.faults.is_empty() {
            return Err(Faults(self.faults));
        }
        let changed = self.values.into_iter().filter(|(_, given)| given.text != given.built_in);
        let changed = changed
            .map(|(key, given)| {
                let value = shown(&key, given.text);
                Changed { key, value, origin: given.origin }
            })
            .collect();
        Ok(Loaded { config, warnings: self.warnings, changed })
    }
}

/// A variable that is set and has no effect, because the file gives the key a fixed value.
fn overruled(
    key: &str,
    raw: &str,
    built_in_raw: &str,
    from: &Origin,
    env: &Env<'_>,
) -> Option<String> {
    let Origin::File(path) = from else { return None };
    let name = variable(built_in_raw)?;
    let value = env(name)?;
    (variable(raw).is_none() && value != raw).then(|| {
        let (path, raw) = (path.display(), shown(key, raw.to_owned()));
        format!("{name} is set, but {path} gives {key} the fixed value {raw:?}, which holds")
    })
}

/// A value as it may be shown.
pub(super) fn shown(key: &str, value: String) -> String {
    if SECRETS.contains(&key) || key.ends_with("password") { SECRET.to_owned() } else { value }
}
