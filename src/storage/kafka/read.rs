//! Reading a topic from somewhere to its end: what a start does, and a look at a table.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::format::Mark;
use super::watch::{Listener, Watch, unavailable};
use crate::storage::StorageError;

const METADATA: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);

/// One record of ours.
pub(super) struct Found<'a> {
    pub(super) offset: u64,
    pub(super) mark: Mark,
    pub(super) key: &'a [u8],
    pub(super) payload: Option<&'a [u8]>,
}

/// A consumer of some partitions of one topic, from the given offset on.
pub(super) fn consumer(
    config: &ClientConfig,
    watch: &Arc<Watch>,
    topic: &str,
    partitions: u32,
    from: Offset,
) -> Result<BaseConsumer<Listener>, StorageError> {
    let what = || format!("topic {topic} can't be read");
    let consumer: BaseConsumer<Listener> =
        BaseConsumer::from_config_and_context(config, Listener(Arc::clone(watch)))
            .map_err(|error| unavailable(&what(), &error))?;
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition as i32, from)
            .map_err(|error| unavailable(&what(), &error))?;
    }
    // Who leads must be known by then: an offset that is asked of nobody is asked again after half
    // a second. Without an answer the consumer finds out by itself.
    consumer.fetch_metadata(Some(topic), METADATA).ok();
    consumer.assign(&list).map_err(|error| unavailable(&what(), &error))?;
    Ok(consumer)
}

/// Somebody else's records are passed over: nothing of ours is in them.
pub(super) fn found<'a>(
    topic: &str,
    message: &'a BorrowedMessage<'_>,
) -> Result<Option<Found<'a>>, StorageError> {
    let offset = u64::try_from(message.offset()).unwrap_or(0);
    let place = || format!("topic {topic}, partition {}, offset {offset}", message.partition());
    let mark = Mark::of(message).map_err(|error| {
        let StorageError::Damaged(text) = &error else { return error };
        StorageError::Damaged(format!("{}: {text}", place()))
    })?;
    let Some(mark) = mark else {
        tracing::warn!("{}: a record that this program did not write is passed over", place());
        return Ok(None);
    };
    let key = message.key().unwrap_or_default();
    Ok(Some(Found { offset, mark, key, payload: message.payload() }))
}

/// Visits every record from `from` on, until the end of every partition was seen.
pub(super) fn to_the_end(
    config: &ClientConfig,
    watch: &Arc<Watch>,
    topic: &str,
    partitions: u32,
    from: Offset,
    patience: Duration,
    visit: &mut dyn FnMut(Found<'_>) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let mut config = config.clone();
    // The end of a topic is told when a fetch comes back empty: it must not be waited for.
    config.set("fetch.wait.max.ms", "10");
    let consumer = consumer(&config, watch, topic, partitions, from)?;
    let mut ended = vec![false; partitions as usize];
    let mut last = Instant::now();
    while ended.contains(&false) {
        match consumer.poll(POLL) {
            Some(Ok(message)) => {
                last = Instant::now();
                if let Some(found) = found(topic, &message)? {
                    visit(found)?;
                }
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                last = Instant::now();
                if let Some(ended) = ended.get_mut(partition as usize) {
                    *ended = true;
                }
            }
            Some(Err(error)) if is_final(&error) => {
                return Err(unavailable(&format!("topic {topic} can't be read"), &error));
            }
            Some(Err(_)) | None if last.elapsed() > patience => {
                let text = format!("topic {topic} can't be read: no answer for {patience:?}");
                return Err(StorageError::Unavailable(text));
            }
            Some(Err(_)) | None => {}
        }
    }
    Ok(())
}

/// Whether waiting can't help.
pub(super) fn is_final(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::GroupAuthorizationFailed
                | RDKafkaErrorCode::AutoOffsetReset
                | RDKafkaErrorCode::OffsetOutOfRange
                | RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownPartition
                | RDKafkaErrorCode::UnknownTopic
        )
    )
}
