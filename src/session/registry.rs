//! Which sessions this node knows, and which of them are connected: one gate per client id, so
//! that connects, ends and timers of one session happen one after another.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Mutex as Gate, OwnedMutexGuard};

use super::conn::Conn;
use super::context::Context;
use super::inbound::Exchanges;
use super::places::Place;
use super::rows::{Owed, SessionRow, WillRow};
use crate::mqtt::{ClientId, ProtocolVersion};
use crate::security::Grant;
use crate::storage::QueueKey;

const SHARDS: usize = 16;

/// A session, behind its gate.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) incarnation: u64,
    pub(super) epoch: u64,
    pub(super) version: ProtocolVersion,
    pub(super) expiry_s: u32,
    pub(super) live: Option<Arc<Conn>>,
    /// Milliseconds of wall clock; `None` while connected.
    pub(super) offline_since_ms: Option<u64>,
    pub(super) will: Option<Box<WillRow>>,
    /// Wills of its earlier connections on their way into the log; it does not end before they
    /// are there.
    pub(super) owed: Vec<Owed>,
    /// Those of them that a task of this node sees to.
    pub(super) under_way: Vec<u64>,
    /// By what right its last connection was here; its Will goes out by the same.
    pub(super) grant: Option<Arc<Grant>>,
    /// QoS 2 ids the client has open with us, which outlive a connection, and their fence.
    pub(super) open_ids: Arc<Exchanges>,
    /// When a timer will look at it.
    pub(super) timer_ms: Option<u64>,
    /// A row of it is in the table for good, so its end needs a tombstone.
    pub(super) stored: bool,
    /// It counts under the limit of sessions.
    pub(super) place: Arc<Place>,
    /// Its queue is an APPLICATION client's log, for as long as it lives; it counts under the
    /// limit of those.
    pub(super) application: Option<Arc<Place>>,
    /// It has given back what it had of shared groups, and may end.
    pub(super) released: bool,
}

impl Session {
    /// A session whose client is away, as its row has it.
    pub(super) fn away(context: &Context, row: SessionRow) -> Self {
        let application = row.is_application();
        Self {
            application: application.then(|| Arc::new(context.applications.take_anyway())),
            incarnation: row.incarnation,
            epoch: row.epoch,
            version: row.version(),
            expiry_s: row.expiry_s,
            live: None,
            offline_since_ms: row.offline_since_ms,
            will: row.will,
            owed: row.owed,
            under_way: Vec::new(),
            grant: None,
            open_ids: Arc::default(),
            timer_ms: None,
            stored: true,
            place: Arc::new(context.places.take_anyway()),
            released: false,
        }
    }

    pub(super) fn queue(&self, client_id: &ClientId) -> QueueKey {
        QueueKey::of(client_id, self.application.is_some())
    }

    /// When it ends if nobody comes back; `None`: connected, or never.
    pub(super) fn expires_at_ms(&self) -> Option<u64> {
        let since_ms = self.offline_since_ms?;
        let never = self.expiry_s == super::rows::NEVER;
        (!never).then(|| since_ms.saturating_add(u64::from(self.expiry_s) * 1000))
    }

    /// When its Will is due: after its delay or with the session, whichever is first
    /// (MQTT-3.1.2-8); `None`: connected, or no Will.
    pub(super) fn will_due_ms(&self) -> Option<u64> {
        let (since_ms, will) = (self.offline_since_ms?, self.will.as_ref()?);
        let due_ms = since_ms.saturating_add(u64::from(will.delay_s) * 1000);
        Some(self.expires_at_ms().map_or(due_ms, |end_ms| end_ms.min(due_ms)))
    }

