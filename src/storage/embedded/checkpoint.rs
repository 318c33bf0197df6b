//! Writes behind what the log made true: rows, queues, entries that are still owed, and the
//! consumer's commit. One pass at a time; everything else goes on meanwhile.
//!
//! A pass may write several batches: each queue is whole in its batch, and the record that says
//! what is covered is in the last one. A queue that is ahead of the commit is harmless (its marks
//! refuse what the replay brings again), one that is behind it cannot be: the commit is taken
//! first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::feed::Feed;
use super::format::{TABLES, key_bytes};
use super::projection::{Changes, Projection, Space};
use super::queue::{Effect, Queue};
use super::queues::Queues;
use super::records::{CHECKPOINT_KEY, Checkpoint, EntryRecord, Stored, entry_key, queue_record};
use super::tables::{ROUTED, Tables};
use super::wal::Wal;
use crate::storage::{QueueKey, StorageError};

/// Size of one batch into the projection, about.
pub(super) const BATCH_BYTES: usize = 1 << 20;
/// Entries appended since the last pass that make the next one come early.
const EARLY_ENTRIES: u64 = 200_000;
/// Bytes of rows that do.
pub(super) const EARLY_ROWS: u64 = 32 << 20;

/// Wakes the checkpoint early, and holds appends while memory is short.
#[derive(Debug)]
pub(super) struct Kick {
    early: Mutex<bool>,
    thread: Condvar,
    pub(super) task: Notify,
    /// A pass has let go of memory.
    relieved: Notify,
    pub(super) stop: AtomicBool,
    hot_bound: u64,
}

impl Kick {
    pub(super) fn new(hot_bound: u64) -> Self {
        Self {
            early: Mutex::new(false),
            thread: Condvar::new(),
            task: Notify::new(),
            relieved: Notify::new(),
            stop: AtomicBool::new(false),
            hot_bound,
        }
    }

    pub(super) fn now(&self) {
        *self.early.lock() = true;
        self.thread.notify_one();
        self.task.notify_one();
    }

    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::Release);
        self.relieved.notify_waiters();
        self.now();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Waits, on a thread of its own, until it is time for the next pass.
    pub(super) fn wait(&self, every: Duration) {
        let mut early = self.early.lock();
        if !*early {
            self.thread.wait_for(&mut early, every);
        }
        *early = false;
    }

    fn short(&self, queues: &Queues) -> bool {
        queues.hot_bytes() > self.hot_bound
    }

    /// Called after entries were appended: over the bound a pass comes early, over twice the
    /// bound the dispatcher waits for it. The log goes on taking publishes and holds what waits.
    pub(super) async fn after_append(&self, queues: &Queues) {
        if self.short(queues) || queues.fresh.load(Ordering::Relaxed) > EARLY_ENTRIES {
            self.now();
        }
        while queues.hot_bytes() > 2 * self.hot_bound {
            let relieved = self.relieved.notified();
            if queues.hot_bytes() <= 2 * self.hot_bound || self.stopped() {
                break;
            }
            self.now();
            relieved.await;
        }
    }
}

/// A log that grows fast is shortened by so much at a time: its segments are used again instead
/// of being filled anew.
const SYNC_BYTES: u64 = 128 << 20;

#[derive(Debug)]
pub(super) struct Checkpointer {
    pub(super) projection: Arc<dyn Projection>,
    pub(super) tables: Arc<Tables>,
    pub(super) queues: Arc<Queues>,
    pub(super) feed: Arc<Feed>,
    pub(super) wal: Wal,
    pub(super) applied: Arc<AtomicU64>,
    pub(super) kick: Arc<Kick>,
    pub(super) trouble: Arc<Mutex<Option<String>>>,
    pub(super) sync_every: Duration,
    /// Segments above this many bytes go, what is still owed from them is copied out.
    pub(super) retain_bytes: u64,
    pub(super) progress: Mutex<Progress>,
}

#[derive(Debug)]
pub(super) struct Progress {
    pub(super) last: Checkpoint,
    pub(super) synced: Instant,
    /// How much of the log the synced projection covers.
    pub(super) synced_to: u64,
    pub(super) unsynced: bool,
}

/// A queue whose record and entries are in the batch that is being built.
struct Written {
    key: QueueKey,
    number: u64,
    below: u64,
    deletes: Vec<u64>,
}

