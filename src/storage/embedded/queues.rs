//! All queues of this node, by key, in shards: one short lock for each run of entries, page or
//! acknowledgement. Frames of the log change which queues there are; entries come from the
//! dispatcher and are written by the next checkpoint.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use ahash::RandomState;
use parking_lot::{Mutex, MutexGuard};

use super::extents::Bounds;
use super::format::{read_queue_frame, read_received_frame, read_run_frame};
use super::queue::{Effect, Queue, QueueMeta};
use super::wal::FrameKind;
use crate::storage::{Appended, QueueAppend, QueueKey, QueueState, QueuedMessage, StorageError};
use crate::telemetry::{Direction, DropReason, dropped_of};

const SHARDS: usize = 64;
/// Fixed, so that a simulation runs the same way every time. Client ids cannot profit from
/// knowing them: a shard's map grows with its queues, which cost a session each.
const SEEDS: (u64, u64, u64, u64) = (0x51_u64, 0x1c, 0xe5, 0x0a);

#[derive(Debug)]
pub(super) struct Queues {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    bounds: Bounds,
    /// Bytes of messages that queues hold in memory.
    hot: AtomicI64,
    /// Entries appended since the last checkpoint.
    pub(super) fresh: AtomicU64,
    /// Queues that are gone: their entries are deleted by the next checkpoint.
    gone: Mutex<Vec<(QueueKey, u64)>>,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) queues: HashMap<QueueKey, Queue, RandomState>,
    dirty: Vec<QueueKey>,
}

impl Shard {
    /// The queue, marked as different from the projection: one look-up for both.
    fn change(&mut self, key: &QueueKey, incarnation: u64) -> Option<&mut Queue> {
        let queue = self.queues.get_mut(key)?;
        if queue.meta.incarnation != incarnation {
            return None;
        }
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push(key.clone());
        }
        Some(queue)
    }

    fn find(&mut self, key: &QueueKey, incarnation: u64) -> Option<&mut Queue> {
        self.queues.get_mut(key).filter(|queue| queue.meta.incarnation == incarnation)
    }
}

/// What a page consists of.
#[derive(Debug)]
pub(super) enum Plan {
    Hot(Vec<QueuedMessage>, u64),
    /// These sequences of the queue with this number must be read from the projection.
    Cold {
        number: u64,
        seqs: Vec<u64>,
        next_seq: u64,
    },
}

