//! What administration sees of sessions, and what it may do to them. Views are copies: no lock is
//! held while somebody reads them.

use std::sync::Arc;
use std::time::Duration;

use super::Sessions;
use super::directory::Directory;
use super::lifecycle;
use super::registry::Session;
use super::rows::{self, Bid, SessionRow};
use crate::mqtt::{ClientId, SubscriptionOptions, TopicFilter, topic_str};
use crate::routing::Cursor;
use crate::security::{ClientType, Grant};
use crate::storage::{AppendOutcome, Durability, MessageRef, Row, Table, once};

/// How often to see whether a connection has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// One session, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    pub client_id: ClientId,
    /// Another one with each connection.
    pub session_id: u64,
    pub node: Arc<str>,
    pub connected: bool,
    pub version: u8,
    /// Whether it outlives its connection.
    pub persistent: bool,
    /// Session Expiry Interval, seconds; `u32::MAX`: it never expires.
    pub expiry_s: u32,
    /// When it ends if nobody comes back.
    pub ends_at_ms: Option<u64>,
    pub connected_ms: Option<u64>,
    pub disconnected_ms: Option<u64>,
    pub address: Option<String>,
    pub keep_alive_s: Option<u64>,
    pub subscriptions: usize,
    /// As what the session began, if it is persistent; else what its client is.
    pub client_type: ClientType,
    /// Messages that wait for it or are not acknowledged; `None`: only `node` knows.
    pub lag: Option<u64>,
    pub username: Option<String>,
    /// Who let it in; `None`: it is anonymous, or away since the start.
    pub provider: Option<String>,
}

/// One subscription, as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionView {
    pub client_id: ClientId,
    pub filter: TopicFilter,
    pub options: SubscriptionOptions,
}

impl Sessions {
    /// Shows every session of the cluster, one after another. It waits for their gates, so it runs
    /// on a thread that may block.
    pub fn each_view(&self, visit: &mut dyn FnMut(SessionView)) {
        let context = &self.context;
        context.registry.each(|client_id, session| visit(self.view_of(client_id, session)));
        let Some(directory) = &context.directory else { return };
        for client_id in directory.clients() {
            let row = directory.get(&client_id).filter(|row| !directory.owns(&client_id, row));
            if let Some(row) = row {
                visit(self.view_of_another(directory, &client_id, row));
            }
        }
    }

    pub async fn view(&self, client_id: &str) -> Option<SessionView> {
        let client_id = ClientId::new(client_id);
        let mut locked = self.context.registry.lock(&client_id).await;
        if let Some(session) = locked.session() {
            return Some(self.view_of(&client_id, session));
        }
        let directory = self.context.directory.as_ref()?;
        let row = directory.get(&client_id)?;
        Some(self.view_of_another(directory, &client_id, row))
    }

    fn subscriptions_count(&self, client_id: &ClientId) -> usize {
        let slot = self.context.slots.by_client(client_id.as_str());
        slot.map_or(0, |slot| self.context.subscriptions.count(slot.id()))
    }

    /// A session that another node has, as the log tells of it.
    fn view_of_another(
        &self,
        directory: &Directory,
        client_id: &ClientId,
        row: SessionRow,
    ) -> SessionView {
        let connected = directory.is_connected(&row);
        let guest = row.guest.as_deref();
        let live = guest.filter(|_| connected);
        let client_type = match row.expiry_s > 0 {
            true => row.is_application(),
            false => guest.is_some_and(|guest| guest.application),
        };
        SessionView {
            client_id: client_id.clone(),
            session_id: row.epoch,
            node: Arc::from(&*row.node),
            connected,
            version: row.version().level(),
            persistent: row.expiry_s > 0,
            expiry_s: row.expiry_s,
            ends_at_ms: row.ends_ms(),
            connected_ms: live.map(|guest| guest.connected_ms),
            disconnected_ms: row.offline_since_ms,
            address: live.and_then(|guest| guest.address).map(|at| at.to_string()),
            keep_alive_s: live.map(|guest| u64::from(guest.keep_alive_s)),
            subscriptions: self.subscriptions_count(client_id),
            client_type: if client_type { ClientType::Application } else { ClientType::Device },
            lag: None,
            username: guest.and_then(|guest| guest.username.clone()),
            provider: guest.and_then(|guest| guest.provider.clone()),
        }
    }

