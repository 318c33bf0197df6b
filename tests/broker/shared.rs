//! Shared subscriptions (SHR-09, SHR-10, SHR-12, SHR-13) and the turn of their members (SHR-1 …
//! SHR-3).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{Broker, Client, Connect, Level, Random, Start, matches, prop, wire};

const QUIET: Duration = Duration::from_millis(150);

fn client(broker: &Broker, id: &str) -> Client {
    Client::connect(broker, &Connect::v5(id))
}

fn topics(client: &mut Client) -> Vec<String> {
    let mut topics: Vec<String> = client.drain(QUIET).iter().map(|one| one.topic()).collect();
    topics.sort();
    topics
}

/// SHR-1, section 4.8.2: each message goes to exactly one member, in turn, whatever its QoS; plain
/// subscribers get it as well.
#[test]
fn members_take_turns() {
    let broker = Broker::start();
    let mut members: Vec<Client> = (0..4).map(|n| client(&broker, &format!("m{n}"))).collect();
    for member in &mut members {
        assert_eq!(member.subscribe("$share/g/t", 2), 2);
    }
    let mut other = client(&broker, "other group");
    other.subscribe("$share/h/t", 2);
    let mut plain = client(&broker, "plain");
    plain.subscribe("t", 2);
    let mut publisher = client(&broker, "publisher");
    for number in 0..120 {
        publisher.publish("t", number.to_string(), number % 3);
    }
    let mut all: Vec<u8> = Vec::new();
    for member in &mut members {
        let got: Vec<u8> =
            member.drain(QUIET).iter().map(|one| one.payload().parse().unwrap()).collect();
        assert_eq!(got.len(), 30, "a quarter");
        assert!(got.is_sorted());
        all.extend(got);
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..120));
    assert_eq!(other.drain(QUIET).len(), 120, "a group of its own");
    assert_eq!(plain.drain(QUIET).len(), 120);
}

/// SHR-1: who leaves, by UNSUBSCRIBE, DISCONNECT or a reset, is passed over; the last one gone,
/// messages have no subscriber, and that is counted once for each.
#[test]
fn members_that_left_are_passed_over() {
    let broker = Broker::start();
    let mut members: Vec<Client> = (0..4).map(|n| client(&broker, &format!("m{n}"))).collect();
    for member in &mut members {
        member.subscribe("$share/g/t", 1);
    }
    let mut publisher = client(&broker, "publisher");
    members[0].unsubscribe(&[b"$share/g/t"]);
    members.remove(1).disconnect();
    members.remove(1).reset();
    broker.eventually("both are gone", |broker| broker.metric("connectedSessions") == Some(3.0));
    for _ in 0..10 {
        publisher.publish("t", "m", 1);
    }
    assert_eq!(members[1].drain(QUIET).len(), 10);
    members[0].expect_silence(QUIET);
    members[1].unsubscribe(&[b"$share/g/t"]);
    let before = broker.dropped("No subscribers");
    for _ in 0..10 {
        publisher.publish("t", "m", 1);
    }
    broker.eventually("ten had none", |broker| broker.dropped("No subscribers") == before + 10);
}

