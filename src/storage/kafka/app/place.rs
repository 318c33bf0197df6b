//! Where a client stands in its log: pure, no clock, no medium.
//!
//! A sequence is the offset of its record plus one. Records that another node had appended already
//! are passed over when they are read: of rising sources, one counts that is above all before it.
//! So what counts is a function of the log, and the same for every reader.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::mqtt::PacketId;
use crate::storage::kafka::format::{damaged, decode_state, encode_state};
use crate::storage::{IdRun, Position, QueueState, SourceId, StorageError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Everything below it is done with.
    floor: u64,
    /// The last source that counted below it.
    mark: Option<SourceId>,
    /// What was read from the floor on; `None`: nothing to deliver.
    window: VecDeque<Option<SourceId>>,
    /// Acknowledged, and not below the floor.
    acked: BTreeSet<u64>,
    received: BTreeSet<u64>,
    runs: VecDeque<IdRun>,
    told: u64,
    /// The cursor was told last, after every reservation: nothing above it was sent.
    exact: bool,
}

/// How it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    floor: u64,
    mark: Option<(u64, u32, u64, u32)>,
    acked: Vec<(u64, u64)>,
    received: Vec<u64>,
    runs: Vec<(u64, u16, u16)>,
    told: u64,
    exact: bool,
}

fn run_end(run: &IdRun) -> u64 {
    run.first_seq.saturating_add(u64::from(run.count))
}

