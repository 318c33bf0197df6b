//! Topic aliases on the way out (MQTT 5 section 3.3.2.3.4): given once per topic, never moved.

use std::collections::HashMap;

/// How a topic goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aliased {
    /// As it is.
    No,
    /// With its text, and this alias from now on.
    First(u16),
    /// The alias alone.
    Known(u16),
}

/// At most `max` entries (the lesser of the client's Topic Alias Maximum and ours); when full,
/// further topics go out as they are (MEM-07).
#[derive(Debug)]
pub(super) struct Aliases {
    max: u16,
    topic_bytes_min: usize,
    known: HashMap<Box<str>, u16, ahash::RandomState>,
}

impl Aliases {
    /// `None` when no alias may be used (MQTT-3.1.2-27).
    pub(super) fn new(max: u16, topic_bytes_min: usize) -> Option<Box<Self>> {
        let known = HashMap::default();
        (max > 0).then(|| Box::new(Self { max, topic_bytes_min, known }))
    }

    /// How `topic` is to go out; remember it with [`Self::remember`] once its frame is queued.
    pub(super) fn look_up(&self, topic: &str) -> Aliased {
        if topic.len() < self.topic_bytes_min {
            return Aliased::No;
        }
        match self.known.get(topic) {
            Some(alias) => Aliased::Known(*alias),
            None if self.known.len() < usize::from(self.max) => {
                Aliased::First(self.known.len() as u16 + 1)
            }
            None => Aliased::No,
        }
    }

    /// The frame that introduces the alias was queued.
    pub(super) fn remember(&mut self, topic: &str, alias: u16) {
        self.known.insert(topic.into(), alias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PRP-06, MEM-07: never above the maximum, whatever the number of topics.
    #[test]
    fn aliases_stop_at_the_maximum() {
        let mut aliases = Aliases::new(2, 3).expect("allowed");
        assert_eq!(aliases.look_up("ab"), Aliased::No);
        assert_eq!(aliases.look_up("abc"), Aliased::First(1));
        aliases.remember("abc", 1);
        assert_eq!(aliases.look_up("abc"), Aliased::Known(1));
        aliases.remember("abd", 2);
        assert_eq!(aliases.look_up("abe"), Aliased::No);
        assert!(Aliases::new(0, 3).is_none());
    }
}
