//! The producer of all APPLICATION logs of this node: one stream without gaps a log, replaced when
//! librdkafka gives it up. Whoever appends waits for the whole run, and appends it again if it
//! failed: what was stored nevertheless is passed over by readers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext, PurgeConfig};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::storage::StorageError;
use crate::storage::kafka::watch::{Watch, log_line, note_error, unavailable};

/// How often its thread looks whether it is to end, or librdkafka has given up. A little above
/// whole milliseconds: the library waits for those, and asks in a loop for the rest.
const TICK: Duration = Duration::from_micros(50_100);
/// How long the reports of a producer that is given up may take.
const LAST_REPORTS: Duration = Duration::from_millis(500);

/// Records that were appended together, to one log.
#[derive(Debug)]
pub(super) struct Run {
    open: AtomicU64,
    /// One past the highest offset that was reported.
    end: AtomicU64,
    failed: AtomicBool,
    /// The log is not there any more.
    gone: AtomicBool,
    /// Which producer has it.
    generation: u64,
    done: Notify,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// All is stored; the log's end is here at least.
    Stored(u64),
    /// Some of it may be.
    Failed,
    /// Some of it may be, and some never will: too large for the topic, or not allowed (IN-9).
    Refused,
    Gone,
}

impl Run {
    fn new(records: usize, generation: u64) -> Arc<Self> {
        Arc::new(Self {
            open: AtomicU64::new(records as u64),
            end: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            generation,
            done: Notify::new(),
        })
    }

    fn ended(&self, records: u64) {
        if self.open.fetch_sub(records, Ordering::AcqRel) == records {
            self.done.notify_one();
        }
    }

    /// Waits for its end; one waits. Cancel safe: yes.
    async fn wait(&self) -> Ended {
        while self.open.load(Ordering::Acquire) > 0 {
            self.done.notified().await;
        }
        match (self.gone.load(Ordering::Acquire), self.failed.load(Ordering::Acquire)) {
            (true, _) => Ended::Gone,
            (false, true) => Ended::Failed,
            (false, false) => Ended::Stored(self.end.load(Ordering::Acquire)),
        }
    }

    /// What went wrong with one of its records.
    fn note(&self, error: &KafkaError) {
        let gone = matches!(
            error.rdkafka_error_code(),
            Some(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition)
        );
        self.gone.fetch_or(gone, Ordering::AcqRel);
        self.failed.store(true, Ordering::Release);
    }
}

struct Reports(Arc<Watch>);

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        note_error(&self.0, &error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Arc<Run>;

    fn delivery(&self, result: &DeliveryResult<'_>, run: Arc<Run>) {
        match result {
            Ok(message) => {
                self.0.is_well();
                let end = u64::try_from(message.offset()).map_or(0, |offset| offset + 1);
                run.end.fetch_max(end, Ordering::AcqRel);
            }
            Err((error, _)) => run.note(error),
        }
        run.ended(1);
    }
}

/// What librdkafka says of an error, without its name.
fn words(code: RDKafkaErrorCode) -> String {
    let shown = code.to_string();
    let words = shown.split_once('(').map(|(_, words)| words.trim_end_matches(')'));
    words.unwrap_or(&shown).to_owned()
}

pub(super) struct AppProducer {
    config: ClientConfig,
    watch: Arc<Watch>,
    producer: RwLock<Option<BaseProducer<Reports>>>,
    /// How many producers there were before this one.
    generation: AtomicU64,
    /// The last one that was given up because a topic refuses a record.
    refused: AtomicU64,
}

/// What a topic says of a record that it will never take.
const REFUSALS: [RDKafkaErrorCode; 3] = [
    RDKafkaErrorCode::MessageSizeTooLarge,
    RDKafkaErrorCode::InvalidRecord,
    RDKafkaErrorCode::TopicAuthorizationFailed,
];

impl fmt::Debug for AppProducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AppProducer")
    }
}