/// SHR-2: the turn of a non-persistent group also falls on a congested member: that copy is dropped
/// and counted. When nobody is usable, the message is, once.
#[test]
fn a_congested_member_loses_its_own_turns() {
    const MESSAGES: usize = 400;
    let broker = Start::new()
        .env("NETTY_WRITE_BUFFER_HIGH_WATER_MARK", 64)
        .env("NETTY_WRITE_BUFFER_LOW_WATER_MARK", 32)
        .env("NETTY_SO_SEND_BUFFER", 8)
        .start();
    let mut narrow = Client::open_narrow(&broker, Level::V5).say_hello(&Connect::v5("narrow"));
    let mut quick = client(&broker, "quick");
    for member in [&mut narrow, &mut quick] {
        member.subscribe("$share/g/t", 1);
    }
    let mut publisher = client(&broker, "publisher");
    let mut publish = |count: usize| {
        for number in 0..count {
            publisher.publish("t", format!("{number:<4096}"), 1);
        }
        publisher.ping();
    };
    for _ in 0..MESSAGES / 2 {
        publish(2);
        quick.take();
    }
    quick.expect_silence(QUIET);
    let skipped = broker.dropped("Channel not writable");
    assert!(skipped > 0 && broker.metric("nonWritableClients") == Some(1.0), "not congested");
    quick.disconnect();
    broker.await_metric("connectedSessions", 2.0);
    let before = broker.dropped("No subscribers");
    publish(10);
    broker.eventually("nobody took ten", |broker| broker.dropped("No subscribers") == before + 10);
    assert_eq!(narrow.drain(QUIET).len() + skipped, MESSAGES / 2, "came, or was counted");
    assert_eq!(broker.dropped("Channel not writable"), skipped);
}

/// SHR-3: what a persistent group gets while none of its members is there waits in the members'
/// queues, each message once, and comes with their return.
#[test]
fn a_persistent_group_keeps_what_nobody_can_take() {
    let mut broker = Broker::start();
    let connects = ["a", "b"].map(|id| Connect::v5(id).persistent());
    for connect in &connects {
        let mut member = Client::connect(&broker, connect);
        member.subscribe("$share/g/t", 1);
        member.disconnect();
    }
    let mut publisher = client(&broker, "publisher");
    for number in 0..20 {
        publisher.publish("t", number.to_string(), 1);
    }
    broker.kill_and_restart();
    let mut got: Vec<usize> = Vec::new();
    for connect in &connects {
        let mut member = Client::connect(&broker, connect);
        got.extend(member.drain(QUIET).iter().map(|one| one.payload().parse::<usize>().unwrap()));
    }
    got.sort_unstable();
    assert!(got.into_iter().eq(0..20), "each came to one member");
}

/// SHR-09, MQTT-4.7.1-1, -2, MQTT-4.7.2-1: inside a share the filter follows the usual rules.
#[test]
fn wildcards_inside_a_share_match_as_usual() {
    let broker = Broker::start();
    let filters = ["$share/g/s/#", "$share/g/+/x", "$share/g/#", "$share/g/s/+/y", "$share/g/+"];
    let mut members: Vec<(&str, Client)> =
        filters.iter().map(|filter| (*filter, client(&broker, filter))).collect();
    for (filter, member) in &mut members {
        assert_eq!(member.subscribe(*filter, 1), 1);
    }
    let published = ["s", "s/a", "s/x", "y/x", "s/a/y", "/x", "a"];
    let mut publisher = client(&broker, "publisher");
    for topic in published {
        publisher.publish(topic, "m", 1);
    }
    assert!(publisher.publish("$SYS/x", "m", 1) >= 0x80);
    for (filter, mut member) in members {
        let plain = filter.strip_prefix("$share/g/").unwrap();
        let mut due: Vec<&str> =
            published.into_iter().filter(|topic| matches(plain, topic)).collect();
        due.sort_unstable();
        assert_eq!(topics(&mut member), due, "{filter}");
    }
}

/// SHR-10, MQTT-3.8.3-4: No Local on a shared filter is a protocol error.
#[test]
fn no_local_on_a_share_is_refused() {
    let broker = Broker::start();
    let mut client = client(&broker, "s");
    client.send(&wire::subscribe(Level::V5, 1, &[], &[(b"$share/g/t", 0x04)]));
    client.expect_refusal(&[0x82]);
}

