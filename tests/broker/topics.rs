//! Topic names and filters (TOP): bytes are compared as they are, level by level.

use std::time::Duration;

use crate::support::{Broker, Client, Connect, Level, Start, Will, hex, matches, prop, wire};

const MALFORMED: [u8; 3] = [0x81, 0x82, 0x90];

/// Subscribes to every filter under an identifier of its own, publishes every topic, and compares
/// the identifiers that come back with the reference matcher; then the same with retained ones.
fn assert_matrix(filters: &[&str], topics: &[&str]) {
    let broker = Broker::start();
    let mut live = Client::connect(&broker, &Connect::v5("live"));
    for (index, filter) in filters.iter().enumerate() {
        let codes =
            live.subscribe_with(&[(filter.as_bytes(), 0)], &prop::subscription_id(index + 1));
        assert_eq!(codes, [0], "{filter}");
    }
    live.subscribe("end", 0);
    let mut publisher = Client::connect(&broker, &Connect::v311("publisher"));
    for topic in topics {
        publisher.retain(topic, topic);
        let due: Vec<u32> =
            (1..).zip(filters).filter(|(_, f)| matches(f, topic)).map(|(n, _)| n).collect();
        if !due.is_empty() {
            let got = live.take();
            assert_eq!((got.topic().as_str(), got.properties.subscription_ids()), (*topic, due));
        }
    }
    publisher.publish("end", "", 1);
    let end = live.take();
    let only_wildcards = end.properties.subscription_ids();
    assert_eq!(end.topic(), "end", "a copy too many; identifiers {only_wildcards:?}");

    for filter in filters {
        let mut late = Client::connect(&broker, &Connect::v5("late"));
        late.subscribe(filter, 1);
        let mut due: Vec<&str> = topics.iter().copied().filter(|t| matches(filter, t)).collect();
        let mut got: Vec<String> = due.iter().map(|_| late.take().topic()).collect();
        due.sort_unstable();
        got.sort_unstable();
        assert_eq!(got, due, "retained messages for {filter}");
        late.ping();
        late.expect_silence(Duration::from_millis(20));
    }
}

/// TOP-01, MQTT-4.7.2-1: a wildcard at the start doesn't match a topic that begins with `$`: live,
/// retained or shared.
#[test]
fn leading_wildcards_do_not_match_dollar_topics() {
    let broker = Broker::start();
    let mut wild = Client::connect(&broker, &Connect::v5("wild"));
    let filters: [&[u8]; 6] = [b"#", b"+/#", b"+/x", b"+/+", b"$share/g/#", b"$share/g/+/x"];
    for filter in filters {
        assert_eq!(wild.subscribe(filter, 1), 1);
    }
    let mut named = Client::connect(&broker, &Connect::v5("named"));
    assert_eq!(
        named.subscribe_with(&[(b"$SYS/#", 1), (b"$foo/#", 1), (b"$foo/x", 1)], &[]),
        [1; 3]
    );
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let code = publisher.retain("$foo/x", "dollar");
    if code < 0x80 {
        assert_eq!(named.take().topic(), "$foo/x", "what was taken reaches those who name it");
    }
    publisher.publish("plain", "plain", 1);
    assert_eq!(wild.take().topic(), "plain");
    let mut late = Client::connect(&broker, &Connect::v311("late"));
    for filter in filters {
        late.subscribe(filter, 1);
    }
    late.ping();
    late.expect_silence(Duration::from_millis(100));
}

/// TOP-02, section 4.7.1.2: `#` includes its parent level.
#[test]
fn a_multi_level_wildcard_includes_its_parent() {
    assert_matrix(
        &["a/b/#", "+/#", "/#", "a/#", "#", "a/+/#", "+/+/#"],
        &["a/b", "a", "/", "/x", "a/b/c", "b", "a/", "a/b/c/d", "ab"],
    );
}

/// TOP-03, MQTT-4.7.1-2, MQTT-4.7.3-4: an empty level is a level.
#[test]
fn empty_levels_are_levels() {
    assert_matrix(
        &["+", "+/+", "/+", "a/+/b", "a/+", "a//b", "+/", "//", "+/+/+", "/", "a/", "//+", "+//"],
        &["a", "/a", "a//b", "a/", "//", "/", "a/b", "a/x/b", "///", "A", "b//a"],
    );
}

