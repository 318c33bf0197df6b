//! Malformed input (PAR): it ends one connection, and costs the broker nothing else.

use std::time::Duration;

use crate::support::{Broker, Client, Connect, Level, Packet, Start, Will, hex, prop, wire};

const MALFORMED: [u8; 2] = [0x81, 0x82];

/// After a correct CONNECT, these bytes end the connection, with one of these codes on level 5.
#[track_caller]
fn ends(broker: &Broker, level: Level, bytes: &[u8], codes: &[u8]) {
    let mut client = Client::connect(broker, &Connect::new(level, "malformed"));
    client.try_send(bytes);
    client.expect_refusal(codes);
}

/// PAR-01, MQTT-1.5.5-1: integers of five bytes, too long ones, and lengths that run past the
/// packet end the connection at once; the broker neither spins nor grows.
#[test]
fn bad_variable_byte_integers_end_the_connection() {
    let broker = Broker::start();
    Client::connect(&broker, &Connect::v5("before")).ping();
    let (rss, cpu) = (broker.rss_kib(), broker.cpu_ticks());
    for level in Level::ALL {
        for bytes in ["30ffffffff7f", "c0ffffffff7f", "30ffffffff01", "82 80808080 00"] {
            ends(&broker, level, &hex(bytes), &[0x81, 0x82, 0x95]);
        }
    }
    let v5 = [
        "c0 8000",
        "c0 808000",
        "30 0a 0001 61 ffffffff7f 6d6d",
        "30 05 0001 61 8000",
        "30 04 0001 61 80",
        "30 05 0001 61 7f 6d",
        "82 09 0001 02 0b00 0001 61 00",
        "82 0c 0001 05 0bffffffff 0001 61 00",
        "82 0d 0001 06 0bffffffff7f 0001 61 00",
        "82 0b 0001 04 0b80 8000 0001 61 00",
    ];
    for bytes in v5 {
        ends(&broker, Level::V5, &hex(bytes), &MALFORMED);
    }
    for first in ["10ffffffff7f", "10ffffffff01"] {
        let mut client = Client::open(&broker, Level::V5);
        client.send_hex(first);
        client.expect_connect_refused(&[0x81, 0x82, 0x95]);
    }
    let spent = broker.cpu_ticks() - cpu;
    assert!(spent < 200, "{spent} ticks of CPU for a few bad packets");
    let grown = broker.rss_kib().saturating_sub(rss);
    assert!(grown < 8 * 1024, "grown by {grown} KiB");
}

/// PAR-03, MQTT-4.12.0-7: packets that only a server sends are a protocol error, and the Will is
/// published.
#[test]
fn server_packets_from_a_client_are_a_protocol_error() {
    let broker = Broker::start();
    let mut watcher = Client::connect(&broker, &Connect::v5("watcher"));
    watcher.subscribe("will", 1);
    let server =
        ["20020000", "2003000000", "9003000100", "900400010000", "b0020001", "b00400010000"];
    let others = ["d000", "0000", "f000", "f0020000", "f0021800"];
    for level in [Level::V311, Level::V5] {
        for (index, bytes) in server.iter().chain(&others).enumerate() {
            let will = Will::new("will", format!("{level:?} {index}")).qos(1);
            let mut client = Client::connect(&broker, &Connect::new(level, "c").will(will));
            client.send_hex(bytes);
            client.expect_refusal(&MALFORMED);
            assert_eq!(watcher.take().payload(), format!("{level:?} {index}"));
        }
    }
}

/// PAR-05: what inflates memory meets a limit. Deep topics, long ids and names, packets that are
/// never finished, and 60 000 filters in one SUBSCRIBE.
#[test]
fn crafted_input_does_not_inflate_memory() {
    let broker = Start::new().env("TCP_NETTY_MAX_PAYLOAD_SIZE", 1_048_576).start();
    let mut canary = Client::connect(&broker, &Connect::v5("canary"));
    canary.subscribe("canary", 1);
    let before = broker.rss_kib();
    let mut held = Vec::new();
    for number in 0..100 {
        let id = format!("{number}-{}", "i".repeat(60_000));
        let mut named = Client::open(&broker, Level::V5);
        named.send(&Connect::v5(&id).user("u".repeat(60_000)).bytes());
        let mut unfinished = Client::connect(&broker, &Connect::v5(format!("u{number}")));
        unfinished.try_send(&hex("30 80 80 20"));
        unfinished.try_send(&[0, 1, b'a', 0]);
        held.extend([named, unfinished]);
    }
    canary.publish("canary", "alive", 1);
    assert_eq!(canary.take().payload(), "alive");
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 96 * 1024, "200 attackers cost {grown} KiB");
    drop(held);

    let filters: Vec<Vec<u8>> = (0..60_000).map(|n| format!("f/{n}").into_bytes()).collect();
    let filters: Vec<(&[u8], u8)> = filters.iter().map(|filter| (filter.as_slice(), 0)).collect();
    for level in [Level::V311, Level::V5] {
        let mut client = Client::connect(&broker, &Connect::new(level, "many"));
        client.try_send(&wire::subscribe(level, 1, &[], &filters));
        client.expect_refusal(&[0x97, 0x95, 0x82]);
    }
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 128 * 1024, "grown by {grown} KiB");
    canary.publish("canary", "still", 1);
    assert_eq!(canary.take().payload(), "still");
}

