//! SUBSCRIBE and UNSUBSCRIBE (SUB): one answer each, one copy each, and exactly the pair that was
//! named.

use std::time::Duration;

use crate::support::{
    AckKind, Broker, Client, Connect, Level, Packet, Random, hex, matches, prop, wire,
};

const MALFORMED: [u8; 2] = [0x81, 0x82];
const PATIENCE: Duration = Duration::from_secs(15);
const QUIET: Duration = Duration::from_millis(100);

/// SUB-02, MQTT-3.8.4-3, -4, -8: a second SUBSCRIBE to a filter replaces the first.
#[test]
fn a_second_subscribe_replaces_the_first() {
    let broker = Broker::start();
    for level in Level::ALL {
        let mut client = Client::connect(&broker, &Connect::new(level, "c"));
        assert_eq!(client.subscribe("t", 2), 2);
        assert_eq!(client.subscribe("t", 0), 0);
        client.publish("t", "once", 2);
        let got = client.take();
        assert_eq!((got.payload().as_str(), got.qos), ("once", 0));
        client.ping();
        client.expect_silence(QUIET);
    }
}

/// SUB-02: the flow has no gap while the QoS changes back and forth.
#[test]
fn changing_the_qos_leaves_no_gap() {
    const MESSAGES: usize = 300;
    let broker = Broker::start();
    let mut subscriber = Client::connect(&broker, &Connect::v5("subscriber"));
    subscriber.subscribe("t", 2);
    let connect = Connect::v5("publisher");
    let mut publisher = Client::connect(&broker, &connect);
    let sending = std::thread::spawn(move || {
        for number in 0..MESSAGES {
            publisher.publish("t", number.to_string(), 1);
        }
        publisher.disconnect();
    });
    let mut numbers = Vec::new();
    while numbers.len() < MESSAGES {
        numbers.push(subscriber.take().payload().parse::<usize>().unwrap());
        if numbers.len().is_multiple_of(20) {
            let options = (numbers.len() / 20 % 2) as u8;
            subscriber.subscribe("t", options);
        }
    }
    sending.join().unwrap();
    assert_eq!(numbers, (0..MESSAGES).collect::<Vec<_>>());
    subscriber.ping();
    subscriber.expect_silence(QUIET);
}

/// SUB-03, MQTT-3.8.4-3: a second SUBSCRIBE replaces the identifier, also by none, also after a
/// restart.
#[test]
fn a_second_subscribe_replaces_the_identifier() {
    let mut broker = Broker::start();
    let persistent = Connect::v5("c").persistent();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let mut client = Client::connect(&broker, &persistent);
    for (id, expected) in [(Some(5), vec![5]), (None, vec![]), (Some(6), vec![6])] {
        let properties = id.map_or(Vec::new(), prop::subscription_id);
        client.subscribe_with(&[(b"t", 1)], &properties);
        publisher.publish("t", "before", 1);
        assert_eq!(client.take().properties.subscription_ids(), expected);
    }
    client.disconnect();
    publisher.publish("t", "queued", 1);
    broker.kill_and_restart();
    let mut client = Client::connect(&broker, &persistent);
    let mut queued = client.take();
    while queued.payload() == "before" {
        assert!(queued.dup, "an acknowledgement that the kill undid is a resend");
        queued = client.take();
    }
    let ids = queued.properties.subscription_ids();
    assert_eq!((queued.payload().as_str(), ids), ("queued", vec![6]));
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    for (payload, expected) in [("kept", vec![6]), ("taken back", vec![])] {
        publisher.publish("t", payload, 1);
        let got = client.take();
        assert_eq!(
            (got.payload().as_str(), got.properties.subscription_ids()),
            (payload, expected)
        );
        client.subscribe("t", 1);
    }
}

