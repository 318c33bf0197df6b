//! Topic names and filters (MQTT 5 section 4.7), checked once, byte-exact ever after.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Why a string is no topic name or filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    #[error("is empty (MQTT-4.7.3-1)")]
    Empty,
    #[error("holds U+0000 (MQTT-4.7.3-2)")]
    Nul,
    #[error("is longer than 65 535 bytes (MQTT-4.7.3-3)")]
    TooLong,
    #[error("a topic name holds '+' or '#' (MQTT-3.3.2-2)")]
    Wildcard,
    #[error("'#' must stand alone on the last level (MQTT-4.7.1-1)")]
    MultiLevel,
    #[error("'+' must fill its level (MQTT-4.7.1-2)")]
    SingleLevel,
    #[error("a share needs a name without '/', '+', '#', and a filter (MQTT-4.8.2-1, -2)")]
    Share,
}

fn check_text(text: &str) -> Result<(), TopicError> {
    if text.is_empty() {
        return Err(TopicError::Empty);
    }
    if text.len() > usize::from(u16::MAX) {
        return Err(TopicError::TooLong);
    }
    if text.as_bytes().contains(&0) { Err(TopicError::Nul) } else { Ok(()) }
}

/// Checks that `text` may stand in a PUBLISH; what decoding calls without making a value.
pub fn topic_str(text: &str) -> Result<&str, TopicError> {
    check_text(text)?;
    if text.bytes().any(|b| b == b'+' || b == b'#') {
        return Err(TopicError::Wildcard);
    }
    Ok(text)
}

macro_rules! text_newtype {
    ($name:ident) => {
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

/// A topic name: no wildcards.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(Arc<str>);
text_newtype!(TopicName);

impl TopicName {
    pub fn new(text: &str) -> Result<Self, TopicError> {
        Ok(Self(Arc::from(topic_str(text)?)))
    }
}

/// The group part of `$share/<group>/<filter>`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShareName(Arc<str>);
text_newtype!(ShareName);

/// A topic filter as the client wrote it, `$share/…` included; equality is exact
/// (MQTT-3.10.4-1), and a shared filter is never equal to its plain part.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicFilter(Arc<str>);
text_newtype!(TopicFilter);

const SHARE: &str = "$share/";

impl TopicFilter {
    pub fn new(text: &str) -> Result<Self, TopicError> {
        check_text(text)?;
        let plain = match text.strip_prefix(SHARE) {
            None if text == "$share" => return Err(TopicError::Share),
            None => text,
            Some(rest) => {
                let (group, filter) = rest.split_once('/').ok_or(TopicError::Share)?;
                let bad = group.bytes().any(|b| b == b'+' || b == b'#');
                if group.is_empty() || bad || filter.is_empty() {
                    return Err(TopicError::Share);
                }
                filter
            }
        };
        check_wildcards(plain)?;
        Ok(Self(Arc::from(text)))
    }

    /// The group name, when this is a shared subscription (MQTT 5 section 4.8.2).
    pub fn share_name(&self) -> Option<ShareName> {
        let (group, _) = self.0.strip_prefix(SHARE)?.split_once('/')?;
        Some(ShareName(Arc::from(group)))
    }

    pub fn is_shared(&self) -> bool {
        self.0.starts_with(SHARE)
    }

    /// The part that is matched against topics.
    pub fn plain(&self) -> &str {
        let rest = self.0.strip_prefix(SHARE).and_then(|rest| rest.split_once('/'));
        rest.map_or(&*self.0, |(_, filter)| filter)
    }
}

fn check_wildcards(filter: &str) -> Result<(), TopicError> {
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return Err(TopicError::MultiLevel);
        }
        if level.contains('+') && level != "+" {
            return Err(TopicError::SingleLevel);
        }
    }
    Ok(())
}

/// The reference matcher (MQTT 5 section 4.7): the trie and the retained store are tested
/// against it. `filter` is a plain one.
pub fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut topic_levels = topic.split('/');
    let mut filter_levels = filter.split('/');
    loop {
        match (filter_levels.next(), topic_levels.next()) {
            (Some("#"), _) => return true,
            (Some("+"), Some(_)) => {}
            (Some(f), Some(t)) if f == t => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TOP-01, TOP-02, TOP-03: wildcards, parents, empty levels, `$`.
    #[test]
    fn the_matcher_follows_section_4_7() {
        let yes = [
            ("a/b/#", "a/b"),
            ("+/#", "a"),
            ("/#", "/"),
            ("/#", "/x"),
            ("+", "a"),
            ("+/+", "/a"),
            ("/+", "/a"),
            ("a/+/b", "a//b"),
            ("a/+", "a/"),
            ("#", "a/b/c"),
            ("$SYS/#", "$SYS/x"),
            ("$SYS/#", "$SYS"),
            ("a", "a"),
            ("+/+/+", "//"),
            ("a//b", "a//b"),
        ];
        let no = [
            ("+", "/a"),
            ("#", "$SYS/x"),
            ("+/x", "$SYS/x"),
            ("+/#", "$SYS/x"),
            ("a/+", "a"),
            ("a/b", "a/b/c"),
            ("a//b", "a/b"),
            ("a", "A"),
            ("a/#", "ab"),
            ("/#", "a"),
        ];
        for (filter, topic) in yes {
            assert!(matches(filter, topic), "{filter} must match {topic}");
        }
        for (filter, topic) in no {
            assert!(!matches(filter, topic), "{filter} must not match {topic}");
        }
    }

    #[test]
    fn filters_are_checked() {
        let good = ["a", "#", "+", "a/#", "+/+", "/", "//", "$SYS/#", "$share/g/a", "$share/g/#"];
        for text in good {
            assert!(TopicFilter::new(text).is_ok(), "{text}");
        }
        let bad = [
            "",
            "a#",
            "a/#/b",
            "+a",
            "a+/b",
            "$share",
            "$share/g",
            "$share/g/",
            "$share//a",
            "$share/+/a",
            "$share/g#/a",
            "a\0b",
        ];
        for text in bad {
            assert!(TopicFilter::new(text).is_err(), "{text}");
        }
        assert_eq!(TopicFilter::new("a/b+"), Err(TopicError::SingleLevel));
        assert_eq!(TopicFilter::new("$share//a"), Err(TopicError::Share));
    }

    #[test]
    fn a_share_splits_into_name_and_filter() {
        let filter = TopicFilter::new("$share/g/a/+").expect("valid");
        assert_eq!(filter.share_name().expect("shared").as_str(), "g");
        assert_eq!(filter.plain(), "a/+");
        assert!(TopicFilter::new("$shared/x").expect("plain").share_name().is_none());
    }
}
