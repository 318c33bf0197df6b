//! The reading side: a few consumers for all APPLICATION clients of this node, each with a queue of
//! its own for every log that is read. librdkafka fetches ahead into that queue, up to its bound,
//! and stops; so a client that takes nothing is a log that is not read.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::Notify;

use super::record;
use crate::storage::kafka::watch::{Listener, Watch, note_error, unavailable};
use crate::storage::{QueuedMessage, SourceId, StorageError};

/// Consumers of one node.
const CONSUMERS: usize = 4;
const TICK: Duration = Duration::from_millis(100);
/// How long Kafka may take to say where a log begins and ends.
const LOOK: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(20);

type Client = BaseConsumer<Listener>;

/// The consumers that all logs share.
pub(super) struct Pool {
    consumers: Vec<Arc<Client>>,
    /// Asks and tells: a commit that is open would hold up who begins to read.
    clerk: Arc<Client>,
    next: AtomicUsize,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

/// Where a log begins and ends, and up to where Kafka's group has it; all are sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) low: u64,
    pub(super) end: u64,
    pub(super) committed: u64,
}

impl Pool {
    pub(super) fn new(config: &ClientConfig, watch: &Arc<Watch>) -> Result<Self, StorageError> {
        let make = |_| {
            let listener = Listener(Arc::clone(watch));
            let made: Result<Client, _> = BaseConsumer::from_config_and_context(config, listener);
            made.map(Arc::new)
                .map_err(|error| unavailable("Kafka's consumer can't be made", &error))
        };
        let consumers = (0..CONSUMERS).map(make).collect::<Result<_, _>>()?;
        Ok(Self { consumers, clerk: make(CONSUMERS)?, next: AtomicUsize::new(0) })
    }

    /// Serves what is no log's own; runs on a thread of its own, for each of the clients.
    pub(super) fn serve(&self, which: usize, watch: &Arc<Watch>, ended: &dyn Fn() -> bool) {
        while !ended() {
            let client = self.consumers.get(which).unwrap_or(&self.clerk);
            if let Some(Err(error)) = client.poll(TICK) {
                note_error(watch, &error, "");
            }
        }
    }

    pub(super) fn clients(&self) -> usize {
        self.consumers.len() + 1
    }

    /// Whether there is such a topic. Blocks.
    pub(super) fn exists(&self, topic: &str) -> Result<bool, StorageError> {
        let what = || format!("topic {topic} can't be looked for");
        let found = self.clerk.fetch_metadata(Some(topic), LOOK);
        let found = found.map_err(|error| unavailable(&what(), &error))?;
        let one = found.topics().iter().find(|one| one.name() == topic);
        Ok(one.is_some_and(|one| one.error().is_none() && !one.partitions().is_empty()))
    }

    /// Waits until the log has a leader. Blocks.
    pub(super) fn bounds(&self, topic: &str) -> Result<Bounds, StorageError> {
        let clerk = &self.clerk;
        let until = tokio::time::Instant::now() + LOOK;
        let within = Duration::from_secs(1);
        let (low, high) = loop {
            match clerk.fetch_watermarks(topic, 0, within) {
                Ok(found) => break found,
                Err(error) if tokio::time::Instant::now() > until => {
                    return Err(unavailable(&format!("topic {topic} can't be read"), &error));
                }
                // What was not there is remembered until somebody asks for it by name.
                Err(_) => {
                    drop(clerk.fetch_metadata(Some(topic), LOOK));
                    std::thread::sleep(AGAIN);
                }
            }
        };
        let seq = |offset: i64| u64::try_from(offset).unwrap_or(0) + 1;
        Ok(Bounds { low: seq(low), end: seq(high), committed: self.committed(topic) })
    }

