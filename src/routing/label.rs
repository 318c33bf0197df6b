//! Levels of filters and topics as bytes. `/` and the wildcards are ASCII, so cutting at them never
//! cuts a character, and comparing bytes is comparing texts.

use std::ops::Deref;

/// One or more levels. Short ones, which most are, lie within the node: reaching them costs no
/// second cache miss and no allocation.
#[derive(Debug)]
pub(super) enum Label {
    Short { length: u8, bytes: [u8; Self::SHORT] },
    Long(Box<[u8]>),
}

impl Label {
    const SHORT: usize = 22;

    pub(super) fn new(text: &[u8]) -> Self {
        if text.len() > Self::SHORT {
            return Label::Long(text.into());
        }
        let mut bytes = [0; Self::SHORT];
        bytes[..text.len()].copy_from_slice(text);
        Label::Short { length: text.len() as u8, bytes }
    }
}

impl Deref for Label {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Label::Short { length, bytes } => &bytes[..usize::from(*length)],
            Label::Long(text) => text,
        }
    }
}

pub(super) fn level_end(text: &[u8], at: usize) -> usize {
    text[at..].iter().position(|&byte| byte == b'/').map_or(text.len(), |length| at + length)
}

/// The level that begins at `at`.
pub(super) fn level_at(text: &[u8], at: usize) -> &[u8] {
    &text[at..level_end(text, at)]
}

/// How many bytes of whole levels two texts have in common at their start, which is at least a
/// level.
pub(super) fn common_levels(a: &[u8], b: &[u8]) -> usize {
    let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let ends = |text: &[u8]| text.len() == same || text[same] == b'/';
    if ends(a) && ends(b) {
        return same;
    }
    a[..same].iter().rposition(|&byte| byte == b'/').unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_any_length_give_back_their_bytes() {
        for length in [0, 1, 22, 23, 65_535] {
            let text = vec![b'x'; length];
            assert_eq!(*Label::new(&text), *text);
        }
    }

    /// TOP-03: an empty level is a level.
    #[test]
    fn whole_levels_are_compared() {
        let cases = [
            ("a/b", "a/b", 3),
            ("a/b", "a/bc", 1),
            ("a/b", "a/b/c", 3),
            ("/a", "/b", 0),
            ("a//", "a//b", 2),
            ("\u{e9}/x", "\u{e9}/y", 2),
        ];
        for (a, b, common) in cases {
            assert_eq!(common_levels(a.as_bytes(), b.as_bytes()), common, "{a} {b}");
            assert_eq!(common_levels(b.as_bytes(), a.as_bytes()), common, "{b} {a}");
        }
    }
}
