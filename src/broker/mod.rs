//! Room 8: assembly. Builds the stores, spawns the tasks, hands out the handles, and stops them in
//! order: the only place that names a concrete backend (invariant 9).

mod health;
mod storage;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::admin::{Admin, Info};
use crate::config::Config;
use crate::delivery::Slots;
use crate::listener::Tcp;
use crate::routing::{self, Judge, Parts, Progress, RetainedTable, Subscriptions, Turn};
use crate::session::{Handles, Sessions};
use crate::storage::{Committed, Embedded, LogConsumer, NodeId, Stores};
use crate::telemetry::{self, task};

/// How long clients of a node that ended without a goodbye may take to come back before their
/// Wills go out.
const WILL_GRACE: Duration = Duration::from_secs(10);

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    sessions: Sessions,
    embedded: Arc<Embedded>,
    listeners: Vec<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
    admin: JoinHandle<()>,
    stop_admin: oneshot::Sender<()>,
    mqtt: Option<SocketAddr>,
    http: SocketAddr,
    drain_timeout: Duration,
}

impl Broker {
    /// Starts everything, listeners last: what is stored is in force before a client can come.
    pub async fn start(config: Config) -> Result<Self, Fault> {
        let (embedded, stores) = storage::open(&config).await?;
        let embedded = Arc::new(embedded);
        let (committed, consumer) = stores.log.consumer(0);
        let parts = parts(&config, &stores, &committed)?;
        let sessions = Sessions::new(handles(&config, &stores, &parts));
        let loading = sessions.clone();
        tokio::task::spawn_blocking(move || loading.load(WILL_GRACE)).await??;
        let replayed = stores.log.end(0).offset;
        let mut tasks = vec![spawn_dispatcher(consumer, parts.clone())];
        if committed.position.offset < replayed {
            parts.progress.reached(replayed).await;
        }
        sessions.adopt_open_ids().await;
        tasks.extend(sessions.start());
        let stats = config.telemetry.stats_period;
        tasks.extend(stats.map(|period| task::spawn("stats", telemetry::print_stats(period))));
        let health = health::Health::new(&config, Arc::clone(&stores.log));
        let info = Info { node_id: Arc::clone(&config.service.id), storage: "embedded" };
        let admin = Admin::bind(&config.admin, info, Arc::new(health.clone())).await?;
        let http = admin.local_addr();
        let (mut listeners, mut mqtt) = (Vec::new(), None);
        if let Some(tcp) = &config.listener.tcp {
            let listener = Tcp::bind(&config.listener, tcp)?;
            mqtt = Some(listener.local_addr()?);
            listeners.push(task::spawn("listener", listener.accept_loop(sessions.clone())));
        }
        health.set_listening(true);
        let (stop_admin, stopped) = oneshot::channel::<()>();
        let admin = task::spawn("admin", admin.run(async move { drop(stopped.await) }));
        if let Some(address) = mqtt {
            tracing::info!(%address, "mqtt listener on {address}");
        }
        tracing::info!(address = %http, node = %config.service.id, "http listener on {http}");
        let drain_timeout = config.service.drain_timeout;
        Ok(Self {
            sessions,
            embedded,
            listeners,
            tasks,
            admin,
            stop_admin,
            mqtt,
            http,
            drain_timeout,
        })
    }

    pub fn mqtt_addr(&self) -> Option<SocketAddr> {
        self.mqtt
    }

    pub fn http_addr(&self) -> SocketAddr {
        self.http
    }

    /// Runs until `asked` resolves, then stops in order: listeners, connections, dispatch,
    /// storage, administration.
    pub async fn run_until(self, asked: impl Future<Output = ()>) -> Result<(), Fault> {
        asked.await;
        self.listeners.iter().for_each(JoinHandle::abort);
        self.sessions.stop(self.drain_timeout).await;
        self.tasks.iter().for_each(JoinHandle::abort);
        for task in self.tasks {
            // It was aborted, or it ended before.
            drop(task.await);
        }
        let embedded = Arc::clone(&self.embedded);
        tokio::task::spawn_blocking(move || embedded.stop()).await??;
        // The receiver goes when the administration has ended by itself.
        self.stop_admin.send(()).ok();
        self.admin.await?;
        Ok(())
    }
}

fn parts(config: &Config, stores: &Stores, committed: &Committed) -> Result<Parts, Fault> {
    let slots = Arc::new(Slots::default());
    let routing = &config.routing;
    let progress = Progress::behind(committed.position);
    Ok(Parts {
        subscriptions: Arc::new(Subscriptions::new(Arc::clone(&slots))),
        slots,
        retained: Arc::new(RetainedTable::new(
            routing.retained_max_count,
            routing.retained_max_bytes,
        )),
        judge: Arc::new(Judge::decode(&committed.state)?),
        queues: Arc::clone(&stores.queues),
        progress: Arc::new(progress),
        turn: if routing.shared_skip_non_writable { Turn::NextUsable } else { Turn::NextConnected },
        no_ids: Arc::from([]),
    })
}

fn handles(config: &Config, stores: &Stores, parts: &Parts) -> Handles {
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
        retained_expiry_period: config.routing.retained_expiry_period,
    }
}

fn spawn_dispatcher(consumer: Box<dyn LogConsumer>, parts: Parts) -> JoinHandle<()> {
    task::spawn("dispatcher", routing::run(consumer, parts))
}
