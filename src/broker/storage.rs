//! Which backend, with which settings.

use crate::config::Config;
use crate::storage::{Embedded, EmbeddedSettings, StorageError, Stores, SyncMode};

/// Opens the embedded profile. It reads and replays, so it runs on a blocking thread.
pub(super) async fn open(config: &Config) -> Result<(Embedded, Stores), super::Fault> {
    let embedded = &config.storage.embedded;
    let mut settings = EmbeddedSettings::default();
    settings.wal.segment_bytes = embedded.segment_bytes;
    settings.wal.sync = embedded.sync;
    settings.checkpoint_every = embedded.checkpoint_period;
    settings.queue_limit = config.storage.device_queue_messages as u64;
    settings.queue_ttl = config.storage.device_message_ttl;
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
    Ok(opened?)
}
