//! Members of shared groups that come and go, with sessions and without (SHR-03, SHR-04, SHR-11,
//! docs/decisions/010).

use std::time::Duration;

use crate::shared_rooms::{Got, publish};
use crate::support::{Broker, Client, Connect, Level, Start, prop, wire};

const QUIET: Duration = Duration::from_millis(150);

fn members(broker: &Broker, ids: std::ops::Range<usize>, filter: &str) -> Vec<Client> {
    let member = |number| {
        let mut member = Client::connect(broker, &Connect::v5(format!("m{number}")));
        assert_eq!(member.subscribe(filter, 1), 1);
        member
    };
    ids.map(member).collect()
}

/// SHR-03, TBMQ #88, #224, #255: two members, then six: each gets its share, and every message
/// comes to exactly one, however many topics there are.
#[test]
fn every_member_gets_its_share_of_many_topics() {
    const MESSAGES: usize = 1000;
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    let mut all = members(&broker, 0..2, "$share/g/#");
    for (round, count) in [2, 6].into_iter().enumerate() {
        all.extend(members(&broker, all.len()..count, "$share/g/#"));
        for topic in 0..10 {
            let topic = format!("{round}/{topic}");
            publish(&mut publisher, &topic, 1, 0..MESSAGES / 10);
        }
        let mut got = Got::default();
        got.collect(&mut all, MESSAGES);
        got.once();
        got.in_order();
        for member in 0..count {
            let share = got.of_member(member);
            let even = MESSAGES / count;
            assert!((even - 1..=even + 1).contains(&share), "{member} of {count} got {share}");
        }
    }
}

/// SHR-1: a hundred members get even shares, to five in a hundred, and members that come and go
/// cost no message.
#[test]
fn a_hundred_members_share_evenly_and_may_come_and_go() {
    const MEMBERS: usize = 100;
    const MESSAGES: usize = 2000;
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    let mut all = members(&broker, 0..MEMBERS, "$share/g/t");
    publish(&mut publisher, "t", 1, 0..MESSAGES);
    let mut got = Got::default();
    got.collect(&mut all, MESSAGES);
    got.once();
    for member in 0..MEMBERS {
        let share = got.of_member(member);
        assert!((19..=21).contains(&share), "member {member} got {share} of {MESSAGES}");
    }
    // Some of what comes now is with members that go before they have acknowledged it.
    for step in 0..10 {
        let from = MESSAGES + step * 50;
        publish(&mut publisher, "t", 1, from..from + 50);
        let gone: Vec<Client> = all.drain(..5).collect();
        for (at, member) in gone.into_iter().enumerate() {
            if at % 2 == 0 { member.reset() } else { member.disconnect() }
        }
        let first = MEMBERS + step * 5;
        all.extend(members(&broker, first..first + 5, "$share/g/t"));
    }
    got.collect(&mut all, MESSAGES + 500);
}

/// SHR-04, SHR-5: what a member without a session has not acknowledged, in flight or waiting for
/// credit, goes to the others, whether it says goodbye or is cut; in order, and once. What it has
/// acknowledged does not.
#[test]
fn what_a_member_without_a_session_leaves_goes_to_others() {
    for cut in [false, true] {
        let broker = Broker::start();
        let narrow = Connect::v5("narrow").with(prop::receive_maximum(10));
        let mut narrow = Client::connect(&broker, &narrow);
        narrow.subscribe("$share/g/t", 1);
        let mut publisher = Client::connect(&broker, &Connect::v5("p"));
        publish(&mut publisher, "t", 1, 0..50);
        let taken: Vec<String> = (0..5).map(|_| narrow.take().payload()).collect();
        assert_eq!(taken, ["0", "1", "2", "3", "4"]);
        narrow.ping();
        let mut others = members(&broker, 0..3, "$share/g/t");
        if cut {
            narrow.reset()
        } else {
            narrow.disconnect()
        }
        let mut got = Got::default();
        got.collect(&mut others, 45);
        got.once();
        got.in_order();
        assert!(!got.all.contains_key(&("t".to_owned(), 4)));
        publish(&mut publisher, "t", 1, 50..60);
        got.collect(&mut others, 55);
        got.once();
        others.iter_mut().for_each(|other| other.expect_silence(QUIET));
        assert_eq!(broker.dropped("Session ended"), 0);
    }
}

/// SHR-04, SHR-06, MQTT-4.8.2-5: what such a member was sent at QoS 2 ends with it; what it was not
/// sent goes to others.
#[test]
fn what_such_a_member_was_sent_at_qos_2_ends_with_it() {
    let broker = Broker::start();
    let narrow = Connect::v5("narrow").with(prop::receive_maximum(3));
    let mut narrow = Client::connect(&broker, &narrow);
    narrow.subscribe("$share/g/t", 2);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t", 2, 0..20);
    (0..3).for_each(|_| _ = narrow.expect_publish());
    let mut others = [Client::connect(&broker, &Connect::v5("other"))];
    others[0].subscribe("$share/g/t", 2);
    narrow.reset();
    let mut got = Got::default();
    got.collect(&mut others, 17);
    got.once();
    assert!((3..20).all(|number| got.all.contains_key(&("t".to_owned(), number))));
    others[0].expect_silence(QUIET);
}

/// SHR-11, MQTT-4.8.2-3: a message counts as delivered when it is acknowledged, not when it is
/// written: what a member that does not read has in its socket's buffers stays owed.
#[test]
fn what_a_member_does_not_read_stays_owed() {
    const MESSAGES: usize = 500;
    for persistent in [false, true] {
        let broker = Start::new().env("NETTY_SO_SEND_BUFFER", 65_536).start();
        let connect = match persistent {
            true => Connect::v5("closed").persistent(),
            false => Connect::v5("closed"),
        };
        let mut closed = Client::open_narrow(&broker, Level::V5).say_hello(&connect);
        closed.subscribe("$share/g/t", 1);
        let mut publisher = Client::connect(&broker, &Connect::v5("p"));
        let text = |number: usize| format!("{number:01000}");
        for number in 0..MESSAGES {
            let id = publisher.fresh_id();
            publisher.send(&wire::publish(Level::V5, 2, "t", id, &[], text(number)));
        }
        publisher.ping();
        broker.eventually("it was sent much", |broker| {
            broker.metric("flowControl_inflightCount") > Some(100.0)
        });
        let mut others = members(&broker, 0..1, "$share/g/t");
        closed.reset();
        let mut got = Got::default();
        if persistent {
            // What it may have been sent waits for its return.
            others.push(Client::connect(&broker, &connect));
        }
        got.collect(&mut others, MESSAGES);
        got.once();
        got.in_order();
    }
}
