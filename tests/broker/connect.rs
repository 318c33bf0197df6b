//! CONNECT: who is let in, who is not, and with which answer (CON).

use std::time::Duration;

use crate::support::{Broker, Client, Connect, Level, Packet, Start, Will, hex, prop, wire};

const MALFORMED: [u8; 2] = [0x81, 0x82];

/// Sends a CONNECT that must not be let in.
#[track_caller]
fn refused(broker: &Broker, level: Level, bytes: &[u8], codes: &[u8]) {
    let mut client = Client::open(broker, level);
    client.send(bytes);
    client.expect_connect_refused(codes);
}

/// CON-01, MQTT-3.1.3-8 (3.1.1): no id and clean session 0 is refused with code 2.
#[test]
fn an_empty_id_needs_a_clean_session_before_level_5() {
    let broker = Broker::start();
    let mut client = Client::open(&broker, Level::V311);
    client.send(&Connect::v311("").resume().bytes());
    client.expect_bytes_then_close(&hex("20020002"));
    let mut client = Client::open(&broker, Level::V31);
    client.send(&Connect::new(Level::V31, "").bytes());
    client.expect_bytes_then_close(&hex("20020002"));
    Client::connect(&broker, &Connect::v311("")).ping();
}

/// CON-01, MQTT-3.1.3-6, MQTT-3.2.2-16: on level 5 the broker chooses an id and says so.
#[test]
fn an_empty_id_gets_one_of_its_own_on_level_5() {
    let broker = Broker::start();
    let mut ids = Vec::new();
    for connect in [Connect::v5(""), Connect::v5(""), Connect::v5("").resume().expiry(300)] {
        let client = Client::connect(&broker, &connect);
        let id = client.connack.bytes(0x12).expect("Assigned Client Identifier").to_vec();
        assert!(!id.is_empty() && !ids.contains(&id), "{id:?} after {ids:?}");
        ids.push(id);
    }
    let mut again = Client::connect(&broker, &Connect::v5(&ids[2]).persistent());
    assert!(again.session_present, "the assigned id names the session");
    assert_eq!(again.connack.bytes(0x12), None, "it was not assigned this time");
    again.ping();
}

