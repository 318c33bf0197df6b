//! Limits by client, by source address and by number: what each protocol level sees of them.

use std::net::TcpStream;

use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Publish, Start, prop, wire};

const AT_ONCE: u16 = 100;

/// So long a window that nothing comes back within a test, however slow the machine.
fn limited(windows: &str) -> Broker {
    Start::new()
        .env("MQTT_INCOMING_RATE_LIMITS_ENABLED", true)
        .env("MQTT_INCOMING_RATE_LIMITS_CLIENT_CONFIG", windows)
        .start()
}

/// A subscriber that sees what was let in; QoS 1, so that nothing is lost on its way out.
fn witness(broker: &Broker) -> Client {
    let mut witness = Client::connect(broker, &Connect::v5("witness").persistent());
    witness.subscribe("t/#", 1);
    witness
}

/// Publishes at once, QoS 1 and 2 with the ids 1 to 100; returns the codes of the answers.
fn burst(client: &mut Client, qos: u8) -> Vec<u8> {
    let id = |n: u16| if qos == 0 { 0 } else { n };
    let publish = |n: u16| {
        wire::publish(client.level, qos << 1, format!("t/{qos}"), id(n), &[], n.to_string())
    };
    let bytes: Vec<u8> = (1..=AT_ONCE).flat_map(publish).collect();
    client.send(&bytes);
    let kind = if qos == 1 { AckKind::Puback } else { AckKind::Pubrec };
    match qos {
        0 => Vec::new(),
        _ => (1..=AT_ONCE).map(|n| client.acknowledged(kind, n)).collect(),
    }
}

/// All that a subscriber of `t/#` gets up to a last message.
fn take_until_end(broker: &Broker, subscriber: &mut Client) -> Vec<Publish> {
    let mut last = Client::connect(broker, &Connect::v5("last"));
    last.publish("t/end", "", 1);
    let mut got = Vec::new();
    loop {
        let one = subscriber.take();
        if one.topic() == "t/end" {
            return got;
        }
        got.push(one);
    }
}

/// LIM-1, LIM-2, QTA-01: level 5. Of a hundred at once ten are stored; each other one is answered
/// 0x97 at QoS 1 and 2, and dropped in silence at QoS 0; the session stays, and all are counted.
#[test]
fn level_5_is_told_of_each_publish_beyond_the_limit() {
    let broker = limited("10:3600,300:86400");
    let mut witness = witness(&broker);
    for qos in [1, 2, 0] {
        let mut client = Client::connect(&broker, &Connect::v5(format!("p{qos}")));
        let codes = burst(&mut client, qos);
        let stored = codes.iter().filter(|code| **code == 0).count();
        let refused = codes.iter().filter(|code| **code == 0x97).count();
        if qos > 0 {
            assert_eq!((stored, refused), (10, 90), "QoS {qos}: {codes:02x?}");
        }
        client.ping();
    }
    let got = take_until_end(&broker, &mut witness);
    let of = |topic: &str| got.iter().filter(|one| one.topic() == topic).count();
    assert_eq!((of("t/1"), of("t/2"), of("t/0")), (10, 10, 10));
    assert_eq!(broker.dropped("Rate limits"), 270);
    assert_eq!(broker.metric("rateLimited_total"), Some(270.0));
}

/// LIM-2, QTA-01: the older levels have no word for it, so the connection ends; what was let in
/// before is stored.
#[test]
fn the_older_levels_are_closed_beyond_the_limit() {
    for level in [Level::V31, Level::V311] {
        for qos in [0, 1, 2] {
            let broker = limited("10:3600");
            let mut witness = witness(&broker);
            let mut client = Client::connect(&broker, &Connect::new(level, "p"));
            let id = |n: u16| if qos == 0 { 0 } else { n };
            let publish = |n| wire::publish(level, qos << 1, "t/x", id(n), &[], n.to_string());
            let bytes: Vec<u8> = (1..=11).flat_map(publish).collect();
            client.send(&bytes);
            let closed = client.expect_close();
            let acks = |packet: &Packet| matches!(packet, Packet::Ack { .. });
            assert!(closed.packets.iter().all(acks), "{level:?} QoS {qos}: {closed:?}");
            for n in 1..=10 {
                assert_eq!(witness.take().payload, n.to_string().as_bytes());
            }
            assert_eq!(broker.dropped("Rate limits"), 1, "{level:?} QoS {qos}");
        }
    }
}