/// SHR-12, MQTT-3.10.4-1: a shared and a plain subscription to the same filter are two: both
/// deliver, and each is removed alone, in every order.
#[test]
fn shared_and_plain_subscriptions_are_independent() {
    let broker = Broker::start();
    let mut publisher = client(&broker, "publisher");
    let both: [&[u8]; 2] = [b"t/x", b"$share/g/t/x"];
    for first in 0..2 {
        for gone in 0..2 {
            let mut client = client(&broker, "s");
            client.subscribe(both[first], 1);
            client.subscribe(both[1 - first], 1);
            publisher.publish("t/x", "m", 1);
            assert_eq!(client.drain(QUIET).len(), 2, "one each");
            assert_eq!(client.unsubscribe(&[both[gone]]), [0]);
            assert_eq!(client.unsubscribe(&[both[gone]]), [0x11]);
            publisher.publish("t/x", "m", 1);
            assert_eq!(client.drain(QUIET).len(), 1);
            assert_eq!(client.unsubscribe(&[both[1 - gone]]), [0]);
            publisher.publish("t/x", "m", 1);
            client.expect_silence(QUIET);
            client.disconnect();
        }
    }
}

/// SHR-12: random subscribing and unsubscribing of shared and plain filters; counts equal the
/// model's.
#[test]
fn random_shares_equal_the_model() {
    const FILTERS: [&str; 4] = ["t/x", "t/+", "$share/g/t/x", "$share/h/t/x"];
    let broker = Broker::start();
    let mut random = Random::seeded(12);
    let mut clients: Vec<Client> = (0..3).map(|n| client(&broker, &format!("c{n}"))).collect();
    let mut model: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut publisher = client(&broker, "publisher");
    for round in 0..150 {
        for _ in 0..4 {
            let (at, filter) = (random.below(3), *random.pick(&FILTERS));
            let members = model.entry(filter).or_default();
            if random.below(2) == 0 {
                clients[at].subscribe(filter, 1);
                members.retain(|member| *member != at);
                members.push(at);
            } else {
                let known = members.contains(&at);
                let code = clients[at].unsubscribe(&[filter.as_bytes()])[0];
                assert_eq!(code, if known { 0 } else { 0x11 });
                members.retain(|member| *member != at);
            }
        }
        publisher.publish("t/x", round.to_string(), 1);
        let has = |filter: &str, at: usize| model.get(filter).is_some_and(|m| m.contains(&at));
        let plain = (0..3).filter(|at| has("t/x", *at) || has("t/+", *at)).count();
        let groups = FILTERS[2..]
            .iter()
            .filter(|filter| model.get(**filter).is_some_and(|members| !members.is_empty()))
            .count();
        let mut got = 0;
        while got < plain + groups {
            for client in &mut clients {
                while let Some(one) = client.take_within(Duration::from_millis(2)) {
                    assert_eq!(one.payload(), round.to_string());
                    got += 1;
                }
            }
        }
        assert_eq!(got, plain + groups, "round {round}");
    }
}

/// SHR-13, MQTT-3.3.4-3: a shared delivery carries its Subscription Identifier, live, from the
/// queue and after a restart; never the one of a plain subscription.
#[test]
fn shared_deliveries_carry_their_identifier() {
    let mut broker = Broker::start();
    let session = Connect::v5("s").persistent();
    let mut client = Client::connect(&broker, &session);
    client.subscribe_with(&[(b"$share/g/t", 1)], &prop::subscription_id(7));
    client.subscribe_with(&[(b"t", 1)], &prop::subscription_id(8));
    let check = |client: &mut Client| {
        let mut ids: Vec<Vec<u32>> =
            (0..2).map(|_| client.take().properties.subscription_ids()).collect();
        ids.sort();
        assert_eq!(ids, [[7], [8]]);
    };
    Client::connect(&broker, &Connect::v5("publisher")).publish("t", "live", 1);
    check(&mut client);
    client.disconnect();
    Client::connect(&broker, &Connect::v5("publisher")).publish("t", "queued", 1);
    broker.restart();
    let mut client = Client::connect(&broker, &session);
    check(&mut client);
    Client::connect(&broker, &Connect::v5("publisher")).publish("t", "after", 1);
    check(&mut client);
    client.expect_silence(QUIET);
}
