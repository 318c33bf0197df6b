//! What waits for a shared group, and what its members give back (SHR-1 … SHR-5,
//! docs/decisions/010).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::operator;
use crate::shares::{app, begin, dev};
use crate::support::{
    AckKind, Broker, Client, Connect, Level, PATIENCE, Publish, Start, prop, wire,
};

const QUIET: Duration = Duration::from_millis(150);
/// Between two looks at one of several clients.
const GLANCE: Duration = Duration::from_millis(2);

fn member(id: &str) -> Connect {
    Connect::v5(id).persistent()
}

/// A persistent member that has subscribed and gone.
fn away(broker: &Broker, id: &str, filter: &str) {
    let mut client = Client::connect(broker, &member(id));
    assert_eq!(client.subscribe(filter, 1), 1);
    client.disconnect();
}

/// Publishes numbers, as fast as the broker takes them.
pub(crate) fn publish(
    publisher: &mut Client,
    topic: &str,
    qos: u8,
    numbers: std::ops::Range<usize>,
) {
    let numbers: Vec<usize> = numbers.collect();
    for chunk in numbers.chunks(200) {
        let ids: Vec<u16> = chunk
            .iter()
            .map(|number| {
                let id = publisher.fresh_id();
                let payload = number.to_string();
                publisher.send(&wire::publish(Level::V5, qos << 1, topic, id, &[], payload));
                id
            })
            .collect();
        if qos == 1 {
            publisher.acknowledged_all(AckKind::Puback, ids);
            continue;
        }
        for id in ids {
            publisher.acknowledged(AckKind::Pubrec, id);
            publisher.send(&wire::ack(6, id));
            publisher.acknowledged(AckKind::Pubcomp, id);
        }
    }
}

/// What members got, by topic, each in its order.
#[derive(Default)]
pub(crate) struct Got {
    of: BTreeMap<(usize, String), Vec<usize>>,
    pub(crate) all: BTreeMap<(String, usize), usize>,
    repeated: usize,
}

impl Got {
    fn take(&mut self, member: usize, one: &Publish) {
        let number: usize = one.payload().parse().unwrap();
        let topic = one.topic();
        self.repeated += usize::from(one.dup);
        self.of.entry((member, topic.clone())).or_default().push(number);
        *self.all.entry((topic, number)).or_default() += 1;
    }

    /// Until so many different messages came.
    pub(crate) fn collect(&mut self, members: &mut [Client], total: usize) {
        self.collect_until(members, total, |got| got.all.len());
    }

    /// Until so many copies came.
    #[allow(dead_code, reason = "the tests of one node don't need it")]
    pub(crate) fn collect_copies(&mut self, members: &mut [Client], total: usize) {
        self.collect_until(members, total, |got| got.all.values().sum());
    }

    fn collect_until(
        &mut self,
        members: &mut [Client],
        total: usize,
        count: impl Fn(&Self) -> usize,
    ) {
        let mut last = Instant::now() + PATIENCE;
        while count(self) < total {
            for (at, member) in members.iter_mut().enumerate() {
                while let Some(one) = member.take_within(GLANCE) {
                    self.take(at, &one);
                    last = Instant::now() + PATIENCE;
                }
            }
            let came = count(self);
            assert!(Instant::now() < last, "{came} of {total} came, and then no more");
        }
    }

    pub(crate) fn of_member(&self, member: usize) -> usize {
        let of = self.of.iter().filter(|((of, _), _)| *of == member);
        of.map(|(_, numbers)| numbers.len()).sum()
    }

    pub(crate) fn in_order(&self) {
        for ((member, topic), numbers) in &self.of {
            let at = numbers.windows(2).find(|pair| pair[0] >= pair[1]);
            assert_eq!(at, None, "member {member} got {topic} out of order");
        }
    }

    pub(crate) fn once(&self) {
        let twice: Vec<_> = self.all.iter().filter(|(_, times)| **times != 1).collect();
        assert!(twice.is_empty(), "more than once: {twice:?}");
    }
}

