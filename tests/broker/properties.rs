//! Properties, sizes, expiry and aliases (PRP-01 … PRP-10), and the limits beside them.

use std::time::{Duration, Instant};

use crate::support::{Broker, Client, Connect, Level, Packet, Start, Will, prop, wire};

const QUIET: Duration = Duration::from_millis(150);

fn publisher(broker: &Broker) -> Client {
    Client::connect(broker, &Connect::v5("publisher"))
}

/// A payload that makes the copy for a level 5 client so large, fixed header included: topic `t`,
/// no properties.
fn sized(total: usize, qos: u8) -> String {
    let head = 2 + 3 + usize::from(qos > 0) * 2 + 1;
    "x".repeat(total - head)
}

/// PRP-01, OUT-6, MQTT-3.1.2-24, -25: what is over the client's Maximum Packet Size is dropped for
/// it and counted; the rest flows, no credit is lost, and the connection stays: live, queued and
/// retained.
#[test]
fn oversize_copies_are_dropped_for_that_client() {
    let broker = Broker::start();
    let session = Connect::v5("s").with(prop::four(0x27, 99)).with(prop::receive_maximum(1));
    let queued = Connect::v5("q").with(prop::four(0x27, 99)).with(prop::receive_maximum(1));
    let queued = queued.persistent();
    let mut large = Client::connect(&broker, &Connect::v5("large"));
    large.subscribe("t", 2);
    let mut clients = [&session, &queued].map(|connect| Client::connect(&broker, connect));
    clients.iter_mut().for_each(|client| assert_eq!(client.subscribe("t", 2), 2));
    let mut publisher = publisher(&broker);
    let round = |publisher: &mut Client| {
        for qos in 0..3 {
            for total in [98, 100, 99, 101] {
                publisher.publish("t", sized(total, qos), qos);
            }
        }
    };
    let fits: Vec<usize> = vec![98, 99, 98, 99, 98, 99];
    let size = |qos: u8, payload: usize| payload + 6 + usize::from(qos > 0) * 2;
    let sizes = |client: &mut Client| -> Vec<usize> {
        let got = client.drain(QUIET);
        let mut sizes: Vec<_> = got.iter().map(|one| (one.qos, one.payload.len())).collect();
        sizes.sort_by_key(|(qos, _)| *qos);
        sizes.into_iter().map(|(qos, payload)| size(qos, payload)).collect()
    };
    round(&mut publisher);
    assert_eq!(large.drain(QUIET).len(), 12);
    clients.iter_mut().for_each(|client| assert_eq!(sizes(client), fits));
    assert_eq!(broker.dropped("Packet too large"), 12);
    let [client, sleeper] = clients;
    sleeper.disconnect();
    client.disconnect();
    round(&mut publisher);
    let mut sleeper = Client::connect(&broker, &queued);
    assert_eq!(sizes(&mut sleeper), fits[2..], "QoS 0 is not queued");
    assert_eq!(broker.dropped("Packet too large"), 12 + 4);
    for (total, topic) in [(90, "r/fits"), (200, "r/large"), (90, "r/last")] {
        publisher.retain(topic, "x".repeat(total - 20));
    }
    let mut late = Client::connect(&broker, &session);
    late.subscribe("r/#", 1);
    let topics: Vec<String> = late.drain(QUIET).iter().map(|one| one.topic()).collect();
    assert_eq!(topics, ["r/fits", "r/last"]);
    late.ping();
}

/// PRP-01: identifiers, aliases and properties count, too.
#[test]
fn the_size_counts_everything() {
    let broker = Broker::start();
    let connect =
        Connect::v5("s").with(prop::four(0x27, 100)).with(prop::two(0x22, 5)).persistent();
    let mut client = Client::connect(&broker, &connect);
    let topic = "t".repeat(60);
    client.subscribe_with(&[(topic.as_bytes(), 1)], &prop::subscription_id(300));
    let mut publisher = publisher(&broker);
    for length in 0..60 {
        publisher.publish(&topic, "x".repeat(length), 1);
    }
    publisher.publish(&topic, "x", 1);
    let got = client.drain(QUIET);
    let largest = got.iter().map(|one| one.payload.len()).max().unwrap();
    // With an alias the topic needs no room: 2 + 2 + 2 + 1 + 3 + 3 bytes are around the payload.
    assert!((50..60).contains(&largest), "{largest}");
    assert!(got.iter().all(|one| one.properties.subscription_ids() == [300]));
    assert_eq!(got.len() + broker.dropped("Packet too large"), 61);
}

