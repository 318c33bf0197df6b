//! Where APPLICATION clients stand in their logs: one small value each, changed by one script that
//! refuses connections which another one has displaced.

use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, Value};

use super::key::{Names, Part};
use super::lane::{Verdict, judge};
use super::link::unavailable;
use super::script::Script;
use super::shards::{Purpose, Shards};
use crate::storage::{QueueKey, StorageError};
use crate::telemetry::metrics;

/// Enough for a master that moved, and for scripts that were forgotten.
const TRIES: usize = 3;
/// One wait for a replica; a longer one is asked for again.
const WAIT: Duration = Duration::from_millis(500);

/// Whose place it is, and as which connection.
#[derive(Clone, Debug)]
pub(in crate::storage) struct Claim {
    pub(in crate::storage) queue: QueueKey,
    pub(in crate::storage) incarnation: u64,
    pub(in crate::storage) epoch: u64,
}

/// The places of all APPLICATION clients. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Places {
    shards: Arc<Shards>,
}

impl Places {
    pub(super) fn new(shards: Arc<Shards>) -> Self {
        Self { shards }
    }

    /// Takes the place for a connection: from here on earlier ones change nothing. What is there of
    /// this session; `Fenced`: a newer one has it.
    pub(in crate::storage) async fn claim(
        &self,
        claim: &Claim,
    ) -> Result<Option<Vec<u8>>, StorageError> {
        self.run(claim, "claim", &[], true).await
    }

    /// What is there of this session, whoever has it.
    pub(in crate::storage) async fn look(
        &self,
        claim: &Claim,
    ) -> Result<Option<Vec<u8>>, StorageError> {
        self.run(claim, "look", &[], false).await
    }

    /// Writes the place; `durable`: a replica has it then, where there is one.
    pub(in crate::storage) async fn put(
        &self,
        claim: &Claim,
        value: &[u8],
        durable: bool,
    ) -> Result<(), StorageError> {
        self.run(claim, "put", value, durable).await.map(|_| ())
    }

    /// The session has ended.
    pub(in crate::storage) async fn remove(&self, claim: &Claim) -> Result<(), StorageError> {
        self.run(claim, "remove", &[], false).await.map(|_| ())
    }

    async fn run(
        &self,
        claim: &Claim,
        what: &str,
        value: &[u8],
        durable: bool,
    ) -> Result<Option<Vec<u8>>, StorageError> {
        let names = Names::of(&self.shards.settings.prefix, &claim.queue);
        let purpose = if durable { Purpose::Durable } else { Purpose::Session };
        let mut last = unavailable("Redis does not answer");
        for _ in 0..TRIES {
            let shard = self.shards.of_slot(names.slot);
            let link = self.shards.link(&shard, purpose).await?;
            let mut pipe = Pipeline::new();
            let cmd =
                pipe.cmd("EVALSHA").arg(Script::Place.sha()).arg(1).arg(names.key(Part::Meta));
            cmd.arg(&names.identity).arg(&claim.incarnation.to_le_bytes());
            cmd.arg(&claim.epoch.to_be_bytes()).arg(what).arg(value);
            let answer = match link.run(cmd.ignore_errors(), 1).await {
                Ok(mut values) => values.pop().map(judge),
                Err(error) => {
                    shard.give_up(purpose, &link);
                    return Err(error);
                }
            };
            let found = match answer {
                Some(Verdict::Done(Value::Int(0))) => Ok(None),
                Some(Verdict::Done(Value::Int(_))) => Err(StorageError::Fenced),
                Some(Verdict::Done(Value::BulkString(value))) => Ok(Some(value)),
                Some(Verdict::Done(_)) | None => {
                    Err(StorageError::Damaged("the place of a client answers oddly".into()))
                }
                Some(Verdict::Never(error)) => Err(error),
                Some(Verdict::Reload) => {
                    link.load_scripts().await?;
                    continue;
                }
                Some(Verdict::Elsewhere) => {
                    self.shards.refresh().await;
                    continue;
                }
                Some(Verdict::Later(text, other)) => {
                    if other {
                        shard.give_up(purpose, &link);
                    }
                    last = unavailable(format!("Redis says {text}"));
                    continue;
                }
            };
            if durable && found.is_ok() && !link.replicated(WAIT).await? {
                metrics::REDIS_REPLICA_LATE.inc();
                last = unavailable("no replica has taken the place of a client");
                continue;
            }
            return found;
        }
        Err(last)
    }
}