/// TOP-05, MQTT-3.3.2-2, MQTT-3.3.2-14: a topic name has no wildcard; `*` is no wildcard.
#[test]
fn wildcards_are_refused_in_topic_names() {
    let broker = Broker::start();
    let mut everything = Client::connect(&broker, &Connect::v5("everything"));
    everything.subscribe("#", 1);
    for level in Level::ALL {
        for topic in ["a/+/b", "a/#", "+", "#", "a+", "a/b#"] {
            let mut client = Client::connect(&broker, &Connect::new(level, "c"));
            client.send(&wire::publish(level, 2, topic, 7, &[], "m"));
            client.expect_refusal(&MALFORMED);
        }
        let mut client = Client::open(&broker, level);
        client.send(&Connect::new(level, "c").will(Will::new("a/#", "w")).bytes());
        client.expect_connect_refused(&MALFORMED);
        let mut client = Client::connect(&broker, &Connect::new(level, "c"));
        client.publish("a/*", "star", 1);
        assert_eq!(everything.take().topic(), "a/*");
    }
    let mut client = Client::connect(&broker, &Connect::v5("c"));
    let response_topic = prop::text(0x08, "a/+");
    client.send(&wire::publish(Level::V5, 2, "a", 7, &response_topic, "m"));
    client.expect_refusal(&MALFORMED);
    everything.publish("end", "", 1);
    assert_eq!(everything.take().topic(), "end", "something else was forwarded");
}

/// Byte strings that are not UTF-8, or hold U+0000: a NUL, lone continuation bytes, an overlong
/// form, a surrogate, and a value over U+10FFFF.
const BAD_STRINGS: [&str; 8] =
    ["00", "61 00 62", "ff fe", "80", "c0 80", "ed a0 80", "f4 90 80 80", "61 e2 82"];

/// TOP-06, MQTT-1.5.4-1, -2: such a string ends the connection, whichever field it stands in.
#[test]
fn bad_strings_in_connect_are_refused() {
    let broker = Broker::start();
    for bad in BAD_STRINGS.map(hex) {
        for level in Level::ALL {
            let good = || Connect::new(level, "good");
            let mut connects = vec![
                Connect::new(level, &bad),
                good().user(&bad),
                good().will(Will::new(&bad, "will")),
            ];
            if level.is_v5() {
                let will = || Will::new("will", "will");
                connects.extend([
                    good().with(prop::user(&bad, "v")),
                    good().with(prop::user("k", &bad)),
                    good().with(prop::text(0x15, &bad)),
                    good().will(will().with(prop::user(&bad, "v"))),
                    good().will(will().with(prop::text(0x08, &bad))),
                    good().will(will().with(prop::text(0x03, &bad))),
                ]);
            }
            for connect in connects {
                let mut client = Client::open(&broker, level);
                client.send(&connect.bytes());
                client.expect_connect_refused(&[0x81, 0x82, 0x85, 0x86, 0x90]);
            }
        }
    }
}

/// TOP-06: nothing with such a string is forwarded or retained; the subscriber to `#` stays.
#[test]
fn bad_strings_in_publish_and_subscribe_end_the_connection() {
    let broker = Broker::start();
    let mut everything = Client::connect(&broker, &Connect::v5("everything"));
    everything.subscribe("#", 1);
    for bad in BAD_STRINGS.map(hex) {
        for level in Level::ALL {
            let publish = |topic: &[u8], properties: &[u8]| {
                wire::publish(level, 3, topic, 7, properties, "poison")
            };
            let mut packets = vec![
                publish(&bad, &[]),
                wire::subscribe(level, 7, &[], &[(&bad, 0)]),
                wire::unsubscribe(level, 7, &[&bad]),
            ];
            if level.is_v5() {
                packets.extend([
                    publish(b"t", &prop::user(&bad, "v")),
                    publish(b"t", &prop::user("k", &bad)),
                    publish(b"t", &prop::text(0x08, &bad)),
                    publish(b"t", &prop::text(0x03, &bad)),
                    wire::subscribe(level, 7, &prop::user(&bad, "v"), &[(b"t", 0)]),
                ]);
            }
            for packet in packets {
                let mut client = Client::connect(&broker, &Connect::new(level, "bad"));
                client.send(&packet);
                client.expect_refusal(&[0x81, 0x82, 0x8F, 0x90]);
            }
        }
    }
    let mut late = Client::connect(&broker, &Connect::v5("late"));
    late.subscribe("#", 1);
    late.publish("end", "", 1);
    assert_eq!((late.take().topic(), everything.take().topic()), ("end".into(), "end".into()));
}

/// TOP-07, MQTT-1.5.4-3: a byte order mark is a character like others.
#[test]
fn a_byte_order_mark_is_kept() {
    let broker = Broker::start();
    let marked = "\u{feff}t";
    for level in Level::ALL {
        let mut with = Client::connect(&broker, &Connect::new(level, "\u{feff}id"));
        let mut without = Client::connect(&broker, &Connect::new(level, "id"));
        with.subscribe(marked, 1);
        without.subscribe("t", 1);
        without.publish(marked, "marked", 1);
        with.publish("t", "plain", 1);
        let got = with.take();
        assert_eq!((got.topic.as_slice(), got.payload()), (marked.as_bytes(), "marked".into()));
        assert_eq!(without.take().payload(), "plain");
        with.ping();
        without.ping();
    }
}

