//! A set of sequences kept as ranges: what of a queue is not acknowledged. Acks come mostly in
//! order, so it is mostly one range, whose ends move.

use std::collections::VecDeque;

/// Half-open ranges, rising, never touching each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    ranges: VecDeque<(u64, u64)>,
    len: u64,
}

impl Ranges {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.ranges.front().map(|range| range.0)
    }

    /// Adds `count` sequences from `start`, which lies above all others.
    pub(super) fn extend(&mut self, start: u64, count: u64) {
        debug_assert!(self.ranges.back().is_none_or(|last| last.1 <= start));
        if count == 0 {
            return;
        }
        self.len += count;
        match self.ranges.back_mut() {
            Some(last) if last.1 == start => last.1 = start + count,
            Some(_) | None => self.ranges.push_back((start, start + count)),
        }
    }

    /// The range that holds `seq` or, failing that, the first one above it.
    fn at_or_above(&self, seq: u64) -> usize {
        match self.ranges.front() {
            Some(first) if seq < first.1 => 0,
            Some(_) | None => self.ranges.partition_point(|range| range.1 <= seq),
        }
    }

    pub(super) fn contains(&self, seq: u64) -> bool {
        self.ranges.get(self.at_or_above(seq)).is_some_and(|range| range.0 <= seq)
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, seq: u64) -> bool {
        let at = self.at_or_above(seq);
        let Some(range) = self.ranges.get_mut(at).filter(|range| range.0 <= seq) else {
            return false;
        };
        self.len -= 1;
        let (start, end) = *range;
        match (seq == start, seq + 1 == end) {
            (true, true) => {
                self.ranges.remove(at);
            }
            (true, false) => range.0 = seq + 1,
            (false, true) => range.1 = seq,
            (false, false) => {
                range.1 = seq;
                self.ranges.insert(at + 1, (seq + 1, end));
            }
        }
        true
    }

    /// The sequences above `after`, rising.
    pub(super) fn above(&self, after: u64) -> impl Iterator<Item = u64> + '_ {
        let from = after.saturating_add(1);
        let at = self.at_or_above(from);
        self.ranges.range(at..).flat_map(move |range| range.0.max(from)..range.1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::Ranges;

    proptest! {
        /// DEV-8: whatever the order of acks, the set is what a plain set would be.
        #[test]
        fn ranges_agree_with_a_plain_set(
            steps in prop::collection::vec((any::<bool>(), 0_u64..40), 1..120)
        ) {
            let (mut ranges, mut plain, mut next) = (Ranges::default(), BTreeSet::new(), 1);
            for (add, number) in steps {
                if add {
                    // Sequences that were trimmed at once leave a gap.
                    let start = next + number % 3;
                    ranges.extend(start, number % 7);
                    plain.extend(start..start + number % 7);
                    next = start + number % 7;
                } else {
                    prop_assert_eq!(ranges.remove(number), plain.remove(&number));
                }
                prop_assert_eq!(ranges.len(), plain.len() as u64);
                prop_assert_eq!(ranges.first(), plain.first().copied());
                prop_assert_eq!(ranges.contains(number), plain.contains(&number));
                let above: Vec<u64> = ranges.above(number).collect();
                let plain_above: Vec<u64> = plain.range(number + 1..).copied().collect();
                prop_assert_eq!(above, plain_above);
            }
        }
    }
}