impl Place {
    pub(super) fn new() -> Self {
        Self { floor: 1, ..Self::default() }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Whether the connection has said its last word.
    pub(super) fn is_let_go(&self) -> bool {
        self.exact
    }

    /// How many records from the floor to `end` are not acknowledged, those that do not count
    /// among them.
    pub(super) fn depth(&self, end: u64) -> u64 {
        let passed = self.window.iter().filter(|source| source.is_none()).count() as u64;
        end.saturating_sub(self.floor).saturating_sub(self.acked.len() as u64 + passed)
    }

    /// A record was read. `Some`: it is to be delivered; whether its PUBREC came.
    pub(super) fn read(&mut self, seq: u64, source: SourceId) -> Option<bool> {
        let at = seq.checked_sub(self.floor)? as usize;
        if at >= self.window.len() {
            // Offsets in between hold no record.
            self.window.resize(at, None);
            let last = self.window.iter().rev().find_map(|source| *source).or(self.mark);
            self.window.push_back(Some(source).filter(|_| counts(last, source)));
        }
        let counted = self.window.get(at).is_some_and(Option::is_some);
        let due = counted && !self.acked.contains(&seq);
        let received = self.received.contains(&seq);
        self.advance();
        due.then_some(received)
    }

    /// What was never read below `low` is gone; how many records that were.
    pub(super) fn lost_below(&mut self, low: u64) -> u64 {
        let mut lost = 0;
        while self.floor < low {
            self.window.pop_front();
            lost += u64::from(!self.acked.remove(&self.floor));
            self.floor += 1;
        }
        self.tidy();
        lost
    }

    /// Everything below `floor` was acknowledged, as somebody else knows.
    pub(super) fn done_below(&mut self, floor: u64) {
        self.lost_below(floor);
    }

    pub(super) fn ack(&mut self, seqs: &[u64], sent_below: u64) {
        for seq in seqs.iter().filter(|seq| **seq >= self.floor) {
            self.acked.insert(*seq);
        }
        self.told = self.told.max(sent_below);
        self.exact = seqs.is_empty();
        self.advance();
    }

    pub(super) fn received(&mut self, seqs: &[u64]) {
        let floor = self.floor;
        self.received.extend(seqs.iter().filter(|seq| **seq >= floor));
    }

    pub(super) fn reserve(&mut self, run: IdRun) {
        let known = self.runs.iter().any(|known| known.first_seq == run.first_seq);
        if run.count > 0 && !known && run_end(&run) > self.floor {
            self.runs.push_back(run);
            self.exact = false;
        }
    }

    fn advance(&mut self) {
        while let Some(front) = self.window.front() {
            if let Some(source) = *front {
                if !self.acked.remove(&self.floor) {
                    break;
                }
                self.mark = Some(source);
            }
            self.window.pop_front();
            self.floor += 1;
        }
        self.tidy();
    }

    fn tidy(&mut self) {
        let floor = self.floor;
        while self.runs.front().is_some_and(|run| run_end(run) <= floor) {
            self.runs.pop_front();
        }
        self.received = self.received.split_off(&floor);
    }

    pub(super) fn state(&self, incarnation: u64, end: u64) -> QueueState {
        let reserved = self.runs.back().map_or(0, run_end).min(end);
        let sent_below = if self.exact { self.told } else { self.told.max(reserved) };
        let runs = self.runs.iter().copied().collect();
        QueueState { incarnation, next_seq: end, sent_below, runs }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut acked: Vec<(u64, u64)> = Vec::new();
        for seq in &self.acked {
            match acked.last_mut() {
                Some((_, end)) if *end == *seq => *end = seq + 1,
                Some(_) | None => acked.push((*seq, seq + 1)),
            }
        }
        let mark = self.mark.map(|SourceId { incarnation, position, index }| {
            (incarnation, position.partition, position.offset, index)
        });
        let run = |run: &IdRun| (run.first_seq, run.first_id.get(), run.count);
        encode_state(&Written {
            floor: self.floor,
            mark,
            acked,
            received: self.received.iter().copied().collect(),
            runs: self.runs.iter().map(run).collect(),
            told: self.told,
            exact: self.exact,
        })
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, StorageError> {
        let written: Written = decode_state(value)?;
        let mark = written.mark.map(|(incarnation, partition, offset, index)| SourceId {
            incarnation,
            position: Position { partition, offset },
            index,
        });
        let run = |(first_seq, first_id, count)| {
            let first_id = PacketId::new(first_id).ok_or_else(|| damaged("a run of id 0"))?;
            Ok(IdRun { first_seq, first_id, count })
        };
        Ok(Self {
            floor: written.floor,
            mark,
            window: VecDeque::new(),
            acked: written.acked.into_iter().flat_map(|(from, to)| from..to).collect(),
            received: written.received.into_iter().collect(),
            runs: written.runs.into_iter().map(run).collect::<Result<_, StorageError>>()?,
            told: written.told,
            exact: written.exact,
        })
    }
}

/// Whether a record counts behind the last one that did.
fn counts(last: Option<SourceId>, source: SourceId) -> bool {
    last.is_none_or(|last| last.incarnation != source.incarnation || last < source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u64) -> SourceId {
        let position = Position { partition: 0, offset: number };
        SourceId { incarnation: 1, position, index: 0 }
    }

    /// APP-2: what is acknowledged in any order is not delivered again, nothing else is left out,
    /// and what was appended twice counts once, over a change of the node as well.
    #[test]
    fn a_place_goes_on_where_it_was() {
        let mut place = Place::new();
        let log = [1, 2, 3, 2, 3, 4, 5, 6];
        let due = |place: &mut Place| -> Vec<u64> {
            let from = place.floor();
            let read = (1..).zip(log).filter(|(seq, _)| *seq >= from);
            read.filter(|(seq, of)| place.read(*seq, source(*of)).is_some())
                .map(|(s, _)| s)
                .collect()
        };
        assert_eq!(due(&mut place), [1, 2, 3, 6, 7, 8]);
        assert_eq!(place.depth(9), 6);
        place.ack(&[7, 1, 2], 9);
        place.received(&[6]);
        let mut again = Place::decode(&place.encode()).expect("reads back");
        assert_eq!(again.floor(), 3);
        assert_eq!(again.depth(9), 5, "nobody has read yet what does not count");
        assert_eq!(due(&mut again), [3, 6, 8]);
        assert_eq!(again.read(6, source(4)), Some(true), "its PUBREC came");
        again.ack(&[3, 8, 6], 9);
        assert_eq!((again.floor(), again.depth(9)), (9, 0));
        let mut last = Place::decode(&again.encode()).expect("reads back");
        assert_eq!(last.read(9, source(6)), None, "it was there");
        assert_eq!(last.read(10, source(7)), Some(false));
    }

    /// APP-3: what retention took is told once.
    #[test]
    fn what_is_gone_is_counted() {
        let mut place = Place::new();
        (1..4).for_each(|seq| assert_eq!(place.read(seq, source(seq)), Some(false)));
        place.ack(&[2], 4);
        assert_eq!(place.lost_below(11), 9);
        assert_eq!((place.floor(), place.lost_below(11)), (11, 0));
    }

    /// DEV-8 in kind: ids that were reserved may have been used, unless the cursor was told last.
    #[test]
    fn reserved_ids_may_have_been_used() {
        let mut place = Place::new();
        let first_id = PacketId::MAX;
        place.reserve(IdRun { first_seq: 1, first_id, count: 10 });
        assert_eq!(place.state(7, 21).sent_below, 11);
        place.ack(&[], 4);
        let state = Place::decode(&place.encode()).expect("reads back").state(7, 21);
        assert_eq!((state.sent_below, state.next_seq, state.runs.len()), (4, 21, 1));
    }
}
