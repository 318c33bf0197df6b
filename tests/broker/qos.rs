//! QoS 1 and 2 exchanges (QOS): what is sent again, what is answered, and what comes once.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Publish, Start, prop, wire};

const LEVELS: [Level; 2] = [Level::V311, Level::V5];
const DUP: u8 = 8;
const QOS2: u8 = 4;

fn publish2(client: &mut Client, flags: u8, id: u16, text: &str) {
    let bytes = wire::publish(client.level, QOS2 | flags, "t", id, &[], text);
    client.send(&bytes);
}

fn release(client: &mut Client, id: u16) -> u8 {
    client.send(&wire::ack(6, id));
    client.acknowledged(AckKind::Pubcomp, id)
}

/// A subscriber to everything at QoS 2.
fn subscriber(broker: &Broker, level: Level) -> Client {
    let mut subscriber = Client::connect(broker, &Connect::new(level, "sub").persistent());
    subscriber.subscribe("#", 2);
    subscriber
}

/// Exactly these payloads come, and then none.
#[track_caller]
fn assert_gets(subscriber: &mut Client, due: &[&str]) {
    let got: Vec<String> = due.iter().map(|_| subscriber.take().payload()).collect();
    assert_eq!(got, due);
    subscriber.ping();
    subscriber.expect_silence(Duration::from_millis(50));
}

/// QOS-01, MQTT-4.3.3-10, v3.1.1 MQTT-4.3.3-2: a QoS 2 PUBLISH that is repeated before PUBREL gets
/// PUBREC every time and is delivered once; on a new connection and after kill -9, too.
#[test]
fn a_repeated_qos2_publish_is_answered_each_time_and_delivered_once() {
    for level in LEVELS {
        let mut broker = Broker::start();
        let mut sub = subscriber(&broker, level);
        let connect = Connect::new(level, "pub").persistent();
        let mut publisher = Client::connect(&broker, &connect);
        publish2(&mut publisher, 0, 1, "once");
        for _ in 0..5 {
            assert_eq!(publisher.acknowledged(AckKind::Pubrec, 1), 0);
            publish2(&mut publisher, DUP, 1, "once");
        }
        assert_eq!(publisher.acknowledged(AckKind::Pubrec, 1), 0);
        publisher.reset();
        let mut publisher = Client::connect(&broker, &connect);
        publish2(&mut publisher, DUP, 1, "once");
        assert_eq!(publisher.acknowledged(AckKind::Pubrec, 1), 0);
        assert_gets(&mut sub, &["once"]);

        broker.kill_and_restart();
        let mut publisher = Client::connect(&broker, &connect);
        assert!(publisher.session_present, "{level:?}");
        publish2(&mut publisher, DUP, 1, "once");
        assert_eq!(publisher.acknowledged(AckKind::Pubrec, 1), 0);
        assert_eq!(release(&mut publisher, 1), 0);
        publisher.publish("t", "next", 2);
        let mut sub = Client::connect(&broker, &Connect::new(level, "sub").persistent());
        let got: Vec<String> =
            sub.drain(Duration::from_millis(300)).iter().map(Publish::payload).collect();
        assert_eq!(got, ["next"], "{level:?}: a completed QoS 2 message comes no more");
    }
}

/// QOS-02, MQTT-4.3.3-8, MQTT-3.3.1-3: DUP=1 under an id that is not open is a new message; DUP
/// isn't passed on.
#[test]
fn a_dup_of_an_unknown_id_is_a_new_message() {
    for level in LEVELS {
        let broker = Broker::start();
        let mut sub = subscriber(&broker, level);
        let mut publisher = Client::connect(&broker, &Connect::new(level, "pub"));
        publish2(&mut publisher, DUP, 9, "two");
        assert_eq!(publisher.acknowledged(AckKind::Pubrec, 9), 0);
        assert_eq!(release(&mut publisher, 9), 0);
        publisher.send(&wire::publish(level, DUP | 2, "t", 10, &[], "one"));
        publisher.acknowledged(AckKind::Puback, 10);
        for due in ["two", "one"] {
            let got = sub.take();
            assert_eq!((got.payload().as_str(), got.dup), (due, false));
        }
        sub.ping();
        sub.expect_silence(Duration::from_millis(50));
    }
}

