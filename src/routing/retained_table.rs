//! The retained messages in force, as a follower of their table.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

use super::retained::{Cursor, Retained};
use crate::storage::{Batch, Follower, MessageRef, Position, Row, StorageError, Table};
use crate::telemetry::{clock, metrics};

const VERSION: u8 = 1;
/// Values looked at under one lock, so that a writer never waits for a whole scan.
pub(super) const PAGE: usize = 256;
/// Expired values taken out under one lock.
const EXPIRE_PAGE: usize = 1024;

/// Topic → message, each message in a small batch of its own. Bounded by the caps of the
/// configuration, if they are set: a publish beyond them is refused with 0x97.
#[derive(Debug)]
pub struct RetainedTable {
    inner: RwLock<Retained<MessageRef>>,
    max_count: Option<u64>,
    max_bytes: Option<u64>,
}

impl RetainedTable {
    pub fn new(max_count: Option<u64>, max_bytes: Option<u64>) -> Self {
        Self { inner: RwLock::default(), max_count, max_bytes }
    }

    /// The row that sets, or with an empty payload deletes, the retained message of a topic
    /// (MQTT-3.3.1-5, -6).
    pub fn row(message: &MessageRef) -> Row {
        let view = message.view();
        let key = Bytes::copy_from_slice(view.topic.as_bytes());
        let value = (!view.payload.is_empty()).then(|| {
            let alone = message.detached();
            let body = alone.batch().body();
            let mut value = Vec::with_capacity(1 + body.len());
            value.push(VERSION);
            value.extend_from_slice(body);
            Bytes::from(value)
        });
        Row { table: Table::Retained, key, value }
    }

    /// Whether a retained message of this size may be kept.
    pub fn has_room(&self, topic: &str, bytes: usize) -> bool {
        if self.max_count.is_none() && self.max_bytes.is_none() {
            return true;
        }
        let inner = self.inner.read();
        let known = inner.get(topic, 0).is_some();
        let count = inner.len() as u64 + u64::from(!known);
        let total = inner.bytes() + (topic.len() + bytes) as u64;
        self.max_count.is_none_or(|max| count <= max)
            && self.max_bytes.is_none_or(|max| total <= max)
    }

    pub fn load(&self, value: &[u8]) -> Result<(), StorageError> {
        let message = parse(value)?;
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
        tell(&inner);
    }

    /// The newest value of a topic.
    pub fn get(&self, topic: &str) -> Option<MessageRef> {
        self.inner.read().get(topic, clock::wall_ms()).cloned()
    }

    /// One page of the values whose topics match a plain filter, and where the next one begins.
    pub fn page(&self, filter: &str, from: Option<&Cursor>) -> (Vec<MessageRef>, Option<Cursor>) {
        let mut page = Vec::new();
        let inner = self.inner.read();
        let next = inner.page(filter, from, PAGE, clock::wall_ms(), |_, message| {
            page.push(message.clone());
            true
        });
        (page, next)
    }

    pub fn len(&self) -> usize {
        self.inner.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes out what has expired, and returns the tombstones to be stored.
    pub fn expire(&self) -> Vec<Row> {
        let mut inner = self.inner.write();
        let topics = inner.expire(clock::wall_ms(), EXPIRE_PAGE);
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

fn parse(value: &[u8]) -> Result<MessageRef, StorageError> {
    match value.split_first() {
        Some((&VERSION, body)) => {
            let batch = Batch::parse(Bytes::copy_from_slice(body))?;
            if batch.len() != 1 {
                return Err(StorageError::Damaged("a retained row holds not one message".into()));
            }
            Ok(MessageRef::new(Arc::new(batch), 0))
        }
        _ => Err(StorageError::Damaged("a retained row of unknown version".into())),
    }
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
        match parse(value) {
            Ok(message) => self.set(&message),
            Err(error) => tracing::error!(%error, "a retained row was not understood"),
        }
    }
}
