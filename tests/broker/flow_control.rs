//! Receive Maximum both ways, packet identifiers and acknowledgements (FLO-01 … FLO-15, RM-1 …
//! RM-5).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Publish, Start, prop, wire};

const QUIET: Duration = Duration::from_millis(150);
/// Why a copy that waited for credit was dropped.
const WINDOW: &str = "Inflight window exceeded";

fn publisher(broker: &Broker) -> Client {
    Client::connect(broker, &Connect::v5("publisher"))
}

fn session(receive_maximum: u16) -> Connect {
    Connect::v5("s").persistent().with(prop::receive_maximum(receive_maximum))
}

/// A client that is subscribed to `t`.
fn subscriber(broker: &Broker, connect: &Connect, qos: u8) -> Client {
    let mut client = Client::connect(broker, connect);
    client.subscribe("t", qos);
    client
}

fn publish_numbers(client: &mut Client, numbers: std::ops::Range<usize>, qos: u8) {
    for number in numbers {
        client.publish("t", number.to_string(), qos);
    }
}

/// Publishes at QoS 1 as fast as our Receive Maximum allows.
fn flood(broker: &Broker, count: usize) {
    let mut client = Client::connect(broker, &Connect::v5("flood"));
    for start in (0..count).step_by(500) {
        let ids = 1..=(count - start).min(500) as u16;
        let one = |id: u16| {
            let number = start + usize::from(id) - 1;
            wire::publish(Level::V5, 2, "t", id, &[], number.to_string())
        };
        client.send(&ids.clone().flat_map(one).collect::<Vec<_>>());
        for id in ids {
            client.acknowledged(AckKind::Puback, id);
        }
    }
}

fn arrived(client: &mut Client, time: Duration) -> Vec<Publish> {
    let next = || match client.recv_within(time) {
        Some(Packet::Publish(publish)) => Some(publish),
        Some(other) => panic!("unexpected {other:?}"),
        None => None,
    };
    std::iter::from_fn(next).collect()
}

fn payloads(got: &[Publish]) -> Vec<String> {
    got.iter().map(Publish::payload).collect()
}

/// FLO-01, RM-4, MQTT-4.9.0-1: a connection starts with the quota of its own CONNECT; what was in
/// flight takes credit again.
#[test]
fn the_quota_starts_fresh_with_each_connection() {
    let broker = Broker::start();
    let mut client = subscriber(&broker, &session(1), 1);
    let mut publisher = publisher(&broker);
    publish_numbers(&mut publisher, 0..1, 1);
    assert_eq!(client.expect_publish().payload(), "0");
    client.reset();
    publish_numbers(&mut publisher, 1..5, 1);
    let mut client = Client::connect(&broker, &session(4));
    let got = arrived(&mut client, QUIET);
    assert_eq!(payloads(&got), ["0", "1", "2", "3"], "four credits");
    assert_eq!(got.iter().map(|one| one.dup).collect::<Vec<_>>(), [true, false, false, false]);
    client.reset();
    let mut client = Client::connect(&broker, &session(1));
    for number in 0..5 {
        let got = arrived(&mut client, QUIET);
        assert_eq!(payloads(&got), [number.to_string()], "never more than one");
        assert_eq!(got[0].dup, number < 4);
        client.send(&wire::ack(4, got[0].id));
    }
    client.expect_silence(QUIET);
}

/// FLO-02, RM-2, RM-5, MQTT-3.3.4-9: double acks, acks of unknown ids and acks of the wrong kind
/// neither raise the window nor free another message's id.
#[test]
fn odd_acks_raise_no_credit() {
    for connect in [session(2), Connect::v5("s").with(prop::receive_maximum(2))] {
        let broker = Broker::start();
        let mut client = subscriber(&broker, &connect, 2);
        let mut publisher = publisher(&broker);
        for number in 0..60 {
            publisher.publish("t", number.to_string(), 1 + (number % 2) as u8);
        }
        let mut open: Vec<Publish> = Vec::new();
        let mut next = 0;
        while next < 60 {
            for packet in std::iter::from_fn(|| client.recv_within(Duration::from_millis(15))) {
                match packet {
                    Packet::Publish(publish) => {
                        assert_eq!(publish.payload(), next.to_string());
                        next += 1;
                        open.push(publish);
                    }
                    Packet::Ack { kind: AckKind::Pubrel, code, .. } => {
                        // For an unknown id, or again for a repeated PUBREC.
                        assert!([0, 0x92].contains(&code));
                    }
                    other => panic!("unexpected {other:?}"),
                }
            }
            assert!(open.len() <= 2, "{} in flight", open.len());
            let one = open.remove(0);
            let wrong = if one.qos == 1 { 7 } else { 4 };
            client.send(&wire::ack(wrong, one.id));
            client
                .send(&[wire::ack(4, 60_000), wire::ack(7, 60_001), wire::ack(5, 60_002)].concat());
            if one.qos == 1 {
                client.send(&[wire::ack(4, one.id), wire::ack(4, one.id)].concat());
                continue;
            }
            client.send(&[wire::ack(5, one.id), wire::ack(5, one.id)].concat());
            let pubrel = |packet: &Packet| match packet {
                Packet::Ack { kind: AckKind::Pubrel, id, code, .. } => *id == one.id && *code == 0,
                _ => false,
            };
            client.wait_for(pubrel);
            client.send(&[wire::ack(7, one.id), wire::ack(7, one.id)].concat());
        }
    }
}

