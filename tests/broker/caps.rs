//! Caps that an operator sets: retained messages and subscriptions.

use std::time::Duration;

use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Start, wire};

fn publisher(broker: &Broker) -> Client {
    Client::connect(broker, &Connect::v5("publisher"))
}

/// Caps on retained messages: a further topic is refused with 0x97 (v3: closed), also inside one
/// burst; a known topic can always be updated by no more, and cleared.
#[test]
fn caps_on_retained_messages_hold() {
    let broker = Start::new().env("MQTT_RETAIN_MSG_MAX_COUNT", 3).start();
    let mut publisher = publisher(&broker);
    let burst: Vec<u8> = (1..=6)
        .flat_map(|id| wire::publish(Level::V5, 3, format!("t/{id}"), id, &[], "v"))
        .collect();
    publisher.send(&burst);
    let codes: Vec<u8> = (1..=6).map(|id| publisher.acknowledged(AckKind::Puback, id)).collect();
    assert_eq!(codes, [0, 0, 0, 0x97, 0x97, 0x97]);
    assert_eq!(publisher.retain("t/1", "a longer value"), 0, "an update");
    assert_eq!(publisher.retain("t/9", "v"), 0x97);
    assert_eq!(publisher.publish("t/9", "v", 1) & 0x80, 0, "not retained, so not counted");
    assert_eq!(publisher.retain("t/2", ""), 0);
    broker.eventually("a place is free", |broker| broker.metric("retainedMessages") == Some(2.0));
    assert_eq!(publisher.retain("t/9", "v"), 0);
    let mut old = Client::connect(&broker, &Connect::v311("old"));
    old.send(&wire::publish(Level::V311, 3, "t/10", 1, &[], "v"));
    old.expect_refusal(&[]);
    assert_eq!(broker.dropped("Quota exceeded"), 5);
    let mut late = Client::connect(&broker, &Connect::v5("late"));
    late.subscribe("#", 1);
    let got = late.drain(Duration::from_millis(150));
    assert_eq!(got.iter().map(|one| one.topic()).collect::<Vec<_>>(), ["t/1", "t/3", "t/9"]);
}

/// The same in bytes: a value may be replaced by one of its own size when the store is full.
#[test]
fn caps_on_retained_bytes_hold() {
    let broker = Start::new().env("MQTT_RETAIN_MSG_MAX_BYTES", 1000).start();
    let mut publisher = publisher(&broker);
    let value = |bytes: usize| "v".repeat(bytes);
    assert_eq!(publisher.retain("a", value(599)), 0);
    assert_eq!(publisher.retain("b", value(399)), 0);
    assert_eq!(publisher.retain("c", value(1)), 0x97, "full");
    assert_eq!(publisher.retain("a", value(599)), 0, "the same size");
    assert_eq!(publisher.retain("a", value(600)), 0x97, "one more");
    assert_eq!(publisher.retain("a", value(99)), 0);
    broker.eventually("room", |broker| broker.metric("retainedMessagesBytes") == Some(500.0));
    assert_eq!(publisher.retain("c", value(499)), 0);
}

/// The cap on subscriptions of one client: 0x97 for each filter beyond it, v3 0x80; a known filter
/// can be subscribed to again, and an unsubscribed one makes room.
#[test]
fn the_cap_on_subscriptions_holds() {
    let broker = Start::new().env("MQTT_SUBSCRIPTION_MAX_PER_CLIENT", 2).start();
    let mut client = Client::connect(&broker, &Connect::v5("s").persistent());
    let filters: [(&[u8], u8); 4] = [(b"a", 1), (b"a", 1), (b"$share/g/b", 1), (b"c", 1)];
    assert_eq!(client.subscribe_with(&filters, &[]), [1, 1, 1, 0x97]);
    assert_eq!([client.subscribe("a", 0), client.subscribe("d", 0)], [0, 0x97]);
    client.unsubscribe(&[b"$share/g/b"]);
    assert_eq!(client.subscribe("d", 1), 1);
    let mut old = Client::connect(&broker, &Connect::v311("old"));
    assert_eq!(["a", "b", "c"].map(|filter| old.subscribe(filter, 1)), [1, 1, 0x80]);
    let mut publisher = publisher(&broker);
    publisher.publish("d", "m", 1);
    assert_eq!(client.take().topic(), "d");
}

/// MET-3: packets sent before CONNACK are taken up to the limit; beyond it the connection is
/// refused and all of them count as `Quota exceeded`.
#[test]
fn packets_before_connack_are_bounded() {
    let broker = Start::new().env("MQTT_PRE_CONNECT_QUEUE_MAX_SIZE", 3).start();
    let hello = |packets| [Connect::v5("early").bytes(), [0xC0, 0].repeat(packets)].concat();
    let mut greedy = Client::open(&broker, Level::V5);
    greedy.send(&hello(4));
    greedy.expect_connect_refused(&[0x97]);
    assert_eq!(broker.dropped("Quota exceeded"), 4);
    let mut modest = Client::open(&broker, Level::V5);
    modest.send(&hello(3));
    assert!(matches!(modest.recv(), Packet::Connack { code: 0, .. }));
    for _ in 0..3 {
        assert!(matches!(modest.recv(), Packet::Pingresp));
    }
}
