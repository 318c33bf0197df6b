//! Buffered bytes of one connection against two marks (OUT-1): arithmetic, nothing else.

/// Over `high` the channel is non-writable; under `low` it is writable again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watermark {
    buffered: usize,
    high: usize,
    low: usize,
    writable: bool,
}

/// What a change of the buffered bytes crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crossing {
    None,
    /// It has just become non-writable.
    High,
    /// It has just become writable again.
    Low,
}

impl Watermark {
    /// `low <= high`, both above 0: the configuration checks it.
    pub(super) fn new(high: usize, low: usize) -> Self {
        Self { buffered: 0, high, low, writable: true }
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Bytes that were queued and have not left for the kernel.
    pub(super) fn buffered(&self) -> usize {
        self.buffered
    }

    #[must_use]
    pub(super) fn queued(&mut self, bytes: usize) -> Crossing {
        self.buffered = self.buffered.saturating_add(bytes);
        if self.writable && self.buffered > self.high {
            self.writable = false;
            return Crossing::High;
        }
        Crossing::None
    }

    #[must_use]
    pub(super) fn left(&mut self, bytes: usize) -> Crossing {
        self.buffered = self.buffered.saturating_sub(bytes);
        // With equal marks, "under low" must be reachable from "over high": at the mark counts.
        if !self.writable && (self.buffered < self.low || self.buffered == 0) {
            self.writable = true;
            return Crossing::Low;
        }
        Crossing::None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// OUT-1: over high non-writable, under low writable.
    #[test]
    fn the_marks_are_crossed_where_they_say() {
        let mut marks = Watermark::new(100, 50);
        assert_eq!(marks.queued(100), Crossing::None);
        assert_eq!(marks.queued(1), Crossing::High);
        assert_eq!(marks.left(51), Crossing::None);
        assert!(!marks.is_writable());
        assert_eq!(marks.left(1), Crossing::Low);
        assert!(marks.is_writable());
    }

    proptest! {
        /// OUT-1, OUT-3: crossings alternate, and an emptied channel is always writable.
        #[test]
        fn crossings_alternate(
            high in 1usize..500,
            low in 1usize..500,
            steps in prop::collection::vec((any::<bool>(), 0usize..300), 0..200),
        ) {
            let low = low.min(high);
            let mut marks = Watermark::new(high, low);
            let (mut buffered, mut writable) = (0usize, true);
            for (queue, bytes) in steps {
                let crossing = if queue {
                    buffered += bytes;
                    marks.queued(bytes)
                } else {
                    let bytes = bytes.min(buffered);
                    buffered -= bytes;
                    marks.left(bytes)
                };
                match crossing {
                    Crossing::None => {}
                    Crossing::High => {
                        prop_assert!(writable && buffered > high);
                        writable = false;
                    }
                    Crossing::Low => {
                        prop_assert!(!writable && buffered <= low);
                        writable = true;
                    }
                }
                prop_assert_eq!(marks.is_writable(), writable);
                prop_assert_eq!(marks.buffered(), buffered);
                prop_assert!(writable || buffered > 0);
            }
        }
    }
}