/// LIM-1: the limit is the client's, not the connection's: to connect anew gives nothing back.
#[test]
fn a_new_connection_has_the_limit_of_the_old_one() {
    let broker = limited("3:3600");
    for round in 0..3 {
        let mut client = Client::connect(&broker, &Connect::v5("p"));
        let code = client.publish("t/x", "m", 1) & 0x80;
        assert_eq!(code, 0, "round {round}");
        client.disconnect();
    }
    let mut client = Client::connect(&broker, &Connect::v5("p"));
    assert_eq!(client.publish("t/x", "m", 1), 0x97);
    let mut other = Client::connect(&broker, &Connect::v5("other"));
    assert_eq!(other.publish("t/x", "m", 1) & 0x80, 0, "another client has its own");
}

/// LIM-1: windows of bytes stand beside windows of messages; all must hold.
#[test]
fn bytes_are_limited_beside_messages() {
    let broker = limited("100:3600,bytes:1000:3600");
    let mut client = Client::connect(&broker, &Connect::v5("p"));
    let codes =
        [400, 400, 400, 1, 400, 150].map(|n| client.publish("t/x", "m".repeat(n), 1) & 0x87);
    assert_eq!(codes, [0, 0, 0x87, 0, 0x87, 0], "a topic counts 3 bytes");
}

/// Decision 9: a QoS 2 repeat of a known id is answered before any limit, and what a resumed
/// session sends again is not refused; something new is.
#[test]
fn what_may_be_stored_already_is_not_refused() {
    let broker = limited("2:3600");
    let connect = Connect::v5("p").persistent();
    let mut client = Client::connect(&broker, &connect);
    client.send(&wire::publish(Level::V5, 4, "t/x", 1, &[], "a"));
    assert_eq!(client.acknowledged(AckKind::Pubrec, 1) & 0x80, 0);
    client.send(&wire::publish(Level::V5, 2, "t/x", 2, &[], "b"));
    assert_eq!(client.acknowledged(AckKind::Puback, 2) & 0x80, 0);
    client.send(&wire::publish(Level::V5, 4 | 8, "t/x", 1, &[], "a"));
    assert_eq!(client.acknowledged(AckKind::Pubrec, 1) & 0x80, 0, "a repeat");
    client.reset();
    let mut client = Client::connect(&broker, &connect.resume());
    client.send(&wire::publish(Level::V5, 2 | 8, "t/x", 2, &[], "b"));
    assert_eq!(client.acknowledged(AckKind::Puback, 2) & 0x80, 0, "sent again");
    client.send(&wire::publish(Level::V5, 2, "t/x", 3, &[], "c"));
    assert_eq!(client.acknowledged(AckKind::Puback, 3), 0x97, "new");
    client.send(&wire::publish(Level::V5, 2 | 8, "t/x", 4, &[], "d"));
    assert_eq!(client.acknowledged(AckKind::Puback, 4), 0x97, "resends come first");
}

/// LIM-3: a bad limit stops the start with the key, the value and the form wanted, on or off.
#[test]
fn a_bad_limit_stops_the_start() {
    for bad in ["10", "a:1", "0:1", "10:0", "1:1,1:2,1:3,1:4,1:5"] {
        let start = Start::new().env("MQTT_INCOMING_RATE_LIMITS_CLIENT_CONFIG", bad);
        let Err((status, log)) = start.try_start() else { panic!("{bad:?} was taken") };
        assert_eq!(status.code(), Some(2), "{bad:?}");
        for part in ["incoming-publish.client-config", bad, "messages:seconds"] {
            assert!(log.contains(part), "{part} is not in:\n{log}");
        }
    }
}

/// OUT-5: messages published at QoS 0 are limited for each subscriber, persistent or not; QoS 1
/// and 2 are not, whatever the subscription's QoS.
#[test]
fn qos_0_is_limited_for_each_subscriber() {
    let broker = Start::new()
        .env("MQTT_OUTGOING_RATE_LIMITS_ENABLED", true)
        .env("MQTT_OUTGOING_RATE_LIMITS_CLIENT_CONFIG", "5:3600")
        .start();
    let mut plain = Client::connect(&broker, &Connect::v5("plain"));
    let mut kept = Client::connect(&broker, &Connect::v311("kept").persistent());
    plain.subscribe("t/#", 0);
    kept.subscribe("t/#", 2);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    for n in 0..20 {
        publisher.publish("t/0", n.to_string(), 0);
        publisher.publish("t/1", n.to_string(), 1);
    }
    for client in [&mut plain, &mut kept] {
        let got = take_until_end(&broker, client);
        let of = |topic: &str| got.iter().filter(|one| one.topic() == topic).count();
        assert_eq!((of("t/0"), of("t/1")), (5, 20));
    }
    assert_eq!(broker.dropped("Rate limits"), 30);
}

