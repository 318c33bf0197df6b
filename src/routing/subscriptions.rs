//! The subscriptions in force, as a follower of their table: one writer, many readers.
//!
//! A session sees its subscriptions as its last row left them. The dispatcher sees them as they
//! were at the position of the message at hand: what a row changes or takes away waits in `late`
//! until the dispatcher has passed that row. So a message is routed by its position alone, and a
//! replay after a crash gives every queue the same entries under the same sequences.

use std::collections::hash_map::Entry as Place;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use super::Shares;
use super::SubscriptionIndex;
use super::rows::SubscriptionRow;
use crate::delivery::{SlotId, Slots};
use crate::mqtt::{ClientId, SubscriptionOptions, TopicFilter};
use crate::storage::{Follower, InForce, Position, Resolver, Row, StorageError, Table};
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
    pub(super) slots: Arc<Slots>,
    shares: Arc<Shares>,
    inner: RwLock<Inner>,
    pub(super) version: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    /// As the dispatcher sees them.
    pub(super) index: SubscriptionIndex<SlotId, Entry>,
    /// As their sessions see them.
    filters: HashMap<SlotId, Vec<TopicFilter>, ahash::RandomState>,
    /// What the dispatcher has not come to, positions rising. Bounded by the rows between the
    /// dispatcher and the end of the log, which the dispatcher's lag bounds.
    late: VecDeque<Change>,
    /// How many of them each slot has.
    late_of: HashMap<SlotId, usize, ahash::RandomState>,
}

/// The subscription of a slot is another one, or none, for messages behind a position.
#[derive(Debug)]
struct Change {
    position: u64,
    slot: SlotId,
    filter: TopicFilter,
    entry: Option<Entry>,
}

impl Subscriptions {
    pub fn new(slots: Arc<Slots>) -> Self {
        Self { slots, shares: Arc::default(), inner: RwLock::default(), version: AtomicU64::new(0) }
    }

    /// With what is settled about shared ones.
    #[must_use]
    pub fn with_shares(self, shares: Arc<Shares>) -> Self {
        Self { shares, ..self }
    }

    pub fn shares(&self) -> &Arc<Shares> {
        &self.shares
    }

