//! Retained messages (RET-01 … RET-19), and the order of their replay (OUT-2).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::support::{Broker, Client, Connect, Level, Packet, Random, Start, matches, prop, wire};

const QUIET: Duration = Duration::from_millis(150);
const RAP: u8 = 0x08;

fn publisher(broker: &Broker) -> Client {
    Client::connect(broker, &Connect::v5("publisher"))
}

fn client(broker: &Broker, id: &str) -> Client {
    Client::connect(broker, &Connect::v5(id))
}

/// Everything a new subscription to a filter is given.
fn retained(broker: &Broker, id: &str, filter: &str) -> Vec<String> {
    let mut client = client(broker, id);
    client.subscribe(filter, 1);
    let mut topics: Vec<String> = client.drain(QUIET).iter().map(|one| one.topic()).collect();
    topics.sort();
    topics
}

/// RET-01, MQTT-3.3.1-12, -13: a live copy of a retained publish carries RETAIN only where it is
/// kept as published; never on the older levels; and the same from the queue.
#[test]
fn live_copies_carry_retain_only_as_asked() {
    let broker = Broker::start();
    let connects = [
        (Connect::v5("plain").persistent(), 1, false),
        (Connect::v5("kept").persistent(), 1 | RAP, true),
        (Connect::v311("old").persistent(), 1, false),
    ];
    let mut clients: Vec<Client> = connects
        .iter()
        .map(|(connect, options, _)| {
            let mut client = Client::connect(&broker, connect);
            client.subscribe("t", *options);
            client
        })
        .collect();
    let mut publisher = publisher(&broker);
    publisher.retain("t", "live");
    for (client, (_, _, retain)) in clients.iter_mut().zip(&connects) {
        assert_eq!(client.take().retain, *retain);
    }
    clients.into_iter().for_each(Client::disconnect);
    publisher.retain("t", "queued");
    for (connect, _, retain) in &connects {
        let got = Client::connect(&broker, connect).take();
        assert_eq!((got.payload().as_str(), got.retain), ("queued", *retain));
    }
}

/// RET-02, MQTT-3.3.1-8: what is given at subscribe time carries RETAIN, on every level, at every
/// QoS, whatever Retain As Published says. RET-17, MQTT-3.3.1-5: who was there got it live.
#[test]
fn copies_at_subscribe_time_carry_retain() {
    let broker = Broker::start();
    let mut live = client(&broker, "live");
    live.subscribe("t", 2);
    let mut publisher = publisher(&broker);
    assert_eq!(publisher.publish_with("t", "r", 2 << 1 | 1, &[]), 0);
    let got = live.take();
    assert_eq!((got.payload().as_str(), got.retain, got.qos), ("r", false, 2));
    for level in Level::ALL {
        for qos in 0..3 {
            for options in [qos, qos | RAP] {
                if options > 2 && !level.is_v5() {
                    continue;
                }
                let mut late = Client::connect(&broker, &Connect::new(level, "late"));
                late.subscribe("t", options);
                let got = late.take();
                assert_eq!((got.payload().as_str(), got.retain, got.qos), ("r", true, qos));
            }
        }
    }
}

/// RET-03, MQTT-3.3.1-6, -7: an empty retained publish is forwarded once, clears the value, and is
/// not stored itself, also over a restart.
#[test]
fn an_empty_payload_clears_the_value() {
    let mut broker = Broker::start();
    let mut publisher = publisher(&broker);
    publisher.retain("t", "a");
    broker.eventually("one value", |broker| broker.metric("retainedMessages") == Some(1.0));
    let mut live = client(&broker, "live");
    live.subscribe("t", 1);
    assert_eq!(live.take().payload(), "a");
    publisher.retain("t", "");
    let got = live.take();
    assert_eq!((got.payload().as_str(), got.retain), ("", false));
    live.expect_silence(QUIET);
    assert!(retained(&broker, "late", "t").is_empty());
    assert_eq!(broker.metric("retainedMessages"), Some(0.0));
    broker.kill_and_restart();
    assert!(retained(&broker, "later", "t").is_empty());
}

