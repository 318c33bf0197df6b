//! One node without its sockets: what stands between the stores and the listeners. The broker runs
//! it, and so does the simulation.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Fault;
use crate::config::Config;
use crate::delivery::Slots;
use crate::limits::GROUP_WINDOW;
use crate::routing::{
    self, GroupQueues, Here, Limits, Parts, Progress, RetainedTable, Rooms, Shares, Subscriptions,
    Turn,
};
use crate::security::Security;
use crate::session::{Handles, Sessions};
use crate::storage::{Committed, LogConsumer, NodeId, PublishLog, Stores};
use crate::telemetry::task;

/// How long clients of a node that ended without a goodbye may take to come back before their
/// Wills go out.
const WILL_GRACE: Duration = Duration::from_secs(10);

/// A node that knows what is stored; nothing of it runs yet.
pub struct Loaded {
    sessions: Sessions,
    security: Arc<Security>,
    parts: Parts,
    log: Arc<dyn PublishLog>,
    committed: Committed,
    consumer: Box<dyn LogConsumer>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("committed", &self.committed).finish_non_exhaustive()
    }
}

/// A running node: its sessions may be handed streams.
#[derive(Debug)]
pub struct Node {
    sessions: Sessions,
    security: Arc<Security>,
    slots: Arc<Slots>,
    limits: Arc<Limits>,
    tasks: Vec<JoinHandle<()>>,
}

impl Node {
    /// Takes up what is stored. Blocks on the medium.
    pub fn load(config: &Config, stores: &Stores) -> Result<Loaded, Fault> {
        let (committed, consumer) = stores.log.consumer(0);
        let parts = parts(config, stores, &committed)?;
        let security = Security::new(config.security.clone(), Arc::clone(&stores.tables))?;
        security.load(Arc::clone(parts.subscriptions.shares()) as _)?;
        let sessions = Sessions::new(handles(config, stores, &parts, &security));
        sessions.load(WILL_GRACE)?;
        let log = Arc::clone(&stores.log);
        Ok(Loaded { sessions, security, parts, log, committed, consumer })
    }

    pub fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Who may come in, and who administers.
    pub fn security(&self) -> &Arc<Security> {
        &self.security
    }

    /// Who can receive here, for whoever looks at their outboxes.
    pub fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// An orderly end: connections first, then dispatch. The stores are the caller's.
    pub async fn stop(self, patience: Duration) {
        self.sessions.stop(patience).await;
        self.abort();
        for task in self.tasks {
            // It was aborted, or it ended before.
            drop(task.await);
        }
    }

    /// Ends what runs beside the connections, without waiting for anybody.
    pub fn abort(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Loaded {
    /// Starts everything. What the last run left in the log is routed again before this returns,
    /// so that it is in force before a client can come.
    pub async fn start(self) -> Node {
        let Loaded { sessions, security, parts, log, committed, consumer } = self;
        let (slots, progress) = (Arc::clone(&parts.slots), Arc::clone(&parts.progress));
        let limits = Arc::clone(&parts.limits);
        let replayed = log.end(0).offset;
        let mut tasks = super::limits::drive(&parts.limits);
        let dispatcher = routing::run(consumer, parts, committed.decided);
        tasks.push(task::spawn("dispatcher", dispatcher));
        if committed.position.offset < replayed {
            progress.reached(replayed).await;
        }
        sessions.adopt_open_ids().await;
        tasks.extend(sessions.start());
        tasks.push(task::spawn("security", Arc::clone(&security).run()));
        Node { sessions, security, slots, limits, tasks }
    }
}

fn parts(config: &Config, stores: &Stores, committed: &Committed) -> Result<Parts, Fault> {
    let slots = Arc::new(Slots::default());
    let routing = &config.routing;
    let replayed = stores.log.end(0).offset;
    let (judge, rooms) = Rooms::decode(committed, replayed)?;
    let shares = Arc::new(Shares::new(routing.shared_policy).app_leave(routing.shared_app_leave));
    Ok(Parts {
        limits: Arc::new(super::limits::limits(config, stores)),
        subscriptions: Arc::new(Subscriptions::new(Arc::clone(&slots)).with_shares(shares)),
        slots,
        retained: Arc::new(RetainedTable::new(
            routing.retained_max_count,
            routing.retained_max_bytes,
        )),
        judge: Arc::new(judge),
        rooms: Arc::new(rooms),
        window: (config.storage.device_queue_messages as u64 / 2).clamp(1, GROUP_WINDOW as u64),
        replayed,
        log: Arc::clone(&stores.log),
        queues: Arc::clone(&stores.queues),
        progress: Arc::new(Progress::behind(committed.position)),
        backlog: Arc::default(),
        here: stores.peers.clone().map(|peers| Arc::new(Here::new(peers))),
        turn: if routing.shared_skip_non_writable { Turn::NextUsable } else { Turn::NextConnected },
        no_ids: Arc::from([]),
    })
}

fn handles(config: &Config, stores: &Stores, parts: &Parts, security: &Arc<Security>) -> Handles {
    Handles {
        config: config.session.clone(),
        delivery: Arc::new(config.delivery.clone()),
        node: NodeId(Arc::clone(&config.service.id)),
        log: Arc::clone(&stores.log),
        tables: Arc::clone(&stores.tables),
        queues: Arc::clone(&stores.queues),
        slots: Arc::clone(&parts.slots),
        subscriptions: Arc::clone(&parts.subscriptions),
        retained: Arc::clone(&parts.retained),
        judge: Arc::clone(&parts.judge),
        progress: Arc::clone(&parts.progress),
        security: Arc::clone(security),
        limits: Arc::clone(&parts.limits),
        retained_expiry_period: config.routing.retained_expiry_period,
        peers: stores.peers.clone(),
        groups: GroupQueues::new(parts.clone()),
    }
}