impl Queues {
    pub(super) fn new(bounds: Bounds) -> Self {
        let hasher = RandomState::with_seeds(SEEDS.0, SEEDS.1, SEEDS.2, SEEDS.3);
        let shard = || {
            let queues = HashMap::with_hasher(hasher.clone());
            Mutex::new(Shard { queues, dirty: Vec::new() })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: hasher.clone(),
            bounds,
            hot: AtomicI64::new(0),
            fresh: AtomicU64::new(0),
            gone: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn shard(&self, key: &QueueKey) -> MutexGuard<'_, Shard> {
        // The upper half: the map inside uses the lower one.
        let at = self.hasher.hash_one(key) >> 32;
        self.shards[at as usize % SHARDS].lock()
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &Mutex<Shard>> {
        self.shards.iter()
    }

    pub(super) fn hot_bytes(&self) -> u64 {
        u64::try_from(self.hot.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn count(&self, key: &QueueKey, effect: Effect) {
        if effect.hot != 0 {
            self.hot.fetch_add(effect.hot as i64, Ordering::Relaxed);
        }
        if effect.dropped != 0 {
            let (reason, lost) = (DropReason::QueueLimitExceeded, effect.dropped);
            dropped_of(reason, Direction::Outbound, key.name(), "", lost);
        }
    }

    // === recovery ===

    /// A queue as the projection has it.
    pub(super) fn adopt(&self, key: QueueKey, meta: QueueMeta) {
        self.shard(&key).queues.insert(key, Queue::from_meta(meta));
    }

    /// Called once the log was replayed after anything but an orderly stop.
    pub(super) fn recovered(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let Shard { queues, dirty } = &mut *shard;
            for (key, queue) in queues {
                if queue.recovered() && !queue.dirty {
                    queue.dirty = true;
                    dirty.push(key.clone());
                }
            }
        }
    }

    // === frames ===

    /// Applies a queue frame; applying it again changes nothing.
    pub(super) fn apply(
        &self,
        offset: u64,
        kind: FrameKind,
        head: &[u8],
    ) -> Result<(), StorageError> {
        match kind {
            FrameKind::QueueOpen => {
                let (key, incarnation) = read_queue_frame(head)?;
                self.opened(offset, key, incarnation);
            }
            FrameKind::QueueRemove => {
                let (key, incarnation) = read_queue_frame(head)?;
                self.removed(offset, &key, incarnation);
            }
            FrameKind::Received => {
                let (key, incarnation, seqs) = read_received_frame(head)?;
                self.with(&key, incarnation, |queue| queue.received(&seqs));
            }
            FrameKind::IdRun => {
                let (key, incarnation, run) = read_run_frame(head)?;
                self.with(&key, incarnation, |queue| queue.reserve(run));
            }
            FrameKind::Publishes | FrameKind::Direct | FrameKind::Rows => {}
        }
        Ok(())
    }

    fn opened(&self, offset: u64, key: QueueKey, incarnation: u64) {
        let mut shard = self.shard(&key);
        if let Some(known) = shard.queues.get(&key) {
            // A queue whose number is not below the offset has seen this frame; one of the same
            // incarnation was opened twice at once.
            if known.meta.number >= offset || known.meta.incarnation == incarnation {
                return;
            }
        }
        let fresh = Queue::new(offset, incarnation);
        if let Some(old) = shard.queues.insert(key.clone(), fresh) {
            self.throw_away(&key, &old);
            if old.dirty {
                shard.dirty.retain(|dirty| *dirty != key);
            }
        }
        shard.change(&key, incarnation);
    }

    fn removed(&self, offset: u64, key: &QueueKey, incarnation: u64) {
        let mut shard = self.shard(key);
        let Entry::Occupied(known) = shard.queues.entry(key.clone()) else { return };
        let meta = &known.get().meta;
        if meta.number > offset || meta.incarnation != incarnation {
            return;
        }
        let old = known.remove();
        self.throw_away(key, &old);
        if old.dirty {
            shard.dirty.retain(|dirty| dirty != key);
        }
    }

    /// DEV-8: what a session's end throws away is counted.
    fn throw_away(&self, key: &QueueKey, old: &Queue) {
        let lost = old.lost_at_end();
        dropped_of(DropReason::SessionEnded, Direction::Outbound, key.name(), "", lost);
        self.count(key, Effect { hot: -(old.hot_bytes() as isize), dropped: 0 });
        self.gone.lock().push((key.clone(), old.meta.number));
    }

    fn with(&self, key: &QueueKey, incarnation: u64, change: impl FnOnce(&mut Queue)) {
        if let Some(queue) = self.shard(key).change(key, incarnation) {
            change(queue);
        }
    }

    // === the port's calls ===

    pub(super) fn attach(&self, key: &QueueKey, incarnation: u64) -> Option<QueueState> {
        let mut shard = self.shard(key);
        let queue = shard.find(key, incarnation).filter(|queue| !queue.closing)?;
        let (state, lost) = queue.attach();
        drop(shard);
        self.count(key, Effect { hot: 0, dropped: lost });
        Some(state)
    }

    pub(super) fn append(&self, append: QueueAppend) -> Appended {
        let QueueAppend { queue: key, incarnation, mut entries } = append;
        let (bound, life_ms) = self.bounds.of(&key);
        for entry in entries.iter_mut().filter(|entry| entry.expires_at_ms.is_none()) {
            let received = entry.message.batch().received_at_ms();
            entry.expires_at_ms = life_ms.map(|life_ms| received.saturating_add(life_ms));
        }
        let count = entries.len() as u64;
        let mut shard = self.shard(&key);
        let Some(queue) = shard.change(&key, incarnation) else { return Appended::NoQueue };
        let (appended, effect) = queue.append(entries, bound);
        drop(shard);
        self.fresh.fetch_add(count, Ordering::Relaxed);
        self.count(&key, effect);
        appended
    }

    pub(super) fn plan(
        &self,
        key: &QueueKey,
        incarnation: u64,
        after: u64,
        max_messages: usize,
        max_bytes: usize,
    ) -> Result<Plan, StorageError> {
        let mut shard = self.shard(key);
        let queue = shard.find(key, incarnation).ok_or(StorageError::Fenced)?;
        let next_seq = queue.meta.next_seq;
        let effect = Effect { hot: 0, dropped: queue.never_sent(after) };
        let seqs = queue.cold_page(after, max_messages);
        let plan = if seqs.is_empty() {
            Plan::Hot(queue.hot_page(after, max_messages, max_bytes), next_seq)
        } else {
            Plan::Cold { number: queue.meta.number, seqs, next_seq }
        };
        drop(shard);
        self.count(key, effect);
        Ok(plan)
    }

    /// Which of these entries are still owed, and whether they were received.
    pub(super) fn still_owed(
        &self,
        key: &QueueKey,
        number: u64,
        seqs: &[u64],
    ) -> Option<Vec<(u64, bool)>> {
        let shard = self.shard(key);
        let meta = &shard.queues.get(key).filter(|queue| queue.meta.number == number)?.meta;
        let live = seqs.iter().filter(|seq| meta.live.contains(**seq));
        Some(live.map(|seq| (*seq, meta.received.contains(seq))).collect())
    }

    pub(super) fn ack(&self, key: &QueueKey, incarnation: u64, seqs: &[u64], sent_below: u64) {
        let mut effect = Effect::default();
        self.with(key, incarnation, |queue| effect = queue.ack(seqs, sent_below));
        self.count(key, effect);
    }

    pub(super) fn take_out(&self, key: &QueueKey, incarnation: u64, seqs: &[u64]) {
        let mut effect = Effect::default();
        self.with(key, incarnation, |queue| effect = queue.take_out(seqs));
        self.count(key, effect);
    }

    /// A removal is on its way: an `open` from here on must go through the log behind it.
    pub(super) fn closing(&self, key: &QueueKey, incarnation: u64) {
        if let Some(queue) = self.shard(key).find(key, incarnation) {
            queue.closing = true;
        }
    }

    pub(super) fn depth(&self, key: &QueueKey) -> u64 {
        self.shard(key).queues.get(key).map_or(0, Queue::depth)
    }

    // === checkpoints ===

    pub(super) fn take_gone(&self) -> Vec<(QueueKey, u64)> {
        std::mem::take(&mut *self.gone.lock())
    }

    pub(super) fn put_back_gone(&self, gone: Vec<(QueueKey, u64)>) {
        self.gone.lock().extend(gone);
    }

    /// Every queue that differs from the projection.
    pub(super) fn take_dirty(&self) -> Vec<QueueKey> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.append(&mut shard.lock().dirty);
        }
        all
    }

    /// Works on the queue with this number, if it is still there; `true` has the next checkpoint
    /// look at it again.
    pub(super) fn settle(
        &self,
        key: &QueueKey,
        number: u64,
        work: impl FnOnce(&mut Queue) -> (Effect, bool),
    ) {
        let mut shard = self.shard(key);
        let Some(queue) = shard.queues.get_mut(key).filter(|q| q.meta.number == number) else {
            return;
        };
        let (effect, again) = work(queue);
        let incarnation = queue.meta.incarnation;
        if again {
            shard.change(key, incarnation);
        }
        drop(shard);
        self.count(key, effect);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mqtt::{Delivery, QoS};
    use crate::storage::contract::{batch_of, client};
    use crate::storage::embedded::format::queue_frame;
    use crate::storage::{MessageRef, Position, QueueEntry, SourceId};

    /// DEV-8: a replay may begin before what a queue has seen; older opens and removals of its
    /// name change nothing then.
    #[test]
    fn applying_older_frames_again_changes_nothing() {
        let queues = Queues::new(Bounds::default());
        let (key, first, second) = (client("c"), 1, 2);
        let frames = [
            (10, FrameKind::QueueOpen, first),
            (15, FrameKind::QueueRemove, first),
            (20, FrameKind::QueueOpen, second),
        ];
        let replay = || {
            for (offset, kind, incarnation) in frames {
                let head = queue_frame(&key, incarnation);
                queues.apply(offset, kind, &head).expect("applies");
            }
        };
        replay();
        let position = Position { partition: 0, offset: 30 };
        let entry = QueueEntry {
            source: SourceId { incarnation: 1, position, index: 0 },
            message: MessageRef::new(batch_of("p", &["one"], None), 0),
            delivery: Delivery { qos: QoS::AtLeastOnce, retain: false },
            subscription_ids: Arc::from([]),
            expires_at_ms: None,
            group: None,
        };
        let append = QueueAppend { queue: key.clone(), incarnation: second, entries: vec![entry] };
        assert_eq!(queues.append(append), Appended::Taken { first_seq: 1, skipped: 0 });
        replay();
        assert_eq!(queues.depth(&key), 1);
        assert!(queues.attach(&key, second).is_some());
    }
}
