//! The retained values, sorted by topic, read page by page.
//!
//! The sort key is the topic with U+0000 for every `/`. A topic holds no U+0000 (MQTT-4.7.3-2) and
//! nothing sorts below it, so a topic and all that lies under it stand together: `a`, `a/b`,
//! `a/c`, then `a!`. A wildcard filter is read by skipping: at the first key that can't match, the
//! next key that could is worked out from the filter and sought, so `+/status` costs a few seeks
//! for each first level and never walks what lies beside.
//!
//! A page looks at a bounded number of keys even if none matches, and returns where to go on: no
//! reader holds the store for long, and a slow one holds nothing but a [`Cursor`]. Between pages
//! the store may change: what is set behind the cursor is not seen (the reader got it live), what
//! is set before it is.
//!
//! Pure: no Tokio, no lock; time comes in as a number.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// 0 means no limit. A value that would go beyond is refused and the old one stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainedLimits {
    pub count: usize,
    pub bytes: u64,
}

/// Why a value was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetainedFull {
    #[error("the limit on the number of retained messages is reached")]
    Count,
    #[error("the limit on the bytes of retained messages is reached")]
    Bytes,
}

/// Where a reader goes on: at this key or the next one there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(String);

#[derive(Debug)]
struct Kept<V> {
    value: V,
    bytes: u64,
    expires_at_ms: Option<u64>,
}

/// Topic → value, with sizes and expiry. Memory follows the number of topics, never the number of
/// updates (RET-14).
#[derive(Debug)]
pub struct Retained<V> {
    by_key: BTreeMap<Arc<str>, Kept<V>>,
    /// Those with an expiry, earliest first.
    due: BTreeSet<(u64, Arc<str>)>,
    bytes: u64,
    limits: RetainedLimits,
}

/// The effort a page may spend beyond the values it was asked for: a key it looks at costs 1, and
/// 1 more for every 64 bytes that key and filter both have, since walking levels takes time, too.
const SPARE_EFFORT: usize = 256;

fn key_of(topic: &str) -> String {
    topic.replace('/', "\0")
}

fn topic_of(key: &str) -> String {
    key.replace('\0', "/")
}

impl<V> Default for Retained<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> Retained<V> {
    /// An empty store without limits.
    pub fn new() -> Self {
        let limits = RetainedLimits::default();
        Self { by_key: BTreeMap::new(), due: BTreeSet::new(), bytes: 0, limits }
    }

    /// Holds later calls of [`Self::set`] to `limits`. What is kept already stays: limits lowered
    /// by a restart take nothing away that was acknowledged.
    pub fn limit(&mut self, limits: RetainedLimits) {
        self.limits = limits;
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Bytes of topics and values as the callers of [`Self::set`] reckoned them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets a topic's value and returns the old one. `bytes` is the value's size; the topic's is
    /// added. From `expires_at_ms` on it is not given out any more.
    pub fn set(
        &mut self,
        topic: &str,
        value: V,
        bytes: u64,
        expires_at_ms: Option<u64>,
    ) -> Result<Option<V>, RetainedFull> {
        let key = key_of(topic);
        let bytes = bytes + topic.len() as u64;
        let known = self.by_key.get_key_value(key.as_str());
        let (old_bytes, old_due) = known.map_or((0, None), |(_, k)| (k.bytes, k.expires_at_ms));
        if known.is_none() && self.limits.count > 0 && self.by_key.len() >= self.limits.count {
            return Err(RetainedFull::Count);
        }
        let total = self.bytes - old_bytes + bytes;
        // A smaller value for a known topic is always taken: it only makes room.
        if self.limits.bytes > 0 && total > self.limits.bytes && bytes > old_bytes {
            return Err(RetainedFull::Bytes);
        }
        let key: Arc<str> = known.map_or_else(|| Arc::from(key), |(key, _)| Arc::clone(key));
        self.bytes = total;
        if old_due != expires_at_ms {
            self.forget_due(old_due, &key);
            self.due.extend(expires_at_ms.map(|due| (due, Arc::clone(&key))));
        }
        let old = self.by_key.insert(key, Kept { value, bytes, expires_at_ms });
        Ok(old.map(|kept| kept.value))
    }

    pub fn remove(&mut self, topic: &str) -> Option<V> {
        let (key, kept) = self.by_key.remove_entry(key_of(topic).as_str())?;
        self.bytes -= kept.bytes;
        self.forget_due(kept.expires_at_ms, &key);
        Some(kept.value)
    }

    fn forget_due(&mut self, due: Option<u64>, key: &Arc<str>) {
        if let Some(due) = due {
            self.due.remove(&(due, Arc::clone(key)));
        }
    }

    /// The value of one topic, unless it has expired.
    pub fn get(&self, topic: &str, now_ms: u64) -> Option<&V> {
        let kept = self.by_key.get(key_of(topic).as_str())?;
        kept.lives(now_ms).then_some(&kept.value)
    }

    /// Bytes of a topic and its value, expired or not.
    pub fn bytes_of(&self, topic: &str) -> Option<u64> {
        self.by_key.get(key_of(topic).as_str()).map(|kept| kept.bytes)
    }

    /// When the next value expires.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Takes out up to `max` values that have expired, earliest first, and returns their topics.
    pub fn expire(&mut self, now_ms: u64, max: usize, stays: impl Fn(&str) -> bool) -> Vec<String> {
        let due = self.due.iter().take_while(|(due, _)| *due <= now_ms);
        let due = due.map(|(due, key)| (*due, Arc::clone(key), topic_of(key)));
        let due: Vec<_> = due.filter(|(_, _, topic)| !stays(topic)).take(max).collect();
        let remove = |(due, key, topic): (u64, Arc<str>, String)| {
            if let Some(kept) = self.by_key.remove(&key) {
                self.bytes -= kept.bytes;
            }
            self.due.remove(&(due, key));
            topic
        };
        due.into_iter().map(remove).collect()
    }

    /// Visits up to `max` values (at least one) whose topics match a plain filter, in key order,
    /// beginning at `from` (`None`: at the start). `visit` returns whether the page has room for
    /// more. `None` means that everything was read; a cursor may come back with nothing visited.
    pub fn page(
        &self,
        filter: &str,
        from: Option<&Cursor>,
        max: usize,
        now_ms: u64,
        mut visit: impl FnMut(&str, &V) -> bool,
    ) -> Option<Cursor> {
        let scan = Scan::new(filter);
        if scan.wild_at.is_none() {
            if let Some(value) = self.get(filter, now_ms) {
                visit(filter, value);
            }
            return None;
        }
        let mut target = from.map_or_else(|| scan.start(), |cursor| cursor.0.clone());
        let mut keys = self.from(&target);
        let mut left = max.max(1);
        let mut effort = max.saturating_add(SPARE_EFFORT);
        while effort > 0 {
            // The next key in line is often the one that is sought: a step is cheaper than a seek.
            let mut next = keys.next();
            if next.is_some_and(|(key, _)| **key < *target) {
                keys = self.from(&target);
                next = keys.next();
            }
            let (key, kept) = next?;
            effort = effort.saturating_sub(1 + key.len().min(filter.len()) / 64);
            match scan.step(key) {
                Step::Match if left == 0 => return Some(Cursor(String::from(&**key))),
                Step::Match => {
                    target.clear();
                    if kept.lives(now_ms) {
                        left -= 1;
                        if !visit(&topic_of(key), &kept.value) {
                            left = 0;
                        }
                    }
                }
                Step::Seek(to) => target = to,
                Step::End => return None,
            }
        }
        // Nothing more to spend: the cursor is where the next page has to look first.
        let (key, _) = keys.next()?;
        Some(Cursor(if **key < *target { target } else { String::from(&**key) }))
    }

    fn from(&self, key: &str) -> std::collections::btree_map::Range<'_, Arc<str>, Kept<V>> {
        self.by_key.range::<str, _>((Bound::Included(key), Bound::Unbounded))
    }
}