/// RET-04, MQTT-3.3.1-9, -10, -11: Retain Handling 0 gives the value each time, 1 for a new
/// subscription, 2 never; a resumed session's subscription is not new.
#[test]
fn retain_handling_is_honoured() {
    let broker = Broker::start();
    publisher(&broker).retain("t", "r");
    let session = Connect::v5("s").persistent();
    let mut client = Client::connect(&broker, &session);
    let given = |client: &mut Client, handling: u8| {
        client.subscribe("t", 1 | handling << 4);
        client.drain(QUIET).len()
    };
    assert_eq!([given(&mut client, 0), given(&mut client, 0)], [1, 1]);
    client.unsubscribe(&[b"t"]);
    assert_eq!([given(&mut client, 1), given(&mut client, 1)], [1, 0]);
    client.unsubscribe(&[b"t"]);
    assert_eq!(given(&mut client, 1), 1);
    client.disconnect();
    let mut client = Client::connect(&broker, &session);
    assert_eq!(given(&mut client, 1), 0, "it existed before");
    assert_eq!([given(&mut client, 2), given(&mut client, 0)], [0, 1]);
    client.unsubscribe(&[b"t"]);
    assert_eq!(given(&mut client, 2), 0);
}

/// RET-04 under load: each of many SUBSCRIBEs in one write is given the value.
#[test]
fn pipelined_subscribes_are_each_given_the_value() {
    let broker = Broker::start();
    publisher(&broker).retain("t", "r");
    for (connect, qos) in
        [(Connect::v5("zero"), 0), (Connect::v5("one"), 1), (Connect::v5("queue").persistent(), 1)]
    {
        let mut client = Client::connect(&broker, &connect);
        let packets: Vec<u8> =
            (1..=20).flat_map(|id| wire::subscribe(Level::V5, id, &[], &[(b"t", qos)])).collect();
        client.send(&packets);
        for _ in 0..20 {
            client.wait_for(|packet| matches!(packet, Packet::Suback { .. }));
        }
        assert_eq!((0..20).map(|_| client.take()).filter(|got| got.retain).count(), 20);
    }
}

/// RET-05, v3.1.1 MQTT-3.8.4-3: a second SUBSCRIBE gives the value again and the live flow has no
/// gap.
#[test]
fn a_second_subscribe_gives_the_value_again() {
    let broker = Broker::start();
    let mut publisher = publisher(&broker);
    publisher.retain("t", "r");
    let mut client = Client::connect(&broker, &Connect::v311("s"));
    client.subscribe("t", 1);
    assert!(client.take().retain);
    let (mut live, mut kept) = (Vec::new(), 0);
    for number in 0..200 {
        publisher.publish("t", number.to_string(), 1);
        if number == 100 {
            client.send(&wire::subscribe(Level::V311, 900, &[], &[(b"t", 1)]));
        }
    }
    client.wait_for(|packet| matches!(packet, Packet::Suback { .. }));
    while live.len() < 200 || kept == 0 {
        let got = client.take();
        if got.retain {
            kept += 1;
        } else {
            live.push(got.payload());
        }
    }
    assert!(live.iter().map(|text| text.parse::<usize>().unwrap()).eq(0..200));
    assert_eq!(kept, 1);
}

/// RET-06, section 4.8.2: a shared subscription is given no retained messages; live ones go once
/// to the group.
#[test]
fn shared_subscriptions_are_given_no_retained_messages() {
    let broker = Broker::start();
    let mut publisher = publisher(&broker);
    publisher.retain("t", "r");
    let mut members: Vec<Client> = ["a", "b"].map(|id| client(&broker, id)).into();
    for member in &mut members {
        member.subscribe("$share/g/t", 1);
    }
    members.iter_mut().for_each(|member| member.expect_silence(QUIET));
    publisher.retain("t", "live");
    let got: Vec<_> = members.iter_mut().flat_map(|member| member.drain(QUIET)).collect();
    assert_eq!(got.iter().map(|one| one.payload()).collect::<Vec<_>>(), ["live"]);
}

