//! What is stored, and what a restart finds (STO).

use std::time::{Duration, Instant};

use crate::support::{AckKind, Broker, Client, Connect, Level, Publish, prop, wire};

/// STO-09, section 4.1, MQTT-3.8.4-8: for a session that is away only QoS 1 and 2 are stored: no
/// QoS 0 message, and nothing for a QoS 0 subscription.
#[test]
fn qos0_is_not_stored_for_who_is_away() {
    let mut broker = Broker::start();
    for connect in [Connect::v311("sub").persistent(), Connect::v5("sub5").persistent()] {
        let mut sub = Client::connect(&broker, &connect);
        sub.subscribe_with(&[(b"a", 1), (b"b", 0)], &[]);
        sub.disconnect();
        let mut publisher = Client::connect(&broker, &Connect::v311("pub"));
        for round in 0..2 {
            publisher.publish("a", "0 on a", 0);
            publisher.publish("b", "1 on b", 1);
            publisher.publish("a", "1 on a", 1);
            if round == 1 {
                broker.kill_and_restart();
                publisher = Client::connect(&broker, &Connect::v311("pub"));
            }
            let mut sub = Client::connect(&broker, &connect);
            let got = sub.drain(Duration::from_millis(100));
            // What was acknowledged just before the kill may come again, with DUP=1.
            let most = if round == 1 { 2 } else { 1 };
            assert!((1..=most).contains(&got.len()), "{got:?}");
            assert!(got.iter().all(|publish| publish.payload() == "1 on a"), "{got:?}");
            sub.disconnect();
        }
    }
}

/// STO-11, MQTT-4.5.0-1: who publishes as soon as the port opens after a kill reaches every
/// subscription: they were there before the listener.
#[test]
fn the_first_publish_after_a_restart_reaches_everyone() {
    const SESSIONS: usize = 40;
    const FILTERS: usize = 50;
    let mut broker = Broker::start();
    let connect = |number: usize| Connect::v5(format!("sub{number}")).persistent();
    for number in 0..SESSIONS {
        let mut sub = Client::connect(&broker, &connect(number));
        let filters: Vec<Vec<u8>> =
            (0..FILTERS).map(|filter| format!("f/{number}/{filter}").into_bytes()).collect();
        let mut all: Vec<(&[u8], u8)> = filters.iter().map(|one| (one.as_slice(), 1)).collect();
        all.push((b"early", 1));
        sub.subscribe_with(&all, &[]);
        sub.disconnect();
    }
    broker.kill_and_restart();
    let mut publisher = Client::connect(&broker, &Connect::v311("pub"));
    publisher.publish("early", "to all", 1);
    for number in 0..SESSIONS {
        publisher.publish(format!("f/{number}/{}", number % FILTERS), "to one", 1);
    }
    for number in 0..SESSIONS {
        let mut sub = Client::connect(&broker, &connect(number));
        assert_eq!(sub.take().payload(), "to all");
        assert_eq!(sub.take().topic(), format!("f/{number}/{}", number % FILTERS));
    }
}

/// Every property that a PUBLISH of a client may have.
fn full_properties(number: usize) -> Vec<u8> {
    wire::all(&[
        &prop::byte(0x01, 1),
        &prop::four(0x02, 3600),
        &prop::text(0x03, "text/plain"),
        &prop::text(0x08, format!("answers/{number}")),
        &prop::text(0x09, [0, 1, number as u8]),
        &prop::user("a", number.to_string()),
        &prop::user("a", "twice"),
    ])
}