    /// What lag tools are told is a word for us, too, if Redis has forgotten its own.
    fn committed(&self, topic: &str) -> u64 {
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, 0);
        match self.clerk.committed_offsets(list, LOOK) {
            Ok(found) => match found.elements().first().map(|one| one.offset()) {
                Some(Offset::Offset(offset)) => u64::try_from(offset).unwrap_or(0) + 1,
                Some(_) | None => 1,
            },
            Err(error) => {
                tracing::info!(topic, %error, "the group's commit can't be read");
                1
            }
        }
    }

    /// All topics that there are. Blocks.
    pub(super) fn topics(&self) -> Result<Vec<String>, StorageError> {
        let found = self.clerk.fetch_metadata(None, LOOK);
        let found = found.map_err(|error| unavailable("no Kafka broker answers", &error))?;
        Ok(found.topics().iter().map(|topic| topic.name().to_owned()).collect())
    }

    /// The topics whose names begin like this, and up to where Kafka's group has each.
    pub(super) fn group(&self, prefix: &str) -> Result<Vec<(String, u64)>, StorageError> {
        let ours = self.topics()?.into_iter().filter(|name| name.starts_with(prefix));
        Ok(ours.map(|name| (name.clone(), self.committed(&name) - 1)).collect())
    }

    /// Tells Kafka's group up to where a client is, for lag tools; nobody waits for it.
    pub(super) fn commit(&self, topic: &str, floor: u64) {
        let mut list = TopicPartitionList::new();
        let offset = Offset::Offset(i64::try_from(floor - 1).unwrap_or(i64::MAX));
        let listed = list.add_partition_offset(topic, 0, offset);
        let told = listed.and_then(|()| self.clerk.commit(&list, CommitMode::Async));
        if let Err(error) = told {
            tracing::debug!(topic, %error, "the group was not told");
        }
    }

    /// Begins to read a log. Waits for librdkafka's own thread, so it blocks.
    pub(super) fn read(&self, topic: &str, from_seq: u64) -> Result<Arc<Stream>, StorageError> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.consumers.len();
        let consumer = Arc::clone(&self.consumers[at]);
        let what = || format!("topic {topic} can't be read");
        let news = Arc::new(Notify::new());
        // First its own queue: nothing of it may go to the consumer's.
        let queue = consumer.split_partition_queue(topic, 0);
        let mut queue = queue.ok_or_else(|| StorageError::Unavailable(what()))?;
        let told = Arc::clone(&news);
        queue.set_nonempty_callback(move || told.notify_one());
        let list = one(topic, from_seq);
        consumer.incremental_assign(&list).map_err(|error| unavailable(&what(), &error))?;
        let topic = topic.to_owned();
        Ok(Arc::new(Stream { consumer, topic, queue: Mutex::new(Some(queue)), news }))
    }
}

fn one(topic: &str, from_seq: u64) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    let offset = Offset::Offset(i64::try_from(from_seq.saturating_sub(1)).unwrap_or(i64::MAX));
    // Only a negative offset is refused.
    list.add_partition_offset(topic, 0, offset).ok();
    list
}

/// One log that is read, by one connection.
pub(super) struct Stream {
    consumer: Arc<Client>,
    topic: String,
    /// `None`: closed.
    queue: Mutex<Option<PartitionQueue<Listener>>>,
    news: Arc<Notify>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// What a look at a stream gave.
pub(super) enum Next {
    Record(u64, Box<(SourceId, QueuedMessage)>),
    /// A record that is none of ours.
    Other(u64),
    Nothing,
    /// What should be next was removed by retention.
    Removed,
    /// The connection has let go of it.
    Closed,
}

impl Stream {
    /// The next record that is here.
    pub(super) fn next(&self) -> Result<Next, StorageError> {
        let queue = self.queue.lock();
        let Some(queue) = &*queue else { return Ok(Next::Closed) };
        loop {
            return match queue.poll(Duration::ZERO) {
                None => Ok(Next::Nothing),
                Some(Ok(message)) => {
                    let seq = u64::try_from(message.offset()).unwrap_or(0) + 1;
                    match message.payload() {
                        Some(payload) => {
                            let found = record::decode(seq, payload)?;
                            Ok(Next::Record(seq, Box::new(found)))
                        }
                        None => Ok(Next::Other(seq)),
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => continue,
                Some(Err(error)) => match error.rdkafka_error_code() {
                    Some(
                        RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange,
                    ) => Ok(Next::Removed),
                    // It may be new, or its leader on the move: librdkafka goes on by itself.
                    Some(_) | None => {
                        tracing::debug!(topic = self.topic, %error, "a log is not read just now");
                        Ok(Next::Nothing)
                    }
                },
            };
        }
    }

    /// Waits until there may be something. Cancel safe: yes.
    pub(super) async fn news(&self, patience: Duration) {
        drop(tokio::time::timeout(patience, self.news.notified()).await);
    }

    /// Nobody reads it any more. Waits for librdkafka's own thread, so it blocks.
    pub(super) fn close(&self) {
        if self.queue.lock().take().is_some() {
            self.news.notify_one();
            if let Err(error) = self.consumer.incremental_unassign(&one(&self.topic, 1)) {
                tracing::debug!(topic = self.topic, %error, "a log could not be let go");
            }
        }
    }
}