/// PRP-03, MQTT-3.2.2-19, -20, MQTT-3.4.2-2, MQTT-3.9.2-1: no answer is over the client's limit;
/// what can't be made small enough ends the connection.
#[test]
fn answers_fit_the_clients_limit() {
    let broker = Start::new().env("MQTT_SUBSCRIPTION_MAX_PER_CLIENT", 5).start();
    let small = |id: &str, limit| Connect::v5(id).with(prop::four(0x27, limit));
    let mut client = Client::open(&broker, Level::V5);
    client.send(&small("s", 20).bytes());
    match client.recv_within(Duration::from_secs(5)) {
        Some(Packet::Connack { code: 0, .. }) => {
            // It fits; then so does all that follows.
            client.publish("$x", "m", 1);
            client.subscribe("a/#/b", 0);
            client.send(&wire::subscribe(Level::V5, 9, &[], &[(b"t".as_slice(), 0); 40]));
            let closed = client.expect_close();
            let suback = |packet: &Packet| matches!(packet, Packet::Suback { .. });
            assert!(!closed.packets.iter().any(suback), "{closed:?}");
        }
        Some(other) => panic!("unexpected {other:?}"),
        None => {}
    }
    let mut client = Client::connect(&broker, &small("t", 100));
    client.send(&wire::publish(Level::V5, 6, "t", 1, &[], "QoS 3"));
    let closed = client.expect_close();
    assert!(closed.reason().is_some(), "{closed:?}");
}

/// PRP-04, section 3.2.2.3.6: a packet over our limit is refused on its length, before its body,
/// and costs no memory. CONNACK tells the limit.
#[test]
fn oversize_packets_are_refused_on_their_length() {
    let broker = Broker::start();
    let mut client = publisher(&broker);
    assert_eq!(client.connack.number(0x27), Some(65_536));
    client.publish("t", "x".repeat(65_000), 1);
    let before = broker.rss_kib();
    let mut dripping: Vec<Client> = (0..100)
        .map(|number| Client::connect(&broker, &Connect::v5(format!("drip {number}"))))
        .collect();
    for client in &mut dripping {
        client.send(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F]);
    }
    for client in &mut dripping {
        client.expect_refusal(&[0x95]);
    }
    // One byte below the limit is stored byte by byte; one above is refused at once.
    client.send(&[0x30, 0x81, 0x80, 0x04]);
    client.expect_refusal(&[0x95]);
    let mut old = Client::connect(&broker, &Connect::v311("old"));
    old.send(&[0x30, 0x81, 0x80, 0x04]);
    old.expect_refusal(&[]);
    for number in 0..20 {
        let mut fast = Client::connect(&broker, &Connect::v5(format!("fast {number}")));
        fast.send(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F]);
        while fast.try_send(&[0; 64 * 1024]) {}
    }
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 16 * 1024, "{grown} KiB");
}

/// PRP-05, MQTT-3.3.2-7, -8, -9, -12: aliases live as long as their connection and can be moved;
/// an unknown one is a protocol error, 0 and too large ones are 0x94. What is stored has the
/// topic.
#[test]
fn inbound_aliases_stand_for_their_topic() {
    let broker = Broker::start();
    let mut watcher = Client::connect(&broker, &Connect::v5("watcher"));
    watcher.subscribe("#", 1);
    let mut client = publisher(&broker);
    let most = client.connack.number(0x22).expect("an alias maximum") as u16;
    let alias = |number: u16| prop::two(0x23, number);
    for (topic, number, due) in [
        ("t", 1, "t"),
        ("", 1, "t"),
        ("u", 1, "u"),
        ("", 1, "u"),
        ("v", most, "v"),
        ("", most, "v"),
        ("", 1, "u"),
    ] {
        assert_eq!(client.publish_with(topic, "m", 3, &alias(number)), 0);
        assert_eq!(watcher.take().topic(), due);
    }
    let mut late = Client::connect(&broker, &Connect::v5("late"));
    late.subscribe("#", 1);
    let topics: Vec<String> = late.drain(QUIET).iter().map(|one| one.topic()).collect();
    assert_eq!(topics, ["t", "u", "v"], "the retained ones");
    client.disconnect();
    for (topic, number, code) in
        [("", 1, 0x82), ("", most, 0x82), ("t", 0, 0x94), ("t", most + 1, 0x94), ("", 0, 0x94)]
    {
        let mut client = publisher(&broker);
        client.send(&wire::publish(Level::V5, 0, topic, 0, &alias(number), "m"));
        client.expect_refusal(&[code]);
    }
    watcher.expect_silence(QUIET);
}

