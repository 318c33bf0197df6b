//! Appends that were handed to the producer and are not answered yet, in order.
//!
//! Two tell how one ended: its delivery report, and the reader that comes across the record. The
//! first one decides; answers leave in the order of the appends.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::storage::{AppendOutcome, AppendSink};
use crate::telemetry::metrics;

struct Entry {
    sink: Arc<dyn AppendSink>,
    ticket: u64,
    bytes: u64,
    since: Instant,
    done: Option<AppendOutcome>,
    /// The reader has come across it.
    read: bool,
}

#[derive(Default)]
struct Ring {
    /// The number of the first entry.
    first: u64,
    entries: VecDeque<Entry>,
    /// Bytes that are stored, and that the reader has not come to.
    unread: u64,
}

/// Bounded by what callers have open (`listener.read_ahead`, the node's inbound budget).
#[derive(Default)]
pub(super) struct Appends {
    ring: Mutex<Ring>,
    /// Held while sinks are told, so that two threads tell them in order; never while one appends.
    telling: Mutex<()>,
    /// Above every place that was told.
    end: AtomicU64,
}

impl fmt::Debug for Appends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appends").field("open", &self.ring.lock().entries.len()).finish()
    }
}

impl Appends {
    /// Takes the next number and sends under it, as one step. A refusal is told by the producer's
    /// thread, behind what was appended before.
    pub(super) fn enter(
        &self,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
        bytes: u64,
        send: impl FnOnce(u64) -> Result<(), AppendOutcome>,
    ) {
        let mut ring = self.ring.lock();
        let number = ring.first + ring.entries.len() as u64;
        let done = send(number).err();
        let since = Instant::now();
        ring.entries.push_back(Entry { sink, ticket, bytes, since, done, read: false });
    }

    /// How the append of this number ended.
    pub(super) fn ended(&self, number: u64, outcome: AppendOutcome) {
        let mut ring = self.ring.lock();
        if let Some(entry) = ring.entry(number) {
            entry.done.get_or_insert(outcome);
        }
    }

    /// The reader came across it.
    pub(super) fn read(&self, number: u64, bytes: u64, outcome: AppendOutcome) {
        let mut ring = self.ring.lock();
        match ring.entry(number) {
            Some(entry) => {
                entry.done = Some(outcome);
                entry.read = true;
            }
            None => ring.unread = ring.unread.saturating_sub(bytes),
        }
    }

    /// Everything open ends like this: the producer that knew better is gone.
    pub(super) fn end_all(&self, outcome: AppendOutcome) {
        for entry in &mut self.ring.lock().entries {
            entry.done.get_or_insert(outcome);
        }
    }

    /// Tells what has ended, in order.
    pub(super) fn settle(&self) {
        let _order = self.telling.lock();
        loop {
            let mut ring = self.ring.lock();
            let Some(outcome) = ring.entries.front().and_then(|entry| entry.done) else { return };
            let Some(entry) = ring.entries.pop_front() else { return };
            ring.first += 1;
            if let AppendOutcome::Stored(position) = outcome {
                ring.unread += if entry.read { 0 } else { entry.bytes };
                self.end.fetch_max(position.offset + 1, Ordering::AcqRel);
                metrics::LOG_SYNC.observe(entry.since.elapsed());
                metrics::LOG_APPENDED_BYTES.add(entry.bytes);
            }
            drop(ring);
            entry.sink.settled(entry.ticket, outcome);
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(super) fn unread(&self) -> u64 {
        self.ring.lock().unread
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ring.lock().entries.is_empty()
    }
}

impl Ring {
    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let at = number.checked_sub(self.first)?;
        self.entries.get_mut(usize::try_from(at).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Position;
    use crate::storage::contract::Inbox;

    fn stored(offset: u64) -> AppendOutcome {
        AppendOutcome::Stored(Position { partition: 0, offset })
    }

    /// IN-2: answers leave in the order of the appends, each once, whoever tells first.
    #[test]
    fn answers_leave_in_order_and_once() {
        let (appends, inbox) = (Appends::default(), Arc::new(Inbox::default()));
        for ticket in 0..4 {
            let sink = Arc::<Inbox>::clone(&inbox);
            let refused = ticket == 2;
            appends.enter(sink, ticket, 10, |_| {
                if refused { Err(AppendOutcome::NotStored) } else { Ok(()) }
            });
        }
        appends.ended(1, stored(8));
        appends.settle();
        assert!(inbox.told().is_empty(), "the one before is open");
        appends.read(0, 10, stored(7));
        appends.ended(0, AppendOutcome::InDoubt);
        appends.settle();
        let all = [(0, stored(7)), (1, stored(8)), (2, AppendOutcome::NotStored)];
        assert_eq!(inbox.told(), all);
        assert_eq!(appends.unread(), 10, "what the reader has not come to");
        appends.read(1, 10, stored(8));
        assert_eq!(appends.unread(), 0);
        appends.end_all(AppendOutcome::InDoubt);
        appends.settle();
        assert!(appends.is_idle());
        assert_eq!(inbox.told().len(), 4);
    }
}