impl AppProducer {
    pub(super) fn new(config: ClientConfig, watch: Arc<Watch>) -> Result<Self, StorageError> {
        let (producer, refused) = (RwLock::new(None), AtomicU64::new(u64::MAX));
        let new = Self { config, watch, producer, generation: AtomicU64::new(0), refused };
        *new.producer.write() = Some(new.connect()?);
        Ok(new)
    }

    fn connect(&self) -> Result<BaseProducer<Reports>, StorageError> {
        let reports = Reports(Arc::clone(&self.watch));
        BaseProducer::from_config_and_context(&self.config, reports)
            .map_err(|error| unavailable("Kafka's producer can't be made", &error))
    }

    /// Hands a run to the producer.
    pub(super) fn append(&self, topic: &str, records: &[Vec<u8>]) -> Arc<Run> {
        let producer = self.producer.read();
        let run = Run::new(records.len(), self.generation.load(Ordering::Acquire));
        for (at, payload) in records.iter().enumerate() {
            let record = BaseRecord::<(), [u8], _>::with_opaque_to(topic, Arc::clone(&run));
            let sent = producer.as_ref().map(|producer| {
                producer.send(record.partition(0).payload(payload)).map_err(|(error, _)| error)
            });
            match sent {
                Some(Ok(())) => continue,
                Some(Err(error)) => run.note(&error),
                None => run.failed.store(true, Ordering::Release),
            }
            // What is behind it must not come without it.
            tracing::debug!(topic, "not taken by the producer");
            run.ended((records.len() - at) as u64);
            break;
        }
        run
    }

    /// Waits for the run's end. librdkafka tells of a record that was refused what it tells of all
    /// that were on their way then: that the stream has a gap. Why is known when the producer is
    /// replaced. Cancel safe: yes.
    pub(super) async fn ended(&self, run: &Run) -> Ended {
        let ended = run.wait().await;
        if ended != Ended::Failed {
            return ended;
        }
        let until = Instant::now() + LAST_REPORTS + 4 * TICK;
        while self.generation.load(Ordering::Acquire) == run.generation && Instant::now() < until {
            tokio::time::sleep(TICK).await;
        }
        match self.refused.load(Ordering::Acquire) == run.generation {
            true => Ended::Refused,
            false => Ended::Failed,
        }
    }

    /// Serves delivery reports until `ended`; runs on a thread of its own.
    pub(super) fn serve(&self, ended: &dyn Fn() -> bool) {
        while !ended() {
            let fatal = {
                let producer = self.producer.read();
                let Some(producer) = &*producer else {
                    drop(producer);
                    self.replace();
                    std::thread::sleep(TICK);
                    continue;
                };
                producer.poll(TICK);
                producer.client().fatal_error()
            };
            if let Some((code, text)) = fatal {
                tracing::info!(%code, "the producer of application logs is replaced: {text}");
                if REFUSALS.into_iter().any(|refusal| text.contains(&words(refusal))) {
                    let generation = self.generation.load(Ordering::Acquire);
                    self.refused.store(generation, Ordering::Release);
                }
                self.replace();
            }
        }
        drop(self.producer.write().take());
    }

    /// Nothing of the old stream may be sent again behind the new one.
    fn replace(&self) {
        let mut producer = self.producer.write();
        if let Some(old) = producer.take() {
            old.purge(PurgeConfig::default().queue().inflight());
            if let Err(error) = old.flush(LAST_REPORTS) {
                tracing::debug!(%error, "a producer that was given up did not report everything");
            }
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
        match self.connect() {
            Ok(fresh) => *producer = Some(fresh),
            Err(error) => tracing::warn!(%error, "trying again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IN-9: a refusal is known by the library's own words in what it says of a gap.
    #[test]
    fn refusals_are_known_by_their_words() {
        let text = "ProduceRequest for t [0] with 1 message(s) failed: Broker: Message size too \
                    large (broker 1): unable to satisfy gap-less guarantee";
        assert!(text.contains(&words(RDKafkaErrorCode::MessageSizeTooLarge)));
        let away = "failed: Local: Timed out (broker 1): unable to satisfy gap-less guarantee";
        assert!(REFUSALS.into_iter().all(|refusal| !away.contains(&words(refusal))));
    }
}