/// RET-09, MQTT-3.3.2-5, -6: the value is given with the time that is left, not after it, and goes
/// without anybody asking.
#[test]
fn a_retained_value_expires() {
    let broker = Start::new().env("MQTT_RETAIN_MSG_EXPIRY_PROCESSING_PERIOD_MS", 100).start();
    let mut publisher = publisher(&broker);
    let start = Instant::now();
    publisher.publish_with("t", "r", 3, &prop::four(2, 3));
    std::thread::sleep(Duration::from_millis(1100));
    let mut early = client(&broker, "early");
    early.subscribe("t", 1);
    let left = early.take().properties.number(2).expect("an expiry");
    let due = 3 - start.elapsed().as_secs() as u32;
    assert!((1..=2).contains(&left) && left.abs_diff(due) <= 1, "{left} s left");
    broker.eventually("the value goes", |broker| broker.metric("retainedMessages") == Some(0.0));
    assert!(start.elapsed() > Duration::from_millis(2900));
    assert!(retained(&broker, "late", "t").is_empty());
}

/// RET-09: what is set again while its old value expires stays.
#[test]
fn a_newer_value_survives_the_expiry_of_the_older_one() {
    let broker = Start::new().env("MQTT_RETAIN_MSG_EXPIRY_PROCESSING_PERIOD_MS", 100).start();
    let mut publisher = publisher(&broker);
    for round in 0..30 {
        publisher.publish_with("t", "short", 3, &prop::four(2, 1));
        std::thread::sleep(Duration::from_millis(970 + round % 8 * 10));
        publisher.retain("t", "stays");
        if round % 8 == 7 {
            std::thread::sleep(QUIET);
            assert_eq!(retained(&broker, "late", "t"), ["t"]);
        }
        if round == 8 {
            return;
        }
    }
}

/// RET-10, MQTT-3.3.2-5: a restart neither forgets an expiry nor stretches it, in the retained
/// store and in a queue.
#[test]
fn an_expiry_survives_a_restart() {
    let mut broker = Broker::start();
    let session = Connect::v5("s").persistent();
    let mut sleeper = Client::connect(&broker, &session);
    sleeper.subscribe("queued/#", 1);
    sleeper.disconnect();
    let mut publisher = publisher(&broker);
    let start = Instant::now();
    for (seconds, name) in [(2, "short"), (60, "long")] {
        publisher.publish_with(format!("r/{name}"), "r", 3, &prop::four(2, seconds));
        publisher.publish_with(format!("queued/{name}"), "q", 2, &prop::four(2, seconds));
    }
    broker.kill_and_restart();
    std::thread::sleep(Duration::from_millis(2100).saturating_sub(start.elapsed()));
    let mut late = client(&broker, "late");
    late.subscribe("r/#", 1);
    for mut client in [late, Client::connect(&broker, &session)] {
        let got = client.take();
        assert!(got.topic().ends_with("/long"), "{}", got.topic());
        let left = got.properties.number(2).expect("an expiry");
        assert!((40..=58).contains(&left), "{left} s left");
        client.expect_silence(QUIET);
    }
}

/// RET-11, MQTT-3.3.1-9: a wildcard gives all values, however many, to quick and slow readers, at
/// every QoS; nothing is dropped.
#[test]
fn a_wildcard_gives_every_value() {
    const TOPICS: usize = 12_000;
    let broker = Start::new()
        .env("NETTY_WRITE_BUFFER_HIGH_WATER_MARK", 64)
        .env("NETTY_WRITE_BUFFER_LOW_WATER_MARK", 32)
        .start();
    let mut publisher = publisher(&broker);
    for number in 0..TOPICS {
        let topic = format!("many/{}/{number}", number % 100);
        publisher.send(&wire::publish(Level::V5, 1, topic, 0, &[], number.to_string()));
    }
    publisher.ping();
    broker.eventually("all are stored", |broker| {
        broker.metric("retainedMessages") == Some(TOPICS as f64)
    });
    let before = broker.rss_kib();
    for (connect, qos) in [
        (Connect::v5("zero"), 0),
        (Connect::v5("one").with(prop::receive_maximum(20)), 1),
        (Connect::v5("queue").persistent(), 1),
    ] {
        let mut client = Client::open_narrow(&broker, Level::V5).say_hello(&connect);
        client.subscribe("many/#", qos);
        std::thread::sleep(QUIET);
        let got: BTreeSet<String> = (0..TOPICS).map(|_| client.take().topic()).collect();
        assert_eq!(got.len(), TOPICS);
        client.expect_silence(QUIET);
    }
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "the replay cost {grown} KiB");
    assert_eq!(broker.dropped("Channel not writable"), 0);
    assert_eq!(broker.dropped("Queue limit exceeded"), 0);
}

