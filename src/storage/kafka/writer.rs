//! The producer of one log: one stream without gaps, replaced when librdkafka gives it up. It sends
//! in rounds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext, PurgeConfig};
use tokio::time::Instant;

use super::appends::Appends;
use super::format::{Mark, RecordKind};
use super::position;
use super::rounds::Rounds;
use super::watch::{Watch, log_line, note_error, unavailable};
use crate::storage::{AppendOutcome, AppendSink, Batch, StorageError};

/// How often the producer's thread looks whether it is to end, or librdkafka has given up. A little
/// above whole milliseconds: the library waits for those, and asks in a loop for the rest.
const TICK: Duration = Duration::from_micros(100_100);
/// What a reader that keeps up has in hand at most: a few hundredths of a second's.
const BEHIND: u64 = 2 << 20;
/// So long librdkafka itself holds a record: a round is handed over meanwhile.
const TOGETHER: Duration = Duration::from_micros(50);
/// Room in a request beside the payloads: keys, headers, lengths.
const BESIDE: usize = 128;
/// How long the reports of a producer that is given up may take.
const LAST_REPORTS: Duration = Duration::from_millis(500);

/// Which appends a delivery report is about.
#[derive(Debug)]
pub(super) struct Open {
    /// Messages: a report settles them.
    pub(super) messages: Appends,
    /// Rows: they settle when the reader has applied them; a report tells only of failure.
    pub(super) rows: Appends,
}

/// What a record carries.
pub(super) enum Content {
    /// The body of a batch, with its publisher's client id as the key.
    Batch(Arc<Batch>),
    Encoded {
        key: Vec<u8>,
        payload: Vec<u8>,
    },
}

impl Content {
    fn key(&self) -> &[u8] {
        match self {
            Self::Batch(batch) => batch.publisher().client_id.as_str().as_bytes(),
            Self::Encoded { key, .. } => key,
        }
    }

    fn payload(&self) -> &[u8] {
        match self {
            Self::Batch(batch) => batch.body(),
            Self::Encoded { payload, .. } => payload,
        }
    }
}

/// A record that waits for its round.
struct Outgoing {
    mark: Mark,
    of_rows: bool,
    content: Content,
}

struct Reports {
    open: Arc<Open>,
    rounds: Arc<Rounds<Outgoing>>,
    watch: Arc<Watch>,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        note_error(&self.watch, &error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let (number, of_rows) = ((opaque >> 1) as u64, opaque & 1 == 1);
        let appends = if of_rows { &self.open.rows } else { &self.open.messages };
        match result {
            Ok(message) => {
                self.watch.is_well();
                // Without an offset the reader will tell.
                if !of_rows && let Ok(offset) = u64::try_from(message.offset()) {
                    appends.ended(number, AppendOutcome::Stored(position(offset)));
                }
            }
            Err((error, _)) => appends.ended(number, outcome_of(error)),
        }
        appends.settle();
        self.rounds.answered();
    }
}

/// What a failed delivery says. Only what the broker refused for what it is was surely not stored:
/// any other record may have been written by a try whose answer was lost.
fn outcome_of(error: &KafkaError) -> AppendOutcome {
    match error.rdkafka_error_code() {
        Some(
            RDKafkaErrorCode::MessageSizeTooLarge
            | RDKafkaErrorCode::MessageBatchTooLarge
            | RDKafkaErrorCode::InvalidRecord
            | RDKafkaErrorCode::PolicyViolation,
        ) => AppendOutcome::NotStored,
        Some(_) | None => AppendOutcome::InDoubt,
    }
}