/// TOP-08, MQTT-4.7.3-3: topics of every length are delivered byte for byte, or cleanly refused.
#[test]
fn topics_have_no_hidden_length_limit() {
    let broker = Start::new().env("TCP_NETTY_MAX_PAYLOAD_SIZE", 200_000).start();
    let mut client = Client::connect(&broker, &Connect::v5("long").with(prop::two(0x22, 0)));
    for length in [199, 200, 255, 256, 4096, 4097, 32_768, 65_535] {
        let topic: String = ('a'..='z').cycle().take(length).collect();
        assert_eq!(client.subscribe(&topic, 1), 1, "a filter of {length} bytes");
        assert_eq!(client.retain(&topic, "m"), 0, "a topic of {length} bytes");
        assert_eq!(client.take().topic(), topic, "a topic of {length} bytes");
        let id = format!("late{length}");
        let mut late = Client::connect(&broker, &Connect::v311(id));
        late.subscribe(&topic, 0);
        assert_eq!(late.take().topic(), topic, "a retained topic of {length} bytes");
    }
}

/// TOP-09: tens of thousands of levels cost no stack and little memory.
#[test]
fn very_deep_topics_are_cheap() {
    let broker = Start::new().env("TCP_NETTY_MAX_PAYLOAD_SIZE", 200_000).start();
    let mut canary = Client::connect(&broker, &Connect::v5("canary"));
    canary.subscribe_with(&[(b"#", 1), (b"+/+/+/#", 1), (b"a/+/a/#", 1)], &[]);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let before = broker.rss_kib();
    for number in 0..20 {
        let slashes = format!("{number}{}", "/".repeat(65_500));
        let levels = format!("{number}{}", "/a".repeat(32_000));
        for topic in [slashes, levels] {
            deep_round(&broker, topic.as_bytes());
            publisher.publish("canary", "canary", 1);
            while canary.take().topic() != "canary" {}
        }
    }
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 160 * 1024, "40 deep topics cost {grown} KiB");
}

/// Subscribe, publish retained and unsubscribe: each is done or refused.
fn deep_round(broker: &Broker, topic: &[u8]) {
    let mut client = Client::connect(broker, &Connect::v5("deep"));
    client.send(&wire::subscribe(Level::V5, 1, &[], &[(topic, 0)]));
    client.send(&wire::publish(Level::V5, 3, topic, 2, &[], "m"));
    client.send(&wire::unsubscribe(Level::V5, 3, &[topic]));
    client.try_send(&wire::PINGREQ);
    client.try_send(&wire::DISCONNECT);
    client.expect_close();
}

/// TOP-11, MQTT-3.1.3-2, MQTT-4.7.3-4: ids and topics are told apart byte by byte, whatever
/// storage thinks of their characters, also after a restart.
#[test]
fn ids_that_could_collide_keep_their_own_sessions() {
    let mut broker = Broker::start();
    let long_a = format!("{}a", "x".repeat(200));
    let long_b = format!("{}b", "x".repeat(200));
    let ids = [
        "a:b", "a{b}", "a%2Fb", "a b", "../x", "a.b", "a_b", "A", "a", "a/b", "a|b", "a\\b",
        "a\"b", "a'b", "a*b", "a+b", "a#b", "$a", "{a}", "a\u{1}b", "a\tb", " a", "a ", "-", "--",
        ".", "..", "\u{e9}", "e\u{301}", "ids", "a,b", "a;b", "a=b", "a?b", &long_a, &long_b,
    ];
    for id in ids {
        let mut client = Client::connect(&broker, &Connect::v311(id).persistent());
        assert!(!client.session_present, "{id:?} found another's session");
        client.subscribe(format!("to/{}", hex_of(id)), 1);
        client.disconnect();
    }
    let mut publisher = Client::connect(&broker, &Connect::v311("publisher"));
    for id in ids {
        publisher.publish(format!("to/{}", hex_of(id)), id, 1);
    }
    broker.kill_and_restart();
    for id in ids {
        let mut client = Client::connect(&broker, &Connect::v311(id).persistent());
        assert!(client.session_present, "{id:?} lost its session");
        assert_eq!(client.take().payload(), id);
        client.ping();
        client.expect_silence(Duration::from_millis(5));
    }
}

/// TOP-11: the same for topics, retained and across a restart.
#[test]
fn topics_that_could_collide_are_different_topics() {
    let mut broker = Broker::start();
    let topics = [
        "a.b", "a_b", "a:b", "a/b", "a b", "a%b", "a{b}", "A", "a", "a/", "/a", "a\"b", "a\nb",
        "a\\b", "a,b", "a|b", "a*b", " ", "\u{e9}", "e\u{301}",
    ];
    let mut publisher = Client::connect(&broker, &Connect::v311("publisher"));
    for topic in topics {
        publisher.retain(topic, topic);
    }
    broker.kill_and_restart();
    for topic in topics {
        let mut client = Client::connect(&broker, &Connect::v311("c"));
        client.subscribe(topic, 1);
        let got = client.take();
        assert_eq!((got.topic(), got.payload()), (topic.to_owned(), topic.to_owned()));
        client.ping();
        client.expect_silence(Duration::from_millis(5));
    }
}

fn hex_of(id: &str) -> String {
    id.bytes().map(|byte| format!("{byte:02x}")).collect()
}
