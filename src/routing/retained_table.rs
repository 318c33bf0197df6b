//! The retained messages in force, as a follower of their table.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::retained::{Cursor, Retained};
use crate::storage::{Follower, MessageRef, Position, Row, StorageError, Table, retained_message};
use crate::telemetry::{clock, metrics};

/// Values looked at under one lock, so that a writer never waits for a whole scan.
pub(super) const PAGE: usize = 256;
/// Expired values taken out under one lock.
const EXPIRE_PAGE: usize = 1024;

/// Topic → message, each message in a small batch of its own. Bounded by the caps of the
/// configuration, if they are set: a publish beyond them is refused with 0x97.
#[derive(Debug)]
pub struct RetainedTable {
    inner: RwLock<Retained<MessageRef>>,
    coming: Mutex<Coming>,
    /// A retained publish and its row stand in the log with nothing between them that a replay
    /// put there: whoever finds the publish below its own record finds the row there, too.
    order: RwLock<()>,
    max_count: Option<u64>,
    max_bytes: Option<u64>,
}

/// Values that were admitted and are not in force yet. They count for the caps, and an expiry
/// must not delete them. Bounded by what publishers may have open.
#[derive(Debug, Default)]
struct Coming {
    topics: HashMap<Box<str>, Awaited, ahash::RandomState>,
    /// Topics without a value in force.
    fresh: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Awaited {
    values: u32,
    /// The largest of them: each replaces the one before.
    bytes: u64,
    fresh: bool,
}

impl Coming {
    fn add(&mut self, topic: &str, bytes: u64, fresh: bool) {
        let awaited = self.topics.entry(topic.into());
        let awaited = awaited.or_insert_with(|| {
            self.fresh += u64::from(fresh);
            Awaited { values: 0, bytes: 0, fresh }
        });
        awaited.values += 1;
        self.bytes += bytes.saturating_sub(awaited.bytes);
        awaited.bytes = awaited.bytes.max(bytes);
    }

    fn remove(&mut self, topic: &str) {
        let Some(awaited) = self.topics.get_mut(topic) else { return };
        awaited.values -= 1;
        if awaited.values == 0 {
            self.bytes -= awaited.bytes;
            self.fresh -= u64::from(awaited.fresh);
            self.topics.remove(topic);
        }
    }
}

impl RetainedTable {
    pub fn new(max_count: Option<u64>, max_bytes: Option<u64>) -> Self {
        let (inner, coming, order) = Default::default();
        Self { inner, coming, order, max_count, max_bytes }
    }

    /// Admits a value of this size, if the caps allow it. It is to be stored, or to be taken back
    /// by [`Self::abandon`].
    pub fn admit(&self, topic: &str, bytes: usize) -> bool {
        let inner = self.inner.read();
        let mut coming = self.coming.lock();
        let known = inner.bytes_of(topic);
        let fresh = known.is_none() && !coming.topics.contains_key(topic);
        let count = inner.len() as u64 + coming.fresh;
        if fresh && self.max_count.is_some_and(|max| count >= max) {
            return false;
        }
        let (bytes, old) = ((topic.len() + bytes) as u64, known.unwrap_or(0));
        let total = (inner.bytes() + coming.bytes).saturating_sub(old) + bytes;
        // A smaller value for a known topic is always taken: it only makes room.
        if bytes > old && self.max_bytes.is_some_and(|max| total > max) {
            return false;
        }
        coming.add(topic, bytes, fresh);
        true
    }

    /// An admitted value will not come: its publish was not stored.
    pub fn abandon(&self, topic: &str) {
        self.coming.lock().remove(topic);
    }

    /// Hands a retained publish and its row to the log, one behind the other.
    pub fn together<T>(&self, enter: impl FnOnce() -> T) -> T {
        let _order = self.order.read();
        enter()
    }

    /// Hands to the log what must not stand between a retained publish and its row.
    pub fn apart<T>(&self, enter: impl FnOnce() -> T) -> T {
        let _order = self.order.write();
        enter()
    }

    pub fn load(&self, value: &[u8]) -> Result<(), StorageError> {
        let message = retained_message(value)?;
        self.set(&message);
        Ok(())
    }

    fn set(&self, message: &MessageRef) {
        let view = message.view();
        let bytes = (view.payload.len() + view.properties.len()) as u64;
        let mut inner = self.inner.write();
        // No limits are set on the store itself: they are checked before a publish is stored.
        let kept = inner.set(view.topic, message.clone(), bytes, message.expires_at_ms());
        debug_assert!(kept.is_ok(), "the store has no limits of its own");
        self.coming.lock().remove(view.topic);
        tell(&inner);
    }

    /// The newest value of a topic.
    pub fn get(&self, topic: &str) -> Option<MessageRef> {
        self.inner.read().get(topic, clock::wall_ms()).cloned()
    }

    /// One page of the values whose topics match a plain filter, and where the next one begins.
    pub fn page(&self, filter: &str, from: Option<&Cursor>) -> (Vec<MessageRef>, Option<Cursor>) {
        let started = Instant::now();
        let mut page = Vec::new();
        let inner = self.inner.read();
        let next = inner.page(filter, from, PAGE, clock::wall_ms(), |_, message| {
            page.push(message.clone());
            true
        });
        drop(inner);
        metrics::RETAINED_LOOKUP.observe(started.elapsed());
        (page, next)
    }

    pub fn len(&self) -> usize {
        self.inner.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes out what has expired, and returns the tombstones, to be handed to the log by the
    /// same call of [`Self::apart`]. A topic whose next value is on its way stays: the tombstone
    /// would stand behind that value.
    pub fn expire(&self) -> Vec<Row> {
        let mut inner = self.inner.write();
        let coming = self.coming.lock();
        let stays = |topic: &str| coming.topics.contains_key(topic);
        let topics = inner.expire(clock::wall_ms(), EXPIRE_PAGE, stays);
        drop(coming);
        tell(&inner);
        drop(inner);
        let row = |topic: String| Row {
            table: Table::Retained,
            key: Bytes::from(topic.into_bytes()),
            value: None,
        };
        topics.into_iter().map(row).collect()
    }
}

fn tell(inner: &Retained<MessageRef>) {
    metrics::RETAINED_MESSAGES.set(inner.len() as i64);
    metrics::RETAINED_BYTES.set(inner.bytes() as i64);
    metrics::RETAIN_TRIE_SIZE.set(inner.len() as i64);
}

impl Follower for RetainedTable {
    fn apply(&self, _position: Position, row: &Row) {
        let Some(value) = &row.value else {
            let mut inner = self.inner.write();
            if let Ok(topic) = std::str::from_utf8(&row.key) {
                inner.remove(topic);
            }
            return tell(&inner);
        };
        match retained_message(value) {
            Ok(message) => self.set(&message),
            Err(error) => tracing::error!(%error, "a retained row was not understood"),
        }
    }
}
