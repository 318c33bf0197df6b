//! Memory of the broker under clients that are slow, away, or never answer.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Start, prop, wire};

const MIB: u64 = 1024;

/// Publishes a burst at QoS 1 and sees it acknowledged.
fn burst(client: &mut Client, topic: &str, from: usize, messages: usize, bytes: usize) {
    let payload = vec![b'x'; bytes];
    for chunk in (from..from + messages).collect::<Vec<_>>().chunks(500) {
        let id = |n: &usize| (n % 60_000 + 1) as u16;
        let frame = |n| wire::publish(client.level, 2, topic, id(n), &[], &payload);
        let frames: Vec<u8> = chunk.iter().flat_map(frame).collect();
        client.send(&frames);
        client.acknowledged_all(AckKind::Puback, chunk.iter().map(id));
    }
}

/// MEM-02: a backlog goes out at the client's pace: never more than its Receive Maximum is
/// outstanding, live messages wait behind it, and the backlog is not read into memory.
#[test]
fn a_backlog_goes_out_at_the_clients_pace() {
    const BACKLOG: usize = 8000;
    let broker = Broker::start();
    let slow = Connect::v5("slow").persistent().with(prop::receive_maximum(20));
    let mut client = Client::connect(&broker, &slow);
    client.subscribe("t", 1);
    client.disconnect();
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    burst(&mut publisher, "t", 0, BACKLOG, 2000);
    let before = broker.rss_kib();
    let mut client = Client::connect(&broker, &slow.resume());
    let mut outstanding: Vec<u16> = Vec::new();
    let mut got = 0;
    while got < BACKLOG {
        // All that may come comes before the first acknowledgement.
        while outstanding.len() < 20.min(BACKLOG - got) {
            outstanding.push(client.expect_publish().id);
        }
        if got % 2000 == 0 {
            client.ping();
            assert!(client.recv_within(Duration::from_millis(50)).is_none(), "more than 20");
        }
        got += outstanding.len();
        let acks: Vec<u8> = outstanding.drain(..).flat_map(|id| wire::ack(4, id)).collect();
        client.send(&acks);
    }
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 12 * MIB, "{grown} KiB for a backlog of 16 MB");
    client.ping();
}

/// MEM-03: queues of clients that are away are bounded one by one; counters explain the rest.
#[test]
fn queues_of_absent_clients_are_bounded() {
    const CLIENTS: usize = 60;
    let broker =
        Start::new().env("MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT", 50).start();
    for n in 0..CLIENTS {
        let mut client = Client::connect(&broker, &Connect::v5(format!("away{n}")).persistent());
        client.subscribe("#", 1);
        client.disconnect();
    }
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    burst(&mut publisher, "t", 0, 500, 1000);
    let routed = |messages: usize| (CLIENTS * (messages - 50)) as f64;
    broker.eventually("the rest is counted", |b| {
        b.dropped("Queue limit exceeded") as f64 == routed(500)
    });
    let before = broker.rss_kib();
    burst(&mut publisher, "t", 500, 3000, 1000);
    broker.eventually("the rest is counted", |b| {
        b.dropped("Queue limit exceeded") as f64 == routed(3500)
    });
    let grown = broker.rss_kib().saturating_sub(before);
    // 180 000 copies of 1 KB went by; what grows is at most the log's window of 32 MiB, and the
    // buffers of the clients of Kafka (16 MiB read ahead) and Redis (each copy of a pass once).
    let bound = if crate::services().is_empty() { 48 } else { 160 };
    assert!(grown < bound * MIB, "{grown} KiB");
    let mut client = Client::connect(&broker, &Connect::v5("away7").persistent().resume());
    (0..50).for_each(|_| drop(client.take()));
    client.expect_silence(Duration::from_millis(100));
}

/// MEM-06: sessions that are thrown away with messages in flight and in their queue leave nothing.
#[test]
fn sessions_that_are_thrown_away_leave_nothing() {
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    let round = |publisher: &mut Client, n: usize| {
        let connect = Connect::v5("never").with(prop::receive_maximum(30));
        let connect = if n.is_multiple_of(2) { connect.persistent() } else { connect };
        let mut never = Client::connect(&broker, &connect);
        never.subscribe("t", 1);
        burst(publisher, "t", n * 100, 100, 10_000);
        (0..30).for_each(|_| drop(never.expect_publish()));
        never.reset();
    };
    (0..20).for_each(|n| round(&mut publisher, n));
    let before = broker.rss_kib();
    (20..80).for_each(|n| round(&mut publisher, n));
    let grown = broker.rss_kib().saturating_sub(before);
    // 60 MB were in flight and queued in these rounds; the log's window in memory is 32 MiB.
    assert!(grown < 40 * MIB, "{grown} KiB");
    let mut last = Client::connect(&broker, &Connect::v5("never"));
    last.ping();
    broker.await_metric("flowControl_inflightCount", 0.0);
    broker.await_metric("flowControl_delayedQueueSize", 0.0);
}

/// MEM-07: however many aliases clients ask for, each gets the broker's few.
#[test]
fn clients_that_ask_for_all_aliases_get_a_few() {
    let broker = Broker::start();
    let topic = |n: usize| format!("a/topic/that/is/long/enough/for/an/alias/of/its/own/{n}");
    let greedy = |n| Connect::v5(format!("g{n}")).with(prop::two(0x22, 65_535));
    let mut clients: Vec<Client> = (0..20).map(|n| Client::connect(&broker, &greedy(n))).collect();
    for client in &mut clients {
        client.subscribe("#", 0);
    }
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    for n in 0..200 {
        publisher.publish(topic(n), "m", 1);
    }
    for client in &mut clients {
        let aliases: BTreeSet<u32> =
            (0..200).filter_map(|_| client.expect_publish().properties.number(0x23)).collect();
        assert_eq!(aliases.into_iter().collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
    }
}

/// QTA-02: a client that sends what is too large and comes back at once is told why each time it
/// gets in, and the limit of connections keeps it cheap.
#[test]
fn a_client_that_loops_is_cheap() {
    let broker = Start::new()
        .env("LISTENER_CONNECTION_RATE_ENABLED", true)
        .env("LISTENER_CONNECTION_RATE_PER_IP_CONFIG", "11:86400")
        .start();
    let large = wire::publish(Level::V5, 2, "t", 1, &[], "m".repeat(65_537));
    let (mut told, mut turned_away) = (0, 0);
    for _ in 0..30 {
        let mut client = Client::open(&broker, Level::V5);
        client.try_send(&Connect::v5("loops").bytes());
        match client.recv_or_end(Duration::from_secs(15)) {
            Ok(Some(Packet::Connack { code: 0, properties, .. })) => {
                assert_eq!(properties.number(0x27), Some(65_536), "it was told before");
                client.try_send(&large);
                client.expect_refusal(&[0x95]);
                told += 1;
            }
            Err(_) => turned_away += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((told, turned_away), (10, 20));
    let lines = |broker: &Broker| broker.log().matches("come too fast").count();
    broker.eventually("a line", |broker| lines(broker) > 0);
    assert_eq!(lines(&broker), 1, "one line a minute");
}