/// QOS-04, MQTT-4.3.3-11, section 3.7.2.1: PUBREL is answered after a resume, and after the
/// exchange has ended; for an id that was never used the code is 0x92, and the connection stays.
#[test]
fn every_pubrel_is_answered() {
    for level in LEVELS {
        let broker = Broker::start();
        let mut sub = subscriber(&broker, level);
        let connect = Connect::new(level, "pub").persistent();
        let mut publisher = Client::connect(&broker, &connect);
        publish2(&mut publisher, 0, 7, "released");
        assert_eq!(publisher.acknowledged(AckKind::Pubrec, 7), 0);
        publisher.reset();
        let mut publisher = Client::connect(&broker, &connect);
        assert!(publisher.session_present);
        assert_eq!(release(&mut publisher, 7), 0);
        let unknown = if level.is_v5() { 0x92 } else { 0 };
        assert_eq!(release(&mut publisher, 7), unknown, "PUBREL once more");
        assert_eq!(release(&mut publisher, 4711), unknown, "an id that was never used");
        publisher.ping();
        assert_gets(&mut sub, &["released"]);
    }
}

/// QOS-05, MQTT-4.3.3-8: after a reconnect there is one PUBREC for each PUBLISH of this
/// connection, and none for one of the connection before.
#[test]
fn a_resumed_publish_gets_one_pubrec() {
    for level in LEVELS {
        let broker = Broker::start();
        let mut sub = subscriber(&broker, level);
        let connect = Connect::new(level, "pub").persistent();
        let mut publisher = Client::connect(&broker, &connect);
        publish2(&mut publisher, 0, 5, "resumed");
        publisher.reset();
        let mut publisher = Client::connect(&broker, &connect);
        publish2(&mut publisher, DUP, 5, "resumed");
        assert_eq!(publisher.acknowledged(AckKind::Pubrec, 5), 0);
        publisher.ping();
        publisher.expect_silence(Duration::from_millis(100));
        assert_eq!(release(&mut publisher, 5), 0);
        assert_gets(&mut sub, &["resumed"]);
    }
}

/// QOS-06, MQTT-4.3.3-12, section 4.1: what a persistent subscriber has completed is on the disk
/// soon: after kill -9 no completed QoS 2 message comes again, QoS 1 repeats only what was
/// acknowledged last, and everything else comes.
#[test]
fn completed_deliveries_stay_completed_after_a_kill() {
    const ALL: usize = 600;
    const DONE: usize = 300;
    const WINDOW: usize = 20;
    for qos in [1, 2] {
        let mut broker = Start::new().env("STORAGE_EMBEDDED_CHECKPOINT_INTERVAL_MS", 50).start();
        let connect = Connect::v5("sub").persistent().with(prop::receive_maximum(WINDOW as u16));
        let mut sub = Client::connect(&broker, &connect);
        sub.subscribe("t", qos);
        sub.disconnect();
        let mut publisher = Client::connect(&broker, &Connect::v311("pub"));
        let many: Vec<u8> = (1..=ALL as u16)
            .flat_map(|id| wire::publish(Level::V311, 2, "t", id, &[], id.to_string()))
            .collect();
        // At QoS 2 the messages have to be of QoS 2; one write for all of them either way.
        let many = if qos == 1 { many } else { qos2_of(ALL) };
        publisher.send(&many);
        let kind = if qos == 1 { AckKind::Puback } else { AckKind::Pubrec };
        publisher.acknowledged_all(kind, 1..=ALL as u16);

        let mut sub = Client::connect(&broker, &connect);
        let mut done: Vec<String> = (0..DONE - WINDOW).map(|_| sub.take().payload()).collect();
        sub.ping();
        // Several checkpoints: what was acknowledged before them is on the disk.
        std::thread::sleep(Duration::from_millis(400));
        done.extend((0..WINDOW).map(|_| sub.take().payload()));
        sub.ping();
        broker.kill_and_restart();
        let mut sub = Client::connect(&broker, &connect);
        assert!(sub.session_present);
        let rest: Vec<String> =
            sub.drain(Duration::from_millis(300)).iter().map(Publish::payload).collect();
        let all: BTreeSet<&String> = done.iter().chain(&rest).collect();
        assert_eq!(all.len(), ALL, "QoS {qos}: nothing is lost");
        let again = done.len() + rest.len() - ALL;
        let most = if qos == 2 { 0 } else { 2 * WINDOW };
        assert!(again <= most, "QoS {qos}: {again} came again");
    }
}

