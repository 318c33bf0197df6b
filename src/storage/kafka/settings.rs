//! What the operator decides about Kafka, and what becomes of it in librdkafka's terms.

use std::time::Duration;

use rdkafka::config::ClientConfig;

use crate::storage::{KafkaConfig, Table, TopicConfig};

/// The largest record of what consumers leave behind.
pub(super) const STATE_BYTES: usize = 16 << 20;

/// Milliseconds between two rounds of the log, when they are small: at 5 000 messages a second this
/// costs Kafka and the node half of what a round each millisecond costs.
const ROUNDS: &str = "3";
/// Milliseconds that other producers wait for company.
const LINGER: &str = "1";

/// Settings that carry a promise: nobody's configuration changes them.
const KEPT: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "max.in.flight.requests.per.connection",
    "message.max.bytes",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "retries",
    "transactional.id",
];

/// Settings of the Java clients that mean nothing here.
const JAVA_ONLY: &[&str] = &[
    "auto.include.jmx.reporter",
    "buffer.memory",
    "key.deserializer",
    "key.serializer",
    "max.block.ms",
    "max.poll.records",
    "metric.reporters",
    "partition.assignment.strategy",
    "partitioner.class",
    "value.deserializer",
    "value.serializer",
];

/// Everything the backend needs to open.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    pub config: KafkaConfig,
    /// This node's name. Of two processes with one name, the later one stays.
    pub node: String,
    /// Who consumes: a node has its own commits.
    pub reader: String,
    /// The largest record that is appended: a batch of one read, or one packet, and its head.
    pub max_record_bytes: usize,
    /// How often commits are made durable at most.
    pub commit_every: Duration,
    /// Log records are deleted so long after nothing needs them any more.
    pub keep_log: Duration,
    /// How often a node says that it lives.
    pub beat_every: Duration,
    /// So long without a word, and a node is dead for the others.
    pub dead_after: Duration,
}

impl KafkaSettings {
    pub fn new(config: KafkaConfig) -> Self {
        Self {
            config,
            node: "node".into(),
            reader: "dispatcher".into(),
            max_record_bytes: 1 << 20,
            commit_every: Duration::from_millis(50),
            keep_log: Duration::from_secs(60),
            beat_every: Duration::from_secs(1),
            dead_after: Duration::from_secs(6),
        }
    }

    /// The name of a topic in Kafka.
    pub(super) fn name(&self, topic: &TopicConfig) -> String {
        format!("{}{}", self.config.prefix, topic.name)
    }

    pub(super) fn table(&self, table: Table) -> &TopicConfig {
        let topics = &self.config.topics;
        match table {
            Table::Sessions => &topics.sessions,
            Table::Subscriptions => &topics.subscriptions,
            Table::Retained => &topics.retained,
            Table::Credentials => &topics.credentials,
            Table::Blocked => &topics.blocked,
            Table::Settings => &topics.settings,
        }
    }

    fn base(&self) -> ClientConfig {
        let mut base = ClientConfig::new();
        base.set("bootstrap.servers", &self.config.servers)
            .set("client.id", format!("sluice-{}", self.reader))
            .set("socket.nagle.disable", "true")
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "1000")
            .set("topic.metadata.refresh.interval.ms", "60000")
            .set("log_level", "6");
        base
    }

    pub(super) fn admin(&self) -> ClientConfig {
        let mut admin = self.base();
        take(&mut admin, &self.config.common);
        take(&mut admin, &self.config.admin);
        admin
    }

    /// The producer of the log, which sends in rounds: `linger.ms` is what lies between two.
    pub(super) fn log_producer(&self) -> ClientConfig {
        self.lingering(ROUNDS, &self.config.topics.log)
    }

    /// A producer whose stream has no gaps, ever (design decision 5).
    pub(super) fn producer(&self, topic: &TopicConfig) -> ClientConfig {
        self.lingering(LINGER, topic)
    }

    fn lingering(&self, linger: &str, topic: &TopicConfig) -> ClientConfig {
        let mut producer = self.base();
        producer
            .set("linger.ms", linger)
            .set("batch.num.messages", "10000")
            .set("batch.size", "1000000")
            .set("queue.buffering.max.messages", "10000000")
            .set("queue.buffering.max.kbytes", "2097151");
        take(&mut producer, &self.config.common);
        take(&mut producer, &self.config.producer);
        take(&mut producer, &topic.producer);
        producer
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("enable.gapless.guarantee", "true")
            .set("message.timeout.ms", "0")
            .set("message.max.bytes", self.max_message_bytes().to_string());
        producer
    }

    /// The producer of rows and commits, which are written behind.
    pub(super) fn scribe(&self) -> ClientConfig {
        let mut scribe = self.producer(&self.config.topics.state);
        scribe.set("message.max.bytes", STATE_BYTES.to_string());
        // A topic's bound is one of batches, and tables have a narrower one than commits.
        let asked = scribe.get("batch.size").and_then(|bytes| bytes.parse().ok());
        let batch = asked.unwrap_or(usize::MAX).min(self.max_message_bytes());
        scribe.set("batch.size", batch.to_string());
        scribe
    }

    /// The producer of rows alone: of all that were ever opened only the newest can write, whatever
    /// an older one still holds in its hands.
    pub(super) fn row_scribe(&self) -> ClientConfig {
        let mut scribe = self.scribe();
        scribe.remove("enable.gapless.guarantee");
        scribe
            .set("transactional.id", format!("{}{}-rows", self.config.prefix, self.reader))
            .set("transaction.timeout.ms", "60000")
            .set("message.timeout.ms", "30000");
        scribe
    }

    pub(super) fn consumer(&self, topic: &TopicConfig) -> ClientConfig {
        let mut consumer = self.base();
        consumer
            .set("fetch.wait.max.ms", "500")
            .set("fetch.error.backoff.ms", "100")
            .set("fetch.queue.backoff.ms", "10")
            .set("queued.min.messages", "10000")
            .set("queued.max.messages.kbytes", "16384");
        take(&mut consumer, &self.config.common);
        take(&mut consumer, &self.config.consumer);
        take(&mut consumer, &topic.consumer);
        consumer
            .set("group.id", format!("{}{}", self.config.prefix, self.reader))
            .set("allow.auto.create.topics", "false")
            .set("auto.offset.reset", "error")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed")
            .set("check.crcs", "true");
        consumer
    }

    /// The consumers that all logs of APPLICATION clients share (design decision 7).
    pub(super) fn applications(&self, topic: &TopicConfig) -> ClientConfig {
        let mut consumer = self.consumer(topic);
        let group = format!("{}application-persisted-msg-consumer-group", self.config.prefix);
        consumer
            .set("group.id", group)
            .set("queued.max.messages.kbytes", "256")
            .set("queued.min.messages", "1000");
        consumer
    }

    /// What a topic must take: the record, its key and its header.
    pub(super) fn max_message_bytes(&self) -> usize {
        self.max_record_bytes + 3 * 65_536
    }
}

