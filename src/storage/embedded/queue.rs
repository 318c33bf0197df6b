//! One queue as a plain state machine: no lock, no clock, no medium.
//!
//! An entry is *hot* while its message is held in memory and *cold* when only the projection has
//! it. `live` says which sequences are not acknowledged, hot or cold. Entries are stored by a
//! checkpoint; what is acknowledged earlier is never written.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::extents::{Bound, Extents};
use super::ranges::Ranges;
use crate::storage::{Appended, IdRun, Position, QueueEntry, QueueState, QueuedMessage, SourceId};

/// How many trimmed entries are remembered because they may still be acknowledged: as many as can
/// be in flight. Above it the oldest count as lost.
const TRIMMED: usize = 65_535;
/// What an entry costs beside the message it holds.
const ENTRY_BYTES: usize = 96;

/// What a record needs beside topic, properties and payload.
const RECORD_BYTES: u64 = 32;

/// The last source taken of one partition of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) last: SourceId,
}

/// What is written of a queue beside its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueMeta {
    /// Where its open frame stands: unique, and the prefix of its entries' keys.
    pub(super) number: u64,
    pub(super) incarnation: u64,
    pub(super) next_seq: u64,
    /// The sender's cursor as last told.
    pub(super) told: u64,
    /// The cursor was told last, after every reservation: nothing above it was sent.
    pub(super) exact: bool,
    pub(super) marks: Vec<Mark>,
    pub(super) runs: VecDeque<IdRun>,
    pub(super) live: Ranges,
    /// QoS 2 entries whose PUBREC is durable; also for sequences that a rollback took, until the
    /// replay brings them back.
    pub(super) received: BTreeSet<u64>,
    /// No stored entry points below this offset of the log.
    pub(super) pointer_floor: u64,
    /// How many bytes lie where; kept where a retention by size bounds the queue.
    pub(super) extents: Extents,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) meta: QueueMeta,
    /// Messages in memory: the sequences from `hot_first` to `next_seq`.
    hot: VecDeque<QueueEntry>,
    hot_first: u64,
    hot_bytes: usize,
    /// Below it, entries may be in the projection: their acknowledgement must delete there.
    written_below: u64,
    /// Below it, entries surely are in the projection.
    stored_below: u64,
    /// The first entry that is owed according to the projection.
    stored_floor: u64,
    /// Acknowledged, but perhaps still in the projection.
    deletes: Vec<u64>,
    /// Trimmed while they may have been in flight: lost only if they are never acknowledged.
    trimmed: BTreeSet<u64>,
    /// What a crash may have hidden: everything in a reserved run may have been sent.
    sent_floor: u64,
    /// It differs from the projection.
    pub(super) dirty: bool,
    /// A removal is on its way through the log.
    pub(super) closing: bool,
}

/// What a change did, for the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// Bytes of messages held in memory: more or less.
    pub(super) hot: isize,
    /// Entries lost to the limit.
    pub(super) dropped: u64,
}

/// Room for so many messages stays with a queue that has none in memory.
const HOT_KEPT: usize = 4096;

fn hot_cost(entry: &QueueEntry) -> usize {
    let batch = entry.message.batch();
    // The batch is held as a whole; its messages share the cost.
    ENTRY_BYTES + batch.body().len() / batch.len().max(1)
}

/// What an entry counts under a retention by size: as a record of its own would.
fn size(entry: &QueueEntry) -> u64 {
    let view = entry.message.view();
    (view.topic.len() + view.properties.len() + view.payload.len()) as u64 + RECORD_BYTES
}

fn run_end(run: &IdRun) -> u64 {
    run.first_seq.saturating_add(u64::from(run.count))
}

impl Queue {
    pub(super) fn new(number: u64, incarnation: u64) -> Self {
        let meta = QueueMeta {
            number,
            incarnation,
            next_seq: 1,
            pointer_floor: u64::MAX,
            ..QueueMeta::default()
        };
        Self::from_meta(meta)
    }