/// QTA-05: sessions beyond the limit are refused with 0x97 (v3: 3), also when all connect at once;
/// one that ends makes room, and a known client always gets in.
#[test]
fn the_limit_of_sessions_is_exact() {
    let broker = Start::new().env("MQTT_SESSIONS_LIMIT", 20).start();
    let hello = |n: usize| Connect::v5(format!("c{n}")).with(prop::session_expiry(600)).bytes();
    let mut clients: Vec<Client> = (0..60).map(|_| Client::open(&broker, Level::V5)).collect();
    clients.iter_mut().enumerate().for_each(|(n, client)| client.send(&hello(n)));
    let codes: Vec<u8> = clients
        .iter_mut()
        .map(|client| match client.recv() {
            Packet::Connack { code, .. } => code,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 20, "{codes:02x?}");
    assert_eq!(codes.iter().filter(|code| **code == 0x97).count(), 40, "{codes:02x?}");
    let mut old = Client::open(&broker, Level::V311);
    old.send(&Connect::v311("old").bytes());
    old.expect_bytes_then_close(&[0x20, 2, 0, 3]);
    let known = codes.iter().position(|code| *code == 0).expect("some were let in");
    let again = Connect::v5(format!("c{known}"));
    Client::connect(&broker, &again).disconnect();
    broker.eventually("the ended session's place is free", |broker| {
        let mut next = Client::open(broker, Level::V5);
        next.send(&Connect::v5("next").bytes());
        matches!(next.recv(), Packet::Connack { code: 0, .. })
    });
    assert!(broker.metric("rateLimited_total") >= Some(41.0));
}

/// Connections that come too fast are closed before a byte is read, by source, and counted.
#[test]
fn the_rate_of_connections_is_limited() {
    let broker = Start::new()
        .env("LISTENER_CONNECTION_RATE_ENABLED", true)
        .env("LISTENER_CONNECTION_RATE_PER_IP_CONFIG", "5:3600")
        .start();
    // The harness took one to see whether the port is open.
    let mut let_in: Vec<Client> =
        (0..4).map(|n| Client::connect(&broker, &Connect::v5(format!("c{n}")))).collect();
    for _ in 0..5 {
        let mut late = Client::open(&broker, Level::V5);
        late.try_send(&Connect::v5("late").bytes());
        assert!(late.expect_close().packets.is_empty());
    }
    let_in.iter_mut().for_each(Client::ping);
    assert_eq!(broker.metric("rateLimited_total"), Some(5.0));
    assert!(TcpStream::connect(broker.address()).is_ok(), "the port itself stays open");
}

/// QTA-03: 0 and unset mean "no limit", and nothing is refused for it.
#[test]
fn a_limit_of_0_is_none() {
    let broker = Start::new()
        .env("MQTT_SESSIONS_LIMIT", 0)
        .env("MQTT_APPLICATION_CLIENTS_LIMIT", 0)
        .env("MQTT_SUBSCRIPTION_MAX_PER_CLIENT", 0)
        .env("MQTT_RETAIN_MSG_MAX_COUNT", 0)
        .env("MQTT_RETAIN_MSG_MAX_BYTES", 0)
        .env("LISTENER_MAX_CONNECTIONS", 0)
        .env("MQTT_TOTAL_RATE_LIMITS_BLOCK_SIZE", 0)
        .env("MQTT_TOTAL_RATE_LIMITS_LEASE_RETURN_MS", 0)
        .start();
    for n in 0..50 {
        let mut client = Client::connect(&broker, &Connect::v5(format!("c{n}")));
        assert_eq!(client.subscribe("t/#", 1), 1);
        assert_eq!(client.retain(format!("t/{n}"), "v"), 0);
    }
    assert_eq!(broker.metric("rateLimited_total"), Some(0.0));
}