/// CON-03, MQTT-3.1.3-5: ids up to 256 bytes are taken on every level; the longest are taken or
/// refused, never cut.
#[test]
fn ids_of_every_length_are_taken_whole_or_refused() {
    let broker = Start::new().env("TCP_NETTY_MAX_PAYLOAD_SIZE", 200_000).start();
    for level in Level::ALL {
        for length in [1, 23, 24, 256] {
            let id = "i".repeat(length);
            Client::connect(&broker, &Connect::new(level, &id)).disconnect();
        }
        let mut client = Client::open(&broker, level);
        client.send(&Connect::new(level, "i".repeat(65_535)).bytes());
        match client.recv() {
            Packet::Connack { code: 0, .. } => client.ping(),
            Packet::Connack { code, .. } => {
                let due: &[u8] = if level.is_v5() { &[0x85, 0x95] } else { &[2] };
                assert!(due.contains(&code), "{level:?}: {code:#x}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// CON-03: two ids that differ only after 23 bytes are two clients.
#[test]
fn ids_equal_in_their_first_23_bytes_are_two_clients() {
    let broker = Broker::start();
    for level in Level::ALL {
        let id = |end: &str| format!("{}{end}", "p".repeat(23));
        let mut one = Client::connect(&broker, &Connect::new(level, id("one")));
        let mut two = Client::connect(&broker, &Connect::new(level, id("two")));
        one.subscribe("to/one", 1);
        two.subscribe("to/two", 1);
        one.publish("to/two", "2", 1);
        two.publish("to/one", "1", 1);
        assert_eq!((one.take().payload(), two.take().payload()), ("1".into(), "2".into()));
        one.ping();
        two.ping();
    }
}

/// CON-04, MQTT-3.1.2-22 (3.1.1): a password without a user name ends a level 4 connection; on
/// level 5 it goes to authentication.
#[test]
fn a_password_without_a_user_name_needs_level_5() {
    let broker = Broker::start();
    let connect = Connect::v311("c").password("p");
    assert_eq!(connect.flags(), 0x42);
    let mut client = Client::open(&broker, Level::V311);
    client.send(&connect.bytes());
    client.expect_bytes_then_close(&[]);
    Client::connect(&broker, &Connect::v5("c").password("p")).ping();
}

/// CON-05, MQTT-3.1.2-16, -18, MQTT-3.1.4-1: fields without their flag, and surplus bytes, are
/// malformed.
#[test]
fn surplus_bytes_are_malformed() {
    let broker = Broker::start();
    for level in Level::ALL {
        let plain = Connect::new(level, "surplus");
        let with_user = plain.clone().user("u");
        let with_both = plain.clone().user("u").password("p");
        refused(&broker, level, &with_user.bytes_with(plain.flags(), &[]), &MALFORMED);
        refused(&broker, level, &with_both.bytes_with(plain.flags(), &[]), &MALFORMED);
        refused(&broker, level, &with_both.bytes_with(with_user.flags(), &[]), &MALFORMED);
        for surplus in 1..=10 {
            let bytes = plain.bytes_with(plain.flags(), &vec![0; surplus]);
            refused(&broker, level, &bytes, &MALFORMED);
        }
    }
}

/// CON-07, MQTT-3.1.0-1: a first packet that is not CONNECT is closed without a word, at the byte
/// that proves it.
#[test]
fn a_first_packet_that_is_not_connect_gets_no_answer() {
    let broker = Broker::start();
    let first = [
        "c000",
        "40020001",
        "62020001",
        "30ffffff7f0102",
        "82080001000161 00",
        "e000",
        "d000",
        "20020000",
        "00",
        "f0",
        "30",
        "c0",
    ];
    for bytes in first {
        let mut client = Client::open(&broker, Level::V311);
        client.send_hex(bytes);
        client.expect_bytes_then_close(&[]);
    }
}

/// CON-07: the length that a stranger announces allocates nothing.
#[test]
fn an_announced_length_allocates_nothing() {
    let broker = Broker::start();
    Client::connect(&broker, &Connect::v311("before")).ping();
    let before = broker.rss_kib();
    let hold = |digits: &'static str| {
        let mut client = Client::open(&broker, Level::V311);
        client.send_hex(digits);
        client
    };
    // The first kind is no CONNECT and closed; the second is one, of almost 64 KiB, never sent.
    let mut closed: Vec<Client> = (0..200).map(|_| hold("30ffffff7f0102030405")).collect();
    let _held: Vec<Client> = (0..200).map(|_| hold("10f0ff03 0004 4d515454 04")).collect();
    closed.iter_mut().for_each(|client| client.expect_bytes_then_close(&[]));
    Client::connect(&broker, &Connect::v311("after")).ping();
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 8 * 1024, "400 strangers cost {grown} KiB");
}

/// CON-08, MQTT-3.1.0-2: a second CONNECT is a protocol error; the session it names is not touched
/// and the Will is published.
#[test]
fn a_second_connect_is_a_protocol_error() {
    let broker = Broker::start();
    let mut watcher = Client::connect(&broker, &Connect::v311("watcher"));
    watcher.subscribe("will/#", 1);
    for level in Level::ALL {
        for second in ["first", "second"] {
            let will = Will::new("will/first", "gone").qos(1);
            let mut client = Client::connect(&broker, &Connect::new(level, "first").will(will));
            client.send(&Connect::new(level, second).persistent().bytes());
            client.expect_refusal(&[0x82]);
            assert_eq!(watcher.take().payload(), "gone");
        }
        let again = Client::connect(&broker, &Connect::new(level, "second").resume());
        assert!(!again.session_present, "{level:?}: the second CONNECT made a session");
        again.disconnect();
        // On the older levels a clean session 0 has just been left behind.
        Client::connect(&broker, &Connect::new(level, "second")).disconnect();
    }
}

/// CON-08: and a live client whose id it names keeps its connection.
#[test]
fn a_second_connect_does_not_take_over() {
    let broker = Broker::start();
    let mut other = Client::connect(&broker, &Connect::v5("other"));
    let mut client = Client::connect(&broker, &Connect::v5("client"));
    client.send(&Connect::v5("other").bytes());
    client.expect_refusal(&[0x82]);
    other.ping();
    other.expect_silence(Duration::from_millis(100));
}

/// CON-09, MQTT-4.13.1-1: properties that are doubled, out of range, out of place or cut.
#[test]
fn bad_connect_properties_are_refused() {
    let broker = Broker::start();
    let max = prop::four(0x27, 1000);
    let bad = [
        wire::all(&[&max, &max]),
        prop::receive_maximum(0),
        prop::four(0x27, 0),
        prop::byte(0x17, 2),
        prop::byte(0x19, 2),
        prop::subscription_id(1),
        prop::two(0x23, 1),
        prop::text(0x12, "id"),
        hex("26 0001 61 0009 62"),
        hex("26 0001 61"),
        hex("7f 00"),
        prop::text(0x16, "data without a method"),
    ];
    for property in bad {
        let connect = Connect::v5("bad").with(property.clone());
        let mut client = Client::open(&broker, Level::V5);
        client.send(&connect.bytes());
        client.expect_connect_refused(&MALFORMED);
    }
}

/// CON-09: a User Property may repeat, and keeps its order.
#[test]
fn user_properties_repeat_in_order() {
    let broker = Broker::start();
    let twice = |connect: Connect| connect.with(prop::user("k", "1")).with(prop::user("k", "2"));
    let mut client = Client::connect(&broker, &twice(Connect::v5("user")));
    client.subscribe("t", 1);
    let pairs = [("b", "1"), ("a", "2"), ("b", "3"), ("", "")];
    let properties: Vec<u8> = pairs.iter().flat_map(|(k, v)| prop::user(k, v)).collect();
    client.publish_with("t", "m", 2, &properties);
    let expected: Vec<(String, String)> =
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    assert_eq!(client.take().properties.user(), expected);
}

/// CON-11, MQTT-3.2.2-12, -13: there is no switch that takes retain or a QoS away, so CONNACK
/// announces neither and a retained QoS 2 Will is let in.
#[test]
fn nothing_is_announced_as_missing_and_a_retained_qos_2_will_is_taken() {
    let broker = Broker::start();
    let will = Will::new("will", "w").qos(2).retain();
    let mut client = Client::connect(&broker, &Connect::v5("full").will(will));
    for absent in [0x24, 0x25, 0x28, 0x29, 0x2A] {
        assert_ne!(client.connack.number(absent), Some(0), "property {absent:#x}");
    }
    assert_eq!(client.connack.number(0x24), None, "Maximum QoS is absent when it is 2");
    client.subscribe("t", 2);
    assert!(client.retain("t", "r") < 0x80);
    assert_eq!(client.take().payload(), "r");
}

/// CON-12, MQTT-3.1.3-12: empty and binary credentials are legal; a user name that is not UTF-8
/// is not; and nothing of a password reaches the log.
#[test]
fn credentials_may_be_empty_or_binary_and_stay_secret() {
    let broker =
        Start::new().env("RUST_LOG", "trace").env("TCP_NETTY_MAX_PAYLOAD_SIZE", 200_000).start();
    for level in Level::ALL {
        let connect =
            |user: &str, password: &[u8]| Connect::new(level, "cred").user(user).password(password);
        let secret = b"tell-nobody-42";
        for (user, password) in [
            ("", &b""[..]),
            ("u", b""),
            ("u", &[0x00, 0xFF, 0xFE, 0x0D, 0x0A]),
            ("u", secret),
            ("caf\u{e9}", b"nfc"),
            ("cafe\u{301}", b"nfd"),
            ("u", &[0xFF; 65_535]),
        ] {
            Client::connect(&broker, &connect(user, password)).disconnect();
        }
        for user in ["ff fe", "c0 80", "00"] {
            let bytes = Connect::new(level, "cred").user(hex(user)).bytes();
            refused(&broker, level, &bytes, &[0x81, 0x82, 0x86]);
        }
    }
    let log = broker.log();
    assert!(!log.contains("tell-nobody-42"), "the log shows a password");
    let as_numbers = format!("{:?}", b"tell-nobody-42").replace(['[', ']'], "");
    assert!(!log.contains(&as_numbers), "the log shows a password as numbers");
}

/// CON-13, section 3.14 (3.1.1): the older levels get no DISCONNECT from a server, whatever ends
/// the connection.
#[test]
fn the_older_levels_are_closed_without_a_word() {
    for level in [Level::V31, Level::V311] {
        let mut broker = Broker::start();
        let mut taken = Client::connect(&broker, &Connect::new(level, "taken"));
        let _newer = Client::connect(&broker, &Connect::new(level, "taken"));
        taken.expect_bytes_then_close(&[]);

        let mut silent = Client::connect(&broker, &Connect::new(level, "silent").keep_alive(1));
        silent.expect_bytes_then_close(&[]);

        let mut wrong = Client::connect(&broker, &Connect::new(level, "wrong"));
        wrong.send_hex("20020000");
        wrong.expect_bytes_then_close(&[]);

        let mut open = Client::connect(&broker, &Connect::new(level, "open"));
        broker.stop();
        open.expect_bytes_then_close(&[]);
    }
}

/// CON-13's other half: at a stop a level 5 client is told 0x8B.
#[test]
fn level_5_is_told_of_a_shutdown() {
    let mut broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::v5("told"));
    broker.stop();
    client.expect_refusal(&[0x8B]);
}