    /// As found in the projection: everything is cold.
    pub(super) fn from_meta(meta: QueueMeta) -> Self {
        let next = meta.next_seq;
        let stored_floor = meta.live.first().unwrap_or(next);
        Self {
            meta,
            hot: VecDeque::new(),
            hot_first: next,
            hot_bytes: 0,
            written_below: next,
            stored_below: next,
            stored_floor,
            deletes: Vec::new(),
            trimmed: BTreeSet::new(),
            sent_floor: 0,
            dirty: false,
            closing: false,
        }
    }

    /// After a crash nobody knows how far the sender got within the runs it reserved. `true`: the
    /// projection says otherwise, and a later orderly end must not make it true again.
    pub(super) fn recovered(&mut self) -> bool {
        self.sent_floor = self.meta.runs.back().map_or(0, run_end);
        std::mem::replace(&mut self.meta.exact, false)
    }

    pub(super) fn depth(&self) -> u64 {
        self.meta.live.len()
    }

    pub(super) fn stored_floor(&self) -> u64 {
        self.stored_floor
    }

    pub(super) fn hot_bytes(&self) -> usize {
        self.hot_bytes
    }

    /// The first sequence that is not acknowledged, or the next one to come.
    fn floor(&self) -> u64 {
        self.meta.live.first().unwrap_or(self.meta.next_seq)
    }

    // === append ===

    /// Takes what is new of a run. The caller has filled in the expiry.
    pub(super) fn append(
        &mut self,
        mut entries: Vec<QueueEntry>,
        bound: Bound,
    ) -> (Appended, Effect) {
        let skipped = self.skip(&entries);
        let first_seq = self.meta.next_seq;
        let mut effect = Effect::default();
        if let Some(last) = entries.last().filter(|_| skipped < entries.len()) {
            self.mark(last.source);
            let count = (entries.len() - skipped) as u64;
            let cost: usize = entries[skipped..].iter().map(hot_cost).sum();
            self.hot.extend(entries.drain(skipped..));
            self.hot_bytes += cost;
            effect.hot += cost as isize;
            self.meta.live.extend(first_seq, count);
            self.meta.next_seq += count;
            match bound {
                Bound::Messages(most) => {
                    while self.meta.live.len() > most && self.trim(u64::MAX, &mut effect) {}
                }
                Bound::Bytes(most) => {
                    let (first, hot) = (first_seq - self.hot_first, &self.hot);
                    let sizes = hot.iter().skip(first as usize).map(size);
                    self.meta.extents.add(first_seq, sizes, most);
                    while let Some(end) = self.meta.extents.over(most) {
                        while self.trim(end, &mut effect) {}
                    }
                }
            }
        }
        (Appended::Taken { first_seq, skipped }, effect)
    }

    fn skip(&self, entries: &[QueueEntry]) -> usize {
        let Some(first) = entries.first() else { return 0 };
        match self.meta.marks.iter().find(|mark| same_partition(&mark.last, &first.source)) {
            Some(mark) => entries.partition_point(|entry| entry.source <= mark.last),
            None => 0,
        }
    }

    fn mark(&mut self, last: SourceId) {
        let known = self.meta.marks.iter_mut().find(|mark| same_partition(&mark.last, &last));
        match known {
            Some(mark) => mark.last = last,
            None => self.meta.marks.push(Mark { last }),
        }
    }

    /// DEV-5: the oldest goes first, but never one whose PUBREC came: its exchange must end.
    /// `false`: there is none below `end`.
    fn trim(&mut self, end: u64, effect: &mut Effect) -> bool {
        let received = &self.meta.received;
        let mut below = self.meta.live.above(0).take_while(|seq| *seq < end);
        let oldest = below.find(|seq| !received.contains(seq));
        drop(below);
        let Some(seq) = oldest else { return false };
        let in_flight =
            self.meta.runs.iter().any(|run| (run.first_seq..run_end(run)).contains(&seq));
        if in_flight {
            self.trimmed.insert(seq);
            if self.trimmed.len() > TRIMMED {
                self.trimmed.pop_first();
                effect.dropped += 1;
            }
        } else {
            effect.dropped += 1;
        }
        self.forget(seq, effect);
        true
    }

