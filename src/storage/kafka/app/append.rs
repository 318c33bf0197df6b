//! What a dispatcher appends: a run for each log, all at once, and record by record where a topic
//! refuses one of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::log::{AppLog, blocking};
use super::place::Place;
use super::producer::Ended;
use super::{Inner, record};
use crate::storage::redis::Claim;
use crate::storage::{Appended, QueueAppend, QueueKey, StorageError};

/// How often a record is given to a topic that refuses it (IN-9).
const TRIES: usize = 3;
const TRY_AGAIN: Duration = Duration::from_millis(100);

impl Inner {
    /// The log to append to; `None`: the session is over.
    pub(super) async fn to_append(
        self: &Arc<Self>,
        queue: &QueueKey,
        incarnation: u64,
    ) -> Result<Option<Arc<AppLog>>, StorageError> {
        if let Some(log) = self.known(queue, incarnation) {
            return Ok(Some(log));
        }
        let (all, of) = (Arc::clone(self), queue.clone());
        let bounds = blocking(move || {
            let topic = all.settings.name(&all.topic(&of, incarnation));
            let there = all.writing.pool.exists(&topic)?;
            there.then(|| all.writing.pool.bounds(&topic)).transpose()
        })
        .await?;
        let Some(bounds) = bounds else { return Ok(None) };
        let claim = Claim { queue: queue.clone(), incarnation, epoch: 0 };
        let held = self.writing.places.look(&claim).await?;
        let Some(log) = self.made(queue, incarnation) else { return Ok(None) };
        log.heard_of(bounds.end);
        if let Some(held) = held
            && log.epoch.load(Ordering::Acquire) == 0
        {
            // For whoever asks how far the client is.
            *log.place.lock() = Place::decode(&held)?;
        }
        Ok(Some(log))
    }

    /// All at once, each log in its order.
    pub(super) async fn append(
        self: &Arc<Self>,
        appends: &[QueueAppend],
    ) -> Result<Vec<Appended>, StorageError> {
        let mut runs = Vec::with_capacity(appends.len());
        for append in appends {
            let log = self.to_append(&append.queue, append.incarnation).await?;
            let records: Vec<Vec<u8>> = append.entries.iter().map(record::encode).collect();
            runs.push(log.map(|log| {
                let run = self.producer.append(&log.topic, &records);
                (log, run)
            }));
        }
        let mut appended = Vec::with_capacity(appends.len());
        for (append, run) in appends.iter().zip(runs) {
            let Some((log, run)) = run else {
                appended.push(Appended::NoQueue);
                continue;
            };
            match self.producer.ended(&run).await {
                Ended::Stored(end) => {
                    log.heard_of(end + 1);
                    // The connection reads them from the log.
                    let (first_seq, skipped) = (log.end(), append.entries.len());
                    appended.push(Appended::Taken { first_seq, skipped });
                }
                Ended::Gone => {
                    self.forget(&append.queue, append.incarnation);
                    appended.push(Appended::NoQueue);
                }
                Ended::Failed => return Err(log.takes_nothing()),
                Ended::Refused => appended.push(self.append_singly(append, &log).await?),
            }
        }
        Ok(appended)
    }

    /// IN-9: what the topic will not take is given up, and counted; what is beside it is not. Each
    /// record by itself, so that it is known which one it is: Kafka refuses what it got together.
    async fn append_singly(
        &self,
        append: &QueueAppend,
        log: &Arc<AppLog>,
    ) -> Result<Appended, StorageError> {
        for entry in &append.entries {
            let record = [record::encode(entry)];
            let mut tries = 0;
            loop {
                let run = self.producer.append(&log.topic, &record);
                match self.producer.ended(&run).await {
                    Ended::Stored(end) => {
                        log.heard_of(end + 1);
                        break;
                    }
                    Ended::Gone => {
                        self.forget(&append.queue, append.incarnation);
                        return Ok(Appended::NoQueue);
                    }
                    Ended::Failed => return Err(log.takes_nothing()),
                    Ended::Refused => tries += 1,
                }
                if tries == TRIES {
                    log.given_up(entry);
                    break;
                }
                // The producer that was refused is replaced first.
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
        Ok(Appended::Taken { first_seq: log.end(), skipped: append.entries.len() })
    }
}
