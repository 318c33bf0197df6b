//! Which backend, with which settings.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Fault;
use crate::config::Config;
use crate::limits::BATCH_BYTES;
use crate::listener;
use crate::storage::{
    AppTopics, Applications, Embedded, EmbeddedSettings, Kafka, KafkaSettings, NodeLosses, Profile,
    Redis, StorageError, Stores, SyncMode,
};

/// What a record needs beside the packet or the batch that it holds.
const RECORD_ROOM: usize = 64 * 1024;

/// What is the matter with a store, if anything is.
pub(super) type Trouble = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What runs behind the ports, until [`Backend::stop`].
#[derive(Debug)]
pub(super) enum Backend {
    Embedded(Embedded),
    /// The log and the tables, and the queues.
    Cluster(Kafka, Mutex<Option<(Applications, Redis)>>),
}

impl Backend {
    pub(super) async fn open(config: &Config) -> Result<(Self, Stores), Fault> {
        match config.storage.profile {
            Profile::Embedded => embedded(config).await,
            Profile::Cluster => cluster(config).await,
        }
    }

    /// The profile's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Backend::Embedded(_) => "embedded",
            Backend::Cluster(..) => "cluster",
        }
    }

    /// Waits until this node has no part in the cluster any more; says why. Cancel safe: yes.
    pub(super) async fn fenced(&self) -> String {
        match self {
            Backend::Embedded(_) => std::future::pending().await,
            Backend::Cluster(kafka, _) => kafka.peers().fenced().await,
        }
    }

    /// Asks the store of the queues, where it is not the log's.
    pub(super) fn queues(&self) -> Option<Trouble> {
        match self {
            Backend::Embedded(_) => None,
            Backend::Cluster(_, redis) => {
                redis.lock().as_ref().map(|(_, redis)| Arc::new(redis.health()) as Trouble)
            }
        }
    }

    /// The topics of APPLICATION sessions.
    pub(super) fn topics(&self) -> Option<AppTopics> {
        match self {
            Backend::Embedded(_) => None,
            Backend::Cluster(_, redis) => {
                redis.lock().as_ref().map(|(applications, _)| applications.topics())
            }
        }
    }

    /// Where other nodes read what this one has lost.
    pub(super) fn losses(&self, node: &str) -> Option<Arc<NodeLosses>> {
        match self {
            Backend::Embedded(_) => None,
            Backend::Cluster(_, redis) => {
                redis.lock().as_ref().map(|(_, redis)| Arc::new(redis.losses(node)))
            }
        }
    }

    /// An orderly end. Redis comes first: the log's last commit stands for what is in the queues.
    pub(super) async fn stop(self, patience: Duration) -> Result<(), Fault> {
        match self {
            Backend::Embedded(embedded) => {
                tokio::task::spawn_blocking(move || embedded.stop()).await??;
            }
            Backend::Cluster(kafka, redis) => {
                let redis = redis.lock().take();
                if let Some((applications, redis)) = redis {
                    applications.stop(patience).await?;
                    redis.stop(patience).await?;
                }
                tokio::task::spawn_blocking(move || kafka.stop()).await??;
            }
        }
        Ok(())
    }
}

/// It reads and replays, so it runs on a blocking thread.
async fn embedded(config: &Config) -> Result<(Backend, Stores), Fault> {
    let embedded = &config.storage.embedded;
    let mut settings = EmbeddedSettings::default();
    settings.wal.segment_bytes = embedded.segment_bytes;
    settings.wal.sync = embedded.sync;
    settings.checkpoint_every = embedded.checkpoint_period;
    settings.queue_limit = config.storage.device_queue_messages as u64;
    settings.queue_ttl = config.storage.device_message_ttl;
    settings.application_bytes = config.storage.application.bytes;
    settings.application_life = config.storage.application.life;
    settings.shared_bytes = config.storage.application_shared.bytes;
    settings.shared_life = config.storage.application_shared.life;
    let total = config.session.total_rate.windows.as_ref();
    settings.bucket = super::limits::windows(total);
    settings.device_bucket = super::limits::windows(config.routing.device_persisted_rate.as_ref());
    if embedded.sync == SyncMode::Never {
        tracing::warn!(
            "storage.embedded.sync is never: a loss of power loses what was acknowledged"
        );
    }
    let path = embedded.path.clone();
    let opened: Result<_, StorageError> =
        tokio::task::spawn_blocking(move || Embedded::open(&path, settings)).await?;
    let (embedded, stores) = opened?;
    Ok((Backend::Embedded(embedded), stores))
}

async fn cluster(config: &Config) -> Result<(Backend, Stores), Fault> {
    let mut settings = KafkaSettings::new(config.storage.kafka.clone());
    let packet = largest_packet(&config.listener);
    settings.node = config.service.id.to_string();
    settings.max_record_bytes = packet.max(BATCH_BYTES) + RECORD_ROOM;
    let mut queues = config.storage.redis.clone();
    queues.queue_limit = config.storage.device_queue_messages as u64;
    queues.queue_ttl = config.storage.device_message_ttl;
    queues.bucket = super::limits::windows(config.session.total_rate.windows.as_ref());
    queues.device_bucket = super::limits::windows(config.routing.device_persisted_rate.as_ref());
    let redis = Redis::connect(queues).await?;
    let (for_logs, runtime) = (settings.clone(), tokio::runtime::Handle::current());
    let kafka = tokio::task::spawn_blocking(move || Kafka::open(settings)).await??;
    let (places, others) = (redis.places(), redis.queues());
    let opening = move || Applications::open(for_logs, places, others, runtime);
    let applications = tokio::task::spawn_blocking(opening).await??;
    let stores = Stores {
        log: kafka.log(),
        tables: kafka.tables(),
        queues: applications.queues(),
        bucket: redis.bucket(),
        device_bucket: redis.device_bucket(),
        peers: Some(kafka.peers()),
    };
    Ok((Backend::Cluster(kafka, Mutex::new(Some((applications, redis)))), stores))
}

fn largest_packet(listener: &listener::Config) -> usize {
    let doors = [&listener.tcp, &listener.ssl, &listener.ws, &listener.wss];
    let packets = doors.into_iter().flatten().map(|door| door.max_packet_bytes);
    packets.chain(listener.unix.iter().map(|unix| unix.max_packet_bytes)).max().unwrap_or(0)
}