    fn forget(&mut self, seq: u64, effect: &mut Effect) -> bool {
        if !self.meta.live.remove(seq) {
            return false;
        }
        if seq < self.written_below {
            self.deletes.push(seq);
        }
        self.drop_hot_below(self.floor(), effect);
        true
    }

    fn drop_hot_below(&mut self, seq: u64, effect: &mut Effect) {
        while self.hot_first < seq {
            let Some(entry) = self.hot.pop_front() else { break };
            let cost = hot_cost(&entry);
            self.hot_first += 1;
            self.hot_bytes -= cost;
            effect.hot -= cost as isize;
        }
        if self.hot.is_empty() {
            self.hot_first = self.meta.next_seq;
            if self.hot.capacity() > HOT_KEPT {
                // A backlog that went to the projection leaves nothing here.
                self.hot = VecDeque::new();
            }
        }
    }

    // === the reader's side ===

    pub(super) fn ack(&mut self, seqs: &[u64], sent_below: u64) -> Effect {
        let mut effect = Effect::default();
        for &seq in seqs {
            if self.forget(seq, &mut effect) {
                self.meta.received.remove(&seq);
            } else {
                self.trimmed.remove(&seq);
            }
        }
        self.meta.told = self.meta.told.max(sent_below);
        self.meta.exact = seqs.is_empty();
        self.tidy();
        effect
    }

    /// They are in another queue by now: the sender's cursor stays.
    pub(super) fn take_out(&mut self, seqs: &[u64]) -> Effect {
        let mut effect = Effect::default();
        for &seq in seqs {
            self.forget(seq, &mut effect);
        }
        self.tidy();
        effect
    }

    /// Forgets runs and marks that cover nothing any more.
    fn tidy(&mut self) {
        let floor = self.floor();
        self.meta.extents.forget_below(floor);
        while self.meta.runs.front().is_some_and(|run| run_end(run) <= floor) {
            self.meta.runs.pop_front();
        }
        if self.meta.received.first().is_some_and(|seq| *seq < floor) {
            self.meta.received = self.meta.received.split_off(&floor);
        }
    }

    pub(super) fn received(&mut self, seqs: &[u64]) {
        let (next, live) = (self.meta.next_seq, &self.meta.live);
        // What a rollback took comes back under the same sequence, and is marked already.
        let owed = seqs.iter().copied().filter(|seq| *seq >= next || live.contains(*seq));
        self.meta.received.extend(owed);
    }

    pub(super) fn reserve(&mut self, run: IdRun) {
        let known = self.meta.runs.iter().any(|known| known.first_seq == run.first_seq);
        if run.count == 0 || known || run_end(&run) <= self.floor() {
            return;
        }
        let at = self.meta.runs.partition_point(|known| known.first_seq < run.first_seq);
        self.meta.runs.insert(at, run);
        self.meta.exact = false;
    }

    /// A connection attaches. What was trimmed in flight will never be acknowledged now: the
    /// number of such entries is the second answer.
    pub(super) fn attach(&mut self) -> (QueueState, u64) {
        let lost = std::mem::take(&mut self.trimmed).len() as u64;
        let reserved = self.meta.runs.back().map_or(0, run_end).min(self.meta.next_seq);
        let sent_below = match self.meta.exact {
            true => self.meta.told,
            false => self.meta.told.max(reserved).max(self.sent_floor),
        };
        let covers = |run: &&IdRun| {
            let open = self.meta.live.above(run.first_seq.saturating_sub(1)).next();
            open.unwrap_or(self.meta.next_seq) < run_end(run)
        };
        let state = QueueState {
            incarnation: self.meta.incarnation,
            next_seq: self.meta.next_seq,
            sent_below,
            runs: self.meta.runs.iter().filter(covers).copied().collect(),
        };
        (state, lost)
    }