    fn view_of(&self, client_id: &ClientId, session: &Session) -> SessionView {
        let live = session.live.as_deref();
        let grant = session.grant.as_deref();
        let client_type = match (session.expiry_s > 0, session.application.is_some()) {
            (_, true) => ClientType::Application,
            (true, false) => ClientType::Device,
            (false, false) => grant.map_or_else(ClientType::default, Grant::client_type),
        };
        SessionView {
            client_id: client_id.clone(),
            session_id: session.epoch,
            node: Arc::clone(&self.context.node.0),
            connected: live.is_some(),
            version: session.version.level(),
            persistent: session.expiry_s > 0,
            expiry_s: session.expiry_s,
            ends_at_ms: session.expires_at_ms(),
            connected_ms: live.map(|conn| conn.connected_ms),
            disconnected_ms: session.offline_since_ms,
            address: live.and_then(|conn| conn.peer.address).map(|at| at.ip().to_string()),
            keep_alive_s: live.map(|conn| conn.keep_alive_s()),
            subscriptions: self.subscriptions_count(client_id),
            client_type,
            lag: Some(self.context.queues.depth(&session.queue(client_id))),
            username: grant.and_then(|grant| grant.username()).map(str::to_owned),
            provider: grant.map(|grant| grant.provider().to_owned()),
        }
    }

    /// The client's subscriptions.
    pub fn subscriptions(&self, client_id: &str) -> Vec<SubscriptionView> {
        let Some(slot) = self.context.slots.by_client(client_id) else { return Vec::new() };
        let subscriptions = &self.context.subscriptions;
        let view = |filter: TopicFilter| {
            let options = subscriptions.get(slot.id(), &filter)?.options;
            Some(SubscriptionView { client_id: slot.client_id().clone(), filter, options })
        };
        subscriptions.filters(slot.id()).into_iter().filter_map(view).collect()
    }

    /// Shows every subscription, client by client.
    pub fn each_subscription(&self, visit: &mut dyn FnMut(SubscriptionView)) {
        let mut show = |client_id: &ClientId| {
            self.subscriptions(client_id.as_str()).into_iter().for_each(&mut *visit);
        };
        match &self.context.directory {
            Some(directory) => directory.clients().iter().for_each(show),
            None => self.context.registry.each(|client_id, _| show(client_id)),
        }
    }

    /// Ends the client's connection with 0x98; `false`: it has none, or not this one.
    pub async fn disconnect(&self, client_id: &str, session_id: Option<u64>) -> bool {
        let client_id = ClientId::new(client_id);
        let mut locked = self.context.registry.lock(&client_id).await;
        let Some(session) = locked.session() else {
            drop(locked);
            return self.ask(&client_id, session_id, Bid::Disconnect).await;
        };
        let is_meant = session.live.is_some() && session.is(session_id);
        if is_meant {
            lifecycle::obey(&self.context, &client_id, &mut locked, Bid::Disconnect);
        }
        is_meant
    }

    /// Ends the session with all that it has: at once when its client is away, else with its
    /// connection, which is ended with 0x98. `false`: there is none, or not this one.
    pub async fn remove(&self, client_id: &str, session_id: Option<u64>) -> bool {
        let client_id = ClientId::new(client_id);
        let mut locked = self.context.registry.lock(&client_id).await;
        let Some(session) = locked.session() else {
            drop(locked);
            return self.ask(&client_id, session_id, Bid::Remove).await;
        };
        if !session.is(session_id) {
            return false;
        }
        let epoch = session.epoch;
        lifecycle::obey(&self.context, &client_id, &mut locked, Bid::Remove);
        drop(locked);
        let gone = self.gone(&client_id, epoch);
        tokio::time::timeout(self.context.config.append_timeout, gone).await.is_ok()
    }

