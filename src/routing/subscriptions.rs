//! The subscriptions in force, as a follower of their table: one writer, many readers.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};

use super::SubscriptionIndex;
use super::rows::SubscriptionRow;
use crate::delivery::{SlotId, Slots};
use crate::mqtt::{ClientId, SubscriptionOptions, TopicFilter};
use crate::storage::{Follower, Position, Row, StorageError};
use crate::telemetry::metrics;

/// What the index keeps of one subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The subscription gets messages whose position is greater (design decision 12).
    pub since: u64,
    pub options: SubscriptionOptions,
}

/// The index, and each session's own list of filters.
#[derive(Debug)]
pub struct Subscriptions {
    slots: Arc<Slots>,
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) index: SubscriptionIndex<SlotId, Entry>,
    filters: HashMap<SlotId, Vec<TopicFilter>, ahash::RandomState>,
}

impl Subscriptions {
    pub fn new(slots: Arc<Slots>) -> Self {
        Self { slots, inner: RwLock::default() }
    }

    /// For matching: held for one batch.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read()
    }

    /// The options under which the session is subscribed to exactly `filter`.
    pub fn get(&self, slot: SlotId, filter: &TopicFilter) -> Option<Entry> {
        self.inner.read().index.get(filter, &slot).copied()
    }

    /// How many filters the session has.
    pub fn count(&self, slot: SlotId) -> usize {
        self.inner.read().filters.get(&slot).map_or(0, Vec::len)
    }

    /// The session's filters.
    pub fn filters(&self, slot: SlotId) -> Vec<TopicFilter> {
        self.inner.read().filters.get(&slot).cloned().unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.inner.read().index.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes up a stored row at start; `false`: its session is gone.
    pub fn load(&self, position: Position, key: &[u8], value: &[u8]) -> Result<bool, StorageError> {
        let (client_id, filter) = SubscriptionRow::parse_key(key)?;
        let row = SubscriptionRow::decode(value)?;
        Ok(self.put(position, &client_id, filter, &row))
    }

    fn put(
        &self,
        position: Position,
        client_id: &ClientId,
        filter: TopicFilter,
        row: &SubscriptionRow,
    ) -> bool {
        // A row of a session that is gone, or of an earlier one of the same id, is not in force.
        let Some(slot) = self.slots.by_client(client_id.as_str()) else { return false };
        if slot.view().incarnation != row.incarnation {
            return false;
        }
        let since = row.since.unwrap_or(position.offset);
        let entry = Entry { since, options: row.options };
        let mut inner = self.inner.write();
        if inner.index.subscribe(&filter, slot.id(), entry).is_none() {
            let filters = inner.filters.entry(slot.id()).or_default();
            filters.reserve_exact(1);
            filters.push(filter);
        }
        inner.tell();
        true
    }

    fn delete(&self, client_id: &ClientId, filter: &TopicFilter) {
        let Some(slot) = self.slots.by_client(client_id.as_str()) else { return };
        self.inner.write().remove(slot.id(), filter);
    }

    /// The session has ended: all its subscriptions go.
    pub fn remove_all(&self, slot: SlotId) {
        let mut inner = self.inner.write();
        for filter in inner.filters.remove(&slot).unwrap_or_default() {
            inner.index.unsubscribe(&filter, &slot);
        }
        inner.tell();
    }
}

impl Inner {
    fn remove(&mut self, slot: SlotId, filter: &TopicFilter) {
        if self.index.unsubscribe(filter, &slot).is_none() {
            return;
        }
        if let Some(filters) = self.filters.get_mut(&slot) {
            filters.retain(|other| other != filter);
            if filters.is_empty() {
                self.filters.remove(&slot);
            }
        }
        self.tell();
    }

    fn tell(&self) {
        metrics::SUBSCRIPTIONS.set(self.index.len() as i64);
        metrics::TRIE_SIZE.set(self.index.len() as i64);
        metrics::TRIE_NODES.set(self.index.nodes() as i64);
    }
}

impl Follower for Subscriptions {
    fn apply(&self, position: Position, row: &Row) {
        let parsed = SubscriptionRow::parse_key(&row.key).and_then(|(client_id, filter)| {
            let value = row.value.as_deref().map(SubscriptionRow::decode).transpose()?;
            Ok((client_id, filter, value))
        });
        match parsed {
            Ok((client_id, filter, Some(value))) => {
                self.put(position, &client_id, filter, &value);
            }
            Ok((client_id, filter, None)) => self.delete(&client_id, &filter),
            Err(error) => tracing::error!(%error, "a subscription row was not understood"),
        }
    }
}