    /// Everything the queue holds, for the count of what its end throws away.
    pub(super) fn lost_at_end(&self) -> u64 {
        self.depth() + self.trimmed.len() as u64
    }

    /// The reader asks for what follows `after`: nothing above it was sent on this connection, and
    /// what was trimmed there never will be. The number of such entries.
    pub(super) fn never_sent(&mut self, after: u64) -> u64 {
        self.trimmed.split_off(&after.saturating_add(1)).len() as u64
    }

    /// The sequences of the next page: those to be read from the projection come first, and when
    /// there are some, they are all there is.
    pub(super) fn cold_page(&self, after: u64, max_messages: usize) -> Vec<u64> {
        let cold = self.meta.live.above(after).take_while(|seq| *seq < self.hot_first);
        cold.take(max_messages).collect()
    }

    pub(super) fn hot_page(
        &self,
        after: u64,
        max_messages: usize,
        max_bytes: usize,
    ) -> Vec<QueuedMessage> {
        let (mut page, mut bytes) = (Vec::new(), 0);
        for seq in self.meta.live.above(after.max(self.hot_first - 1)).take(max_messages) {
            let Some(entry) = self.hot.get((seq - self.hot_first) as usize) else { break };
            let view = entry.message.view();
            bytes += view.topic.len() + view.properties.len() + view.payload.len();
            if bytes > max_bytes && !page.is_empty() {
                break;
            }
            page.push(QueuedMessage {
                seq,
                message: entry.message.clone(),
                delivery: entry.delivery,
                subscription_ids: entry.subscription_ids.clone(),
                expires_at_ms: entry.expires_at_ms,
                group: entry.group,
                received: self.meta.received.contains(&seq),
            });
        }
        page
    }

    // === checkpoints ===

    /// What the next batch must write of the entries, and what it must delete. From here on an
    /// acknowledgement of these entries deletes, whether or not the batch succeeds.
    pub(super) fn unstored(&mut self) -> (Vec<(u64, QueueEntry)>, Vec<u64>) {
        let from = self.stored_below.max(self.hot_first);
        let entries = self.meta.live.above(from.saturating_sub(1));
        let hot_first = self.hot_first;
        let hot = &self.hot;
        let unstored = entries
            .filter_map(|seq| Some((seq, hot.get((seq - hot_first) as usize)?.clone())))
            .collect();
        self.written_below = self.meta.next_seq;
        self.stored_floor = self.floor();
        (unstored, std::mem::take(&mut self.deletes))
    }

    /// The batch failed: what it was to delete must go with the next one.
    pub(super) fn not_stored(&mut self, deletes: Vec<u64>) {
        self.deletes.extend(deletes);
    }

    /// The batch succeeded. What was in memory at the checkpoint before this one goes from it, or
    /// everything stored when memory is short.
    pub(super) fn stored(&mut self, below: u64, short: bool) -> Effect {
        let mut effect = Effect::default();
        let keep_from = if short { below } else { self.stored_below };
        self.stored_below = self.stored_below.max(below);
        self.drop_hot_below(keep_from, &mut effect);
        effect
    }

    /// Something is left to write or to let go.
    pub(super) fn unsettled(&self) -> bool {
        !self.deletes.is_empty() || self.stored_below < self.meta.next_seq || !self.hot.is_empty()
    }
}

fn same_partition(one: &SourceId, other: &SourceId) -> bool {
    let of = |source: &SourceId| (source.incarnation, source.position.partition);
    of(one) == of(other)
}

/// Where an entry of this log points to; `None` when it is from elsewhere, or from a part of the
/// log that is gone, and must be kept whole.
pub(super) fn pointer(source: &SourceId, log: u64, held: &Range<u64>) -> Option<Position> {
    let ours = source.incarnation == log && source.position.partition == 0;
    (ours && held.contains(&source.position.offset)).then_some(source.position)
}
