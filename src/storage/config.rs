//! What an operator decides about storage.

use std::path::PathBuf;
use std::time::Duration;

pub use super::embedded::wal::SyncMode;
use super::redis::RedisSettings;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub embedded: EmbeddedConfig,
    /// Used by the cluster profile; the bounds of queues are the two below, and the token bucket's
    /// windows are those of the total rate.
    pub redis: RedisSettings,
    /// Messages in a DEVICE client's durable queue (DEV-5). Full: the oldest go first.
    pub device_queue_messages: usize,
    /// Life of a queued message whose publisher gave it no expiry (DEV-6).
    pub device_message_ttl: Duration,
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