/// PAR-05, section 3.14.2.1: a packet over the limit ends the connection with 0x95 before it is
/// read, and CONNACK has announced the limit.
#[test]
fn a_packet_over_the_announced_limit_is_refused() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::v5("large"));
    let limit = client.connack.number(0x27).expect("Maximum Packet Size") as usize;
    let fitting = vec![b'm'; limit - 10];
    client.subscribe("t", 1);
    let packet = wire::publish(Level::V5, 2, "t", 1, &[], &fitting[..limit - 4 - 3 - 2 - 1]);
    assert_eq!(packet.len(), limit, "the largest packet that is allowed");
    client.send(&packet);
    assert_eq!(client.take().payload.len(), limit - 10);
    let over = wire::publish(Level::V5, 2, "t", 2, &[], vec![b'm'; limit]);
    client.try_send(&over[..100]);
    client.expect_refusal(&[0x95]);
}

/// PAR-08, MQTT-3.3.1-4, MQTT-3.3.1-2: QoS 3, and DUP at QoS 0, are malformed; nothing of them is
/// forwarded.
#[test]
fn bad_publish_flags_end_the_connection() {
    let broker = Broker::start();
    let mut everything = Client::connect(&broker, &Connect::v5("everything"));
    everything.subscribe("#", 2);
    for level in Level::ALL {
        for first in [0x06, 0x07, 0x08, 0x09, 0x0E, 0x0F] {
            let bytes = wire::publish(level, first, "t", 7, &[], "bad");
            ends(&broker, level, &bytes, &MALFORMED);
        }
    }
    everything.publish("good", "good", 1);
    assert_eq!(everything.take().payload(), "good");
}

/// PAR-09, section 4.7.2: publishing into reserved trees is refused or plain, and never harms
/// anybody.
#[test]
fn reserved_topics_harm_nobody() {
    let broker = Broker::start();
    let mut everything = Client::connect(&broker, &Connect::v5("everything"));
    assert_eq!(everything.subscribe_with(&[(b"#", 1), (b"+/#", 1)], &[]), [1, 1]);
    let topics = ["$", "$x", "$SYS", "$SYS/a", "$share", "$share/g/t", "$queue/t", "$delayed/1/t"];
    for level in [Level::V311, Level::V5] {
        for topic in topics {
            for flags in [0, 1, 2, 3, 4] {
                let mut client = Client::connect(&broker, &Connect::new(level, "reserved"));
                client.try_send(&wire::publish(level, flags, topic, 7, &[], "reserved"));
                client.try_send(&wire::PINGREQ);
                let answer = client.recv_within(Duration::from_secs(5));
                assert_refused_or_plain(answer.as_ref(), topic);
            }
        }
    }
    everything.publish("plain", "plain", 1);
    assert_eq!(everything.take().payload(), "plain");
}

/// The first answer to PUBLISH and PINGREQ; none stands for a closed connection.
fn assert_refused_or_plain(answer: Option<&Packet>, topic: &str) {
    let code = match answer {
        None | Some(Packet::Pingresp) => return,
        Some(Packet::Ack { code, .. } | Packet::Disconnect { code, .. }) => *code,
        Some(other) => panic!("{topic}: {other:?}"),
    };
    assert!([0, 0x10, 0x81, 0x82, 0x87, 0x90].contains(&code), "{topic}: {code:#x}");
}

/// PAR-09: a thousand refused CONNECTs with properties leave nothing behind.
#[test]
fn refused_connects_leave_nothing_behind() {
    let broker = Broker::start();
    let properties: Vec<u8> = (0..50).flat_map(|_| prop::user("k".repeat(100), "v")).collect();
    let bad = Connect::v5("bad").with(properties).with(prop::receive_maximum(0)).bytes();
    let refuse = |times: usize| {
        for _ in 0..times {
            let mut client = Client::open(&broker, Level::V5);
            client.send(&bad);
            client.expect_connect_refused(&MALFORMED);
        }
    };
    refuse(100);
    let before = broker.rss_kib();
    refuse(1000);
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 4 * 1024, "grown by {grown} KiB");
}

/// PAR-01, PAR-08: a packet that arrives byte by byte means the same as one that arrives whole.
#[test]
fn packets_may_arrive_byte_by_byte() {
    let broker = Broker::start();
    for level in Level::ALL {
        let mut client = Client::open(&broker, level);
        let bytes = wire::all(&[
            &Connect::new(level, "slow").bytes(),
            &wire::subscribe(level, 1, &[], &[(b"t", 1)]),
            &wire::publish(level, 2, "t", 2, &[], "payload"),
            &wire::PINGREQ,
        ]);
        for byte in bytes {
            client.send(&[byte]);
        }
        client.wait_for(|packet| matches!(packet, Packet::Suback { .. }));
        assert_eq!(client.take().payload(), "payload");
        client.wait_for(|packet| *packet == Packet::Pingresp);
    }
}
