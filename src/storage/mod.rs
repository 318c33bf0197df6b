//! Room 1: what must survive. The ports, the record format, and the backends behind them.
//!
//! What comes in: records, rows, queue operations. What goes out: durability and order exactly as
//! `ports` says. Never: knowledge of a socket, a trie or a session task. Nothing above this room
//! knows which backend is used; `contract` runs the same cases on each.

mod config;
#[doc(hidden)]
pub mod contract;
pub mod embedded;
pub mod kafka;
pub mod memory;
mod moves;
mod peers;
pub mod ports;
mod queue_key;
mod quota;
pub mod record;
pub mod redis;
mod retained;
mod settle;

pub use self::redis::{
    IsLive, LossRow, NodeLosses, Places, Projected, Projector, Redis, RedisAddress, RedisKind,
    RedisSettings, RedisTls, Secret,
};
pub use config::{
    Config, EmbeddedConfig, KafkaConfig, Profile, Retention, SyncMode, TopicConfig, Topics,
};
pub use embedded::{Embedded, EmbeddedSettings, LocalBucket, Stores, Window};
pub use kafka::{AppTopics, Applications, Kafka, KafkaSettings, Owned};
pub use memory::{Faults, Memory, MemoryConfig};
pub use moves::{Origin, Source, Taken};
pub use peers::Peers;
pub use ports::{
    AppendOutcome, AppendSink, Appended, BoxFuture, Change, ChangeLog, Committed, DeviceQueues,
    DirectCopy, Durability, Follower, IdRun, InForce, LogBatch, LogConsumer, LogItem, NodeId, Page,
    Position, PublishLog, QueueAppend, QueueEntry, QueueState, QueuedMessage, Resolver, Row,
    SourceId, StorageError, Table, TokenBucket,
};
pub use queue_key::QueueKey;
pub use quota::{Attempt, Charge, GRACE, Purpose, Purse, Quota, QuotaSettings, Reached};
pub use record::{Batch, BatchBuilder, Kind, MessageRef, MessageView, Publisher};
pub use retained::{retained_message, retained_row};
pub use settle::{Settled, Unwatched, once};