/// PRP-06, MQTT-3.1.2-26, -27, MQTT-3.3.2-11: no alias above what this connection allows, whatever
/// the one before allowed; and each stands for one topic.
#[test]
fn outbound_aliases_stay_within_the_clients_maximum() {
    let broker = Broker::start();
    let topics: Vec<String> = (0..10).map(|n| format!("{}/{n}", "long".repeat(20))).collect();
    let mut publisher = publisher(&broker);
    for most in [None, Some(0), Some(2), Some(500), Some(1)] {
        let connect = Connect::v5("s").persistent();
        let connect = match most {
            None => connect,
            Some(most) => connect.with(prop::two(0x22, most)),
        };
        let mut client = Client::connect(&broker, &connect);
        client.subscribe("#", 1);
        let mut known: Vec<Option<String>> = vec![None; 501];
        for round in 0..3 {
            for topic in &topics {
                publisher.publish(topic, topic, 1);
            }
            for topic in &topics {
                let got = client.take();
                assert_eq!(&got.payload(), topic);
                let alias = got.properties.number(0x23);
                assert!(alias.unwrap_or(0) <= most.unwrap_or(0).into(), "{alias:?} of {most:?}");
                let alias = alias.map(|alias| alias as usize);
                match (got.topic(), alias) {
                    (text, None) => assert_eq!(&text, topic),
                    (text, Some(alias)) if text.is_empty() => {
                        assert_eq!(known[alias].as_ref(), Some(topic));
                        assert!(round > 0);
                    }
                    (text, Some(alias)) => {
                        assert_eq!(&text, topic);
                        known[alias] = Some(text);
                    }
                }
            }
        }
        let used = known.iter().flatten().count();
        assert_eq!(used, usize::from(most.unwrap_or(0)).min(10), "{most:?}");
        client.ping();
        client.reset();
        // What waits in the queue goes out with the topic the next connection knows.
        publisher.publish(&topics[0], "queued", 1);
        let mut client = Client::connect(&broker, &connect);
        let got = client.take();
        assert_eq!((got.topic(), got.payload().as_str()), (topics[0].clone(), "queued"));
        client.disconnect();
    }
}

/// PRP-08, DEV-4, DEV-6, MQTT-3.3.2-5, -6: expired messages are not delivered, and each is counted
/// once; what is delivered carries the time that is left.
#[test]
fn expired_messages_are_counted() {
    let broker = Broker::start();
    let session = Connect::v5("s").persistent();
    let mut client = Client::connect(&broker, &session);
    client.subscribe("t", 2);
    let mut publisher = publisher(&broker);
    publisher.publish_with("t", "live", 2, &prop::four(2, 30));
    assert!([29, 30].contains(&client.take().properties.number(2).unwrap()));
    client.ping();
    client.reset();
    let start = Instant::now();
    for number in 0..10 {
        let expiry = if number % 2 == 0 { 1 } else { 30 };
        publisher.publish_with(
            "t",
            number.to_string(),
            2 + number % 3 % 2 * 2,
            &prop::four(2, expiry),
        );
    }
    publisher.publish("t", "for ever", 1);
    std::thread::sleep(Duration::from_millis(1300));
    let mut client = Client::connect(&broker, &session);
    for number in [1, 3, 5, 7, 9] {
        let got = client.take();
        assert_eq!(got.payload(), number.to_string());
        let due = 30 - start.elapsed().as_secs() as u32;
        let left = got.properties.number(2).expect("an expiry");
        assert!(left.abs_diff(due) <= 1 && left < 30, "{left} s left, not {due}");
    }
    let got = client.take();
    assert_eq!((got.payload().as_str(), got.properties.number(2)), ("for ever", None));
    client.expect_silence(QUIET);
    assert_eq!(broker.dropped("Message expired"), 5);
}

/// DEV-6: a message stays in a queue as long as the setting says; a publisher's own expiry goes
/// before it, in both directions.
#[test]
fn the_queue_has_a_time_to_live() {
    let broker =
        Start::new().env("MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_TTL", 1).start();
    let session = Connect::v5("s").persistent();
    let mut client = Client::connect(&broker, &session);
    client.subscribe("t", 1);
    client.disconnect();
    let mut publisher = publisher(&broker);
    publisher.publish("t", "by the setting", 1);
    publisher.publish_with("t", "by the publisher", 2, &prop::four(2, 60));
    std::thread::sleep(Duration::from_millis(1200));
    let mut client = Client::connect(&broker, &session);
    assert_eq!(client.take().payload(), "by the publisher");
    client.expect_silence(QUIET);
    assert_eq!(broker.dropped("Message expired"), 1);
}

