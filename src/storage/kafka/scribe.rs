//! A producer that waits for its deliveries: what is written behind, in order, by one thread. Where
//! several nodes write the same keys one after another, it writes in transactions: who opens it
//! fences all that opened it before (design decision 3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};

use super::format::Mark;
use super::watch::{Watch, log_line, note_error, unavailable};
use crate::storage::StorageError;
use crate::telemetry::fail_point;

const TICK: Duration = Duration::from_millis(50);
/// How long a call about a transaction may take.
const CALL: Duration = Duration::from_secs(10);

struct Counts {
    failed: Arc<AtomicU64>,
    watch: Arc<Watch>,
}

impl ClientContext for Counts {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        note_error(&self.watch, &error, reason);
    }
}

impl ProducerContext for Counts {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(_) => self.watch.is_well(),
            Err((error, _)) => {
                tracing::debug!(%error, "a row or a commit was not delivered");
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// One record to write behind.
pub(super) struct Line<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: u32,
    pub(super) key: &'a [u8],
    pub(super) payload: Option<&'a [u8]>,
    pub(super) mark: Mark,
}

pub(super) struct Scribe {
    /// With a `transactional.id`, or without.
    config: ClientConfig,
    watch: Arc<Watch>,
    failed: Arc<AtomicU64>,
    producer: Option<BaseProducer<Counts>>,
}

impl std::fmt::Debug for Scribe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scribe")
    }
}

impl Scribe {
    pub(super) fn new(config: ClientConfig, watch: Arc<Watch>) -> Self {
        Self { config, watch, failed: Arc::default(), producer: None }
    }

    fn producer(&mut self) -> Result<&BaseProducer<Counts>, StorageError> {
        if self.producer.is_none() {
            let counts =
                Counts { failed: Arc::clone(&self.failed), watch: Arc::clone(&self.watch) };
            let made = BaseProducer::from_config_and_context(&self.config, counts);
            self.producer =
                Some(made.map_err(|error| unavailable("Kafka's producer can't be made", &error))?);
        }
        self.producer.as_ref().ok_or_else(|| StorageError::Unavailable("no producer".into()))
    }

    /// Fences whoever has written in this one's place. `true`: just now; there is something to be
    /// known about who is to write, then, that was not yet read.
    pub(super) fn enter(&mut self) -> Result<bool, StorageError> {
        if self.producer.is_some() {
            return Ok(false);
        }
        let entered = self.producer()?.init_transactions(CALL);
        entered.map_err(|error| self.broken("Kafka gives no transactions", &error))?;
        Ok(true)
    }

    fn is_transactional(&self) -> bool {
        self.config.get("transactional.id").is_some()
    }

    /// What was begun and not ended is thrown away by the next one that enters.
    fn broken(&mut self, what: &str, error: &KafkaError) -> StorageError {
        self.producer = None;
        unavailable(what, error)
    }

    /// Writes all lines, and waits until they are durable, or until `given_up`: what is on its way
    /// then may still arrive, and is written again by whoever comes next.
    pub(super) fn write<'a>(
        &mut self,
        lines: impl Iterator<Item = Line<'a>>,
        given_up: &dyn Fn() -> bool,
    ) -> Result<(), StorageError> {
        let failed = Arc::clone(&self.failed);
        let before = failed.load(Ordering::Relaxed);
        let mut refused = None;
        let transactional = self.is_transactional();
        let producer = self.producer()?;
        if transactional && let Err(error) = producer.begin_transaction() {
            return Err(self.broken("rows can't be written", &error));
        }
        for line in lines {
            let record: BaseRecord<'_, [u8], [u8]> = BaseRecord {
                topic: line.topic,
                partition: Some(line.partition as i32),
                payload: line.payload,
                key: Some(line.key),
                timestamp: None,
                headers: Some(line.mark.headers()),
                delivery_opaque: (),
            };
            if let Err((error, _)) = producer.send(record) {
                refused = Some(unavailable(&format!("{} can't be written", line.topic), &error));
                break;
            }
        }
        if transactional {
            fail_point::pass("rows.sent");
        }
        while producer.in_flight_count() > 0 && !given_up() {
            // It asks for what lingers, and gives up after the tick, which is no fault.
            drop(producer.flush(TICK));
        }
        let lost = failed.load(Ordering::Relaxed) != before;
        if refused.is_none() && !lost && producer.in_flight_count() == 0 {
            if transactional && let Err(error) = producer.commit_transaction(CALL) {
                return Err(self.broken("rows can't be written", &error));
            }
            return Ok(());
        }
        // Design decision 5: after a gap the stream is given up, whole.
        self.producer = None;
        Err(refused.unwrap_or_else(|| StorageError::Unavailable("rows were not delivered".into())))
    }
}
