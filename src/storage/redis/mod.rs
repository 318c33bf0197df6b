//! Redis as a backend: device queues and the token bucket of the cluster profile.
//!
//! What comes in: the calls of `DeviceQueues` and `TokenBucket`. What goes out: one script call a
//! queue and batch, pipelined, to whoever is master of the queue's slot: alone, behind Sentinel, or
//! in a Cluster. Called through the ports. Redis is a projection of `tbmq.msg.persisted`: entries
//! and marks of a queue stand in one slot and roll back together, a change of master is told, and
//! the consumer replays. Never: an entry that did not come by way of the log; a key that holds a
//! client id; a command sent to a server that was not checked to be a master.

mod append;
mod bucket;
mod entry;
mod key;
mod known;
mod lane;
mod link;
mod losses;
mod places;
mod projection;
mod queues;
mod script;
mod settings;
mod shards;
mod standing;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

pub(in crate::storage) use self::places::Claim;
pub use self::places::Places;
pub use self::projection::{IsLive, Projected, Projector};
pub use self::settings::{RedisAddress, RedisKind, RedisSettings, RedisTls, Secret};

use self::append::Appender;
use self::bucket::RedisBucket;
use self::key::Names;
use self::lane::{Call, Tell, What, Word};
pub use self::losses::{LossRow, NodeLosses};
use self::queues::RedisQueues;
use self::shards::{Purpose, Shards, watch};
use super::{Committed, DeviceQueues, Position, QueueKey, QueueState, StorageError, TokenBucket};
use crate::mqtt::ClientId;
use crate::telemetry::task;

/// The running backend; must be made inside a Tokio runtime. Dropping it ends it as a crash does.
#[derive(Debug)]
pub struct Redis {
    shards: Arc<Shards>,
    queues: Arc<RedisQueues>,
}

impl Redis {
    /// Connects to every master; an error names what is away. What is lost later comes back by
    /// itself.
    pub async fn connect(settings: RedisSettings) -> Result<Self, StorageError> {
        let redis = Self::start(settings);
        redis.shards.refresh().await;
        for shard in redis.shards.masters() {
            redis.shards.link(&shard, Purpose::Session).await?;
        }
        redis.shards.standing.settled();
        Ok(redis)
    }

    /// As [`Self::connect`], for whoever begins without Redis.
    pub fn start(settings: RedisSettings) -> Self {
        let shards = Arc::new(Shards::new(settings));
        shards.masters().iter().for_each(|shard| shards.start(shard));
        shards.also(task::spawn("redis watch", watch(Arc::clone(&shards))));
        let appender = Appender::new(Arc::clone(&shards));
        let queues = Arc::new(RedisQueues { shards: Arc::clone(&shards), appender });
        Self { shards, queues }
    }

    pub fn queues(&self) -> Arc<dyn DeviceQueues> {
        Arc::clone(&self.queues) as Arc<dyn DeviceQueues>
    }

    /// Opens a queue for the connection that holds `epoch`: calls of connections with a lower one
    /// change nothing from here on.
    pub async fn open_as(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        epoch: u64,
    ) -> Result<QueueState, StorageError> {
        self.queues.open_as(queue.clone(), incarnation, epoch).await
    }

    /// The consumer's side of one partition of `tbmq.msg.persisted`, and where it begins to read.
    /// An error when a master is away: then what it lacks is not known, and the caller tries again.
    pub async fn projector(
        &self,
        committed: &Committed,
        is_live: IsLive,
    ) -> Result<(Projector, Position), StorageError> {
        Projector::open(Arc::clone(&self.queues), committed, is_live).await
    }

    /// `None` when every master answers, else one sentence for health.
    pub fn trouble(&self) -> Option<String> {
        self.shards.standing.trouble()
    }

    /// [`Self::trouble`], for whoever asks without holding the store.
    pub fn health(&self) -> impl Fn() -> Option<String> + Send + Sync + 'static {
        let shards = Arc::clone(&self.shards);
        move || shards.standing.trouble()
    }

    /// Where APPLICATION clients stand in their logs.
    pub fn places(&self) -> Places {
        Places::new(Arc::clone(&self.shards))
    }

    /// The cluster's throughput (QUO-1).
    pub fn bucket(&self) -> Arc<dyn TokenBucket> {
        let windows = self.shards.settings.bucket.clone();
        Arc::new(RedisBucket::new(Arc::clone(&self.shards), "bucket", windows))
    }

    /// Copies into durable queues of the cluster (DEV-7).
    pub fn device_bucket(&self) -> Arc<dyn TokenBucket> {
        let windows = self.shards.settings.device_bucket.clone();
        Arc::new(RedisBucket::new(Arc::clone(&self.shards), "device-bucket", windows))
    }

    /// What the nodes tell each other of what they have lost.
    pub fn losses(&self, node: &str) -> NodeLosses {
        NodeLosses::new(Arc::clone(&self.shards), node)
    }

    /// An orderly end: everything that was called reaches Redis, if that takes no longer than
    /// `patience`. Cursors that nobody moved are said again, so that nothing carries DUP for them.
    pub async fn stop(self, patience: Duration) -> Result<(), StorageError> {
        let prefix = &self.shards.settings.prefix;
        for (epoch, exact) in self.shards.known.untouched() {
            let names = Arc::new(Names::of(prefix, &exact.queue));
            let shard = self.shards.of_slot(names.slot);
            let sent_below = exact.sent_below;
            let what = What::Ack { seqs: Vec::new(), sent_below, word: Word::Last };
            shard.session.push(Call { names, incarnation: exact.incarnation, epoch, what });
        }
        let until = Instant::now() + patience;
        let nobody = Arc::new(Names::of(prefix, &QueueKey::Client(ClientId::new(""))));
        for shard in self.shards.masters() {
            for lane in [&shard.session, &shard.durable] {
                let (to, done) = oneshot::channel();
                let (names, what) =
                    (Arc::clone(&nobody), What::Barrier { tell: Tell { to, until } });
                lane.push(Call { names, incarnation: 0, epoch: 0, what });
                let ended =
                    || StorageError::Unavailable("Redis did not take the last calls".into());
                let done = tokio::time::timeout_at(until, done).await.map_err(|_| ended())?;
                done.map_err(|_| ended())??;
            }
        }
        Ok(())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.shards.end();
    }
}