/// Everything a PUBLISH may carry, with a key that comes twice.
fn rich() -> (Vec<u8>, Vec<(String, String)>) {
    let mut properties = wire::all(&[
        &prop::byte(0x01, 1),
        &prop::text(0x08, "answer/here"),
        &prop::text(0x09, [0, 1, 255]),
        &prop::text(0x03, "text/plain; x=\u{fc}"),
    ]);
    let mut pairs = Vec::new();
    for number in 0..300 {
        let pair = (format!("key {}", number % 7), format!("value {number}"));
        properties.extend(prop::user(&pair.0, &pair.1));
        pairs.push(pair);
    }
    (properties, pairs)
}

/// PRP-09, RET-08, MQTT-3.3.2-4, -15, -16, -17, -18, -20, MQTT-3.1.3-10: properties arrive
/// unaltered and in order, live, from the queue, shared, retained, after a restart and in a Will;
/// the older levels get none.
#[test]
fn properties_arrive_unaltered_on_every_path() {
    let mut broker = Broker::start();
    let (properties, pairs) = rich();
    let check = |client: &mut Client| {
        let got = client.take();
        assert_eq!(got.payload(), "m");
        assert_eq!(got.properties.number(0x01), Some(1));
        assert_eq!(got.properties.bytes(0x08), Some(b"answer/here".as_slice()));
        assert_eq!(got.properties.bytes(0x09), Some([0, 1, 255].as_slice()));
        assert_eq!(got.properties.bytes(0x03), Some("text/plain; x=\u{fc}".as_bytes()));
        assert_eq!(got.properties.user(), pairs);
    };
    let connect = |broker: &Broker, id: &str| {
        let mut client = Client::connect(broker, &Connect::v5(id).persistent());
        client.subscribe("t", 1);
        client
    };
    let mut live = connect(&broker, "live");
    connect(&broker, "queued").disconnect();
    connect(&broker, "restarted").disconnect();
    let mut member = Client::connect(&broker, &Connect::v5("member"));
    member.subscribe("$share/g/t", 1);
    let mut old = Client::connect(&broker, &Connect::v311("old"));
    old.subscribe("t", 1);
    let mut publisher = publisher(&broker);
    assert_eq!(publisher.publish_with("t", "m", 3, &properties), 0);
    check(&mut live);
    check(&mut member);
    assert_eq!(old.take().payload(), "m");
    check(&mut Client::connect(&broker, &Connect::v5("queued").persistent()));
    check(&mut connect(&broker, "late"));
    let will = Will::new("t", "m").qos(1).with(properties.clone());
    Client::connect(&broker, &Connect::v5("will").will(will)).reset();
    check(&mut live);
    broker.kill_and_restart();
    let mut restarted = Client::connect(&broker, &Connect::v5("restarted").persistent());
    check(&mut restarted);
    check(&mut restarted);
    let mut late = Client::connect(&broker, &Connect::v5("later"));
    late.subscribe("t", 1);
    check(&mut late);
}

/// PRP-10, MQTT-3.1.2-29: a client that wants no problem information gets none but in CONNACK and
/// DISCONNECT.
#[test]
fn no_problem_information_is_sent_unasked() {
    let broker = Start::new().env("MQTT_SUBSCRIPTION_MAX_PER_CLIENT", 1).start();
    let mut client = Client::connect(&broker, &Connect::v5("s").with(prop::byte(0x17, 0)));
    client.send(&wire::publish(Level::V5, 2, "$x", 1, &[], "refused"));
    client.send(&wire::publish(Level::V5, 4, "$x", 2, &[], "refused"));
    client.send(&wire::subscribe(Level::V5, 3, &[], &[(b"a", 0), (b"b", 0), (b"#/c", 0)]));
    client.send(&wire::unsubscribe(Level::V5, 4, &[b"none"]));
    client.send(&wire::ack(6, 77));
    for _ in 0..5 {
        let properties = match client.recv() {
            Packet::Ack { properties, code, .. } if code >= 0x80 => properties,
            Packet::Suback { properties, codes, .. } => {
                assert_eq!(codes, [0, 0x97, 0x8F]);
                properties
            }
            Packet::Unsuback { properties, .. } => properties,
            other => panic!("unexpected {other:?}"),
        };
        assert!(properties.0.is_empty(), "{properties:?}");
    }
}
