//! One queue in memory, written for plainness.

use std::collections::{BTreeMap, BTreeSet};

use crate::storage::{Appended, IdRun, Page, QueueEntry, QueueState, QueuedMessage, SourceId};
use crate::telemetry::{Direction, DropReason, dropped};

#[derive(Clone, Debug)]
pub(super) struct MemoryQueue {
    pub(super) incarnation: u64,
    next_seq: u64,
    entries: BTreeMap<u64, QueueEntry>,
    /// The last source taken, by log incarnation and partition.
    marks: BTreeMap<(u64, u32), SourceId>,
    runs: BTreeMap<u64, IdRun>,
    received: BTreeSet<u64>,
    /// Trimmed while they may have been in flight.
    trimmed: BTreeSet<u64>,
    told: u64,
    exact: bool,
    sent_floor: u64,
    pub(super) closing: bool,
}

fn end(run: &IdRun) -> u64 {
    run.first_seq + u64::from(run.count)
}

impl MemoryQueue {
    pub(super) fn new(incarnation: u64) -> Self {
        Self {
            incarnation,
            next_seq: 1,
            entries: BTreeMap::new(),
            marks: BTreeMap::new(),
            runs: BTreeMap::new(),
            received: BTreeSet::new(),
            trimmed: BTreeSet::new(),
            told: 0,
            exact: false,
            sent_floor: 0,
            closing: false,
        }
    }

    pub(super) fn thrown_away(&self) {
        let lost = self.entries.len() + self.trimmed.len();
        dropped(DropReason::SessionEnded, Direction::Outbound, lost as u64);
    }

    pub(super) fn recovered(&mut self) {
        self.exact = false;
        self.sent_floor = self.runs.values().map(end).max().unwrap_or(0);
        self.closing = false;
    }

    pub(super) fn append(&mut self, entries: Vec<QueueEntry>, limit: u64) -> Appended {
        let first_seq = self.next_seq;
        let mut skipped = 0;
        for entry in entries {
            let at = (entry.source.incarnation, entry.source.position.partition);
            if self.marks.get(&at).is_some_and(|mark| entry.source <= *mark) {
                skipped += 1;
                continue;
            }
            self.marks.insert(at, entry.source);
            self.entries.insert(self.next_seq, entry);
            self.next_seq += 1;
        }
        while self.entries.len() as u64 > limit && self.trim() {}
        Appended::Taken { first_seq, skipped }
    }

    fn trim(&mut self) -> bool {
        let oldest = self.entries.keys().find(|seq| !self.received.contains(seq)).copied();
        let Some(seq) = oldest else { return false };
        self.entries.remove(&seq);
        if self.runs.values().any(|run| (run.first_seq..end(run)).contains(&seq)) {
            self.trimmed.insert(seq);
        } else {
            dropped(DropReason::QueueLimitExceeded, Direction::Outbound, 1);
        }
        true
    }

    fn floor(&self) -> u64 {
        self.entries.keys().next().copied().unwrap_or(self.next_seq)
    }

    pub(super) fn ack(&mut self, seqs: &[u64], sent_below: u64) {
        for seq in seqs {
            self.entries.remove(seq);
            self.trimmed.remove(seq);
        }
        self.told = self.told.max(sent_below);
        self.exact = seqs.is_empty();
        let floor = self.floor();
        self.runs.retain(|_, run| end(run) > floor);
        let (entries, next) = (&self.entries, self.next_seq);
        self.received.retain(|seq| *seq >= next || entries.contains_key(seq));
    }

    pub(super) fn take_out(&mut self, seqs: &[u64]) {
        for seq in seqs {
            self.entries.remove(seq);
        }
    }

    pub(super) fn received(&mut self, seqs: &[u64]) {
        let (entries, next) = (&self.entries, self.next_seq);
        let owed = seqs.iter().copied().filter(|seq| *seq >= next || entries.contains_key(seq));
        self.received.extend(owed);
    }

    pub(super) fn reserve(&mut self, run: IdRun) {
        if run.count > 0 && end(&run) > self.floor() {
            self.runs.entry(run.first_seq).or_insert(run);
            self.exact = false;
        }
    }

    pub(super) fn attach(&mut self) -> QueueState {
        let lost = std::mem::take(&mut self.trimmed).len() as u64;
        dropped(DropReason::QueueLimitExceeded, Direction::Outbound, lost);
        let reserved = self.runs.values().map(end).max().unwrap_or(0).min(self.next_seq);
        let sent_below = match self.exact {
            true => self.told,
            false => self.told.max(reserved).max(self.sent_floor),
        };
        let covers = |run: &&IdRun| {
            end(run) > self.next_seq || self.entries.range(run.first_seq..end(run)).next().is_some()
        };
        QueueState {
            incarnation: self.incarnation,
            next_seq: self.next_seq,
            sent_below,
            runs: self.runs.values().filter(covers).copied().collect(),
        }
    }

    pub(super) fn page(&mut self, after: u64, max_messages: usize, max_bytes: usize) -> Page {
        // Nothing above `after` was sent on this connection: what was trimmed there is lost.
        let lost = self.trimmed.split_off(&after.saturating_add(1)).len();
        dropped(DropReason::QueueLimitExceeded, Direction::Outbound, lost as u64);
        let (mut messages, mut bytes) = (Vec::new(), 0);
        for (seq, entry) in self.entries.range(after.saturating_add(1)..) {
            let view = entry.message.view();
            bytes += view.topic.len() + view.properties.len() + view.payload.len();
            let full = messages.len() >= max_messages || bytes > max_bytes;
            if full && !messages.is_empty() {
                break;
            }
            messages.push(QueuedMessage {
                seq: *seq,
                message: entry.message.clone(),
                delivery: entry.delivery,
                subscription_ids: entry.subscription_ids.clone(),
                expires_at_ms: entry.expires_at_ms,
                group: entry.group,
                received: self.received.contains(seq),
            });
        }
        Page { messages, next_seq: self.next_seq }
    }

    pub(super) fn depth(&self) -> u64 {
        self.entries.len() as u64
    }
}
