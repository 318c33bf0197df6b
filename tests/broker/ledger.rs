//! The dropped messages ledger: each loss under a name, and in all what the counter says.

use serde_json::Value;

use crate::operator::{self, Operator};
use crate::support::{Broker, Client, Connect, prop};

fn ledger(broker: &Broker, query: &str) -> Value {
    Operator::login(broker).get(&format!("/api/dropped-messages?{query}")).ok()
}

fn counts(reply: &Value) -> Vec<(String, String, u64)> {
    let rows = reply["data"].as_array().unwrap();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    let row = |row: &Value| (text(row, "clientId"), text(row, "topic"), row["count"].as_u64());
    rows.iter().map(row).map(|(client, topic, n)| (client, topic, n.unwrap())).collect()
}

fn of(client: &str, topic: &str, count: u64) -> (String, String, u64) {
    (client.into(), topic.into(), count)
}

/// Losses for five reasons, on both sides.
fn lose_some(broker: &Broker) {
    let mut publisher = Client::connect(broker, &Connect::v5("publisher"));
    let small = Connect::v5("small").with(prop::four(0x27, 100));
    let mut small = Client::connect(broker, &small);
    let mut queue = Client::connect(broker, &Connect::v311("queue").persistent());
    small.subscribe("large/#", 1);
    queue.subscribe("many", 1);
    queue.disconnect();
    for _ in 0..3 {
        publisher.publish("nobody/1", "m", 1);
    }
    publisher.publish("nobody/2", "m", 0);
    publisher.publish("large/1", "m".repeat(200), 1);
    publisher.publish("$forbidden", "m", 1);
    for n in 0..10 {
        publisher.publish("many", n.to_string(), 1);
    }
    small.ping();
}

/// MET-2: rows by client, topic, reason and direction, in pages, sorted and filtered; their sum is
/// the counter's; to delete them leaves the counter, and what is lost from then on appears.
#[test]
fn each_loss_has_a_row_and_the_sum_is_the_counter() {
    let broker =
        operator::start().env("MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT", 4).start();
    lose_some(&broker);
    broker.eventually("all is lost", |b| b.metric("droppedMsgs_total") == Some(12.0));
    let all = ledger(&broker, "pageSize=1000");
    assert_eq!(all["totalCount"].as_f64(), broker.metric("droppedMsgs_total"), "{all}");
    let expected = [
        (
            "reason=No%20subscribers&sortProperty=count",
            vec![of("publisher", "nobody/1", 3), of("publisher", "nobody/2", 1)],
        ),
        ("reason=Packet%20too%20large&direction=OUTBOUND", vec![of("small", "large/1", 1)]),
        ("topic=%24forb", vec![of("publisher", "$forbidden", 1)]),
        ("reason=Queue%20limit%20exceeded", vec![of("queue", "", 6)]),
        ("clientId=nobody", vec![]),
        (
            "reason=No%20subscribers&pageSize=1&page=1&sortProperty=count",
            vec![of("publisher", "nobody/2", 1)],
        ),
    ];
    for (query, rows) in expected {
        assert_eq!(counts(&ledger(&broker, query)), rows, "{query}");
    }
    let row = &ledger(&broker, "topic=nobody/1")["data"][0];
    let (first, last) = (row["firstTs"].as_u64().unwrap(), row["lastTs"].as_u64().unwrap());
    assert!(first <= last && first > 1_700_000_000_000, "{row}");
    assert_eq!(counts(&ledger(&broker, &format!("startTime={}", last + 100_000))), []);
    let operator = Operator::login(&broker);
    operator.get("/api/dropped-messages?reason=nonsense").refused(400);
    operator.get("/api/dropped-messages?pageSize=0").refused(400);
    operator.get("/api/dropped-messages?unknown=1").refused(400);

    assert_eq!(Operator::stranger(&broker).delete("/api/dropped-messages").status, 401);
    assert_eq!(operator.delete("/api/dropped-messages").status, 200);
    assert_eq!(ledger(&broker, "")["totalElements"], 0);
    assert_eq!(broker.metric("droppedMsgs_total"), Some(12.0));
    Client::connect(&broker, &Connect::v5("again")).publish("nobody/3", "m", 1);
    broker.eventually("a new row", |broker| {
        counts(&ledger(broker, "")) == [of("again", "nobody/3", 1)]
    });
}

/// MET-2: switched off, nothing is kept by name, and everything is counted all the same.
#[test]
fn without_the_ledger_losses_are_counted() {
    let broker = operator::start().env("MQTT_DROPPED_MSG_ENABLED", false).start();
    Client::connect(&broker, &Connect::v5("p")).publish("nobody", "m", 1);
    broker.eventually("it is counted", |b| b.dropped("No subscribers") == 1);
    let reply = ledger(&broker, "");
    assert_eq!(counts(&reply), [of("", "", 1)], "{reply}");
}
