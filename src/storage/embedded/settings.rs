//! What can be set about embedded storage.

use std::time::Duration;

use super::bucket::Window;
use super::feed::FeedBounds;
use super::wal::WalConfig;

#[derive(Clone, Debug)]
pub struct EmbeddedSettings {
    pub wal: WalConfig,
    /// How often what is new is written into the projection.
    pub checkpoint_every: Duration,
    /// How often the projection is synced at least, while there is something new.
    pub sync_every: Duration,
    /// Bytes and items that wait for the consumer in memory; older ones are read back.
    pub feed_bytes: usize,
    pub feed_items: usize,
    /// Of one batch for the consumer, about.
    pub batch_bytes: usize,
    pub batch_messages: usize,
    /// `mqtt.persistent-session.device.persisted-messages.limit` (DEV-5).
    pub queue_limit: u64,
    /// `….ttl` (DEV-6).
    pub queue_ttl: Duration,
    /// Bytes that an APPLICATION client's log keeps (APP-3); above it the oldest messages go,
    /// counted. `None`: no bound.
    pub application_bytes: Option<u64>,
    /// How long it keeps a message; `None`: for ever.
    pub application_life: Option<Duration>,
    /// The same of an APPLICATION group's log (SHR-4).
    pub shared_bytes: Option<u64>,
    pub shared_life: Option<Duration>,
    /// Bytes of queued messages in memory; above it a checkpoint comes early, above twice as many
    /// appends wait for it.
    pub hot_bytes: u64,
    /// Bytes of table rows that no checkpoint has written yet; above it puts are refused
    /// (`NotStored`) until checkpoints work again.
    pub row_bytes: u64,
    /// Bytes of the log that are kept for what queues point to; above it the messages are copied
    /// out. What was not dispatched stays whatever its size (IN-8).
    pub retain_bytes: u64,
    /// fjall's block cache. Pages of a queue read on where the one before ended; nothing else is
    /// read twice.
    pub cache_bytes: u64,
    /// The windows of the token bucket; none means no limit.
    pub bucket: Vec<Window>,
    /// The same for copies into durable queues (DEV-7).
    pub device_bucket: Vec<Window>,
}

impl Default for EmbeddedSettings {
    fn default() -> Self {
        Self {
            wal: WalConfig::default(),
            checkpoint_every: Duration::from_millis(250),
            sync_every: Duration::from_secs(5),
            feed_bytes: 32 << 20,
            feed_items: 65_536,
            batch_bytes: 1 << 20,
            batch_messages: 4096,
            queue_limit: 10_000,
            queue_ttl: Duration::from_secs(604_800),
            application_bytes: Some(1_048_576_000),
            application_life: Some(Duration::from_secs(604_800)),
            shared_bytes: Some(1_048_576_000),
            shared_life: Some(Duration::from_secs(604_800)),
            hot_bytes: 64 << 20,
            row_bytes: 256 << 20,
            retain_bytes: 1 << 30,
            cache_bytes: 4 << 20,
            bucket: Vec::new(),
            device_bucket: Vec::new(),
        }
    }
}

impl EmbeddedSettings {
    pub(super) fn feed(&self) -> FeedBounds {
        FeedBounds {
            bytes: self.feed_bytes,
            items: self.feed_items,
            batch_bytes: self.batch_bytes,
            batch_messages: self.batch_messages,
        }
    }
}
