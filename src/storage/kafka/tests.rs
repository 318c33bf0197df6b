//! Faults on librdkafka's mock cluster: what a broker that is away, cuts connections or refuses
//! makes of appends. The contract itself runs on a real Kafka (`tests/cluster`).

use std::sync::Arc;
use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::format::TABLES;
use super::{Kafka, KafkaSettings};
use crate::storage::contract::{Inbox, batch_of, text};
use crate::storage::{
    AppendOutcome, Durability, KafkaConfig, LogConsumer, LogItem, MessageRef, PublishLog,
};

const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    mock: MockCluster<'static, DefaultProducerContext>,
    kafka: Kafka,
    log: Arc<dyn PublishLog>,
    inbox: Arc<Inbox>,
    tickets: u64,
}

impl Rig {
    async fn new() -> Self {
        let mock = MockCluster::new(1).expect("a mock cluster");
        let mut config =
            KafkaConfig { servers: mock.bootstrap_servers(), ..KafkaConfig::default() };
        config.command_timeout = Duration::from_secs(10);
        let mut settings = KafkaSettings::new(config);
        settings.max_record_bytes = 1 << 16;
        let topics = &settings.config.topics;
        let tables = TABLES.map(|table| settings.table(table));
        for topic in tables.into_iter().chain([&topics.log, &topics.state]) {
            mock.create_topic(&settings.name(topic), 1, 1).expect("a topic");
        }
        let opened = tokio::task::spawn_blocking(move || Kafka::open(settings)).await;
        let kafka = opened.expect("no panic").expect("opens");
        let log = kafka.log();
        Self { mock, kafka, log, inbox: Arc::default(), tickets: 0 }
    }

    fn append(&mut self, text: &str) -> u64 {
        self.tickets += 1;
        let sink = Arc::<Inbox>::clone(&self.inbox);
        let batch = batch_of("p", &[text], None);
        self.log.append(batch, Durability::Durable, sink, self.tickets);
        self.tickets
    }

    async fn end(self) {
        let Self { mock, kafka, log, .. } = self;
        drop(log);
        let ended = tokio::task::spawn_blocking(move || {
            let stopped = kafka.stop();
            drop(kafka);
            stopped
        });
        ended.await.expect("no panic").expect("stops");
        // The mock can't go to another thread; it is the last to go.
        drop(mock);
    }
}

async fn texts(consumer: &mut dyn LogConsumer, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    let read = async {
        while found.len() < count {
            for (_, item) in consumer.next().await.expect("reads").items {
                let LogItem::Publishes(batch) = item else { continue };
                let all = 0..batch.len();
                found.extend(all.map(|at| text(&MessageRef::new(Arc::clone(&batch), at))));
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("what was stored is read");
    found
}

/// CLU: while Kafka is away nothing is acknowledged and health says so; then everything is stored,
/// in order, once, without a restart.
#[tokio::test]
async fn what_was_appended_while_kafka_was_away_is_stored_when_it_is_back() {
    let mut rig = Rig::new().await;
    let (_, mut consumer) = rig.log.consumer(0);
    let first = rig.append("0");
    rig.inbox.stored(first).await;
    rig.mock.broker_down(1).expect("goes down");
    let tickets: Vec<u64> = (1..20).map(|n| rig.append(&n.to_string())).collect();
    let until = tokio::time::Instant::now() + PATIENCE;
    while rig.log.trouble().is_none() {
        assert!(tokio::time::Instant::now() < until, "health never told");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(rig.inbox.told().len(), 1, "nothing is acknowledged");
    rig.mock.broker_up(1).expect("comes back");
    for ticket in &tickets {
        rig.inbox.stored(*ticket).await;
    }
    let expected: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(texts(&mut *consumer, 20).await, expected);
    while rig.log.trouble().is_some() {
        assert!(tokio::time::Instant::now() < until, "health never recovered");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(consumer);
    rig.end().await;
}

/// Design decision 5: a connection that is cut under a request makes no second copy.
#[tokio::test]
async fn a_cut_connection_makes_no_second_copy() {
    let mut rig = Rig::new().await;
    let (_, mut consumer) = rig.log.consumer(0);
    let cut = [RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT; 3];
    rig.mock.request_errors(RDKafkaApiKey::Produce, &cut);
    let tickets: Vec<u64> = (0..50).map(|n| rig.append(&n.to_string())).collect();
    let mut last = None;
    for ticket in &tickets {
        let position = rig.inbox.stored(*ticket).await;
        assert!(Some(position) > last, "positions rise in the order of the calls");
        last = Some(position);
    }
    let expected: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    assert_eq!(texts(&mut *consumer, 50).await, expected);
    drop(consumer);
    rig.end().await;
}

/// Design decisions 5, 16: what the stream can't go on from is in doubt, and what comes after it
/// is stored by another producer.
#[tokio::test]
async fn a_producer_that_failed_for_good_is_replaced() {
    let mut rig = Rig::new().await;
    let before = rig.append("before");
    rig.inbox.stored(before).await;
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED];
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        // The keeper has a producer of its own, which may meet the refusal first.
        rig.mock.request_errors(RDKafkaApiKey::Produce, &refused);
        let next = rig.append("doubted");
        match rig.inbox.outcome(next).await {
            AppendOutcome::InDoubt => break,
            other => assert!(matches!(other, AppendOutcome::Stored(_)), "{other:?}"),
        }
        assert!(tokio::time::Instant::now() < until, "no refusal reached the log's producer");
    }
    loop {
        let next = rig.append("after");
        if let AppendOutcome::Stored(_) = rig.inbox.outcome(next).await {
            break;
        }
        assert!(tokio::time::Instant::now() < until, "no producer took the place");
    }
    rig.end().await;
}

/// IN-2: a record that no broker would take is refused at once, and costs the others nothing.
#[tokio::test]
async fn a_record_that_is_too_large_is_refused_alone() {
    let mut rig = Rig::new().await;
    let before = rig.append("before");
    let large = rig.append(&"x".repeat(70_000));
    let after = rig.append("after");
    rig.inbox.stored(before).await;
    assert_eq!(rig.inbox.outcome(large).await, AppendOutcome::NotStored);
    rig.inbox.stored(after).await;
    rig.end().await;
}