fn qos2_of(count: usize) -> Vec<u8> {
    let publish = |id: u16| wire::publish(Level::V311, QOS2, "t", id, &[], id.to_string());
    (1..=count as u16).flat_map(publish).collect()
}

/// QOS-08, MQTT-4.3.3-7, MQTT-4.3.3-13: message expiry does not end an exchange that has begun,
/// on either side.
#[test]
fn expiry_does_not_end_an_exchange_that_has_begun() {
    let broker = Broker::start();
    let connect = Connect::v5("sub").persistent();
    let mut sub = Client::connect(&broker, &connect);
    sub.subscribe("#", 2);
    let mut publisher = Client::connect(&broker, &Connect::v5("pub"));
    let expiry = prop::four(0x02, 1);
    publisher.publish_with("t", "short lived", QOS2, &expiry);
    let begun = sub.expect_publish();
    sub.send(&wire::ack(5, begun.id));
    assert_eq!(sub.acknowledged(AckKind::Pubrel, begun.id), 0);
    publisher.send(&wire::publish(Level::V5, QOS2, "u", 77, &expiry, "not released yet"));
    assert_eq!(publisher.acknowledged(AckKind::Pubrec, 77), 0);
    let waiting = sub.expect_publish();
    sub.reset();
    std::thread::sleep(Duration::from_millis(1600));
    assert_eq!(release(&mut publisher, 77), 0, "PUBCOMP after the expiry");
    let mut sub = Client::connect(&broker, &connect);
    assert_eq!(sub.acknowledged(AckKind::Pubrel, begun.id), 0, "PUBREL comes again");
    sub.send(&wire::ack(7, begun.id));
    let again = sub.take();
    assert_eq!((again.id, again.dup), (waiting.id, true), "sent once, so it goes on");
    sub.ping();
    sub.expect_silence(Duration::from_millis(50));
}

/// QOS-10, DEV-5: over the queue's limit the oldest go, each is counted, and PUBACK speaks of the
/// log, which has the message: 0x00.
#[test]
fn delivered_and_counted_drops_are_all_messages() {
    const ALL: usize = 500;
    const LIMIT: usize = 100;
    let limit = "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT";
    let broker = Start::new().env(limit, LIMIT).start();
    let connect = Connect::v5("sub").persistent();
    let mut sub = Client::connect(&broker, &connect);
    sub.subscribe("t", 1);
    sub.disconnect();
    let mut publisher = Client::connect(&broker, &Connect::v5("pub"));
    for number in 0..ALL {
        assert_eq!(publisher.publish("t", number.to_string(), 1), 0);
    }
    // The last one is routed when a subscriber behind it has it.
    let mut probe = Client::connect(&broker, &Connect::v311("probe"));
    probe.subscribe("probe", 1);
    probe.publish("probe", "", 1);
    probe.take();
    let mut sub = Client::connect(&broker, &connect);
    let got = sub.drain(Duration::from_millis(300));
    let due: Vec<String> = (ALL - LIMIT..ALL).map(|number| number.to_string()).collect();
    let got: Vec<String> = got.iter().map(Publish::payload).collect();
    assert_eq!(got, due, "the newest are kept");
    let page = broker.scrape();
    let ours = |line: &&str| {
        line.starts_with("droppedMsgs_by_reason_total") && line.contains("Queue limit exceeded")
    };
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    let counted: f64 = page.lines().filter(ours).map(value).sum();
    assert_eq!(counted, (ALL - LIMIT) as f64, "every drop is counted");
}

