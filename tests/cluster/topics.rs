//! Topics: how they are made, what a start reads of them, and what is deleted from them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sluice::storage::contract::{Inbox, batch_of};
use sluice::storage::{
    ChangeLog, Durability, Kafka, KafkaConfig, KafkaSettings, Position, Row, StorageError, Table,
    TopicConfig,
};

use crate::services::services;

const PATIENCE: Duration = Duration::from_secs(20);

fn settings() -> Option<KafkaSettings> {
    let services = services()?;
    Some(KafkaSettings::new(KafkaConfig {
        servers: services.kafka().to_owned(),
        prefix: services.prefix(),
        ..KafkaConfig::default()
    }))
}

async fn open(settings: &KafkaSettings) -> Result<Kafka, StorageError> {
    let settings = settings.clone();
    tokio::task::spawn_blocking(move || Kafka::open(settings)).await.unwrap()
}

async fn stop(kafka: Kafka) {
    let end = move || {
        kafka.stop().unwrap();
        drop(kafka);
    };
    tokio::task::spawn_blocking(end).await.unwrap();
}

async fn put(tables: &dyn ChangeLog, key: String, value: Option<&'static str>) {
    let inbox = Arc::new(Inbox::default());
    let value = value.map(|value| Bytes::from_static(value.as_bytes()));
    let row = Row { table: Table::Sessions, key: Bytes::from(key), value };
    tables.put(vec![row], Durability::Durable, Arc::<Inbox>::clone(&inbox), 1);
    inbox.stored(1).await;
}

async fn sessions(kafka: &Kafka) -> usize {
    let tables = kafka.tables();
    let count = move || {
        let mut count = 0;
        tables.load(Table::Sessions, &mut |_, _, _| count += 1).unwrap();
        count
    };
    tokio::task::spawn_blocking(count).await.unwrap()
}

/// STO-05, STO-06: a table with several partitions is loaded from all of them, to their end, and
/// what was deleted is gone from each.
#[tokio::test]
async fn a_table_is_loaded_from_all_its_partitions() {
    let Some(mut settings) = settings() else { return };
    let sessions_topic: &mut TopicConfig = &mut settings.config.topics.sessions;
    sessions_topic.properties = vec![("partitions".into(), "3".into())];
    let kafka = open(&settings).await.unwrap();
    let tables = kafka.tables();
    for n in 0..40 {
        put(&*tables, format!("client {n}"), Some("v")).await;
    }
    for n in 0..15 {
        put(&*tables, format!("client {n}"), None).await;
    }
    assert_eq!(sessions(&kafka).await, 25);
    drop(tables);
    stop(kafka).await;
    for _ in 0..2 {
        let kafka = open(&settings).await.unwrap();
        assert_eq!(sessions(&kafka).await, 25);
        stop(kafka).await;
    }
}

/// CLU: what nothing needs any more is deleted from the log; what somebody needs is not, and its
/// absence is never taken for an empty log.
#[tokio::test]
async fn records_are_deleted_when_nothing_needs_them() {
    let Some(mut settings) = settings() else { return };
    settings.keep_log = Duration::from_millis(100);
    let kafka = open(&settings).await.unwrap();
    let (log, inbox) = (kafka.log(), Arc::new(Inbox::default()));
    let (_, mut consumer) = log.consumer(0);
    let late = KafkaSettings { node: "late".into(), reader: "late".into(), ..settings.clone() };
    let deadline = Instant::now() + 3 * PATIENCE;
    let mut last = Instant::now();
    let mut ticket = 0;
    let refused = loop {
        ticket += 1;
        let batch = batch_of("p", &["x"], None);
        log.append(batch, Durability::Durable, Arc::<Inbox>::clone(&inbox), ticket);
        let stored = inbox.stored(ticket).await;
        let mut end = Position::default();
        while end <= stored {
            end = consumer.next().await.unwrap().end;
        }
        consumer.commit(end, &mut Vec::new);
        if last.elapsed() < Duration::from_secs(4) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        // A node that begins at the first record finds it gone, sooner or later; until then the
        // others keep for it what it has not come past.
        let opened = open(&late).await;
        last = Instant::now();
        match opened {
            Ok(kafka) => stop(kafka).await,
            Err(error) => break error,
        }
        assert!(Instant::now() < deadline, "nothing was ever deleted");
    };
    assert!(matches!(refused, StorageError::Damaged(_)), "{refused}");
    drop((consumer, log));
    stop(kafka).await;
    stop(open(&settings).await.unwrap()).await;
}

/// STO-07: a start without Kafka ends with a sentence that says so.
#[tokio::test]
async fn a_start_without_kafka_says_so() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = KafkaSettings::new(KafkaConfig {
        servers: free.to_string(),
        command_timeout: Duration::from_millis(500),
        ..KafkaConfig::default()
    });
    let error = open(&settings).await.unwrap_err();
    assert!(error.to_string().contains("no Kafka broker answers"), "{error}");
}
