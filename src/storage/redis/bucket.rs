//! The cluster's shared budgets: token windows in one key each, changed by one script (QUO-1).

use std::sync::Arc;

use redis::{Pipeline, Value};

use super::key::slot;
use super::lane::{Verdict, judge};
use super::link::unavailable;
use super::script::Script;
use super::shards::{Purpose, Shards};
use crate::storage::{BoxFuture, StorageError, TokenBucket, Window};

/// Enough for a master that moved, and for scripts that were forgotten.
const TRIES: usize = 3;

#[derive(Debug)]
pub(super) struct RedisBucket {
    shards: Arc<Shards>,
    windows: Vec<Window>,
    key: Vec<u8>,
    slot: u16,
}

impl RedisBucket {
    /// Each name is a bucket of its own.
    pub(super) fn new(shards: Arc<Shards>, name: &str, windows: Vec<Window>) -> Self {
        let key = format!("{}{{sluice}}{name}", shards.settings.prefix).into_bytes();
        Self { shards, windows, key, slot: slot(b"sluice") }
    }

    async fn change(&self, wanted: u64, back: u64) -> Result<u64, StorageError> {
        if self.windows.is_empty() {
            return Ok(wanted);
        }
        let mut last = unavailable("Redis does not answer");
        for _ in 0..TRIES {
            let shard = self.shards.of_slot(self.slot);
            let link = self.shards.link(&shard, Purpose::Session).await?;
            let mut pipe = Pipeline::new();
            let cmd = pipe.cmd("EVALSHA").arg(Script::Bucket.sha()).arg(1).arg(&self.key);
            cmd.arg(wanted).arg(back);
            for window in &self.windows {
                let micros = window.period.as_micros().max(1);
                cmd.arg(window.capacity).arg(u64::try_from(micros).unwrap_or(u64::MAX));
            }
            let answer = match link.run(cmd.ignore_errors(), 1).await {
                Ok(mut values) => values.pop().map(judge),
                Err(error) => {
                    shard.give_up(Purpose::Session, &link);
                    return Err(error);
                }
            };
            match answer {
                Some(Verdict::Done(Value::Int(taken))) => return Ok(taken as u64),
                Some(Verdict::Reload) => link.load_scripts().await?,
                Some(Verdict::Elsewhere) => self.shards.refresh().await,
                Some(Verdict::Later(text, other)) => {
                    if other {
                        shard.give_up(Purpose::Session, &link);
                    }
                    last = unavailable(format!("Redis says {text}"));
                }
                Some(Verdict::Never(error)) => return Err(error),
                Some(Verdict::Done(_)) | None => {
                    return Err(StorageError::Damaged("the token bucket answers oddly".into()));
                }
            }
        }
        Err(last)
    }
}

impl TokenBucket for RedisBucket {
    fn draw(&self, n: u64) -> BoxFuture<'_, Result<u64, StorageError>> {
        Box::pin(self.change(n, 0))
    }

    fn give_back(&self, n: u64) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move { self.change(0, n).await.map(|_| ()) })
    }
}
