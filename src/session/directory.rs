//! All sessions of the cluster as the log tells of them (docs/decisions/008): who claimed which,
//! where. Told by the thread that reads the log, in its order; all nodes come to the same answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::census::{Census, Excess};
use super::config::Config;
use super::conn::End;
use super::context::Context;
use super::rows::{self, Bid, SessionRow};
use crate::delivery::{Slot, SlotView};
use crate::mqtt::{ClientId, TopicFilter};
use crate::routing::SubscriptionRow;
use crate::storage::{Follower, Peers, Position, QueueKey, Resolver, Row, Table};

/// A claim of this node that is in force, and what it found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) before: Option<SessionRow>,
    pub(super) now: SessionRow,
    /// The session that it ends was a member of shared groups.
    pub(super) was_member: bool,
    /// It may not stay: the house was full where it stands.
    pub(super) excess: Option<Excess>,
}

/// Bounded by the number of sessions of the cluster.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) peers: Arc<Peers>,
    census: Mutex<Census>,
    /// Claims that their connections have not asked for yet: at most one for each that waits.
    found: Mutex<HashMap<ClientId, Found, ahash::RandomState>>,
    /// Of nodes, so that sessions share them.
    names: Mutex<BTreeSet<Arc<str>>>,
    news: Mutex<News>,
    pub(super) woken: Notify,
}

/// What the reader's thread leaves to a task; a session is there once.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) clients: BTreeSet<ClientId>,
    /// What administrators of other nodes want of sessions of this one: at most one for each.
    pub(super) bids: BTreeMap<ClientId, (u64, Bid)>,
    /// Rows of subscriptions that nobody needs.
    pub(super) garbage: Vec<Row>,
}

impl Directory {
    pub(super) fn new(peers: Arc<Peers>, config: &Config) -> Self {
        let (found, names, news) = Default::default();
        let census = Mutex::new(Census::new(config));
        Self { peers, census, found, names, news, woken: Notify::new() }
    }

    /// How rows of sessions come into force.
    pub(super) fn resolver() -> Resolver {
        let how = Arc::new(|position: Position, before: Option<&[u8]>, row: Row| {
            rows::resolve(position, before, row)
        });
        Resolver { how, remembers: true }
    }

    pub(super) fn get(&self, client_id: &ClientId) -> Option<SessionRow> {
        self.census.lock().get(client_id)
    }

    /// The fencing epoch of the session as far as the log was read.
    pub(super) fn epoch(&self, client_id: &ClientId) -> Option<u64> {
        self.census.lock().epoch(client_id)
    }

    /// Whether one more would be too many, as far as the log was read.
    pub(super) fn is_full(&self, of: Excess) -> bool {
        self.census.lock().is_full(of)
    }

    pub(super) fn clients(&self) -> Vec<ClientId> {
        self.census.lock().clients()
    }

    /// Whether the session is this node's, as far as the log was read.
    pub(super) fn owns(&self, client_id: &ClientId, row: &SessionRow) -> bool {
        self.peers.owns(client_id.as_str(), &row.node, row.epoch)
    }

    /// What the claim that stands at `position` found; `None`: it counts for nothing.
    pub(super) fn found(&self, client_id: &ClientId, position: Position) -> Option<Found> {
        let mut found = self.found.lock();
        let ours = found.get(client_id).is_some_and(|one| one.now.epoch == position.offset);
        ours.then(|| found.remove(client_id)).flatten()
    }

    fn name(&self, node: &str) -> Arc<str> {
        let mut names = self.names.lock();
        names.get(node).cloned().unwrap_or_else(|| {
            let name: Arc<str> = Arc::from(node);
            names.insert(Arc::clone(&name));
            name
        })
    }

    pub(super) fn news(&self) -> News {
        std::mem::take(&mut *self.news.lock())
    }

    fn tell(&self, client_id: &ClientId) {
        self.news.lock().clients.insert(client_id.clone());
        self.woken.notify_one();
    }

    /// Subscriptions of an earlier session: their rows stay in the table for nobody.
    fn discard(&self, context: &Context, client_id: &ClientId, slot: &Slot, incarnation: u64) {
        let filters = context.subscriptions.filters(slot.id());
        context.subscriptions.remove_all(slot.id());
        let row = |filter: &TopicFilter| SubscriptionRow::gone(client_id, filter, incarnation);
        let mut news = self.news.lock();
        news.garbage.extend(filters.iter().map(row));
        drop(news);
        self.woken.notify_one();
    }