/// SHR-01, SHR-3, TBMQ #290: what came while nobody was there goes to whoever comes, all of it, in
/// each publisher's order, and what comes meanwhile goes behind it.
#[test]
fn a_backlog_goes_to_whoever_comes_first() {
    const BEFORE: usize = 2500;
    const LIVE: usize = 500;
    const LIMIT: &str = "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT";
    let broker = Start::new().env(LIMIT, 30_000).start();
    ["a", "b"].iter().for_each(|id| away(&broker, id, "$share/g/+/x"));
    let mut publishers: Vec<Client> =
        ["p", "q"].iter().map(|id| Client::connect(&broker, &Connect::v5(id))).collect();
    for (publisher, topic) in publishers.iter_mut().zip(["p/x", "q/x"]) {
        publish(publisher, topic, 1, 0..BEFORE);
    }
    let mut members = vec![Client::connect(&broker, &member("a"))];
    let mut got = Got::default();
    got.collect(&mut members, 300);
    members.push(Client::connect(&broker, &member("b")));
    for step in 0..LIVE / 50 {
        for (publisher, topic) in publishers.iter_mut().zip(["p/x", "q/x"]) {
            let from = BEFORE + step * 50;
            publish(publisher, topic, 1, from..from + 50);
        }
        for (at, member) in members.iter_mut().enumerate() {
            while let Some(one) = member.take_within(GLANCE) {
                got.take(at, &one);
            }
        }
    }
    got.collect(&mut members, 2 * (BEFORE + LIVE));
    got.once();
    got.in_order();
    assert_eq!(got.repeated, 0);
    // The room is empty: what comes now is given in turn again.
    let before = [got.of_member(0), got.of_member(1)];
    let end = BEFORE + LIVE;
    publish(&mut publishers[0], "p/x", 1, end..end + 20);
    got.collect(&mut members, 2 * end + 20);
    let shares = [got.of_member(0) - before[0], got.of_member(1) - before[1]];
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
}

/// SHR-02, TBMQ #69: a member at QoS 0 gets what it gets once; one that resumes takes part without
/// a SUBSCRIBE.
#[test]
fn a_member_at_qos_0_repeats_nothing_and_one_that_resumes_takes_part() {
    let broker = Broker::start();
    ["a", "b", "c"].iter().for_each(|id| away(&broker, id, "$share/g/t"));
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t", 1, 0..100);
    let mut got = Got::default();
    let mut members = vec![Client::connect(&broker, &member("a"))];
    got.collect(&mut members, 10);
    let mut first = members.remove(0);
    // What it was sent before is acknowledged; what comes from here on is at QoS 0.
    assert_eq!(first.subscribe("$share/g/t", 0), 0);
    while let Some(one) = first.take_within(QUIET) {
        got.take(0, &one);
    }
    publish(&mut publisher, "t", 1, 100..110);
    while let Some(one) = first.take_within(QUIET) {
        got.take(0, &one);
    }
    first.ping();
    first.reset();
    broker.await_metric("connectedSessions", 1.0);
    let mut members = [Client::connect(&broker, &member("b"))];
    assert!(members[0].session_present);
    publish(&mut publisher, "t", 1, 110..120);
    let deadline = Instant::now() + PATIENCE;
    while !(110..120).all(|number| got.all.contains_key(&("t".to_owned(), number))) {
        assert!(Instant::now() < deadline, "a resumed member gets nothing");
        while let Some(one) = members[0].take_within(GLANCE) {
            got.take(1, &one);
        }
    }
    members[0].expect_silence(QUIET);
    let missing: Vec<usize> =
        (0..120).filter(|n| !got.all.contains_key(&("t".to_owned(), *n))).collect();
    assert_eq!(missing, Vec::<usize>::new());
    got.once();
}

