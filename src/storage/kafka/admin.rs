//! Topics: made at the start with their settings, or found and looked at; their partition counts
//! never change.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::metadata::Metadata;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::KafkaSettings;
use super::settings::STATE_BYTES;
use super::watch::{Listener, Watch, unavailable};
use crate::storage::{StorageError, TopicConfig};

/// What a topic is for, which decides what its settings must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// A log: deleted by consumed position only, never by age or size.
    Log,
    /// A table: the newest record of each key stays.
    Table,
    /// A table of few, large records: a dispatcher's state goes with its commit.
    State,
    /// One client's log: its retention is the operator's to say (APP-3).
    Application,
}

pub(super) struct Wanted<'a> {
    pub(super) topic: &'a TopicConfig,
    pub(super) policy: Policy,
}

pub(super) struct Admin {
    client: AdminClient<Listener>,
    timeout: Duration,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Admin")
    }
}

impl Admin {
    pub(super) fn new(settings: &KafkaSettings, watch: Arc<Watch>) -> Result<Self, StorageError> {
        let client = AdminClient::from_config_and_context(&settings.admin(), Listener(watch))
            .map_err(|error| unavailable("Kafka's client can't be made", &error))?;
        Ok(Self { client, timeout: settings.config.command_timeout })
    }

    fn metadata(&self) -> Result<Metadata, StorageError> {
        self.client
            .inner()
            .fetch_metadata(None, self.timeout)
            .map_err(|error| unavailable("no Kafka broker answers", &error))
    }

    /// Whether a broker answers.
    pub(super) fn ping(&self, topic: &str, patience: Duration) -> bool {
        self.client.inner().fetch_metadata(Some(topic), patience).is_ok()
    }

    /// The first offset of a partition, and the one that the next record will have.
    pub(super) fn watermarks(&self, topic: &str) -> Result<(u64, u64), StorageError> {
        let found = self.client.inner().fetch_watermarks(topic, 0, self.timeout);
        let (low, high) =
            found.map_err(|error| unavailable(&format!("topic {topic} can't be read"), &error))?;
        Ok((u64::try_from(low).unwrap_or(0), u64::try_from(high).unwrap_or(0)))
    }