pub(super) struct Writer {
    config: ClientConfig,
    topic: String,
    /// This run of the program: its own records are known by it.
    pub(super) run: u64,
    pub(super) open: Arc<Open>,
    rounds: Arc<Rounds<Outgoing>>,
    watch: Arc<Watch>,
    max_bytes: usize,
    producer: RwLock<Option<BaseProducer<Reports>>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Writer {
    /// `config`'s lingering is that of rounds.
    pub(super) fn new(
        mut config: ClientConfig,
        topic: String,
        run: u64,
        max_bytes: usize,
        watch: Arc<Watch>,
    ) -> Result<Self, StorageError> {
        // What it can't take is told before its lingering is replaced.
        config
            .create_native_config()
            .map_err(|error| unavailable("Kafka's producer can't be made", &error))?;
        let number = |key| config.get(key).and_then(|value| value.parse::<f64>().ok());
        let gap = number("linger.ms").unwrap_or_default().max(0.0) / 1000.0;
        let most = number("batch.size").unwrap_or_default().max(1.0) as usize;
        config.set("linger.ms", (TOGETHER.as_secs_f64() * 1000.0).to_string());
        let rounds = Arc::new(Rounds::new(Duration::from_secs_f64(gap), most));
        let open = Arc::new(Open { messages: Appends::default(), rows: Appends::default() });
        let producer = RwLock::new(None);
        let writer = Self { config, topic, run, open, rounds, watch, max_bytes, producer };
        *writer.producer.write() = Some(writer.connect()?);
        Ok(writer)
    }

    fn connect(&self) -> Result<BaseProducer<Reports>, StorageError> {
        let (open, rounds) = (Arc::clone(&self.open), Arc::clone(&self.rounds));
        let reports = Reports { open, rounds, watch: Arc::clone(&self.watch) };
        BaseProducer::from_config_and_context(&self.config, reports)
            .map_err(|error| unavailable("Kafka's producer can't be made", &error))
    }

    /// Puts one record into the next round, and remembers who is to be told of its end.
    pub(super) fn append(
        &self,
        kind: RecordKind,
        content: Content,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let of_rows = matches!(kind, RecordKind::Rows | RecordKind::Relaxed);
        let length = content.payload().len();
        let (appends, bytes) = match of_rows {
            true => (&self.open.rows, 0),
            false => (&self.open.messages, length as u64),
        };
        // First the producer, then the number: who replaces a producer holds it, too, while its
        // last reports look for their numbers.
        let producer = self.producer.read();
        appends.enter(sink, ticket, bytes, |number| {
            // A record that the broker would refuse must not come into the stream: it would end it.
            if producer.is_none() || length > self.max_bytes {
                return Err(AppendOutcome::NotStored);
            }
            let taken = length + content.key().len() + BESIDE;
            let mark = Mark { kind, writer: self.run, number };
            self.rounds.push(Outgoing { mark, of_rows, content }, taken);
            Ok(())
        });
    }

    /// Hands a round that is due to the producer. Nobody takes a round but under the producer's
    /// lock, so that none of them comes to another producer.
    fn send(&self, producer: &BaseProducer<Reports>) {
        let round = self.rounds.take();
        if round.is_empty() {
            return;
        }
        let begun = Instant::now();
        let headers: Vec<_> = round.iter().map(|(_, record)| record.mark.headers()).collect();
        for ((_, record), headers) in round.iter().zip(headers) {
            let number = record.mark.number;
            let opaque = (number as usize) << 1 | usize::from(record.of_rows);
            let sent = producer.send(
                BaseRecord::with_opaque_to(&self.topic, opaque)
                    .partition(0)
                    .key(record.content.key())
                    .payload(record.content.payload())
                    .headers(headers),
            );
            if let Err((error, _)) = sent {
                tracing::debug!(%error, topic = self.topic, "not taken by the producer");
                let appends = if record.of_rows { &self.open.rows } else { &self.open.messages };
                appends.ended(number, AppendOutcome::NotStored);
                self.rounds.answered();
            }
        }
        // One request of all: its thread looked when the first one came, found it too young, and
        // would look again after a millisecond. A flush that waits for nothing makes it look now.
        while begun.elapsed() < TOGETHER {
            std::hint::spin_loop();
        }
        drop(producer.flush(Duration::ZERO));
    }

    /// Sends the rounds; runs on a thread of its own until the end.
    pub(super) fn pace(&self) {
        while self.rounds.wait() {
            let producer = self.producer.read();
            if let Some(producer) = &*producer {
                self.send(producer);
            }
        }
    }

    /// The reader has so many bytes in hand.
    pub(super) fn read_with(&self, waiting: u64) {
        self.rounds.set_behind(waiting > BEHIND);
    }

    /// No round leaves any more.
    pub(super) fn end(&self) {
        self.rounds.end();
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
            // What was refused when it was appended is told here.
            self.open.messages.settle();
            self.open.rows.settle();
            if let Some((code, text)) = fatal {
                tracing::warn!(topic = self.topic, %code, "the producer is replaced: {text}");
                self.replace();
            }
        }
    }

    /// Design decision 5: after a fatal error nothing of the old stream may be sent again. What it
    /// had not reported is in doubt, and is told before anything new is sent.
    fn replace(&self) {
        let mut producer = self.producer.write();
        if let Some(old) = producer.take() {
            old.purge(PurgeConfig::default().queue().inflight());
            if let Err(error) = old.flush(LAST_REPORTS) {
                tracing::debug!(%error, "a producer that was given up did not report everything");
            }
        }
        self.rounds.clear();
        self.open.messages.end_all(AppendOutcome::InDoubt);
        self.open.rows.end_all(AppendOutcome::InDoubt);
        self.open.messages.settle();
        self.open.rows.settle();
        match self.connect() {
            Ok(fresh) => *producer = Some(fresh),
            Err(error) => tracing::warn!(%error, "trying again"),
        }
    }

    /// Gives everything up that was not delivered, as a crash does.
    pub(super) fn close(&self) {
        drop(self.producer.write().take());
    }

    /// Waits until everything appended so far was answered.
    pub(super) fn drain(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while !(self.open.messages.is_idle() && self.open.rows.is_idle()) {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design decision 16: a client may be refused only when its message is surely not stored.
    #[test]
    fn only_a_refused_record_is_surely_not_stored() {
        let of = |code| outcome_of(&KafkaError::MessageProduction(code));
        assert_eq!(of(RDKafkaErrorCode::MessageSizeTooLarge), AppendOutcome::NotStored);
        for code in [
            RDKafkaErrorCode::PurgeQueue,
            RDKafkaErrorCode::PurgeInflight,
            RDKafkaErrorCode::Fatal,
            RDKafkaErrorCode::MessageTimedOut,
            RDKafkaErrorCode::OutOfOrderSequenceNumber,
            RDKafkaErrorCode::TopicAuthorizationFailed,
        ] {
            assert_eq!(of(code), AppendOutcome::InDoubt, "{code:?}");
        }
    }
}
