//! What every session works with: the handles, and nothing of any one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Config;
use super::budget::Budget;
use super::conn::Conn;
use super::directory::Directory;
use super::groups::Members;
use super::places::Places;
use super::registry::Registry;
use super::timers::Timers;
use crate::delivery::{self, Slots};
use crate::routing::{GroupQueues, Judge, Limits, Progress, RetainedTable, Subscriptions};
use crate::security::Security;
use crate::storage::{ChangeLog, DeviceQueues, NodeId, Peers, PublishLog};

/// The handles a session needs; made once, by the broker.
pub struct Handles {
    pub config: Config,
    pub delivery: Arc<delivery::Config>,
    pub node: NodeId,
    pub log: Arc<dyn PublishLog>,
    pub tables: Arc<dyn ChangeLog>,
    pub queues: Arc<dyn DeviceQueues>,
    pub slots: Arc<Slots>,
    pub subscriptions: Arc<Subscriptions>,
    pub retained: Arc<RetainedTable>,
    pub judge: Arc<Judge>,
    pub progress: Arc<Progress>,
    pub security: Arc<Security>,
    pub limits: Arc<Limits>,
    pub retained_expiry_period: std::time::Duration,
    /// The other nodes, where there are several.
    pub peers: Option<Arc<Peers>>,
    /// What waits for shared groups.
    pub groups: GroupQueues,
}

impl std::fmt::Debug for Handles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handles").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The handles, and what sessions of this node share among themselves.
pub(super) struct Context {
    handles: Handles,
    pub(super) registry: Registry,
    pub(super) places: Places,
    /// Of persistent APPLICATION clients.
    pub(super) applications: Places,
    pub(super) budget: Arc<Budget>,
    pub(super) timers: Timers,
    pub(super) members: Members,
    /// The sessions of all nodes, where there are several.
    pub(super) directory: Option<Directory>,
    last_epoch: AtomicU64,
    /// Dispatch lags too far behind: publishers are held (IN-8).
    lagging: AtomicBool,
    caught_up: Notify,
    stopping: AtomicBool,
    /// Connections from their claim until all that they leave is written.
    serving: AtomicUsize,
    /// What the last look at the log said, so that a change is logged once.
    pub(super) trouble: Mutex<Option<String>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("handles", &self.handles).finish_non_exhaustive()
    }
}

impl std::ops::Deref for Context {
    type Target = Handles;

    fn deref(&self) -> &Handles {
        &self.handles
    }
}

impl Context {
    pub(super) fn new(handles: Handles) -> Arc<Self> {
        let budget = Arc::new(Budget::new(handles.config.inbound_budget_bytes));
        let directory = handles.peers.clone().map(|peers| Directory::new(peers, &handles.config));
        Arc::new(Self {
            directory,
            registry: Registry::default(),
            places: Places::default(),
            applications: Places::default(),
            budget,
            timers: Timers::default(),
            members: Members::default(),
            last_epoch: AtomicU64::new(0),
            lagging: AtomicBool::new(false),
            caught_up: Notify::new(),
            stopping: AtomicBool::new(false),
            serving: AtomicUsize::new(0),
            trouble: Mutex::new(None),
            handles,
        })
    }

    /// Says in how many shared groups an APPLICATION client is.
    pub(super) fn tell_groups(&self, conn: &Conn) {
        let Some(processor) = &conn.application else { return };
        let slot = self.slots.by_client(conn.client_id.as_str());
        let filters = slot.map(|slot| self.subscriptions.filters(slot.id())).unwrap_or_default();
        processor.set_groups(filters.iter().filter(|filter| filter.is_shared()).count());
    }

    /// A number above every epoch and incarnation so far, also those of earlier runs: the log's
    /// end rises by more than the connects between two restarts can use up.
    pub(super) fn next_epoch(&self) -> u64 {
        let end = self.log.end(0).offset;
        let mut last = self.last_epoch.load(Ordering::Relaxed);
        loop {
            let next = end.max(last + 1);
            let swapped = self.last_epoch.compare_exchange_weak(
                last,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => return next,
                Err(newer) => last = newer,
            }
        }
    }

    /// An epoch that an earlier run used.
    pub(super) fn saw_epoch(&self, epoch: u64) {
        self.last_epoch.fetch_max(epoch, Ordering::Relaxed);
    }

    pub(super) fn set_lagging(&self, lagging: bool) {
        self.lagging.store(lagging, Ordering::Relaxed);
        if !lagging {
            self.caught_up.notify_waiters();
        }
    }

    pub(super) fn is_lagging(&self) -> bool {
        self.lagging.load(Ordering::Relaxed)
    }

    /// Waits while dispatch lags behind. Cancel safe: yes.
    pub(super) async fn caught_up(&self) {
        loop {
            let notified = self.caught_up.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if !self.is_lagging() {
                return;
            }
            notified.await;
        }
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn serving(&self) -> usize {
        self.serving.load(Ordering::Acquire)
    }
}

/// Counts a connection that a stop has to wait for: its rows, its Will, its last packet.
pub(super) struct Serving(Arc<Context>);

impl Serving {
    pub(super) fn of(context: &Arc<Context>) -> Self {
        context.serving.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(context))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.serving.fetch_sub(1, Ordering::AcqRel);
    }
}
