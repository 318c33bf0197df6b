//! Checks one stream, from one publisher to one subscriber: each number once, in order.

use std::collections::VecDeque;

/// Gaps kept per stream. When full, the oldest gap is given up: its numbers stay lost even if
/// they come later, and then count as duplicates. A stream with so many holes has failed anyway.
const GAPS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The next number, or one after a gap (lost or still to come; the totals will tell).
    InOrder,
    /// Seen for the first time, but after a later one: an order fault.
    Late,
    /// Seen before.
    Repeat,
}

/// What has been seen of one stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    next: u64,
    /// Numbers below `next` not seen yet, as ascending [from, to) ranges.
    gaps: VecDeque<(u64, u64)>,
}

impl Stream {
    #[inline]
    pub(super) fn observe(&mut self, sequence: u64) -> Verdict {
        if sequence == self.next {
            self.next += 1;
            return Verdict::InOrder;
        }
        self.observe_jump(sequence)
    }

    #[cold]
    fn observe_jump(&mut self, sequence: u64) -> Verdict {
        if sequence > self.next {
            if self.gaps.len() == GAPS_MAX {
                self.gaps.pop_front();
            }
            self.gaps.push_back((self.next, sequence));
            self.next = sequence + 1;
            return Verdict::InOrder;
        }
        let at = self.gaps.partition_point(|gap| gap.1 <= sequence);
        let Some(&(from, to)) = self.gaps.get(at).filter(|gap| gap.0 <= sequence) else {
            return Verdict::Repeat;
        };
        match (from == sequence, to == sequence + 1) {
            (true, true) => {
                self.gaps.remove(at);
            }
            (true, false) => self.gaps[at].0 += 1,
            (false, true) => self.gaps[at].1 -= 1,
            (false, false) => {
                self.gaps[at].1 = sequence;
                self.gaps.insert(at + 1, (sequence + 1, to));
            }
        }
        Verdict::Late
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, proptest};

    use super::*;

    fn judge(numbers: &[u64]) -> Vec<Verdict> {
        let mut stream = Stream::default();
        numbers.iter().map(|&number| stream.observe(number)).collect()
    }

    #[test]
    fn ascending_numbers_are_in_order_and_a_gap_alone_is_not_an_order_fault() {
        assert_eq!(judge(&[0, 1, 2, 7, 8]), [Verdict::InOrder; 5]);
    }

    #[test]
    fn a_number_that_fills_a_gap_is_late_once_and_then_a_repeat() {
        let seen = judge(&[0, 4, 2, 2, 1, 3, 3, 0, 5]);
        let (o, l, r) = (Verdict::InOrder, Verdict::Late, Verdict::Repeat);
        assert_eq!(seen, [o, o, l, r, l, l, r, r, o]);
    }

    #[test]
    fn a_stream_full_of_holes_stays_bounded() {
        let mut stream = Stream::default();
        for number in 0..10 * GAPS_MAX as u64 {
            stream.observe(2 * number);
        }
        assert_eq!(stream.gaps.len(), GAPS_MAX);
        assert_eq!(stream.observe(1), Verdict::Repeat);
    }

    proptest! {
        /// However the numbers come, the first sight of each counts once and the rest repeat.
        #[test]
        fn every_number_counts_exactly_once(
            numbers in prop::collection::vec(0_u64..60, 0..200),
        ) {
            let mut stream = Stream::default();
            let mut seen = std::collections::BTreeSet::new();
            for number in numbers {
                let highest = seen.last().copied();
                let fresh = seen.insert(number);
                let want = match (fresh, highest.is_some_and(|top| number < top)) {
                    (false, _) => Verdict::Repeat,
                    (true, true) => Verdict::Late,
                    (true, false) => Verdict::InOrder,
                };
                assert_eq!(stream.observe(number), want);
            }
        }
    }
}