    /// Takes up a stored row at start, before anything runs.
    pub(super) fn load(
        &self,
        context: &Context,
        client_id: &ClientId,
        row: &SessionRow,
        stored: (u64, Bytes),
    ) {
        let slot = context.slots.ensure(client_id);
        let (incarnation, persistent) = (row.incarnation, row.expiry_s > 0);
        let application = row.is_application();
        slot.set(SlotView { incarnation, persistent, application, outbox: None });
        slot.set_home(&self.name(&row.node), row.epoch);
        slot.set_connected_elsewhere(self.is_connected(row));
        self.census.lock().load(client_id, row, stored);
    }

    /// Whether it is connected to another node that lives.
    pub(super) fn is_connected(&self, row: &SessionRow) -> bool {
        let is_there = || {
            let members = self.peers.members();
            let node = members.get(&row.node);
            node.is_some_and(|node| node.gone.is_none() && node.joined <= row.epoch)
        };
        row.offline_since_ms.is_none() && *row.node != **self.peers.node() && is_there()
    }

    fn ended(&self, context: &Context, client_id: &ClientId) {
        let Some(old) = self.census.lock().remove(client_id) else { return };
        if let Some(slot) = context.slots.by_client(client_id.as_str()) {
            match self.owns(client_id, &old) {
                true => self.discard(context, client_id, &slot, old.incarnation),
                false => context.subscriptions.remove_all(slot.id()),
            }
            slot.set(SlotView::default());
            context.slots.remove(&slot);
        }
        if self.owns(client_id, &old) {
            let queue = QueueKey::of(client_id, old.is_application());
            context.queues.remove(&queue, old.incarnation);
        }
        self.tell(client_id);
    }

    fn claimed(&self, context: &Context, client_id: &ClientId, now: SessionRow, row: Bytes) {
        // A claim's place is its epoch.
        let row = (now.epoch, row);
        let (before, excess) = self.census.lock().claim(client_id, &now, row);
        let ours = *now.node == **self.peers.node();
        let fresh = context.slots.by_client(client_id.as_str()).is_none();
        let slot = context.slots.ensure(client_id);
        let resumed = before.as_ref().is_some_and(|old| old.incarnation == now.incarnation);
        let mut was_member = false;
        if let Some(old) = before.as_ref().filter(|_| !resumed) {
            let filters = context.subscriptions.filters(slot.id());
            was_member = filters.iter().any(TopicFilter::is_shared);
            match ours {
                true => self.discard(context, client_id, &slot, old.incarnation),
                false => context.subscriptions.remove_all(slot.id()),
            }
        }
        let outbox = slot.view().outbox.filter(|_| ours);
        let persistent = now.expiry_s > 0 || resumed;
        if slot.is_persistent() != persistent {
            context.subscriptions.touch();
        }
        let (incarnation, application) = (now.incarnation, now.is_application());
        slot.set(SlotView { incarnation, persistent, application, outbox });
        if fresh {
            slot.set_home(&self.name(&now.node), now.epoch);
            slot.set_elsewhere(!ours);
        }
        slot.set_connected_elsewhere(!ours);
        if ours {
            let found = Found { before, now, was_member, excess };
            self.found.lock().insert(client_id.clone(), found);
            return;
        }
        // TKO: the connection here ends; what it leaves is seen to by a task.
        if let Some(live) = before.and_then(|old| context.registry.live_of(old.epoch)) {
            live.end(End::TakenOver);
        }
        self.tell(client_id);
    }
}

/// The directory as the follower of its table.
pub(super) struct Follow(pub(super) Weak<Context>);

impl Follower for Follow {
    fn recall(&self, key: &[u8]) -> Option<(u64, Bytes)> {
        let context = self.0.upgrade()?;
        let client_id = ClientId::new(&String::from_utf8_lossy(key));
        context.directory.as_ref()?.census.lock().row(&client_id)
    }

    fn apply(&self, position: Position, row: &Row) {
        debug_assert_eq!(row.table, Table::Sessions);
        let Some(context) = self.0.upgrade() else { return };
        let Some(directory) = &context.directory else { return };
        let client_id = ClientId::new(&String::from_utf8_lossy(&row.key));
        let Some(value) = &row.value else { return directory.ended(&context, &client_id) };
        match SessionRow::decode(value) {
            Ok(now) if directory.epoch(&client_id) == Some(now.epoch) => {
                let connected = directory.is_connected(&now);
                if let Some(slot) = context.slots.by_client(client_id.as_str()) {
                    slot.set_connected_elsewhere(connected);
                }
                if let Some(bid) = now.bid.filter(|_| directory.owns(&client_id, &now)) {
                    directory.news.lock().bids.insert(client_id.clone(), (now.epoch, bid));
                    directory.woken.notify_one();
                }
                let row = (position.offset, value.clone());
                directory.census.lock().update(&client_id, &now, row);
            }
            Ok(now) => directory.claimed(&context, &client_id, now, value.clone()),
            Err(error) => tracing::error!(%error, "a session's row was not understood"),
        }
    }
}