/// RET-14: what is kept follows the number of topics, not of updates.
#[test]
fn updates_replace_the_value() {
    let broker = Broker::start();
    let mut publisher = publisher(&broker);
    let round = |publisher: &mut Client, payload: &str| {
        for topic in 0..200 {
            let topic = format!("u/{topic}");
            publisher.send(&wire::publish(Level::V5, 1, topic, 0, &[], payload));
        }
        publisher.ping();
    };
    let gauges = |broker: &Broker| {
        let gauge = |name| broker.metric(name).unwrap_or_default();
        (gauge("retainedMessages"), gauge("retainedMessagesBytes"))
    };
    round(&mut publisher, "0000");
    broker.eventually("one round", |broker| gauges(broker).0 == 200.0);
    let once = gauges(&broker);
    for number in 0..50 {
        round(&mut publisher, &format!("{number:04}"));
    }
    publisher.retain("last", "x");
    broker.eventually("all rounds", |broker| gauges(broker).0 == 201.0);
    publisher.retain("last", "");
    broker.eventually("as after one round", |broker| gauges(broker) == once);
    round(&mut publisher, "");
    broker.eventually("nothing is left", |broker| gauges(broker) == (0.0, 0.0));
}

/// RET-15, MQTT-4.7.1-1, -2, MQTT-4.7.2-1: the lookup of retained messages matches as live routing
/// does, and as the reference matcher.
#[test]
fn retained_lookup_equals_live_routing() {
    let broker = Broker::start();
    let mut random = Random::seeded(15);
    let levels = ["", "a", "b", "my", "$x"];
    let word = |random: &mut Random, choices: &[&str]| {
        let count = 1 + random.below(4);
        let picked: Vec<&str> = (0..count).map(|_| *random.pick(choices)).collect();
        picked.join("/")
    };
    let mut topics: BTreeSet<String> = (0..60).map(|_| word(&mut random, &levels)).collect();
    topics.extend(["my/topic", "my/topic/a", "/x", "a//b"].map(String::from));
    topics.retain(|topic| !topic.is_empty() && !topic.starts_with('$'));
    let choices = ["", "a", "b", "my", "$x", "+", "+"];
    let mut filters: BTreeSet<String> = (0..40).map(|_| word(&mut random, &choices)).collect();
    let under: Vec<String> = filters.iter().take(15).map(|filter| format!("{filter}/#")).collect();
    filters.extend(under);
    filters.extend(["my/topic/#", "+", "#", "a/+/b", "+/x"].map(String::from));
    filters.retain(|filter| !filter.is_empty());
    let mut live: Vec<(String, Client)> = Vec::new();
    for filter in &filters {
        let mut subscriber = client(&broker, &format!("live {filter}"));
        subscriber.subscribe(filter, 0);
        live.push((filter.clone(), subscriber));
    }
    let mut publisher = publisher(&broker);
    for topic in topics.iter().map(String::as_str).chain([END]) {
        publisher.retain(topic, topic);
    }
    for (filter, mut subscriber) in live {
        let due: Vec<&str> =
            topics.iter().map(String::as_str).filter(|topic| matches(&filter, topic)).collect();
        let ends = usize::from(matches(&filter, END));
        assert_eq!(until_end(&mut subscriber, ends), due, "live, {filter}");
        let mut late = client(&broker, "late");
        late.subscribe_with(&[(filter.as_bytes(), 0), (END.as_bytes(), 0)], &[]);
        assert_eq!(until_end(&mut late, 1 + ends), due, "retained, {filter}");
    }
}