impl<V> Kept<V> {
    fn lives(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_none_or(|due| now_ms < due)
    }
}

/// What one key means for a filter.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Match,
    /// No match; no key before this one can match either.
    Seek(String),
    /// No match, and no later key can match.
    End,
}

/// A filter in the form of keys.
struct Scan {
    /// With U+0000 between the levels.
    filter: String,
    /// Where the first level with a wildcard begins.
    wild_at: Option<usize>,
}

/// Sorts right behind a level and everything under it.
const BEHIND: char = '\u{1}';

impl Scan {
    fn new(filter: &str) -> Self {
        let wild_at = filter.bytes().position(|byte| byte == b'+' || byte == b'#');
        Self { filter: key_of(filter), wild_at }
    }

    /// The lowest key that could match.
    fn start(&self) -> String {
        let mut start = String::new();
        push_literals(&mut start, &self.filter);
        start
    }

    fn step(&self, key: &str) -> Step {
        // Wildcards at the start never match `$` (MQTT-4.7.2-1), whose topics stand together.
        if self.wild_at == Some(0) && key.starts_with('$') {
            return Step::Seek(String::from("%"));
        }
        // Ends of the key's levels that stand at a `+`: where the search goes on when the levels
        // behind give no more matches. Only the last is needed, and it rises.
        let mut last_plus = None;
        let mut at = 0;
        let mut filter = Some(&*self.filter);
        while let Some(rest) = filter {
            let (level, below) = split_level(rest);
            if level == "#" {
                return Step::Match;
            }
            if at > key.len() {
                // The key ends too early: what could match lies under it.
                let mut to = format!("{key}\0");
                push_literals(&mut to, rest);
                return Step::Seek(to);
            }
            let (found, _) = split_level(&key[at..]);
            let end = at + found.len();
            if level == "+" {
                last_plus = Some(end);
            } else if found < level {
                let mut to = String::from(&key[..at]);
                push_literals(&mut to, rest);
                return Step::Seek(to);
            } else if found > level {
                return behind(key, last_plus);
            }
            at = end + 1;
            filter = below;
        }
        if at > key.len() { Step::Match } else { behind(key, last_plus) }
    }
}

/// Past everything that has the same levels up to the last one at a `+`.
fn behind(key: &str, last_plus: Option<usize>) -> Step {
    last_plus.map_or(Step::End, |end| {
        let mut to = String::from(&key[..end]);
        to.push(BEHIND);
        Step::Seek(to)
    })
}

fn split_level(text: &str) -> (&str, Option<&str>) {
    match text.split_once('\0') {
        Some((level, below)) => (level, Some(below)),
        None => (text, None),
    }
}

/// Appends the literal levels at the start of `rest`; ends so that the lowest key under them, or
/// they themselves if `#` or nothing follows, sorts at or behind the result.
fn push_literals(to: &mut String, rest: &str) {
    let mut levels = Some(rest);
    let mut first = true;
    while let Some(rest) = levels {
        let (level, below) = split_level(rest);
        if level == "#" {
            return;
        }
        if !first {
            to.push('\0');
        }
        if level == "+" {
            return;
        }
        to.push_str(level);
        first = false;
        levels = below;
    }
}
