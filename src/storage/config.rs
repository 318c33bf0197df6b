//! What an operator decides about storage.

use std::path::PathBuf;
use std::time::Duration;

pub use super::embedded::wal::SyncMode;
use super::redis::RedisSettings;

/// Which backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Everything in one folder.
    Embedded,
    /// Kafka and Redis.
    Cluster,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub profile: Profile,
    pub kafka: KafkaConfig,
    pub embedded: EmbeddedConfig,
    /// Used by the cluster profile; the bounds of queues are the two below, and the token bucket's
    /// windows are those of the total rate.
    pub redis: RedisSettings,
    /// Messages in a DEVICE client's durable queue (DEV-5). Full: the oldest go first.
    pub device_queue_messages: usize,
    /// Life of a queued message whose publisher gave it no expiry (DEV-6).
    pub device_message_ttl: Duration,
    /// What the log of an APPLICATION client keeps (APP-3).
    pub application: Retention,
    /// What the log of an APPLICATION group keeps (SHR-4).
    pub application_shared: Retention,
}

/// How much of a log is kept; `None`: there is no such bound. Over it the oldest messages go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    pub bytes: Option<u64>,
    pub life: Option<Duration>,
}

/// Where the log and the tables of the cluster profile are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaConfig {
    /// `host:port`, several with commas.
    pub servers: String,
    /// Stands before the name of every topic and group.
    pub prefix: String,
    /// Settings of Kafka's clients: for all, for consumers, for producers, for administration.
    pub common: Vec<(String, String)>,
    pub consumer: Vec<(String, String)>,
    pub producer: Vec<(String, String)>,
    pub admin: Vec<(String, String)>,
    /// How long a start, a stop or an administrator's command may wait for Kafka.
    pub command_timeout: Duration,
    pub topics: Topics,
}

/// One topic: its name without the prefix, and what it is made and used with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicConfig {
    pub name: String,
    /// Kafka's settings of the topic, and `partitions` and `replication.factor`.
    pub properties: Vec<(String, String)>,
    pub consumer: Vec<(String, String)>,
    pub producer: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    pub log: TopicConfig,
    pub retained: TopicConfig,
    pub sessions: TopicConfig,
    pub subscriptions: TopicConfig,
    pub credentials: TopicConfig,
    pub blocked: TopicConfig,
    pub settings: TopicConfig,
    /// What consumers leave behind, and what the first start found.
    pub state: TopicConfig,
    /// The logs of APPLICATION clients: their names begin with this one.
    pub application: TopicConfig,
    /// The same of APPLICATION groups.
    pub application_shared: TopicConfig,
}

/// What an APPLICATION client's or group's log keeps unless it is told otherwise (APP-3, SHR-4).
const RETENTION: [(&str, &str); 2] =
    [("retention.ms", "604800000"), ("retention.bytes", "1048576000")];

impl Default for Topics {
    fn default() -> Self {
        let named = |name: &str| TopicConfig { name: name.to_owned(), ..TopicConfig::default() };
        let kept = |name: &str| TopicConfig {
            properties: RETENTION.map(|(name, value)| (name.into(), value.into())).to_vec(),
            ..named(name)
        };
        Self {
            log: named("tbmq.msg.all"),
            retained: named("tbmq.msg.retained"),
            sessions: named("tbmq.client.session"),
            subscriptions: named("tbmq.client.subscriptions"),
            credentials: named("tbmq.client.credentials"),
            blocked: named("tbmq.client.blocked"),
            settings: named("tbmq.sys.settings"),
            state: named("tbmq.sys.state"),
            application: kept("tbmq.msg.app"),
            application_shared: kept("tbmq.msg.app.shared"),
        }
    }
}

impl Default for KafkaConfig {
    fn default() -> Self {
        Self {
            servers: "localhost:9092".to_owned(),
            prefix: String::new(),
            common: Vec::new(),
            consumer: Vec::new(),
            producer: Vec::new(),
            admin: Vec::new(),
            command_timeout: Duration::from_secs(30),
            topics: Topics::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// The data folder; made when missing, taken by one process at a time.
    pub path: PathBuf,
    pub sync: SyncMode,
    /// Size of one preallocated log segment.
    pub segment_bytes: u64,
    /// How often tables and queues are written behind the log; a restart replays what is newer.
    pub checkpoint_period: Duration,
    /// Free space under which health says DOWN; 0: the disk is not watched.
    pub min_free_bytes: u64,
}