/// FLO-04, RM-1, RM-3, MQTT-3.3.4-7: a client may use all of the Receive Maximum that CONNACK
/// tells; one more ends the connection with 0x93.
#[test]
fn more_than_our_receive_maximum_is_refused() {
    let broker = Start::new().env("MQTT_MAX_IN_FLIGHT_MSGS", 5).start();
    let mut client = publisher(&broker);
    assert_eq!(client.connack.number(0x21), Some(5));
    let qos2 = |id| wire::publish(Level::V5, 4, "t", id, &[], "m");
    for id in 1..=5 {
        client.send(&qos2(id));
        assert_eq!(client.acknowledged(AckKind::Pubrec, id), 0);
    }
    // A repeat is the same message; PUBREL gives its place back once, however often it comes.
    client.send(&qos2(3));
    assert_eq!(client.acknowledged(AckKind::Pubrec, 3), 0);
    client.send(&[wire::ack(6, 3), wire::ack(6, 3)].concat());
    assert_eq!(client.acknowledged(AckKind::Pubcomp, 3), 0);
    assert!([0, 0x92].contains(&client.acknowledged(AckKind::Pubcomp, 3)));
    client.send(&qos2(6));
    assert_eq!(client.acknowledged(AckKind::Pubrec, 6), 0);
    client.send(&qos2(7));
    client.expect_refusal(&[0x93]);
    // A resumed connection counts what is still open.
    let mut old = Client::connect(&broker, &Connect::v311("old"));
    for id in 1..=20 {
        old.send(&wire::publish(Level::V311, 4, "t", id, &[], "m"));
    }
    assert_eq!(old.acknowledged(AckKind::Pubrec, 20), 0, "v3 knows no such limit");
}

/// FLO-05, FLO-06, FLO-07, MQTT-2.2.1-4, TBMQ #207: over the wrap of the ids nothing is skipped,
/// ids go from 1 to 65 535, and one that is held is on no other message, also after a reconnect.
#[test]
fn ids_wrap_around_what_is_held() {
    const COUNT: usize = 66_000;
    let broker = Start::new()
        .env("STORAGE_EMBEDDED_SYNC", "never")
        .allow_log("sync is never")
        .env("MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT", 65_535)
        .start();
    let mut client = subscriber(&broker, &session(200), 1);
    let mut transient = subscriber(&broker, &Connect::v5("transient"), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| flood(&broker, COUNT));
        scope.spawn(|| {
            let ids: BTreeSet<u16> = (0..COUNT)
                .map(|number| {
                    let got = transient.take();
                    assert_eq!(got.payload(), number.to_string());
                    got.id
                })
                .collect();
            assert!(ids.into_iter().eq(1..=u16::MAX), "every id");
        });
        let held = client.expect_publish();
        assert_eq!(held.payload(), "0");
        let mut ids = BTreeSet::from([held.id]);
        for number in 1..COUNT {
            if number == COUNT / 2 {
                let mut packets = Client::connect(&broker, &session(200));
                std::mem::swap(&mut packets, &mut client);
                let again = client.expect_publish();
                assert_eq!((again.id, again.dup, again.payload()), (held.id, true, held.payload()));
            }
            let got = loop {
                // What was in flight at the reconnect may come again.
                let got = client.take();
                if !got.dup || got.payload() == number.to_string() {
                    break got;
                }
            };
            assert_eq!(got.payload(), number.to_string());
            assert_ne!(got.id, held.id, "message {number} under the held id");
            ids.insert(got.id);
        }
        assert!(ids.into_iter().eq(1..=u16::MAX), "every id");
        client.send(&wire::ack(4, held.id));
    });
    assert_eq!(broker.dropped("Queue limit exceeded"), 0);
}