    /// When a timer has to look at it next.
    pub(super) fn due_ms(&self) -> Option<u64> {
        if self.owed.iter().any(|owed| !self.under_way.contains(&owed.epoch)) {
            return Some(0);
        }
        match (self.expires_at_ms(), self.will_due_ms()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// One client id's place.
#[derive(Debug)]
struct Entry {
    client_id: ClientId,
    gate: Arc<Gate<State>>,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Session>,
    /// The entry has left the registry; who finds this looks the id up again.
    gone: bool,
}

type Shard<K, V> = Mutex<HashMap<K, V, ahash::RandomState>>;

/// Bounded by the number of sessions (`mqtt.sessions-limit`, if set).
#[derive(Debug)]
pub(super) struct Registry {
    entries: [Shard<ClientId, Arc<Entry>>; SHARDS],
    live: [Mutex<BTreeMap<u64, Arc<Conn>>>; SHARDS],
    hasher: ahash::RandomState,
    connected: AtomicUsize,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            entries: Default::default(),
            live: Default::default(),
            hasher: ahash::RandomState::new(),
            connected: AtomicUsize::new(0),
        }
    }
}

impl Registry {
    fn shard(&self, client_id: &ClientId) -> &Shard<ClientId, Arc<Entry>> {
        &self.entries[self.hasher.hash_one(client_id) as usize % SHARDS]
    }

    /// The client's entry, made if there is none. Lock it with [`Entry::lock`].
    fn ensure(&self, client_id: &ClientId) -> Arc<Entry> {
        let mut shard = self.shard(client_id).lock();
        let entry = shard.entry(client_id.clone()).or_insert_with(|| {
            Arc::new(Entry { client_id: client_id.clone(), gate: Arc::default() })
        });
        Arc::clone(entry)
    }

    /// Locks the client's session; waits for whoever holds it. Cancel safe: yes.
    pub(super) async fn lock(&self, client_id: &ClientId) -> Locked<'_> {
        loop {
            let entry = self.ensure(client_id);
            let state = Arc::clone(&entry.gate).lock_owned().await;
            if !state.gone {
                return Locked { registry: self, entry, state };
            }
        }
    }

    /// Puts a loaded session in, before any listener is open.
    pub(super) fn load(&self, client_id: ClientId, session: Session) {
        let gate = Arc::new(Gate::new(State { session: Some(session), gone: false }));
        let entry = Arc::new(Entry { client_id: client_id.clone(), gate });
        self.shard(&client_id).lock().insert(client_id, entry);
    }

    /// Visits every session, shard by shard, each behind its gate: for a thread that may block.
    pub(super) fn each(&self, mut visit: impl FnMut(&ClientId, &Session)) {
        for shard in &self.entries {
            let entries: Vec<Arc<Entry>> = shard.lock().values().cloned().collect();
            for entry in entries {
                if let Some(session) = &entry.gate.blocking_lock().session {
                    visit(&entry.client_id, session);
                }
            }
        }
    }

    pub(super) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    pub(super) fn add_live(&self, conn: &Arc<Conn>) {
        self.live[conn.epoch as usize % SHARDS].lock().insert(conn.epoch, Arc::clone(conn));
        self.connected.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_live(&self, conn: &Arc<Conn>) {
        if self.live[conn.epoch as usize % SHARDS].lock().remove(&conn.epoch).is_some() {
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The live connection of this epoch.
    pub(super) fn live_of(&self, epoch: u64) -> Option<Arc<Conn>> {
        self.live[epoch as usize % SHARDS].lock().get(&epoch).cloned()
    }

    /// Visits every live connection, shard by shard, each from the oldest on.
    pub(super) fn each_live(&self, mut visit: impl FnMut(&Arc<Conn>)) {
        for shard in &self.live {
            for conn in shard.lock().values() {
                visit(conn);
            }
        }
    }
}

/// A client's session, locked. An entry without a session leaves the registry with the lock.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    registry: &'a Registry,
    entry: Arc<Entry>,
    state: OwnedMutexGuard<State>,
}

impl Locked<'_> {
    pub(super) fn session(&mut self) -> &mut Option<Session> {
        &mut self.state.session
    }

    /// Whether `conn` is the session's live connection.
    pub(super) fn is_live(&self, conn: &Arc<Conn>) -> bool {
        let live = self.state.session.as_ref().and_then(|session| session.live.as_ref());
        live.is_some_and(|live| Arc::ptr_eq(live, conn))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.state.session.is_some() {
            return;
        }
        self.state.gone = true;
        let mut shard = self.registry.shard(&self.entry.client_id).lock();
        if shard.get(&self.entry.client_id).is_some_and(|now| Arc::ptr_eq(now, &self.entry)) {
            shard.remove(&self.entry.client_id);
        }
    }
}