/// STO-12, MQTT-3.3.2-17, MQTT-4.5.0-1: messages that wait in a queue keep every field over a
/// kill: properties in their order, subscription identifiers, what came by a shared subscription,
/// payloads of any bytes; and the first of them comes at once.
#[test]
fn queued_messages_keep_every_field_over_a_kill() {
    const ALL: u16 = 1500;
    let mut broker = Broker::start();
    let connect = Connect::v5("sub").persistent();
    let mut sub = Client::connect(&broker, &connect);
    sub.subscribe_with(&[(b"plain/#", 2)], &prop::subscription_id(7));
    sub.subscribe_with(&[(b"plain/+", 1)], &prop::subscription_id(300));
    sub.subscribe_with(&[(b"$share/g/shared/#", 2)], &prop::subscription_id(9));
    sub.disconnect();
    let mut publisher = Client::connect(&broker, &Connect::v5("pub"));
    let topic =
        |id: u16| if id.is_multiple_of(2) { format!("plain/{id}") } else { format!("shared/{id}") };
    let payload = |id: u16| (0..id % 700).map(|at| (at ^ id) as u8).collect::<Vec<u8>>();
    for from in (1..=ALL).step_by(500) {
        let ids = from..(from + 500).min(ALL + 1);
        for id in ids.clone() {
            let properties = full_properties(usize::from(id));
            publisher.send(&wire::publish(Level::V5, 2, topic(id), id, &properties, payload(id)));
        }
        publisher.acknowledged_all(AckKind::Puback, ids);
    }
    broker.kill_and_restart();
    let mut sub = Client::connect(&broker, &connect);
    let waited = Instant::now();
    let mut got: Vec<Publish> = vec![sub.take()];
    assert!(waited.elapsed() < Duration::from_secs(5), "the first one took long");
    got.extend((1..ALL).map(|_| sub.take()));
    // The copies of a shared subscription and those of plain ones are each in their order.
    for first in [1, 2] {
        let due: Vec<String> = (first..=ALL).step_by(2).map(topic).collect();
        let filter = due[0].split('/').next().unwrap();
        let came: Vec<String> = got.iter().map(Publish::topic).collect();
        assert!(came.iter().filter(|topic| topic.starts_with(filter)).eq(&due));
    }
    got.sort_by_key(|one| one.topic().rsplit('/').next().and_then(|id| id.parse::<u16>().ok()));
    for (id, publish) in (1..=ALL).zip(&got) {
        assert_eq!((publish.topic(), &publish.payload), (topic(id), &payload(id)));
        let due: Vec<u32> = if id.is_multiple_of(2) { vec![7, 300] } else { vec![9] };
        assert_eq!(publish.properties.subscription_ids(), due, "{id}");
        assert_eq!(publish.properties.number(0x01), Some(1));
        let expiry = publish.properties.number(0x02).unwrap();
        assert!((3500..=3600).contains(&expiry), "expiry {expiry}");
        assert_eq!(publish.properties.bytes(0x03), Some(b"text/plain".as_slice()));
        let answers = format!("answers/{id}");
        assert_eq!(publish.properties.bytes(0x08), Some(answers.as_bytes()));
        assert_eq!(publish.properties.bytes(0x09), Some([0, 1, id as u8].as_slice()));
        let user = [("a".to_owned(), id.to_string()), ("a".to_owned(), "twice".to_owned())];
        assert_eq!(publish.properties.user(), user);
    }
    sub.ping();
    sub.expect_silence(Duration::from_millis(50));
}

/// STO-03, MQTT-4.3.2-4, MQTT-4.5.0-1: a publisher that pipelines to a session that is away and
/// sends again what was not acknowledged when the broker was killed: all of it comes, at QoS 2
/// once. (`tests/crash` does the same at random, with the loss of unsynced bytes.)
#[test]
fn nothing_acknowledged_is_lost_by_a_kill_in_the_middle() {
    const ALL: u16 = 400;
    for qos in [1_u8, 2] {
        let mut broker = Broker::start();
        let sub = Connect::v5("sub").persistent();
        Client::connect(&broker, &sub).subscribe("t", qos);
        let connect = Connect::v311("pub").persistent();
        let mut first = 1;
        while first <= ALL {
            let mut publisher = Client::connect(&broker, &connect);
            let dup = if first > 1 { 8 } else { 0 };
            for id in first..=ALL {
                let text = id.to_string();
                publisher.send(&wire::publish(Level::V311, dup | qos << 1, "t", id, &[], text));
            }
            let kind = if qos == 1 { AckKind::Puback } else { AckKind::Pubrec };
            let until = (first + 150).min(ALL);
            publisher.acknowledged_all(kind, first..=until);
            first = until + 1;
            if first <= ALL {
                broker.kill_and_restart();
            } else if qos == 2 {
                for id in 1..=ALL {
                    publisher.send(&wire::ack(6, id));
                    publisher.acknowledged(AckKind::Pubcomp, id);
                }
            }
        }
        let mut sub = Client::connect(&broker, &sub);
        let got = sub.drain(Duration::from_millis(300));
        let mut next = 1;
        for publish in &got {
            let number: u16 = publish.payload().parse().unwrap();
            assert!(number <= next, "{next} is missing before {number}");
            assert!(number == next || qos == 1, "{number} came twice at QoS 2");
            next = next.max(number + 1);
        }
        assert_eq!(next, ALL + 1, "QoS {qos}: everything came");
    }
}