/// SHR-3, DEV-8: a group's room goes with its last member, and what was in it is counted.
#[test]
fn a_room_goes_with_the_last_member() {
    let mut broker = Broker::start();
    away(&broker, "a", "$share/g/t");
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t", 1, 0..30);
    broker.kill_and_restart();
    let before = broker.dropped("Session ended");
    Client::connect(&broker, &Connect::v5("a")).disconnect();
    broker.eventually("the room is gone", |broker| broker.dropped("Session ended") == before + 30);
    let mut member = Client::connect(&broker, &Connect::v5("b"));
    member.subscribe("$share/g/t", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t", 1, 30..31);
    assert_eq!(member.take().payload(), "30");
    member.expect_silence(QUIET);
}

/// INV-2, SHR-3: a crash while a room is being emptied costs nothing, and QoS 2 repeats nothing.
#[test]
fn a_room_survives_crashes_while_it_is_emptied() {
    const MESSAGES: usize = 600;
    let mut broker = Broker::start();
    for id in ["a", "b"] {
        let mut client = Client::connect(&broker, &member(id));
        client.subscribe("$share/g/t", 2);
        client.disconnect();
    }
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t", 2, 0..MESSAGES);
    let mut got = Got::default();
    let narrow = |id: &str| member(id).with(prop::receive_maximum(10));
    for round in 1..=3 {
        let mut members = vec![Client::connect(&broker, &narrow("a"))];
        members.push(Client::connect(&broker, &narrow("b")));
        got.collect(&mut members, round * MESSAGES / 5);
        broker.kill_and_restart();
    }
    let mut members = vec![Client::connect(&broker, &narrow("a"))];
    members.push(Client::connect(&broker, &narrow("b")));
    got.collect(&mut members, MESSAGES);
    // Exchanges that had come to their end may be ended once more.
    for (at, member) in members.iter_mut().enumerate() {
        member.drain(QUIET).iter().for_each(|one| got.take(at, one));
    }
    got.once();
}

/// SHR-05, SHR-5, TBMQ #290: what a member has not been sent when its client goes is given to those
/// that are there; what it was sent waits for it.
#[test]
fn a_member_that_goes_leaves_what_it_was_not_sent() {
    let broker = Broker::start();
    let narrow = member("a").with(prop::receive_maximum(5));
    let mut members = vec![Client::connect(&broker, &narrow)];
    members[0].subscribe("$share/g/t", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t", 1, 0..100);
    let sent: Vec<Publish> = (0..5).map(|_| members[0].expect_publish()).collect();
    members.push(Client::connect(&broker, &member("b")));
    members[1].subscribe("$share/g/t", 1);
    members[1].expect_silence(QUIET);
    members.remove(0).reset();
    let mut got = Got::default();
    got.collect(&mut members, 95);
    got.once();
    got.in_order();
    let mut back = Client::connect(&broker, &narrow);
    let again: Vec<Publish> = (0..5).map(|_| back.take()).collect();
    let payloads = |of: &[Publish]| of.iter().map(Publish::payload).collect::<Vec<_>>();
    assert_eq!(payloads(&sent), payloads(&again));
    assert!(again.iter().all(|one| one.dup));
    back.expect_silence(QUIET);
    members[0].expect_silence(QUIET);
}

/// SHR-05, SHR-5, MQTT-4.8.2-4: when a member's session ends, what it had at QoS 1 goes to others,
/// sent or not; SHR-06, MQTT-4.8.2-5: what it was sent at QoS 2 ends with it, and nobody else gets
/// that.
#[test]
fn a_session_that_ends_gives_back_all_but_what_it_was_sent_at_qos_2() {
    enum End {
        Expired,
        CleanStart,
        Goodbye,
        Removed,
    }
    for end in [End::Expired, End::CleanStart, End::Goodbye, End::Removed] {
        let broker = Broker::start();
        let expiry = if matches!(end, End::Expired) { 1 } else { 300 };
        let short = Connect::v5("a").resume().expiry(expiry).with(prop::receive_maximum(6));
        let mut a = Client::connect(&broker, &short);
        a.subscribe("$share/g/+", 2);
        let mut publisher = Client::connect(&broker, &Connect::v5("p"));
        publish(&mut publisher, "one", 1, 0..2);
        publish(&mut publisher, "two", 2, 0..4);
        publish(&mut publisher, "one", 1, 2..20);
        publish(&mut publisher, "two", 2, 4..20);
        let sent: Vec<Publish> = (0..6).map(|_| a.expect_publish()).collect();
        let begun = sent.iter().find(|one| one.qos == 2).unwrap();
        a.send(&wire::ack(5, begun.id));
        a.acknowledged(AckKind::Pubrel, begun.id);
        let mut members = vec![Client::connect(&broker, &member("b"))];
        members[0].subscribe("$share/g/+", 2);
        match end {
            End::Expired => a.reset(),
            End::CleanStart => {
                a.reset();
                let mut again = Client::connect(&broker, &Connect::v5("a"));
                assert!(!again.session_present);
                again.expect_silence(QUIET);
            }
            End::Goodbye => {
                a.send(&wire::frame(0xE0, &[&[0, 5][..], &prop::session_expiry(0)].concat()));
            }
            End::Removed => {
                a.disconnect();
                Client::connect(&broker, &Connect::v5("a")).disconnect();
            }
        }
        let mut got = Got::default();
        got.collect(&mut members, 36);
        got.once();
        assert!((0..20).all(|number| got.all.contains_key(&("one".to_owned(), number))));
        assert!((0..4).all(|number| !got.all.contains_key(&("two".to_owned(), number))));
        members[0].expect_silence(QUIET);
    }
}

/// SHR-06, MQTT-4.8.2-4: an exchange at QoS 2 that has begun goes on with the session that has it.
#[test]
fn an_exchange_at_qos_2_goes_on_with_its_member() {
    let broker = Broker::start();
    let mut a = Client::connect(&broker, &member("a"));
    a.subscribe("$share/g/t", 2);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t", 2, 0..2);
    let (first, second) = (a.expect_publish(), a.expect_publish());
    a.send(&wire::ack(5, first.id));
    a.acknowledged(AckKind::Pubrel, first.id);
    let mut b = Client::connect(&broker, &member("b"));
    b.subscribe("$share/g/t", 2);
    a.reset();
    b.expect_silence(QUIET);
    let mut a = Client::connect(&broker, &member("a"));
    a.acknowledged(AckKind::Pubrel, first.id);
    a.send(&wire::ack(7, first.id));
    let again = a.take();
    assert!(again.dup && again.id == second.id && again.payload() == "1");
    b.expect_silence(QUIET);
}

/// SHR-5: a member that UNSUBSCRIBEs and goes leaves nothing of its group behind.
#[test]
fn a_member_that_unsubscribes_gives_back_when_it_goes() {
    let broker = Broker::start();
    let mut a = Client::connect(&broker, &member("a").with(prop::receive_maximum(5)));
    a.subscribe("$share/g/t", 1);
    a.subscribe("plain", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t", 1, 0..20);
    publish(&mut publisher, "plain", 1, 0..1);
    (0..5).for_each(|_| _ = a.expect_publish());
    let mut members = vec![Client::connect(&broker, &member("b"))];
    members[0].subscribe("$share/g/t", 1);
    a.unsubscribe(&[b"$share/g/t"]);
    a.reset();
    let mut got = Got::default();
    got.collect(&mut members, 20);
    got.once();
    let mut a = Client::connect(&broker, &member("a"));
    assert_eq!(a.take().topic(), "plain");
    a.expect_silence(QUIET);
}

/// SHR-01, SHR-4, SHR-5, TBMQ #290: what waits for a group of APPLICATION clients goes to whoever
/// comes, in order; and so does what one of them leaves.
#[test]
fn what_waits_for_an_application_group_goes_to_whoever_comes() {
    let (broker, _operator) = begin(operator::start_basic());
    for id in ["a", "b"] {
        let mut member = app(&broker, id);
        assert_eq!(member.subscribe("$share/g/t", 1), 1);
        member.disconnect();
    }
    let mut publisher = dev(&broker, "p");
    publish(&mut publisher, "t", 1, 0..400);
    let narrow = member("a").user("app").with(prop::receive_maximum(5));
    let mut members = vec![Client::connect(&broker, &narrow)];
    let mut got = Got::default();
    got.collect(&mut members, 50);
    members.push(app(&broker, "b"));
    publish(&mut publisher, "t", 1, 400..450);
    got.collect(&mut members, 450);
    got.once();
    got.in_order();
    members.remove(1).disconnect();
    broker.await_metric("connectedSessions", 2.0);
    publish(&mut publisher, "t", 1, 450..500);
    let kept: Vec<usize> =
        (0..5).map(|_| members[0].expect_publish().payload().parse().unwrap()).collect();
    assert!(kept.into_iter().eq(450..455));
    members.remove(0).reset();
    members.push(app(&broker, "b"));
    got.collect(&mut members, 495);
    got.once();
    members[0].expect_silence(QUIET);
}

/// TBMQ #290, SHR-01: members that come and go all the time stall nothing, and lose nothing.
#[test]
fn members_that_reconnect_all_the_time_stall_nothing() {
    const MESSAGES: usize = 1500;
    let broker = Broker::start();
    ["a", "b"].iter().for_each(|id| away(&broker, id, "$share/g/t"));
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t", 1, 0..MESSAGES - 200);
    let narrow = |id: &str| Client::connect(&broker, &member(id).with(prop::receive_maximum(20)));
    let mut members = vec![narrow("a"), narrow("b")];
    let mut got = Got::default();
    for round in 0..10 {
        let from = MESSAGES - 200 + round * 20;
        let some = from.min(got.all.len() + 60);
        got.collect(&mut members, some);
        publish(&mut publisher, "t", 1, from..from + 20);
        let id = if round % 2 == 0 { "a" } else { "b" };
        let old = std::mem::replace(&mut members[round % 2], narrow(id));
        // Some are taken over, some come back to a session that nobody has.
        drop(old);
    }
    got.collect(&mut members, MESSAGES);
}