    /// Has the node that has the session do it, through the log, and waits until it is done.
    async fn ask(&self, client_id: &ClientId, session_id: Option<u64>, bid: Bid) -> bool {
        let Some(directory) = &self.context.directory else { return false };
        let asked = self.ask_until_heard(directory, client_id, session_id, bid);
        tokio::time::timeout(self.context.config.append_timeout, asked).await == Ok(true)
    }

    async fn ask_until_heard(
        &self,
        directory: &Directory,
        client_id: &ClientId,
        session_id: Option<u64>,
        bid: Bid,
    ) -> bool {
        loop {
            let row = directory.get(client_id);
            let meant = |row: &SessionRow| session_id.is_none_or(|asked| asked == row.epoch);
            let Some(row) = row.filter(meant) else { return false };
            if bid == Bid::Disconnect && !directory.is_connected(&row) {
                return false;
            }
            let (sink, mut settled) = once();
            let rows = vec![rows::asked(client_id, row.epoch, bid)];
            self.context.tables.put(rows, Durability::Durable, sink, 0);
            let AppendOutcome::Stored(at) = settled.outcome().await else { return false };
            let is_done = |now: &SessionRow| {
                let away = now.offline_since_ms.is_some();
                now.epoch != row.epoch || bid == Bid::Disconnect && away
            };
            let now = loop {
                match directory.get(client_id) {
                    Some(now) if !is_done(&now) => tokio::time::sleep(LOOK_AGAIN).await,
                    now => break now,
                }
            };
            // Another claim stood in front of the order, which was about the one before.
            if now.is_none_or(|now| now.epoch == row.epoch || now.epoch > at.offset) {
                return true;
            }
        }
    }

    /// Waits until nothing of the session is left, on the medium either; one that has come since
    /// is not touched.
    async fn gone(&self, client_id: &ClientId, epoch: u64) {
        loop {
            let mut locked = self.context.registry.lock(client_id).await;
            match locked.session() {
                Some(session) if session.epoch == epoch => {}
                Some(_) => return,
                None => {
                    // Behind all that its end has put, and before any next claim.
                    let (sink, mut settled) = once();
                    let rows = vec![match self.context.directory {
                        Some(_) => rows::ended(client_id, epoch),
                        None => rows::tombstone(client_id),
                    }];
                    self.context.tables.put(rows, Durability::Durable, sink, 0);
                    settled.outcome().await;
                    return;
                }
            }
            drop(locked);
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    // === retained messages ===

    pub fn retained(&self, topic: &str) -> Option<MessageRef> {
        self.context.retained.get(topic)
    }

    /// One page of those that match a plain filter, and where the next one begins.
    pub fn retained_page(
        &self,
        filter: &str,
        from: Option<&Cursor>,
    ) -> (Vec<MessageRef>, Option<Cursor>) {
        self.context.retained.page(filter, from)
    }

    /// Deletes a topic's retained message; `false`: that could not be stored.
    pub async fn delete_retained(&self, topic: &str) -> bool {
        if topic_str(topic).is_err() {
            return false;
        }
        let key = bytes::Bytes::copy_from_slice(topic.as_bytes());
        let row = Row { table: Table::Retained, key, value: None };
        let (sink, mut settled) = once();
        // Not between a retained publish and its row.
        self.context.retained.apart(|| {
            self.context.tables.put(vec![row], Durability::Durable, sink, 0);
        });
        let wait = tokio::time::timeout(self.context.config.append_timeout, settled.outcome());
        let Ok(AppendOutcome::Stored(at)) = wait.await else { return false };
        // It is gone for everybody when the dispatcher has come so far.
        let passed = self.context.progress.reached(at.offset + 1);
        tokio::time::timeout(self.context.config.append_timeout, passed).await.is_ok()
    }
}

impl Session {
    fn is(&self, session_id: Option<u64>) -> bool {
        session_id.is_none_or(|asked| asked == self.epoch)
    }
}
