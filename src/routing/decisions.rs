//! Whom a shared subscription gave a message is decided once, and so is which copies the limit of
//! durable queues refuses: such a decision is a record of the log before anything rests on it, so
//! that a replay neither decides again nor moves the sequences of a queue (INV-2).
//!
//! A refusal is a copy addressed to [`nobody`]. Its origin names the group that picked the
//! recipient, or where none did, the recipient itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::rooms::Takings;
use crate::mqtt::ClientId;
use crate::storage::{Origin, Position, QueueKey, Source, Taken};

/// To whom a refused copy goes: no group has an empty name.
pub(super) fn nobody() -> QueueKey {
    QueueKey::Group(Arc::from(""))
}

pub(super) fn is_nobody(queue: &QueueKey) -> bool {
    matches!(queue, QueueKey::Group(name) if name.is_empty())
}

/// What names a recipient in an origin, over restarts and nodes; groups are hashed without a seed.
pub(super) fn recipient(client_id: &ClientId) -> u64 {
    xxh3_64_with_seed(client_id.as_str().as_bytes(), 1)
}

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
    /// Copies that this node has refused, with their topics, until the refusal comes by: bounded by
    /// what one batch held.
    pub(super) refused: HashMap<Origin, Box<str>>,
    /// Bounded by what one failed write of the log held: forgotten as its copies go by.
    doubts: HashMap<Origin, Doubt>,
    takings: Takings,
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

    /// Whether anything is decided that may still come.
    pub(super) fn knows_any(&self) -> bool {
        !self.taken.is_empty() || !self.seen.is_empty()
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
        self.takings.settled(position);
        while self.seen.first().is_some_and(|first| first.position.offset < position) {
            self.seen.pop_first();
        }
    }

    /// A copy in doubt was appended again, at `last`.
    pub(super) fn doubt(&mut self, origin: Origin, last: Position) {
        self.doubts.insert(origin, Doubt { last, found: false });
    }

    /// Whether this is the first record that takes an entry from its queue.
    pub(super) fn takes(&mut self, taken: &Taken, place: Position) -> bool {
        let Source { queue, incarnation, .. } = &*taken.from;
        let kind = match queue {
            QueueKey::Client(_) => 1,
            QueueKey::Group(_) => 2,
            QueueKey::Application(_) => 3,
            QueueKey::Shared(_) => 4,
        };
        let name = xxh3_64_with_seed(queue.name().as_bytes(), incarnation.rotate_left(3) ^ kind);
        self.takings.is_first(name, taken.seq, place)
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
    fn a_refusal_is_no_groups_decision() {
        let refused = Origin { group: recipient(&ClientId::new("$share/g/t")), ..origin(10) };
        let mut decisions = Decisions::recovered(vec![(at(20), refused)]);
        let group = xxhash_rust::xxh3::xxh3_64(b"$share/g/t");
        assert!(decisions.knows_any() && decisions.is_taken(&refused));
        assert!(!decisions.is_taken(&Origin { group, ..refused }), "a filter of that name");
        assert!(!decisions.is_taken(&Origin { index: 1, ..refused }), "the next message");
        assert!(is_nobody(&nobody()) && !is_nobody(&QueueKey::Group(Arc::from("g"))));
        decisions.passed(at(11));
        assert!(!decisions.knows_any());
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