/// QOS-11, MQTT-3.4.2-1, MQTT-3.5.2-1: the codes of PUBACK and PUBREC are 0x00 or 0x10, with
/// subscribers and without.
#[test]
fn acknowledgements_carry_success_codes_only() {
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("pub"));
    for qos in [1, 2] {
        assert!([0, 0x10].contains(&publisher.publish("nobody", "x", qos)), "QoS {qos}");
    }
    let mut sub = subscriber(&broker, Level::V5);
    for qos in [1, 2] {
        assert!([0, 0x10].contains(&publisher.publish("t", "x", qos)), "QoS {qos}");
        assert_eq!(sub.take().qos, qos);
    }
}

/// QOS-12, MQTT-3.3.4-7: one id that is repeated without end and never released costs nothing:
/// the answers that nobody reads hold the reader, and memory stays.
#[test]
fn endless_repeats_of_one_id_cost_nothing() {
    let broker = Broker::start();
    let mut rude = Client::open_narrow(&broker, Level::V5).say_hello(&Connect::v5("rude"));
    publish2(&mut rude, 0, 1, "again and again");
    assert_eq!(rude.acknowledged(AckKind::Pubrec, 1), 0);
    let before = broker.rss_kib();
    let repeat = wire::publish(Level::V5, QOS2 | DUP, "t", 1, &[], "again and again");
    let sent = rude.send_until_stuck(&repeat.repeat(1000), 1000, Duration::from_secs(2));
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 24 * 1024, "{sent} bytes made it grow by {grown} KiB");
    // Others don't notice.
    let mut sub = subscriber(&broker, Level::V5);
    Client::connect(&broker, &Connect::v5("pub")).publish("t", "fine", 2);
    assert_gets(&mut sub, &["fine"]);
}

/// QOS-13: the state of a QoS 2 exchange goes with PUBCOMP.
#[test]
fn finished_exchanges_leave_nothing() {
    const WINDOW: u16 = 500;
    let broker = Broker::start();
    let names: Vec<String> = (0..10).map(|number| format!("pub{number}")).collect();
    let connect = |name: &String| Client::connect(&broker, &Connect::v5(name).persistent());
    let mut clients: Vec<Client> = names.iter().map(connect).collect();
    let round = |clients: &mut Vec<Client>| {
        for client in clients.iter_mut() {
            client.send(&qos2_v5_of(WINDOW));
            client.acknowledged_all(AckKind::Pubrec, 1..=WINDOW);
            let releases: Vec<u8> = (1..=WINDOW).flat_map(|id| wire::ack(6, id)).collect();
            client.send(&releases);
            for id in 1..=WINDOW {
                assert_eq!(client.acknowledged(AckKind::Pubcomp, id), 0);
            }
        }
    };
    round(&mut clients);
    let before = broker.rss_kib();
    (0..4).for_each(|_| round(&mut clients));
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 16 * 1024, "20 000 finished exchanges made it grow by {grown} KiB");
    // Every id is free: had one been left, this would be a repeat, and not delivered.
    let mut sub = subscriber(&broker, Level::V5);
    publish2(&mut clients[0], 0, 1, "a new message");
    assert_eq!(clients[0].acknowledged(AckKind::Pubrec, 1), 0);
    match sub.recv() {
        Packet::Publish(publish) => assert_eq!(publish.payload(), "a new message"),
        other => panic!("unexpected {other:?}"),
    }
}

fn qos2_v5_of(count: u16) -> Vec<u8> {
    (1..=count).flat_map(|id| wire::publish(Level::V5, QOS2, "x", id, &[], "payload")).collect()
}
