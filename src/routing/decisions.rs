//! Whom a shared subscription gave a message is decided once: a decision that puts a copy into a
//! durable queue is a record of the log before anything rests on it, so that a replay neither
//! decides again nor moves the sequences of a queue (INV-2).

use std::collections::{BTreeSet, HashMap};

use crate::storage::{Origin, Position};

/// An append that was left in doubt and done again: there may be two copies of one decision.
#[derive(Debug)]
struct Doubt {
    /// Where the copy stands that is surely there; a doubted one stands below.
    last: Position,
    /// The doubted one was there, and was dealt with.
    found: bool,
}

/// What was decided about messages that are still to be routed, or routed again.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    /// Of an earlier run, about messages behind its commit: bounded by how far dispatch lagged.
    taken: BTreeSet<Origin>,
    /// Several nodes decide: of every decision in the log, the first copy counts on each of them.
    /// Bounded by how far the slowest of them lags.
    pub(super) several: bool,
    seen: BTreeSet<Origin>,
    /// Bounded by what one failed write of the log held: forgotten as its copies go by.
    doubts: HashMap<Origin, Doubt>,
}

impl Decisions {
    /// As the log told: in its order, each with the place of its copy.
    pub(super) fn recovered(decided: Vec<(Position, Origin)>) -> Self {
        let mut decisions = Self::default();
        for (last, origin) in decided {
            if !decisions.taken.insert(origin) {
                decisions.doubt(origin, last);
            }
        }
        decisions
    }

    /// Whether an earlier run decided it.
    pub(super) fn is_taken(&self, origin: &Origin) -> bool {
        !self.taken.is_empty() && self.taken.contains(origin)
            || !self.seen.is_empty() && self.seen.contains(origin)
    }

    /// Messages below `position` will not come again.
    pub(super) fn passed(&mut self, position: Position) {
        while self.taken.first().is_some_and(|first| first.position < position) {
            self.taken.pop_first();
        }
    }

    /// Every node has decided everything below `position`, and no copy of that is still to come.
    pub(super) fn settled(&mut self, position: Option<u64>) {
        let Some(position) = position else { return };
        while self.seen.first().is_some_and(|first| first.position.offset < position) {
            self.seen.pop_first();
        }
    }

    /// A copy in doubt was appended again, at `last`.
    pub(super) fn doubt(&mut self, origin: Origin, last: Position) {
        self.doubts.insert(origin, Doubt { last, found: false });
    }

    /// Whether the copy at `place` is the first of its decision.
    pub(super) fn is_first(&mut self, origin: &Origin, place: Position) -> bool {
        if self.several {
            return self.seen.insert(*origin);
        }
        let Some(doubt) = self.doubts.get_mut(origin) else { return true };
        if place < doubt.last {
            // There may be several that were in doubt.
            return !std::mem::replace(&mut doubt.found, true);
        }
        let found = doubt.found;
        self.doubts.remove(origin);
        !found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u64) -> Position {
        Position { partition: 0, offset }
    }

    fn origin(offset: u64) -> Origin {
        Origin { position: at(offset), index: 0, group: 7 }
    }

    #[test]
    fn what_an_earlier_run_decided_is_known_until_it_was_passed() {
        let mut decisions = Decisions::recovered(vec![(at(20), origin(10)), (at(21), origin(11))]);
        assert!(decisions.is_taken(&origin(10)) && decisions.is_taken(&origin(11)));
        assert!(!decisions.is_taken(&origin(12)));
        assert!(!decisions.is_taken(&Origin { group: 8, ..origin(10) }), "another group's");
        decisions.passed(at(11));
        assert!(!decisions.is_taken(&origin(10)) && decisions.is_taken(&origin(11)));
    }

    #[test]
    fn a_copy_in_doubt_counts_once_whether_it_was_stored_or_not() {
        for stored in [vec![], vec![20], vec![20, 21]] {
            let mut decisions = Decisions::default();
            decisions.doubt(origin(10), at(30));
            let mut places = stored.clone();
            places.push(30);
            let firsts = places.iter().filter(|place| decisions.is_first(&origin(10), at(**place)));
            assert_eq!(firsts.count(), 1, "{stored:?}");
        }
        let twice = vec![(at(20), origin(10)), (at(30), origin(10)), (at(31), origin(12))];
        let mut decisions = Decisions::recovered(twice);
        assert!(
            decisions.is_first(&origin(10), at(20)) && !decisions.is_first(&origin(10), at(30))
        );
        assert!(decisions.is_first(&origin(12), at(31)));
    }
}
