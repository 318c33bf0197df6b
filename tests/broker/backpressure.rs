//! Fast publishers and slow subscribers: who is held, what is skipped, what is kept, and what it
//! costs (IN-2 … IN-5, OUT-1 … OUT-6, DEV-1 … DEV-6).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Start, prop, wire};

const QUIET: Duration = Duration::from_millis(200);

/// Marks so low that a few messages reach them.
fn low_marks() -> Start {
    Start::new()
        .env("NETTY_WRITE_BUFFER_HIGH_WATER_MARK", 64)
        .env("NETTY_WRITE_BUFFER_LOW_WATER_MARK", 32)
        .env("NETTY_SO_SEND_BUFFER", 8)
}

fn publisher(broker: &Broker) -> Client {
    Client::connect(broker, &Connect::v5("publisher"))
}

/// A subscriber to `t` whose socket takes little.
fn narrow(broker: &Broker, connect: &Connect, qos: u8) -> Client {
    let mut client = Client::open_narrow(broker, connect.level).say_hello(connect);
    client.subscribe("t", qos);
    client
}

/// Publishes numbered messages of 4 KiB, all read by the broker when this returns.
fn publish_large(client: &mut Client, numbers: std::ops::Range<usize>, qos: u8) {
    for number in numbers {
        client.publish("t", format!("{number:<4096}"), qos);
    }
    client.ping();
}

fn number(payload: &str) -> usize {
    payload.trim_end().parse().unwrap()
}

/// The numbers that come until nothing comes, not acknowledged; with their packet ids.
fn arrived(client: &mut Client) -> Vec<(usize, u16)> {
    let next = || match client.recv_within(QUIET) {
        Some(Packet::Publish(publish)) => Some((number(&publish.payload()), publish.id)),
        Some(other) => panic!("unexpected {other:?}"),
        None => None,
    };
    std::iter::from_fn(next).collect()
}

