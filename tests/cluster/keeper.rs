//! The node that writes tables behind, and what happens when it does so late.

use std::time::{Duration, Instant};

use rdkafka::config::{ClientConfig, FromClientConfig};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::nodes::settled_nodes;
use crate::services::services;
use crate::support::{Client, Connect};

const PATIENCE: Duration = Duration::from_secs(30);

/// The values that a table's topic has of one key, as text, in its order.
fn written(topic: &str, key: &str) -> Vec<String> {
    let Some(services) = services() else { return Vec::new() };
    let consumer = BaseConsumer::from_config(
        ClientConfig::new()
            .set("bootstrap.servers", services.kafka())
            .set("group.id", "a look")
            .set("enable.partition.eof", "true"),
    );
    let consumer: BaseConsumer = consumer.unwrap();
    let mut all = TopicPartitionList::new();
    all.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&all).unwrap();
    let (mut found, until) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        assert!(Instant::now() < until, "{topic} does not end");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) if message.key() == Some(key.as_bytes()) => {
                let value = message.payload().unwrap_or_default();
                found.push(String::from_utf8_lossy(value).into_owned());
            }
            Some(Err(KafkaError::PartitionEOF(_))) => return found,
            Some(_) | None => {}
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn is_last(topic: &str, key: &str, text: &str) -> bool {
    written(topic, key).last().is_some_and(|value| value.contains(text))
}

/// CLU, STO, design decision 3: a keeper that stands still with an older row in its hands, and is
/// let go on when its successor has written a newer one, does not put it behind that one: whoever
/// starts from a compacted topic finds the newest.
#[test]
fn a_late_keeper_writes_no_row_over_a_newer_one() {
    let folder = tempfile::tempdir().unwrap();
    let fuse = folder.path().join("fuse");
    let own = |name: &str, value: String| (name.to_owned(), value);
    let stands = vec![
        own("SLUICE_FAIL_POINT", format!("rows.sent:1:{}", fuse.display())),
        // It has the rows in its hands for so long.
        own("TB_KAFKA_STATE_ADDITIONAL_PRODUCER_CONFIG", "linger.ms:900".into()),
    ];
    let Some(prefix) = services().map(|services| services.prefix()) else { return };
    let of_both = ["TB_KAFKA_PREFIX", "CACHE_PREFIX"].map(|name| own(name, prefix.clone()));
    let settings = [[stands, of_both.to_vec()].concat(), of_both.to_vec()];
    let allowed = ["WARN", "this node ends"];
    let Some(mut nodes) = settled_nodes(&settings, &allowed) else { return };
    let mut there = Client::connect(&nodes[1], &Connect::v5("there"));
    there.retain("k", "first");
    let topic = format!("{prefix}tbmq.msg.retained");
    until("the keeper writes rows", || is_last(&topic, "k", "first"));
    std::fs::write(&fuse, "stop").unwrap();
    there.retain("k", "older");
    until("it stands still", || !fuse.exists());
    until("it is taken for dead", || nodes[1].log().contains("silent for too long"));
    there.retain("k", "newest");
    until("its successor writes", || is_last(&topic, "k", "newest"));
    nodes[0].resume();
    let status = nodes[0].await_exit();
    assert_eq!(status.code(), Some(1), "{}", nodes[0].log());
    let values = written(&topic, "k");
    assert!(values.last().is_some_and(|value| value.contains("newest")), "{values:?}");
    there.retain("k", "and on");
    until("its successor goes on", || is_last(&topic, "k", "and on"));
}

/// CLU: of two processes under one name the later one stays, with all that the first one had; the
/// first one ends and says why.
#[test]
fn of_two_processes_under_one_name_the_later_one_stays() {
    let Some(prefix) = services().map(|services| services.prefix()) else { return };
    let named = ["TB_KAFKA_PREFIX", "CACHE_PREFIX"].map(|name| (name.to_owned(), prefix.clone()));
    let allowed = ["WARN", "this node ends"];
    let start = || settled_nodes(&[named.to_vec()], &allowed).and_then(|mut nodes| nodes.pop());
    let Some(mut first) = start() else { return };
    let persistent = Connect::v5("c").persistent();
    let mut client = Client::connect(&first, &persistent);
    client.subscribe("t", 1);
    let mut publisher = Client::connect(&first, &Connect::v5("p"));
    client.disconnect();
    publisher.publish("t", "kept", 1);
    let Some(later) = start() else { return };
    let status = first.await_exit();
    assert_eq!(status.code(), Some(1), "{}", first.log());
    let log = first.log();
    assert!(log.contains("another process has joined under this node's name"), "{log}");
    let mut client = Client::connect(&later, &persistent);
    assert!(client.session_present);
    assert_eq!(client.take().payload(), "kept");
    let mut publisher = Client::connect(&later, &Connect::v5("p"));
    publisher.publish("t", "new", 1);
    assert_eq!(client.take().payload(), "new");
}
