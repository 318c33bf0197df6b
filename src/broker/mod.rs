//! Room 8: assembly. Builds the stores, spawns the tasks, hands out the handles, and stops them in
//! order: the only place that names a concrete backend (invariant 9).

mod access;
mod health;
mod ledger;
mod limits;
mod node;
mod plan;
mod storage;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::admin::{Admin, Info, Managed};
use crate::config::Config;
use crate::listener::{Certificates, Listeners};
use crate::telemetry::{self, Door, task};

pub use node::{Loaded, Node};

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    node: Node,
    backend: storage::Backend,
    listeners: Vec<JoinHandle<()>>,
    /// What only prints or keeps books.
    beside: Vec<JoinHandle<()>>,
    admin: JoinHandle<()>,
    stop_admin: oneshot::Sender<()>,
    mqtt: Option<SocketAddr>,
    http: SocketAddr,
    drain_timeout: Duration,
}

impl Broker {
    /// Starts everything, listeners last: what is stored is in force before a client can come.
    pub async fn start(mut config: Config) -> Result<Self, Fault> {
        let plan = plan::apply(&mut config)?;
        let (backend, stores) = storage::Backend::open(&config).await?;
        let settings = config.clone();
        let (log, loading) = (Arc::clone(&stores.log), move || Node::load(&settings, &stores));
        let node = tokio::task::spawn_blocking(loading).await??.start().await;
        let stats = config.telemetry.stats_period;
        let mut beside = Vec::new();
        beside.extend(stats.map(|period| task::spawn("stats", telemetry::print_stats(period))));
        if config.telemetry.ledger {
            beside.push(task::spawn("dropped messages", telemetry::ledger::keep()));
        }
        let losses = backend.losses(&config.service.id);
        beside.extend(losses.clone().map(|all| task::spawn("shared losses", ledger::share(all))));
        let topics = backend.topics();
        let keep = |topics| task::spawn("topics", node.sessions().keep_topics(topics));
        beside.extend(topics.clone().map(keep));
        let certificates = Certificates::default();
        let managed = Managed {
            certificates: certificates.clone(),
            security: Arc::clone(node.security()),
            sessions: node.sessions(),
            throughput: node.limits().throughput.clone(),
            plan: plan.clone(),
            losses,
            topics,
        };
        beside.extend(plan.map(|plan| task::spawn("plan", plan::watch(plan))));
        let health = health::Health::new(&config, log, backend.queues());
        let info = Info { node_id: Arc::clone(&config.service.id), storage: backend.name() };
        access::prepare(&node, &config).await?;
        let source = Arc::new(health.clone());
        let admin = Admin::bind(&config.admin, info, source, Some(managed)).await?;
        let http = admin.local_addr();
        let bound = Listeners::bind(&config.listener, certificates)?;
        let (mqtt, places) = (bound.address(Door::Tcp), bound.places());
        let listeners = bound.start(&node.sessions());
        health.set_listening(true);
        let (stop_admin, stopped) = oneshot::channel::<()>();
        let admin = task::spawn("admin", admin.run(async move { drop(stopped.await) }));
        for (door, place) in places {
            tracing::info!(listener = door.text(), "mqtt listener on {place}");
        }
        tracing::info!(address = %http, node = %config.service.id, "http listener on {http}");
        let drain_timeout = config.service.drain_timeout;
        Ok(Self { node, backend, listeners, beside, admin, stop_admin, mqtt, http, drain_timeout })
    }

    /// Others have taken over what this node had: it acts on nothing any more, and its connections
    /// end with it. Whoever starts it again gives it a part in the cluster as a new one.
    fn give_up(&self, why: &str) -> Fault {
        self.listeners.iter().chain(&self.beside).for_each(JoinHandle::abort);
        self.node.abort();
        self.admin.abort();
        Fault::from(format!("this node ends: {why}"))
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
        tokio::select! {
            biased;
            () = asked => {}
            why = self.backend.fenced() => return Err(self.give_up(&why)),
        }
        self.listeners.iter().chain(&self.beside).for_each(JoinHandle::abort);
        self.node.stop(self.drain_timeout).await;
        self.backend.stop(self.drain_timeout).await?;
        // The receiver goes when the administration has ended by itself.
        self.stop_admin.send(()).ok();
        self.admin.await?;
        Ok(())
    }
}