const END: &str = "z/the/last/of/all";

/// The topics that come before so many copies of the last one (with none of it: what is there).
fn until_end(client: &mut Client, ends: usize) -> Vec<String> {
    let (mut got, mut seen) = (BTreeSet::new(), 0);
    if ends == 0 {
        client.ping();
        got.extend(client.drain(Duration::from_millis(20)).iter().map(|one| one.topic()));
    }
    while seen < ends {
        match client.take().topic() {
            topic if topic == END => seen += 1,
            topic => drop(got.insert(topic)),
        }
    }
    got.into_iter().collect()
}

/// RET-18, MQTT-3.3.1-5: topic and payload belong together, however many write at once. OUT-2: no
/// subscriber ever gets an older value after a newer one, whether it comes live or retained.
#[test]
fn no_value_goes_back_in_time() {
    let broker = Broker::start();
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let broker = &broker;
            scope.spawn(move || {
                let mut client = client(broker, &format!("writer {writer}"));
                for number in 0..1500 {
                    let topic = format!("race/{writer}/{}", number % 5);
                    let payload = format!("{topic} {number}");
                    client.send(&wire::publish(Level::V5, 1, &topic, 0, &[], payload));
                    if number % 10 == 0 {
                        client.ping();
                    }
                }
                client.ping();
            });
        }
        for reader in 0..4 {
            let broker = &broker;
            scope.spawn(move || read_in_order(broker, reader));
        }
    });
}

/// Subscribes again and again; readers differ in QoS and in whether they have a queue.
fn read_in_order(broker: &Broker, reader: usize) {
    let connect = Connect::v5(format!("reader {reader}"));
    let connect = if reader > 1 { connect.persistent() } else { connect };
    let mut client = Client::connect(broker, &connect);
    let mut newest: BTreeMap<String, usize> = BTreeMap::new();
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        client.subscribe("race/#", (reader % 2) as u8);
        for got in client.drain(Duration::from_millis(5)) {
            let (topic, payload) = (got.topic(), got.payload());
            let (named, number) = payload.split_once(' ').expect("topic and number");
            assert_eq!(named, topic, "the payload names its topic");
            let number = number.parse().unwrap();
            let before = newest.insert(topic.clone(), number).unwrap_or(0);
            assert!(before <= number, "{topic}: {number} after {before}, retain {}", got.retain);
        }
        if reader == 0 {
            client.unsubscribe(&[b"race/#"]);
            client.drain(Duration::from_millis(1));
            newest.clear();
        }
    }
}

/// RET-19, MQTT-3.3.1-5, RET-08: after a kill all values are there, with QoS and properties, for
/// the first who can connect.
#[test]
fn retained_values_survive_a_kill() {
    const TOPICS: u16 = 1500;
    let mut broker = Broker::start();
    let mut publisher = publisher(&broker);
    for number in 0..TOPICS {
        let properties = prop::user("n", number.to_string());
        let (topic, flags) = (format!("k/{number}"), ((1 + number % 2) as u8) << 1 | 1);
        let id = number % 500 + 1;
        publisher.send(&wire::publish(Level::V5, flags, topic, id, &properties, "p"));
        if number % 500 == 499 {
            for id in 1..=500 {
                if id % 2 == 0 {
                    publisher.acknowledged(crate::support::AckKind::Pubrec, id);
                    publisher.send(&wire::ack(6, id));
                    publisher.acknowledged(crate::support::AckKind::Pubcomp, id);
                } else {
                    publisher.acknowledged(crate::support::AckKind::Puback, id);
                }
            }
        }
    }
    broker.kill_and_restart();
    let mut late = client(&broker, "late");
    late.subscribe("k/#", 2);
    let mut seen = BTreeSet::new();
    for _ in 0..TOPICS {
        let got = late.take();
        let number: u16 = got.topic()[2..].parse().unwrap();
        assert_eq!((got.qos, got.retain), ((1 + number % 2) as u8, true));
        assert_eq!(got.properties.user(), [("n".to_owned(), number.to_string())]);
        seen.insert(number);
    }
    assert_eq!(seen.len(), usize::from(TOPICS));
}