impl Checkpointer {
    /// One pass; also says in `trouble` how it went.
    pub(super) fn pass(&self, last: bool) -> Result<(), StorageError> {
        let passed = self.try_pass(last);
        let text = passed.as_ref().err().map(|error| format!("checkpoints fail: {error}"));
        let mut trouble = self.trouble.lock();
        match (&*trouble, &text) {
            (None, Some(text)) => tracing::error!("{text}"),
            (Some(_), None) => tracing::info!("checkpoints work again"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        *trouble = text;
        drop(trouble);
        // A pass that failed has let go of nothing: who waits for memory waits for the next one,
        // which comes in its time, not at once.
        if passed.is_ok() {
            self.kick.relieved.notify_waiters();
        }
        passed
    }

    fn try_pass(&self, last: bool) -> Result<(), StorageError> {
        let mut progress = self.progress.lock();
        self.queues.fresh.store(0, Ordering::Relaxed);
        let applied = self.applied.load(Ordering::Acquire);
        let (committed, state) = self.feed.checkpoint();
        self.tables.committed(committed);
        self.write_rows()?;
        self.write_queues()?;
        self.delete_gone()?;
        let log = progress.last.log;
        let known = &progress.last;
        let moved = (known.applied, known.committed) != (applied, committed)
            || known.state != *state
            || known.clean != last;
        let routed = self.tables.flush(ROUTED.into_iter());
        if moved || !routed.is_empty() {
            let state = state.to_vec();
            let record = Checkpoint { log, applied, committed, state, clean: last };
            let mut changes = Changes::default();
            changes.put(Space::Meta, CHECKPOINT_KEY.to_vec(), record.encode());
            // With the commit, as one: what is in force for a replay is what was in force there.
            routed.iter().for_each(|(table, dirty)| Tables::change(&mut changes, *table, dirty));
            let stored = self.projection.commit(changes);
            for (table, dirty) in &routed {
                self.tables.flushed(*table, dirty, stored.is_ok());
            }
            stored?;
            progress.last = record;
            progress.unsynced = true;
        }
        let due = progress.synced.elapsed() >= self.sync_every
            || applied.saturating_sub(progress.synced_to) >= SYNC_BYTES;
        if last || (progress.unsynced && (due || self.over_retention())) {
            self.projection.sync()?;
            progress.synced = Instant::now();
            progress.synced_to = applied;
            progress.unsynced = false;
            self.shorten(applied.min(committed))?;
        }
        Ok(())
    }

    fn write_rows(&self) -> Result<(), StorageError> {
        let mut result = Ok(());
        let others = TABLES.into_iter().filter(|table| !ROUTED.contains(table));
        for (table, dirty) in self.tables.flush(others) {
            // After a failure the others go back, too: a pass is tried as a whole.
            if result.is_ok() {
                let mut changes = Changes::default();
                Tables::change(&mut changes, table, &dirty);
                result = self.projection.commit(changes);
            }
            self.tables.flushed(table, &dirty, result.is_ok());
        }
        result
    }

    fn write_queues(&self) -> Result<(), StorageError> {
        let mut result = Ok(());
        let (mut changes, mut written) = (Changes::default(), Vec::new());
        let mut dirty = self.queues.take_dirty().into_iter().peekable();
        while let Some(key) = dirty.next() {
            self.gather(key, &mut changes, &mut written);
            if changes.bytes() < BATCH_BYTES && dirty.peek().is_some() {
                continue;
            }
            if result.is_ok() && !changes.is_empty() {
                result = self.projection.commit(std::mem::take(&mut changes));
            }
            changes = Changes::default();
            let short = self.kick.short(&self.queues);
            for one in written.drain(..) {
                self.settle(one, result.is_ok(), short);
            }
        }
        result
    }

    fn gather(&self, key: QueueKey, changes: &mut Changes, written: &mut Vec<Written>) {
        let (log, ours) = (self.feed.log, self.wal.first()..self.wal.end());
        let mut shard = self.queues.shard(&key);
        let Some(queue) = shard.queues.get_mut(&key).filter(|queue| queue.dirty) else { return };
        queue.dirty = false;
        let (number, below) = (queue.meta.number, queue.meta.next_seq);
        let (entries, deletes) = queue.unstored();
        for (seq, entry) in &entries {
            let record = EntryRecord::of(entry, log, &ours);
            if let Stored::Pointer { offset, .. } = record.stored {
                queue.meta.pointer_floor = queue.meta.pointer_floor.min(offset);
            }
            changes.put(Space::Entries, entry_key(number, *seq), record.encode());
        }
        deletes.iter().for_each(|seq| changes.delete(Space::Entries, entry_key(number, *seq)));
        changes.put(Space::Queues, key_bytes(&key), queue_record(&queue.meta));
        drop(shard);
        written.push(Written { key, number, below, deletes });
    }

    fn settle(&self, written: Written, stored: bool, short: bool) {
        let Written { key, number, below, deletes } = written;
        self.queues.settle(&key, number, |queue: &mut Queue| {
            if stored {
                let effect = queue.stored(below, short);
                (effect, queue.unsettled())
            } else {
                queue.not_stored(deletes);
                (Effect::default(), true)
            }
        });
    }

    /// Queues that are gone: their entries and, unless another one has the key, their records.
    fn delete_gone(&self) -> Result<(), StorageError> {
        let gone = self.queues.take_gone();
        if gone.is_empty() {
            return Ok(());
        }
        let deleted = gone.iter().try_for_each(|(key, number)| self.delete_queue(key, *number));
        if deleted.is_err() {
            self.queues.put_back_gone(gone);
        }
        deleted
    }

    fn delete_queue(&self, key: &QueueKey, number: u64) -> Result<(), StorageError> {
        let mut changes = Changes::default();
        let to = entry_key(number + 1, 0);
        self.projection.scan(Space::Entries, &entry_key(number, 0), &to, &mut |entry, _| {
            changes.delete(Space::Entries, entry.to_vec());
            Ok(true)
        })?;
        // A new queue of this key that was opened meanwhile is written by the next pass.
        if !self.queues.shard(key).queues.contains_key(key) {
            changes.delete(Space::Queues, key_bytes(key));
        }
        self.projection.commit(changes)
    }
}
