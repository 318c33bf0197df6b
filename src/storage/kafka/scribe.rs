//! A producer that waits for its deliveries: what is written behind, in order, by one thread.

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

const TICK: Duration = Duration::from_millis(50);

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
        let producer = self.producer()?;
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
        while producer.in_flight_count() > 0 && !given_up() {
            // It asks for what lingers, and gives up after the tick, which is no fault.
            drop(producer.flush(TICK));
        }
        let lost = failed.load(Ordering::Relaxed) != before;
        if refused.is_none() && !lost && producer.in_flight_count() == 0 {
            return Ok(());
        }
        // Design decision 5: after a gap the stream is given up, whole.
        self.producer = None;
        Err(refused.unwrap_or_else(|| StorageError::Unavailable("rows were not delivered".into())))
    }
}