/// FLO-08, MQTT-4.4.0-1: on resume, ids in flight are kept before new ones are given.
#[test]
fn a_resumed_session_keeps_its_ids_apart() {
    let broker = Broker::start();
    let mut client = subscriber(&broker, &session(10), 2);
    publish_numbers(&mut publisher(&broker), 0..110, 2);
    let mut holder: BTreeMap<u16, String> = BTreeMap::new();
    let mut released = BTreeSet::new();
    for number in 0..10 {
        let got = client.expect_publish();
        holder.insert(got.id, got.payload());
        if number < 5 {
            client.send(&wire::ack(5, got.id));
            assert_eq!(client.acknowledged(AckKind::Pubrel, got.id), 0);
            released.insert(got.id);
        }
    }
    client.reset();
    let mut client = Client::connect(&broker, &session(10));
    let mut done: BTreeSet<String> = BTreeSet::new();
    while done.len() < 110 {
        match client.recv() {
            Packet::Publish(got) => {
                assert!(!released.contains(&got.id), "it was received already: {got:?}");
                let known = holder.insert(got.id, got.payload());
                assert!(known.is_none_or(|known| known == got.payload() && got.dup));
                client.send(&wire::ack(5, got.id));
            }
            Packet::Ack { kind: AckKind::Pubrel, id, .. } => {
                client.send(&wire::ack(7, id));
                released.remove(&id);
                done.insert(holder.remove(&id).expect("an id in use"));
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(holder.is_empty(), "{holder:?}");
    client.expect_silence(QUIET);
}

/// FLO-10, MQTT-3.3.1-1, -2, -3: DUP on every resend, on no first send, never on QoS 0, and never
/// as the publisher had it.
#[test]
fn dup_marks_resends_only() {
    let broker = Broker::start();
    let mut client = subscriber(&broker, &session(10), 2);
    let mut zero = subscriber(&broker, &Connect::v5("zero"), 0);
    let mut publisher = publisher(&broker);
    publisher.publish_with("t", "0", 8 | 2, &[]);
    publisher.publish_with("t", "1", 8 | 4, &[]);
    for _ in 0..2 {
        assert!(!zero.take().dup);
        assert!(!client.expect_publish().dup, "the publisher's DUP is its own");
    }
    client.reset();
    publisher.publish("t", "2", 1);
    let mut client = Client::connect(&broker, &session(10));
    let got = arrived(&mut client, QUIET);
    let seen: Vec<_> = got.iter().map(|one| (one.payload(), one.dup)).collect();
    let due = [("0", true), ("1", true), ("2", false)].map(|(text, dup)| (text.to_owned(), dup));
    assert_eq!(seen, due);
}

/// FLO-12, RM-2, MQTT-3.3.4-10, MQTT-4.9.0-3: without credit, PUBREL, SUBACK, PINGRESP and QoS 0
/// still go out.
#[test]
fn control_packets_and_qos_0_need_no_credit() {
    for connect in [session(1), Connect::v5("s").with(prop::receive_maximum(1))] {
        let broker = Broker::start();
        let mut client = subscriber(&broker, &connect, 2);
        let mut publisher = publisher(&broker);
        publish_numbers(&mut publisher, 0..3, 2);
        for number in 0..3 {
            let got = client.expect_publish();
            assert_eq!(got.payload(), number.to_string());
            client.ping();
            assert_eq!(client.subscribe("zero", 0), 0);
            publisher.publish("zero", "z", 0);
            assert_eq!(client.take().payload(), "z");
            client.send(&wire::ack(5, got.id));
            assert_eq!(client.acknowledged(AckKind::Pubrel, got.id), 0);
            client.expect_silence(Duration::from_millis(50));
            client.send(&wire::ack(7, got.id));
        }
    }
}

/// FLO-13, MQTT-4.4.0-1: nothing is sent again on a live connection.
#[test]
fn nothing_is_sent_again_on_a_live_connection() {
    let broker = Broker::start();
    let mut client = subscriber(&broker, &session(10), 2);
    let mut publisher = publisher(&broker);
    publisher.publish("t", "1", 1);
    publisher.publish("t", "2", 2);
    let two = [client.expect_publish(), client.expect_publish()];
    client.send(&wire::ack(5, two[1].id));
    assert_eq!(client.acknowledged(AckKind::Pubrel, two[1].id), 0);
    client.expect_silence(Duration::from_secs(3));
}

/// FLO-14, MQTT-4.4.0-2: a PUBACK or PUBREC with an error ends the exchange: no resend, no PUBREL,
/// and the credit is back.
#[test]
fn a_refusal_ends_the_exchange() {
    let broker = Broker::start();
    let mut client = subscriber(&broker, &session(1), 2);
    let mut publisher = publisher(&broker);
    for number in 0..50 {
        publisher.publish("t", number.to_string(), 1 + (number % 2) as u8);
    }
    for number in 0..50 {
        let got = client.expect_publish();
        assert_eq!(got.payload(), number.to_string());
        let kind = if got.qos == 1 { 0x40 } else { 0x50 };
        client.send(&wire::frame(kind, &[&got.id.to_be_bytes()[..], &[0x80]].concat()));
    }
    client.ping();
    client.expect_silence(QUIET);
    client.reset();
    let mut client = Client::connect(&broker, &session(1));
    client.expect_silence(QUIET);
}

/// FLO-15, section 4.4: the PUBACK of the first send and that of the resend are one too many; that
/// is harmless.
#[test]
fn a_surplus_puback_after_a_resend_is_harmless() {
    let broker = Broker::start();
    let mut client = subscriber(&broker, &session(5), 1);
    let mut publisher = publisher(&broker);
    publish_numbers(&mut publisher, 0..1, 1);
    let held = client.expect_publish();
    client.reset();
    let mut client = Client::connect(&broker, &session(5));
    assert_eq!(client.expect_publish().id, held.id);
    client.send(&[wire::ack(4, held.id), wire::ack(4, held.id)].concat());
    publish_numbers(&mut publisher, 1..300, 1);
    for number in 1..300 {
        assert_eq!(client.take().payload(), number.to_string());
    }
    client.expect_silence(QUIET);
}

/// RM-1: clients of the older levels have the Receive Maximum that is set for them.
#[test]
fn older_levels_have_a_receive_maximum_by_setting() {
    let broker = Start::new().env("MQTT_FLOW_CONTROL_MQTT_3X_RECEIVE_MAX", 3).start();
    for connect in [Connect::v311("s"), Connect::v311("s").persistent()] {
        let mut client = subscriber(&broker, &connect, 1);
        publish_numbers(&mut publisher(&broker), 0..5, 1);
        let got = arrived(&mut client, QUIET);
        assert_eq!(payloads(&got), ["0", "1", "2"]);
        client.send(&wire::ack(4, got[0].id));
        assert_eq!(client.take().payload(), "3");
    }
}

/// RM-2: without a queue, messages wait in memory for credit, in order, so many; what is more is
/// dropped and counted once.
#[test]
fn a_bounded_number_waits_for_credit() {
    let broker = Start::new()
        .env("MQTT_FLOW_CONTROL_DELAYED_QUEUE_MAX_SIZE", 10)
        .env("MQTT_FLOW_CONTROL_TTL", 3600)
        .start();
    let connect = Connect::v5("s").with(prop::receive_maximum(2));
    let mut client = subscriber(&broker, &connect, 1);
    let mut publisher = publisher(&broker);
    publish_numbers(&mut publisher, 0..20, 1);
    broker.eventually("2 sent, 10 wait", |broker| broker.dropped(WINDOW) == 8);
    let mut got = vec![client.expect_publish(), client.expect_publish()];
    assert_eq!(payloads(&got), ["0", "1"]);
    client.expect_silence(QUIET);
    assert_eq!(broker.metric("flowControl_inflightCount"), Some(2.0));
    assert_eq!(broker.metric("flowControl_delayedQueueSize"), Some(10.0));
    for number in 2..12 {
        client.send(&wire::ack(4, got.remove(0).id));
        got.push(client.expect_publish());
        assert_eq!(got[1].payload(), number.to_string());
    }
    publish_numbers(&mut publisher, 20..23, 1);
    broker.await_metric("flowControl_delayedQueueSize", 3.0);
    drop(client);
    broker.eventually("nothing is in flight", |broker| {
        broker.metric("flowControl_inflightCount") == Some(0.0)
            && broker.metric("flowControl_delayedQueueSize") == Some(0.0)
            && broker.dropped("Session ended") == 3
    });
    assert_eq!(broker.dropped(WINDOW), 8);
}

/// RM-2: what waits for credit in memory waits no longer than its time to live.
#[test]
fn what_waits_for_credit_too_long_is_dropped() {
    let broker = Start::new().env("MQTT_FLOW_CONTROL_TTL", 1).start();
    let connect = Connect::v5("s").with(prop::receive_maximum(2));
    let mut client = subscriber(&broker, &connect, 1);
    let mut publisher = publisher(&broker);
    publish_numbers(&mut publisher, 0..2, 1);
    let got = [client.expect_publish(), client.expect_publish()];
    publish_numbers(&mut publisher, 2..7, 1);
    broker.await_metric("flowControl_delayedQueueSize", 5.0);
    std::thread::sleep(Duration::from_millis(1100));
    got.iter().for_each(|one| client.send(&wire::ack(4, one.id)));
    broker.eventually("five waited for too long", |broker| broker.dropped(WINDOW) == 5);
    publish_numbers(&mut publisher, 7..8, 1);
    assert_eq!(client.take().payload(), "7", "the five are gone, the next is there");
}