/// SUB-05, MQTT-3.8.3-3: No Local suppresses what the same client id published, live, in the queue
/// and after a resume, until the option is taken back.
#[test]
fn no_local_is_judged_by_client_id() {
    const NO_LOCAL: u8 = 4 | 1;
    let broker = Broker::start();
    let persistent = Connect::v5("c").persistent();
    let mut other = Client::connect(&broker, &Connect::v5("other"));
    let mut client = Client::connect(&broker, &persistent);
    client.subscribe("t", NO_LOCAL);
    for round in ["first", "resumed"] {
        client.publish("t", "own", 1);
        other.publish("t", round, 1);
        assert_eq!(client.take().payload(), round);
        // Own messages that would go through the queue: published and gone before they come back.
        client.publish("t", "own, queued", 1);
        client.disconnect();
        other.publish("t", "away", 1);
        client = Client::connect(&broker, &persistent);
        assert!(client.session_present);
        assert_eq!(client.take().payload(), "away");
    }
    client.ping();
    client.expect_silence(QUIET);
    client.subscribe("t", 1);
    client.publish("t", "own again", 1);
    assert_eq!(client.take().payload(), "own again");
}

/// SUB-06, MQTT-3.8.4-1, -6: every SUBSCRIBE and UNSUBSCRIBE has one answer with one code for each
/// filter, in order, however many there are and however often one is repeated.
#[test]
fn there_is_one_code_for_each_filter() {
    let broker = Broker::start();
    for level in Level::ALL {
        let mut client = Client::connect(&broker, &Connect::new(level, "c"));
        let names: Vec<String> = (0..500).map(|n| format!("f/{}", n % 400)).collect();
        let filters: Vec<(&[u8], u8)> =
            names.iter().enumerate().map(|(n, name)| (name.as_bytes(), (n % 3) as u8)).collect();
        let codes = client.subscribe_with(&filters, &[]);
        let due: Vec<u8> = filters.iter().map(|(_, options)| *options).collect();
        assert_eq!(codes, due);
        let names: Vec<&[u8]> = filters.iter().map(|(name, _)| *name).collect();
        let codes = client.unsubscribe(&names);
        if level.is_v5() {
            let due: Vec<u8> = (0..500).map(|n| if n < 400 { 0 } else { 0x11 }).collect();
            assert_eq!(codes, due);
        }
        client.publish("f/1", "m", 1);
        client.ping();
        client.expect_silence(QUIET);
    }
}

/// SUB-07, MQTT-3.8.4-5, MQTT-3.9.3-1: one bad filter is answered in its place, or ends the
/// connection as a whole; it never shifts the codes, and never half-subscribes.
#[test]
fn one_bad_filter_does_not_shift_the_codes() {
    let broker = Broker::start();
    let bad: [&[u8]; 6] = [b"bad#x", b"a/#/b", b"+a", b"", b"$share/g", b"$share//a"];
    for level in [Level::V311, Level::V5] {
        for bad in bad {
            let mut client = Client::connect(&broker, &Connect::new(level, "c"));
            client.send(&wire::subscribe(level, 9, &[], &[(b"ok1", 1), (bad, 1), (b"ok2", 2)]));
            match client.recv_within(PATIENCE) {
                Some(Packet::Suback { codes, .. }) => {
                    let refused = if level.is_v5() { 0x8F } else { 0x80 };
                    assert_eq!(codes, [1, refused, 2], "{bad:?}");
                    client.publish("ok1", "1", 1);
                    client.publish("ok2", "2", 1);
                    assert_eq!([client.take().payload(), client.take().payload()], ["1", "2"]);
                }
                Some(Packet::Disconnect { code, .. }) => {
                    assert!([0x81, 0x82, 0x8F].contains(&code), "{code:#x}");
                }
                None if !level.is_v5() => assert!(client.expect_close().packets.is_empty()),
                other => panic!("{bad:?}: {other:?}"),
            }
        }
    }
}

