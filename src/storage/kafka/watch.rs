//! What librdkafka says of itself: its lines go to our log, its troubles to health.

use std::sync::Arc;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::storage::StorageError;

/// The last word about Kafka's health, shared by all clients of one backend.
#[derive(Debug, Default)]
pub(super) struct Watch {
    trouble: Mutex<Option<String>>,
}

impl Watch {
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.lock().is_some()
    }

    pub(super) fn note(&self, text: String) {
        self.trouble.lock().get_or_insert(text);
    }

    pub(super) fn is_well(&self) {
        self.trouble.lock().take();
    }
}

/// The context of consumers and of the administration's client.
#[derive(Clone, Debug)]
pub(super) struct Listener(pub(super) Arc<Watch>);

impl ClientContext for Listener {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        note_error(&self.0, &error, reason);
    }
}

impl ConsumerContext for Listener {}

/// Its complaints repeat while Kafka is away; what matters of them is said once, by health.
pub(super) fn log_line(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning
        | RDKafkaLogLevel::Notice => tracing::info!(facility, "kafka: {message}"),
        RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
            tracing::debug!(facility, "kafka: {message}");
        }
    }
}

pub(super) fn note_error(watch: &Watch, error: &KafkaError, reason: &str) {
    tracing::debug!(%error, reason, "kafka client");
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::AllBrokersDown) => {
            watch.note("no Kafka broker answers".to_owned());
        }
        Some(RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SSL) => {
            watch.note(format!("Kafka refuses this node: {reason}"));
        }
        Some(_) | None => {}
    }
}

/// Kafka's "no" in our words.
pub(super) fn unavailable(what: &str, error: &KafkaError) -> StorageError {
    let named = match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::TopicAuthorizationFailed) => "the right to the topic is missing",
        Some(RDKafkaErrorCode::ClusterAuthorizationFailed) => "the right to the cluster is missing",
        Some(RDKafkaErrorCode::GroupAuthorizationFailed) => "the right to the group is missing",
        Some(_) | None => return StorageError::Unavailable(format!("{what}: {error}")),
    };
    StorageError::Unavailable(format!("{what}: {named} ({error})"))
}