    /// Makes what is missing; gives each topic's number of partitions.
    pub(super) fn ensure(
        &self,
        settings: &KafkaSettings,
        wanted: &[Wanted<'_>],
    ) -> Result<BTreeMap<String, u32>, StorageError> {
        let found = self.metadata()?;
        let brokers = found.brokers().len();
        let there = counts(&found);
        let (mut missing, mut known) = (Vec::new(), Vec::new());
        for one in wanted {
            let name = settings.name(one.topic);
            if there.contains_key(&name) {
                known.push((name, one))
            } else {
                missing.push((name, one))
            }
        }
        self.look_at(settings, &known);
        if missing.is_empty() {
            return Ok(there);
        }
        self.create(settings, &missing, brokers)?;
        let until = Instant::now() + self.timeout;
        loop {
            let found = self.metadata()?;
            let there = counts(&found);
            if missing.iter().all(|(name, _)| there.contains_key(name)) {
                return Ok(there);
            }
            if Instant::now() > until {
                return Err(StorageError::Unavailable("new topics got no leader in time".into()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes one topic, unless it is there.
    pub(super) fn make(
        &self,
        settings: &KafkaSettings,
        topic: &TopicConfig,
        policy: Policy,
    ) -> Result<(), StorageError> {
        let wanted = Wanted { topic, policy };
        let known = settings.name(&settings.config.topics.log);
        let found = self.client.inner().fetch_metadata(Some(&known), self.timeout);
        let found = found.map_err(|error| unavailable("no Kafka broker answers", &error))?;
        let brokers = found.brokers().len();
        self.create(settings, &[(settings.name(topic), &wanted)], brokers)
    }

    /// Deletes a topic with all that is in it; one that is not there is no error.
    pub(super) fn remove(&self, name: &str) -> Result<(), StorageError> {
        let options = AdminOptions::new().request_timeout(Some(self.timeout));
        let what = || format!("topic {name} can't be deleted");
        let done = block_on(self.client.delete_topics(&[name], &options))
            .map_err(|error| unavailable(&what(), &error))?;
        for one in done {
            match one {
                Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
                Err((_, code)) => {
                    return Err(StorageError::Unavailable(format!("{}: {code}", what())));
                }
            }
        }
        Ok(())
    }

    fn create(
        &self,
        settings: &KafkaSettings,
        missing: &[(String, &Wanted<'_>)],
        brokers: usize,
    ) -> Result<(), StorageError> {
        let plans: Vec<Plan> = missing
            .iter()
            .map(|(_, one)| Plan::of(settings, one, brokers))
            .collect::<Result<_, _>>()?;
        let topics: Vec<NewTopic<'_>> = missing
            .iter()
            .zip(&plans)
            .map(|((name, _), plan)| {
                let replication = TopicReplication::Fixed(plan.replication);
                let topic = NewTopic::new(name, plan.partitions, replication);
                plan.settings.iter().fold(topic, |topic, (key, value)| topic.set(key, value))
            })
            .collect();
        let options = AdminOptions::new()
            .request_timeout(Some(self.timeout))
            .operation_timeout(Some(self.timeout));
        let made = block_on(self.client.create_topics(&topics, &options))
            .map_err(|error| unavailable("topics can't be made", &error))?;
        for result in made {
            match result {
                Ok(name) => tracing::info!(topic = name, "topic made"),
                // Another node was quicker.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => return Err(refused(&name, code, brokers)),
            }
        }
        Ok(())
    }

    /// Names what a topic that we did not make has otherwise than it should.
    fn look_at(&self, settings: &KafkaSettings, known: &[(String, &Wanted<'_>)]) {
        let asked: Vec<ResourceSpecifier<'_>> =
            known.iter().map(|(name, _)| ResourceSpecifier::Topic(name)).collect();
        if asked.is_empty() {
            return;
        }
        let options = AdminOptions::new().request_timeout(Some(self.timeout));
        let found = match block_on(self.client.describe_configs(&asked, &options)) {
            Ok(found) => found,
            Err(error) => {
                tracing::info!(%error, "the settings of Kafka's topics can't be looked at");
                return;
            }
        };
        for ((name, one), found) in known.iter().zip(found) {
            let Ok(found) = found else { continue };
            let value = |key: &str| found.get(key).and_then(|entry| entry.value.clone());
            for (setting, wanted) in one.policy.must_have(settings) {
                let Some(is) = value(setting) else { continue };
                if !wanted.holds(&is) {
                    let wanted = wanted.to_string();
                    tracing::warn!(
                        topic = name,
                        setting,
                        is,
                        wanted,
                        "{}",
                        one.policy.consequence()
                    );
                }
            }
        }
    }

    /// Deletes the log's records below an offset.
    pub(super) fn delete_below(&self, topic: &str, offset: u64) -> Result<(), StorageError> {
        let mut list = TopicPartitionList::new();
        let offset = Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX));
        let what = || format!("old records of {topic} can't be deleted");
        list.add_partition_offset(topic, 0, offset)
            .map_err(|error| unavailable(&what(), &error))?;
        let options = AdminOptions::new().request_timeout(Some(self.timeout));
        let done = block_on(self.client.delete_records(&list, &options))
            .map_err(|error| unavailable(&what(), &error))?;
        for one in done.elements() {
            one.error().map_err(|error| unavailable(&what(), &error))?;
        }
        Ok(())
    }
}

/// Topics whose partitions all have a leader, with how many they have.
fn counts(metadata: &Metadata) -> BTreeMap<String, u32> {
    let whole = metadata.topics().iter().filter(|topic| {
        let led = topic.partitions().iter().all(|partition| partition.leader() >= 0);
        topic.error().is_none() && !topic.partitions().is_empty() && led
    });
    whole.map(|topic| (topic.name().to_owned(), topic.partitions().len() as u32)).collect()
}

fn refused(topic: &str, code: RDKafkaErrorCode, brokers: usize) -> StorageError {
    let why = match code {
        RDKafkaErrorCode::TopicAuthorizationFailed
        | RDKafkaErrorCode::ClusterAuthorizationFailed => {
            "the right to create topics is missing: grant CREATE, or make it beforehand".to_owned()
        }
        RDKafkaErrorCode::InvalidReplicationFactor => {
            format!("its replication.factor does not fit {brokers} brokers")
        }
        RDKafkaErrorCode::InvalidConfig | RDKafkaErrorCode::PolicyViolation => {
            format!("the brokers refuse its topic-properties ({code})")
        }
        other => other.to_string(),
    };
    StorageError::Unavailable(format!("topic {topic} can't be made: {why}"))
}

const QUICK_COMPACTION: [(&str, &str); 3] = [
    ("delete.retention.ms", "300000"),
    ("segment.ms", "300000"),
    ("min.cleanable.dirty.ratio", "0.2"),
];

/// TBMQ's size of a segment.
const APPLICATION_SEGMENT: &str = "26214400";

struct Plan {
    partitions: i32,
    replication: i32,
    settings: BTreeMap<String, String>,
}

impl Plan {
    fn of(
        settings: &KafkaSettings,
        wanted: &Wanted<'_>,
        brokers: usize,
    ) -> Result<Self, StorageError> {
        let (mut partitions, mut replication) = (1, brokers.min(3) as i32);
        let mut plan = BTreeMap::new();
        let mut set = |key: &str, value: &str| drop(plan.insert(key.to_owned(), value.to_owned()));
        let mut insync = None;
        for (key, value) in &wanted.topic.properties {
            let number = || {
                let bad = || format!("{key} of topic {} is no number: {value}", wanted.topic.name);
                value.parse::<i32>().map_err(|_| StorageError::Unavailable(bad()))
            };
            match key.as_str() {
                "partitions" => partitions = number()?,
                "replication.factor" => replication = number()?,
                "min.insync.replicas" => insync = Some(value.clone()),
                other => set(other, value),
            }
        }
        set("max.message.bytes", &wanted.policy.max_message_bytes(settings).to_string());
        match wanted.policy {
            // What is not consumed must not go by age or size, and there is one order.
            Policy::Log => {
                partitions = 1;
                set("cleanup.policy", "delete");
                set("retention.ms", "-1");
                set("retention.bytes", "-1");
            }
            Policy::Table | Policy::State => set("cleanup.policy", "compact"),
            Policy::Application => {
                partitions = 1;
                set("cleanup.policy", "delete");
                // Retention goes by whole segments.
                let given = wanted.topic.properties.iter().any(|(key, _)| key == "segment.bytes");
                if !given {
                    set("segment.bytes", APPLICATION_SEGMENT);
                }
            }
        }
        // Design decision 2: minutes, so that short sessions don't grow what a start reads.
        if matches!(wanted.policy, Policy::Table | Policy::State) {
            for (key, value) in QUICK_COMPACTION {
                plan.entry(key.to_owned()).or_insert_with(|| value.to_owned());
            }
        }
        let enough = if replication >= 3 { "2" } else { "1" };
        plan.insert("min.insync.replicas".into(), insync.unwrap_or_else(|| enough.into()));
        Ok(Self { partitions, replication, settings: plan })
    }
}

/// What a setting must be.
enum Must {
    Be(&'static str),
    BeAtLeast(usize),
}

impl Must {
    fn holds(&self, is: &str) -> bool {
        match self {
            Must::Be(wanted) => is == *wanted,
            Must::BeAtLeast(least) => is.parse::<usize>().is_ok_and(|is| is >= *least),
        }
    }
}

impl std::fmt::Display for Must {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Must::Be(wanted) => f.write_str(wanted),
            Must::BeAtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

impl Policy {
    fn max_message_bytes(self, settings: &KafkaSettings) -> usize {
        match self {
            Policy::Log | Policy::Table | Policy::Application => settings.max_message_bytes(),
            Policy::State => STATE_BYTES,
        }
    }

    fn must_have(self, settings: &KafkaSettings) -> Vec<(&'static str, Must)> {
        let size = ("max.message.bytes", Must::BeAtLeast(self.max_message_bytes(settings)));
        match self {
            Policy::Log => vec![
                size,
                ("cleanup.policy", Must::Be("delete")),
                ("retention.ms", Must::Be("-1")),
                ("retention.bytes", Must::Be("-1")),
            ],
            Policy::Table | Policy::State => vec![size, ("cleanup.policy", Must::Be("compact"))],
            Policy::Application => vec![size],
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Policy::Log | Policy::Application => {
                "a setting of this topic may lose or refuse messages"
            }
            Policy::Table | Policy::State => "a setting of this topic may lose or refuse rows",
        }
    }
}

// === waiting for an answer ===

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on a thread that may be blocked; the answers come by librdkafka's own threads.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::KafkaConfig;

    /// CLU: settings of a topic come from its properties; three brokers give three copies.
    #[test]
    fn a_topic_is_made_with_its_settings() {
        let settings = KafkaSettings::new(KafkaConfig::default());
        let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let given = [("partitions", "4"), ("segment.bytes", "1048576"), ("retention.ms", "5")];
        let topic = TopicConfig { properties: given.map(pair).to_vec(), ..TopicConfig::default() };
        let planned = |policy| Plan::of(&settings, &Wanted { topic: &topic, policy }, 3);
        let plan = planned(Policy::Table).expect("a good plan");
        assert_eq!((plan.partitions, plan.replication), (4, 3));
        assert_eq!(plan.settings["min.insync.replicas"], "2");
        assert_eq!(plan.settings["segment.bytes"], "1048576");
        let plan = planned(Policy::Log).expect("a good plan");
        assert_eq!((plan.partitions, &*plan.settings["retention.ms"]), (1, "-1"));
        let plain = TopicConfig::default();
        let plan = Plan::of(&settings, &Wanted { topic: &plain, policy: Policy::Table }, 1);
        let plan = plan.expect("a good plan");
        assert_eq!((plan.partitions, plan.replication), (1, 1));
        assert_eq!(plan.settings["cleanup.policy"], "compact");
        assert_eq!(plan.settings["min.insync.replicas"], "1");
    }
}