/// SUB-08, MQTT-3.10.4-1: UNSUBSCRIBE removes one pair of client and filter, compared exactly.
#[test]
fn unsubscribe_removes_exactly_one_pair() {
    let broker = Broker::start();
    let mut clients: Vec<Client> =
        (0..4).map(|n| Client::connect(&broker, &Connect::v5(format!("c{n}")))).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.subscribe("t/0", 1), 1));
    clients[3].subscribe("t/1", 1);
    clients[1].subscribe("t/+", 1);
    assert_eq!(clients[1].unsubscribe(&[b"t/0", b"T/0", b"t/#"]), [0, 0x11, 0x11]);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    publisher.publish("t/0", "0", 1);
    publisher.publish("t/1", "1", 1);
    for (number, due) in [(0, vec!["0"]), (1, vec!["0", "1"]), (2, vec!["0"]), (3, vec!["0", "1"])]
    {
        let client = &mut clients[number];
        let got: Vec<String> = due.iter().map(|_| client.take().payload()).collect();
        assert_eq!(got, due, "client {number}");
        client.ping();
        client.expect_silence(Duration::from_millis(20));
    }
}

/// SUB-08: many clients subscribe and unsubscribe at random; deliveries equal the model's.
#[test]
fn random_subscriptions_equal_the_model() {
    const CLIENTS: usize = 12;
    let topics = ["a", "b", "a/b", "a/c", "a/b/c", "b/c", "b/b/c"];
    let mut filters: Vec<String> = topics.iter().map(|topic| (*topic).to_owned()).collect();
    filters.extend(["#", "+", "a/#", "+/b", "a/+/c", "+/+", "b/#", "+/b/#"].map(str::to_owned));
    let broker = Broker::start();
    let mut random = Random::seeded(8);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let mut clients: Vec<(Client, Vec<String>)> = (0..CLIENTS)
        .map(|n| (Client::connect(&broker, &Connect::v5(format!("c{n}"))), Vec::new()))
        .collect();
    for round in 0..40 {
        for (client, model) in &mut clients {
            let filter = random.pick(&filters).clone();
            let known = model.iter().position(|other| *other == filter);
            match (random.below(2), known) {
                (0, _) => {
                    client.subscribe(&filter, 1);
                    model.extend(known.is_none().then_some(filter));
                }
                (_, Some(at)) => {
                    assert_eq!(client.unsubscribe(&[filter.as_bytes()]), [0]);
                    model.remove(at);
                }
                (_, None) => assert_eq!(client.unsubscribe(&[filter.as_bytes()]), [0x11]),
            }
        }
        let topic = *random.pick(&topics);
        publisher.publish(topic, format!("{round}"), 1);
        for (number, (client, model)) in clients.iter_mut().enumerate() {
            if model.iter().any(|filter| matches(filter, topic)) {
                let got = client.take();
                assert_eq!(got.payload(), format!("{round}"), "c{number} with {model:?}");
            }
        }
    }
    for (client, _) in &mut clients {
        client.ping();
        client.expect_silence(Duration::from_millis(5));
    }
}

/// SUB-09, MQTT-3.10.4-2, -3: what was started for a filter may finish; what is queued for it does
/// not stand in the way of others.
#[test]
fn an_unsubscribed_filter_does_not_block_the_queue() {
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    for connect in [Connect::v5("clean"), Connect::v5("persistent").persistent()] {
        let mut client = Client::connect(&broker, &connect.with(prop::receive_maximum(1)));
        client.subscribe_with(&[(b"foo", 1), (b"bar", 1)], &[]);
        for number in 0..6 {
            publisher.publish("foo", format!("foo {number}"), 1);
        }
        let started = client.expect_publish();
        assert_eq!(started.payload(), "foo 0");
        assert_eq!(client.unsubscribe(&[b"foo"]), [0x00]);
        assert_eq!(client.unsubscribe(&[b"foo"]), [0x11]);
        publisher.publish("bar", "bar", 1);
        client.send(&wire::ack(4, started.id));
        let mut last = client.take();
        let mut between = 0;
        while last.payload() != "bar" {
            assert_eq!(last.topic(), "foo");
            between += 1;
            last = client.take();
        }
        assert!(between <= 5, "{between} messages before bar");
    }
}