    /// For matching: held for one batch.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read()
    }

    /// What a message is routed by has changed, or will have for those that are still to come.
    pub fn touch(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Brings what the dispatcher sees up to `position`.
    pub(super) fn advance(&self, position: u64) {
        if !self.inner.read().is_behind(position) {
            return;
        }
        let mut inner = self.inner.write();
        while inner.is_behind(position) {
            let Some(change) = inner.late.pop_front() else { break };
            if let Place::Occupied(mut late) = inner.late_of.entry(change.slot) {
                *late.get_mut() -= 1;
                if *late.get() == 0 {
                    late.remove();
                }
            }
            inner.put(change.slot, &change.filter, change.entry);
        }
        inner.tell();
        self.touch();
    }

    /// The options under which the session is subscribed to exactly `filter`.
    pub fn get(&self, slot: SlotId, filter: &TopicFilter) -> Option<Entry> {
        self.inner.read().newest(slot, filter)
    }

    /// How many filters the session has.
    pub fn count(&self, slot: SlotId) -> usize {
        self.inner.read().filters.get(&slot).map_or(0, Vec::len)
    }

    /// The session's filters.
    pub fn filters(&self, slot: SlotId) -> Vec<TopicFilter> {
        self.inner.read().filters.get(&slot).cloned().unwrap_or_default()
    }

    /// The shared groups, each with its members in the order in which they joined: a copy.
    pub fn groups(&self) -> Vec<(TopicFilter, Vec<(SlotId, Entry)>)> {
        let inner = self.inner.read();
        let members = |group: &super::Group<SlotId, Entry>| {
            let members = group.members().map(|member| (member.key, member.entry)).collect();
            (group.filter().clone(), members)
        };
        inner.index.groups().iter().map(members).collect()
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

    /// Whether this row's key is a subscription in force.
    pub fn holds(&self, row: &Row) -> bool {
        let known = |(client_id, filter): (ClientId, TopicFilter)| {
            let slot = self.slots.by_client(client_id.as_str())?;
            self.get(slot.id(), &filter)
        };
        let ours = row.table == Table::Subscriptions;
        ours && SubscriptionRow::parse_key(&row.key).ok().and_then(known).is_some()
    }

    /// How rows come into force where several nodes write them: those of a session that is over
    /// count for nothing, however late they are, and never hide one that is in force.
    pub fn resolver(this: &Arc<Self>) -> Resolver {
        let this = Arc::clone(this);
        let how = move |_: Position, _: Option<&[u8]>, row: Row| {
            this.resolve(row).map(|row| InForce { row, claimed: None })
        };
        Resolver { how: Arc::new(how), remembers: false }
    }

    fn resolve(&self, row: Row) -> Option<Row> {
        let Some(value) = &row.value else { return Some(row) };
        let (client_id, filter) = SubscriptionRow::parse_key(&row.key).ok()?;
        let slot = self.slots.by_client(client_id.as_str());
        let current = slot.as_ref().map(|slot| slot.view().incarnation);
        let Some(of) = SubscriptionRow::gone_of(value) else {
            let put = SubscriptionRow::decode(value).ok()?;
            return (current == Some(put.incarnation)).then_some(row);
        };
        let another = slot.filter(|_| current != Some(of));
        let in_force = another.is_some_and(|slot| self.get(slot.id(), &filter).is_some());
        (!in_force).then_some(Row { value: None, ..row })
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
        if inner.newest(slot.id(), &filter).is_none() {
            let filters = inner.filters.entry(slot.id()).or_default();
            filters.reserve_exact(1);
            filters.push(filter.clone());
        }
        inner.change(position, slot.id(), filter, Some(entry));
        self.touch();
        true
    }

    fn delete(&self, position: Position, client_id: &ClientId, filter: TopicFilter) {
        let Some(slot) = self.slots.by_client(client_id.as_str()) else { return };
        let mut inner = self.inner.write();
        if inner.newest(slot.id(), &filter).is_none() {
            return;
        }
        if let Some(filters) = inner.filters.get_mut(&slot.id()) {
            filters.retain(|other| *other != filter);
            if filters.is_empty() {
                inner.filters.remove(&slot.id());
            }
        }
        inner.change(position, slot.id(), filter, None);
    }

    /// The session has ended, and its queue with it: all its subscriptions go, at once.
    pub fn remove_all(&self, slot: SlotId) {
        let mut inner = self.inner.write();
        for filter in inner.filters.remove(&slot).unwrap_or_default() {
            inner.index.unsubscribe(&filter, &slot);
        }
        if inner.late_of.remove(&slot).is_some() {
            // The slot's number is used again.
            let Inner { index, late, .. } = &mut *inner;
            late.retain(|change| {
                if change.slot == slot {
                    index.unsubscribe(&change.filter, &slot);
                }
                change.slot != slot
            });
        }
        inner.tell();
        self.touch();
    }
}

impl Inner {
    /// Whether something waits that a message at `position` must be routed by.
    pub(super) fn is_behind(&self, position: u64) -> bool {
        self.late.front().is_some_and(|change| change.position < position)
    }

    fn newest(&self, slot: SlotId, filter: &TopicFilter) -> Option<Entry> {
        if self.late_of.contains_key(&slot) {
            let newest = |change: &&Change| change.slot == slot && change.filter == *filter;
            if let Some(change) = self.late.iter().rev().find(newest) {
                return change.entry;
            }
        }
        self.index.get(filter, &slot).copied()
    }

    /// A subscription that is new can't be met by anything before it; what changes one can.
    fn change(&mut self, at: Position, slot: SlotId, filter: TopicFilter, entry: Option<Entry>) {
        if self.index.get(&filter, &slot).is_none() && entry.is_some() {
            self.put(slot, &filter, entry);
        } else {
            *self.late_of.entry(slot).or_default() += 1;
            self.late.push_back(Change { position: at.offset, slot, filter, entry });
        }
        self.tell();
    }

    fn put(&mut self, slot: SlotId, filter: &TopicFilter, entry: Option<Entry>) {
        match entry {
            Some(entry) => drop(self.index.subscribe(filter, slot, entry)),
            None => drop(self.index.unsubscribe(filter, &slot)),
        }
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
            Ok((client_id, filter, None)) => self.delete(position, &client_id, filter),
            Err(error) => tracing::error!(%error, "a subscription row was not understood"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::SlotView;
    use crate::mqtt::QoS;

    fn at(offset: u64) -> Position {
        Position { partition: 0, offset }
    }

    fn filter() -> TopicFilter {
        TopicFilter::new("a/+").expect("a good filter")
    }

    fn row(client_id: &ClientId, subscription_id: Option<u32>) -> Row {
        let options =
            SubscriptionOptions { subscription_id, ..SubscriptionOptions::v3(QoS::AtLeastOnce) };
        let value = SubscriptionRow { options, incarnation: 1, since: Some(1) }.encode();
        let key = SubscriptionRow::key(client_id, &filter());
        Row { table: Table::Subscriptions, key, value: Some(value) }
    }

    fn gone(client_id: &ClientId) -> Row {
        Row { value: None, ..row(client_id, None) }
    }

    fn met(subscriptions: &Subscriptions) -> Vec<Option<u32>> {
        let (mut found, inner) = (Vec::new(), subscriptions.read());
        let mut plain = |one: &crate::routing::Subscriber<SlotId, Entry>| {
            found.push(one.entry.options.subscription_id);
        };
        inner.index.matches("a/b", &mut plain, &mut |_| {});
        found
    }

    fn known(name: &str) -> (Arc<Slots>, Subscriptions, ClientId) {
        let (slots, client_id) = (Arc::new(Slots::default()), ClientId::new(name));
        let view =
            SlotView { incarnation: 1, persistent: true, outbox: None, ..SlotView::default() };
        slots.ensure(&client_id).set(view);
        let subscriptions = Subscriptions::new(Arc::clone(&slots));
        (slots, subscriptions, client_id)
    }

    /// INV-2: a message is routed by what was in force at its position, however late the
    /// dispatcher comes to it; the session sees its own rows at once.
    #[test]
    fn changes_wait_for_the_dispatcher() {
        let (slots, subscriptions, client_id) = known("c");
        let slot = slots.ensure(&client_id).id();
        let ours = || subscriptions.get(slot, &filter()).map(|one| one.options.subscription_id);
        subscriptions.apply(at(1), &row(&client_id, Some(7)));
        subscriptions.apply(at(10), &row(&client_id, Some(8)));
        subscriptions.apply(at(20), &gone(&client_id));
        assert_eq!((ours(), subscriptions.count(slot)), (None, 0));
        subscriptions.apply(at(30), &row(&client_id, Some(9)));
        assert_eq!((ours(), subscriptions.count(slot)), (Some(Some(9)), 1));
        for (position, expected) in [(10, Some(7)), (11, Some(8)), (31, Some(9))] {
            subscriptions.advance(position);
            assert_eq!(met(&subscriptions), [expected], "at {position}");
        }
        subscriptions.apply(at(40), &gone(&client_id));
        subscriptions.advance(41);
        assert!(met(&subscriptions).is_empty() && subscriptions.is_empty());
    }

    /// A slot's number is used again: nothing of its last session may come to the next one.
    #[test]
    fn the_end_of_a_session_waits_for_nobody() {
        let (slots, subscriptions, client_id) = known("c");
        let slot = slots.ensure(&client_id).id();
        subscriptions.apply(at(1), &row(&client_id, Some(7)));
        subscriptions.apply(at(10), &gone(&client_id));
        subscriptions.apply(at(20), &row(&client_id, Some(8)));
        subscriptions.remove_all(slot);
        assert!(met(&subscriptions).is_empty());
        subscriptions.advance(100);
        assert!(met(&subscriptions).is_empty() && subscriptions.is_empty());
    }
}