/// IN-2, invariants 1 and 3: acks leave in the order of the packets, and what was acknowledged is
/// there after a kill at any moment.
#[test]
fn what_was_acknowledged_survives_a_kill() {
    let mut broker = Broker::start();
    let session = Connect::v5("s").persistent();
    let mut client = Client::connect(&broker, &session);
    client.subscribe("t", 1);
    client.disconnect();
    let mut publisher = publisher(&broker);
    let all: Vec<u8> = (1..=900)
        .flat_map(|id| wire::publish(Level::V5, 2, "t", id, &[], id.to_string()))
        .collect();
    publisher.send(&all);
    let mut acknowledged = 0;
    while acknowledged < 300 {
        match publisher.recv() {
            Packet::Ack { kind: AckKind::Puback, id, code: 0, .. } => {
                acknowledged += 1;
                assert_eq!(id, acknowledged, "acks leave in order");
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    broker.kill_and_restart();
    let mut client = Client::connect(&broker, &session);
    let got: Vec<u16> = client.drain(QUIET).iter().map(|p| p.payload().parse().unwrap()).collect();
    assert!(got.len() >= usize::from(acknowledged), "{} of {acknowledged}", got.len());
    assert!(got.iter().copied().eq(1..=got.len() as u16), "in order, without a gap");
}

/// IN-4: however fast publishers are, the broker's memory is bounded, nothing is dropped, and all
/// of it arrives.
#[test]
fn fast_publishers_are_held_by_tcp() {
    const PUBLISHERS: usize = 4;
    const MESSAGES: usize = 500;
    let broker = Start::new()
        .env("LISTENER_READ_AHEAD", 10)
        .env("LISTENER_INBOUND_BUDGET_BYTES", 1_048_576)
        .start();
    let session = Connect::v5("s").persistent();
    let mut client = Client::connect(&broker, &session);
    client.subscribe("t/#", 1);
    let before = broker.rss_kib();
    let over = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let peak = scope.spawn(|| {
            let mut most = before;
            while !over.load(Ordering::Relaxed) {
                most = most.max(broker.rss_kib());
                std::thread::sleep(Duration::from_millis(10));
            }
            most
        });
        let writers: Vec<_> = (0..PUBLISHERS)
            .map(|at| {
                let mut client = Client::connect(&broker, &Connect::v5(format!("fast {at}")));
                scope.spawn(move || {
                    for number in 0..MESSAGES {
                        let payload = format!("{number:<60000}");
                        let topic = format!("t/{at}");
                        client.send(&wire::publish(Level::V5, 0, topic, 0, &[], payload));
                    }
                    client.ping();
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        over.store(true, Ordering::Relaxed);
        peak.join().unwrap()
    });
    // 120 MB went through; the slow subscriber's share is dropped at its own mark.
    let grown = most.saturating_sub(before);
    assert!(grown < 48 * 1024, "{grown} KiB for {} KiB", PUBLISHERS * MESSAGES * 60);
    let got = client.drain(QUIET).len();
    let dropped = broker.dropped("Channel not writable");
    assert_eq!(got + dropped, PUBLISHERS * MESSAGES, "delivered, or skipped and counted");
    assert_eq!(broker.metric("incomingPublishMsg_consumed_total"), Some(4000.0), "total and good");
}

/// IN-5: a reader that is held until the log has what it read goes on when that is there, however
/// often, and whenever the answer comes.
#[test]
fn a_held_reader_goes_on_each_time() {
    const EACH: u16 = 3000;
    let broker = Start::new().env("LISTENER_READ_AHEAD", 20).start();
    std::thread::scope(|scope| {
        for at in 0..4 {
            let mut client = Client::connect(&broker, &Connect::v311(format!("held {at}")));
            scope.spawn(move || {
                let one = |id| wire::publish(Level::V311, 2, "t", id, &[], "m");
                client.send(&(1..=EACH).flat_map(one).collect::<Vec<_>>());
                for id in 1..=EACH {
                    assert_eq!(client.acknowledged(AckKind::Puback, id), 0);
                }
            });
        }
    });
}

/// IN-5, OUT-4, invariant 10: a client that takes no answers is not read any more; its keep-alive
/// clock stands still meanwhile, what it is owed goes out when it reads, and then it is read again.
#[test]
fn a_held_client_is_not_taken_for_a_silent_one() {
    let broker = low_marks().start();
    let connect = Connect::v5("s").keep_alive(2);
    let mut client = Client::open_narrow(&broker, Level::V5).say_hello(&connect);
    let mut sent = 0;
    let block = wire::PINGREQ.repeat(1000);
    while broker.metric("heldReaders") != Some(1.0) {
        client.send(&block);
        sent += 1000;
        assert!(sent < 1_000_000, "never held");
    }
    // It has sent its last packet; 1.5 times its keep alive passes twice.
    std::thread::sleep(Duration::from_millis(6200));
    assert_eq!(broker.metric("heldReaders"), Some(1.0));
    assert_eq!(broker.metric("connectedSessions"), Some(1.0));
    assert_eq!(broker.metric("nonWritableClients"), Some(1.0));
    for _ in 0..sent {
        assert_eq!(client.recv(), Packet::Pingresp);
    }
    broker.eventually("it is read again", |broker| broker.metric("heldReaders") == Some(0.0));
    client.ping();
    assert_eq!(broker.metric("nonWritableClients"), Some(0.0));
    // Nobody holds it now: its own silence counts again.
    client.expect_refusal(&[0x8D]);
}

/// OUT-1, OUT-2, OUT-3, MET-1: over the high mark copies for a QoS 0 or non-persistent subscriber
/// are skipped and counted once with the reason; the gauge shows the connection, and goes back to 0
/// when it has recovered or is gone. Others are not touched.
#[test]
fn copies_for_a_full_channel_are_skipped_and_counted() {
    const MESSAGES: usize = 200;
    let broker = low_marks().start();
    let connects = [
        (Connect::v5("transient"), 1),
        (Connect::v5("zero").persistent(), 0),
        (Connect::v311("old"), 2),
    ];
    let mut slow: Vec<Client> =
        connects.iter().map(|(connect, qos)| narrow(&broker, connect, *qos)).collect();
    let mut quick = Client::connect(&broker, &Connect::v5("quick"));
    quick.subscribe("t", 2);
    let mut publisher = publisher(&broker);
    assert_eq!(broker.metric("nonWritableClients"), Some(0.0));
    for at in 0..MESSAGES {
        publish_large(&mut publisher, at..at + 1, 2);
        assert_eq!(number(&quick.take().payload()), at);
    }
    assert_eq!(broker.metric("nonWritableClients"), Some(3.0));
    let skipped = broker.dropped("Channel not writable");
    let mut got = 0;
    for client in &mut slow[..2] {
        let numbers = arrived(client);
        assert!(numbers.is_sorted(), "in order");
        assert!((5..MESSAGES / 2).contains(&numbers.len()), "{}", numbers.len());
        got += numbers.len();
    }
    broker.eventually("two are writable again", |broker| {
        broker.metric("nonWritableClients") == Some(1.0)
    });
    let numbers = arrived(&mut slow[2]);
    got += numbers.len();
    assert_eq!(got + skipped, 3 * MESSAGES, "delivered, or skipped and counted");
    assert_eq!(broker.metric("droppedMsgs_total"), Some(skipped as f64), "for no other reason");
    // One that fills up and goes away leaves the gauge as well.
    quick.disconnect();
    publish_large(&mut publisher, 0..MESSAGES, 1);
    assert!(broker.metric("nonWritableClients") >= Some(1.0));
    slow.into_iter().for_each(Client::reset);
    broker.eventually("all are gone", |broker| broker.metric("nonWritableClients") == Some(0.0));
}

/// OUT-4, invariant 6: what a connection may buffer is bounded by its marks, also for many.
#[test]
fn slow_subscribers_cost_their_marks_and_no_more() {
    const SLOW: usize = 30;
    let broker = low_marks().env("MQTT_FLOW_CONTROL_DELAYED_QUEUE_MAX_SIZE", 60_000).start();
    let connect = |at: usize| {
        let connect = Connect::v5(format!("slow {at}"));
        if at.is_multiple_of(2) { connect.with(prop::receive_maximum(1)) } else { connect }
    };
    let _slow: Vec<Client> = (0..SLOW).map(|at| narrow(&broker, &connect(at), 1)).collect();
    let mut publisher = publisher(&broker);
    publish_large(&mut publisher, 0..50, 1);
    let before = broker.rss_kib();
    publish_large(&mut publisher, 0..1000, 1);
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 16 * 1024, "{grown} KiB for {SLOW} subscribers and 4 MB");
    assert_eq!(broker.metric("nonWritableClients"), Some(SLOW as f64));
}

/// DEV-1, DEV-2, invariants 2 and 4: a slow persistent subscriber gets everything, in order, once;
/// nothing is dropped, whatever the pace, over a kill in the middle.
#[test]
fn a_slow_persistent_subscriber_loses_nothing() {
    const MESSAGES: usize = 400;
    let mut broker = low_marks().start();
    let session = Connect::v5("s").persistent();
    let mut client = narrow(&broker, &session, 1);
    let mut publisher = publisher(&broker);
    publish_large(&mut publisher, 0..MESSAGES / 2, 1);
    assert_eq!(broker.metric("nonWritableClients"), Some(1.0));
    for due in 0..100 {
        assert_eq!(number(&client.take().payload()), due);
    }
    assert_eq!(broker.dropped("Channel not writable"), 0);
    broker.kill_and_restart();
    let mut client = Client::open_narrow(&broker, Level::V5).say_hello(&session);
    let mut publisher = self::publisher(&broker);
    publish_large(&mut publisher, MESSAGES / 2..MESSAGES, 1);
    let mut next = None;
    while next != Some(MESSAGES) {
        let got = client.take();
        let number = number(&got.payload());
        // Acknowledgements of the last moment may be lost with the process: DUP tells.
        assert!(number <= 100 || next == Some(number), "{number}, not {next:?}");
        assert!(number >= 100 || got.dup, "{number} again without DUP");
        next = Some(number + 1);
    }
    assert_eq!(broker.metric("droppedMsgs_total"), Some(0.0));
}

/// DEV-3: once it is writable again, delivery waits until nothing is in flight; the last ack
/// resumes it at once, a QoS 0 copy needs no such wait.
#[test]
fn after_congestion_the_last_ack_resumes_delivery() {
    let broker = low_marks().start();
    let session = Connect::v5("s").persistent();
    let mut client = narrow(&broker, &session, 1);
    client.subscribe("zero", 0);
    let mut publisher = publisher(&broker);
    publish_large(&mut publisher, 0..100, 1);
    assert_eq!(broker.metric("nonWritableClients"), Some(1.0));
    let first = arrived(&mut client);
    assert!((5..80).contains(&first.len()), "{}", first.len());
    assert_eq!(broker.metric("nonWritableClients"), Some(0.0));
    publisher.publish("zero", "z", 0);
    assert_eq!(client.take().payload(), "z");
    let (last, others) = first.split_last().unwrap();
    others.iter().for_each(|(_, id)| client.send(&wire::ack(4, *id)));
    client.ping();
    client.expect_silence(Duration::from_millis(500));
    let start = Instant::now();
    client.send(&wire::ack(4, last.1));
    for due in first.len()..100 {
        assert_eq!(number(&client.take().payload()), due);
    }
    assert!(start.elapsed() < Duration::from_secs(10), "no wait for a look");
}

/// DEV-5: over the limit the oldest go first, each counted once; what is in flight keeps its
/// exchange and is not counted if it is acknowledged.
#[test]
fn a_full_queue_loses_its_oldest() {
    let name = "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT";
    let broker = Start::new().env(name, 10).start();
    let session = Connect::v5("s").persistent().with(prop::receive_maximum(2));
    let mut client = Client::connect(&broker, &session);
    client.subscribe("t", 2);
    let mut publisher = publisher(&broker);
    for number in 0..20 {
        publisher.publish("t", number.to_string(), 1 + number % 2);
    }
    let first = [client.expect_publish(), client.expect_publish()];
    assert_eq!(first.each_ref().map(|one| one.payload()), ["0", "1"]);
    client.send(&wire::ack(4, first[0].id));
    client.send(&wire::ack(5, first[1].id));
    assert_eq!(client.acknowledged(AckKind::Pubrel, first[1].id), 0);
    client.send(&wire::ack(7, first[1].id));
    for due in 10..20 {
        assert_eq!(client.take().payload(), due.to_string());
    }
    client.expect_silence(QUIET);
    assert_eq!(broker.dropped("Queue limit exceeded"), 8, "counted while it is connected");
    client.disconnect();
    assert_eq!(broker.metric("droppedMsgs_total"), Some(8.0));
    let refused = Start::new().env(name, 65_536).try_start();
    let (status, log) = refused.err().expect("over 65 535 stops the start");
    assert!(!status.success() && log.contains(name), "{log}");
}

/// IN-6: what comes alone is answered without anything behind it, at every QoS; what comes at once
/// and is more than any batch takes comes out whole, and in order.
#[test]
fn what_comes_alone_and_what_comes_at_once_is_handed_on() {
    const MANY: usize = 5000;
    let broker = Broker::start();
    let mut subscriber = Client::connect(&broker, &Connect::v5("s"));
    subscriber.subscribe("t", 2);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    for qos in 0..3 {
        publisher.publish("t", format!("alone {qos}"), qos);
        assert_eq!(subscriber.take().payload(), format!("alone {qos}"));
    }
    let packet = |number| wire::publish(Level::V5, 0, "t", 0, &[], format!("{number:<60}"));
    publisher.send(&(0..MANY).flat_map(packet).collect::<Vec<u8>>());
    for number in 0..MANY {
        assert_eq!(subscriber.take().payload().trim_end(), number.to_string());
    }
}