/// SUB-10, MQTT-2.2.1-3: packet identifier 0 is malformed.
#[test]
fn packet_identifier_0_is_malformed() {
    let broker = Broker::start();
    for level in Level::ALL {
        for packet in [
            wire::subscribe(level, 0, &[], &[(b"t", 0)]),
            wire::unsubscribe(level, 0, &[b"t"]),
            wire::publish(level, 2, "t", 0, &[], "m"),
            wire::publish(level, 4, "t", 0, &[], "m"),
            wire::ack(4, 0),
            wire::ack(5, 0),
            wire::ack(6, 0),
            wire::ack(7, 0),
        ] {
            let mut client = Client::connect(&broker, &Connect::new(level, "zero"));
            client.send(&packet);
            client.expect_refusal(&MALFORMED);
        }
    }
}

/// SUB-11, MQTT-3.8.1-1, MQTT-3.8.3-2, -5, MQTT-3.10.1-1, MQTT-3.10.3-2: wrong header bits, empty
/// payloads and reserved options end the connection.
#[test]
fn loose_subscribe_packets_end_the_connection() {
    let broker = Broker::start();
    let ends = |level: Level, bytes: &[u8]| {
        let mut client = Client::connect(&broker, &Connect::new(level, "loose"));
        client.send(bytes);
        client.expect_refusal(&MALFORMED);
    };
    for level in Level::ALL {
        let good = wire::subscribe(level, 7, &[], &[(b"t", 0)]);
        let goodbye = wire::unsubscribe(level, 7, &[b"t"]);
        // On level 3 a client may set DUP there, and some do.
        let flags: &[u8] = if level == Level::V31 { &[1, 3] } else { &[0, 1, 3, 0xA, 0xF] };
        for bits in flags {
            let with = |packet: &[u8]| wire::all(&[&[packet[0] & 0xF0 | bits], &packet[1..]]);
            ends(level, &with(&good));
            ends(level, &with(&goodbye));
        }
        ends(level, &wire::subscribe(level, 7, &[], &[]));
        ends(level, &wire::unsubscribe(level, 7, &[]));
        ends(
            level,
            &good[..good.len() - 1].iter().copied().enumerate().map(shorten).collect::<Vec<_>>(),
        );
        for options in [0x03, 0x40, 0x80, 0xC0, 0x30] {
            ends(level, &wire::subscribe(level, 7, &[], &[(b"t", options)]));
        }
        if !level.is_v5() {
            for options in [0x04, 0x08, 0x10, 0x20] {
                ends(level, &wire::subscribe(level, 7, &[], &[(b"t", options)]));
            }
        }
    }
    ends(Level::V5, &wire::subscribe(Level::V5, 7, &[], &[(b"$share/g/t", 0x04)]));
    ends(Level::V5, &hex("820b 0007 04 0b01 0b02 0001 61 00"));
}

/// Takes one from the Remaining Length, so that a packet lacks its last byte.
fn shorten((index, byte): (usize, u8)) -> u8 {
    if index == 1 { byte - 1 } else { byte }
}

/// SUB-06: a SUBACK goes to who asked, with the identifier that was used, whatever else is under
/// way on the same connection.
#[test]
fn a_suback_carries_the_identifier_of_its_subscribe() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::v5("c"));
    let mut bytes = Vec::new();
    for id in [65_535, 1, 300] {
        bytes.extend(wire::publish(Level::V5, 2, "x", id, &[], "m"));
        bytes.extend(wire::subscribe(Level::V5, id, &[], &[(b"t", 1)]));
    }
    client.send(&bytes);
    for id in [65_535, 1, 300] {
        assert!(client.acknowledged(AckKind::Puback, id) < 0x80);
        let wanted =
            |packet: &Packet| matches!(packet, Packet::Suback { id: other, .. } if *other == id);
        client.wait_for(wanted);
    }
}