/// Takes over an operator's settings, in the words of either client.
fn take(config: &mut ClientConfig, settings: &[(String, String)]) {
    for (key, value) in settings {
        let known = match key.as_str() {
            kept if KEPT.contains(&kept) => {
                tracing::info!(setting = kept, "this setting of Kafka's client can't be changed");
                continue;
            }
            java if JAVA_ONLY.contains(&java) => continue,
            "fetch.max.wait.ms" => "fetch.wait.max.ms",
            "queue.buffering.max.ms" => "linger.ms",
            "max.request.size" => continue,
            "ssl.truststore.location" => "ssl.ca.location",
            "sasl.jaas.config" => {
                for (name, setting) in
                    [("username", "sasl.username"), ("password", "sasl.password")]
                {
                    if let Some(found) = jaas(value, name) {
                        config.set(setting, found);
                    }
                }
                continue;
            }
            other => other,
        };
        config.set(known, value);
    }
}

/// `name="value"` out of a login module's line.
fn jaas<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let at = line.find(&format!("{name}="))? + name.len() + 1;
    let rest = &line[at..];
    let quote = rest.chars().next().filter(|c| *c == '"' || *c == '\'');
    match quote {
        Some(quote) => rest[1..].split(quote).next(),
        None => rest.split([' ', ';']).next(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::writer::Writer;
    use super::*;

    fn settings(common: &[(&str, &str)]) -> KafkaSettings {
        let common = common.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        KafkaSettings::new(KafkaConfig { common, ..KafkaConfig::default() })
    }

    /// A TBMQ operator's line for SASL works as it is.
    #[test]
    fn a_login_module_gives_user_and_password() {
        let line = "org.apache.kafka.common.security.scram.ScramLoginModule required \
                    username=\"u\" password=\"p w\";";
        let producer = settings(&[("sasl.jaas.config", line), ("sasl.mechanism", "PLAIN")]);
        let producer = producer.producer(&TopicConfig::default());
        assert_eq!(producer.get("sasl.username"), Some("u"));
        assert_eq!(producer.get("sasl.password"), Some("p w"));
        assert_eq!(producer.get("sasl.mechanism"), Some("PLAIN"));
    }

    /// IN-6: what a producer holds for others it sends after milliseconds, and at its size.
    #[test]
    fn producers_hardly_wait_for_company() {
        let settings = settings(&[]);
        for producer in [settings.producer(&TopicConfig::default()), settings.log_producer()] {
            let number = |key| producer.get(key).and_then(|value| value.parse::<u32>().ok());
            assert!(number("linger.ms").is_some_and(|millis| millis <= 20));
            assert!(number("batch.size").is_some_and(|bytes| bytes <= 1 << 20));
        }
    }

    /// Rows are written in batches that their topics take, however narrow records are.
    #[test]
    fn batches_of_rows_fit_their_topics() {
        for max_record_bytes in [1, 200_000, 16 << 20] {
            let settings = KafkaSettings { max_record_bytes, ..settings(&[]) };
            let batch: usize = settings.scribe().get("batch.size").unwrap().parse().unwrap();
            assert!(batch <= settings.max_message_bytes(), "{batch} for {max_record_bytes}");
        }
    }

    /// Decision 5: no configuration makes the stream of a producer lose its order or its acks.
    #[test]
    fn promises_are_not_settings() {
        let given = [("acks", "1"), ("enable.idempotence", "false"), ("linger.ms", "7")];
        let producer = settings(&given).log_producer();
        assert_eq!(producer.get("acks"), Some("all"));
        assert_eq!(producer.get("enable.idempotence"), Some("true"));
        assert_eq!(producer.get("linger.ms"), Some("7"));
        let other = settings(&[("queue.buffering.max.ms", "8")]).log_producer();
        assert_eq!(other.get("linger.ms"), Some("8"));
    }

    /// CFG: a time between rounds that is none is refused, as librdkafka refuses it.
    #[test]
    fn a_time_between_rounds_that_is_none_is_refused() {
        for wrong in ["soon", "-1", "1e300", "inf"] {
            let config = settings(&[("linger.ms", wrong)]).log_producer();
            let made = Writer::new(config, "t".into(), 1, 1, Arc::default());
            let text = made.expect_err(wrong).to_string();
            assert!(text.contains("linger.ms"), "{wrong}: {text}");
        }
    }
}
