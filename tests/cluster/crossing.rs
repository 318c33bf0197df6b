//! What holds on one node holds for a client that goes from node to node: sessions, take-overs,
//! Wills, retained messages, QoS 2 exchanges and their order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::nodes::{nodes, payloads};
use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Random, Will, prop, wire};

const SECOND: Duration = Duration::from_secs(1);

fn client(broker: &Broker, id: &str) -> Client {
    Client::connect(broker, &Connect::v5(id))
}

/// Says goodbye with a Session Expiry Interval.
fn leave(mut client: Client, expiry: u32) {
    client.send(&wire::frame(
        0xE0,
        &wire::all(&[&[0], &wire::block(Level::V5, &prop::session_expiry(expiry))]),
    ));
    client.expect_close();
}

/// TKO-02, TKO-06, TKO-07, TKO-08: clients with equal ids on all nodes, which break off anywhere,
/// harm nobody else; whoever comes last has the session; and nothing is left behind.
#[test]
fn equal_ids_on_all_nodes_harm_nobody() {
    let Some(nodes) = nodes(2, &[]) else { return };
    let mut canary = client(&nodes[0], "canary");
    canary.subscribe("canary", 1);
    let mut far = client(&nodes[1], "far");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..8 {
            let (nodes, stop) = (&nodes, &stop);
            scope.spawn(move || {
                let mut random = Random::seeded(seed + 1);
                while !stop.load(Ordering::Relaxed) {
                    let node = random.below(nodes.len());
                    short_life(&nodes[node], &mut random);
                }
            });
        }
        let until = Instant::now() + 3 * SECOND;
        while Instant::now() < until {
            far.publish("canary", "alive", 1);
            assert_eq!(canary.take().payload(), "alive");
        }
        stop.store(true, Ordering::Relaxed);
    });
    for round in 0..10 {
        let connect = Connect::v5("y").persistent();
        let mut first = Client::connect(&nodes[round % 2], &connect);
        first.subscribe("t", 1);
        let mut last = Client::connect(&nodes[(round + 1) % 2], &connect);
        last.subscribe("t", 1);
        first.expect_refusal(&[0x8E]);
        far.publish("t", round.to_string(), 1);
        assert_eq!(last.take().payload(), round.to_string());
        last.ping();
    }
    client(&nodes[0], "y").disconnect();
    nodes[0].eventually("nothing is left but two", |_| {
        for number in 0..5 {
            // One that was cut off may come to its turn behind it, and win.
            let mut clean = Client::open(&nodes[number % 2], Level::V5);
            clean.send(&Connect::v5(format!("x{}", number + 1)).bytes());
            drop(clean.recv_or_end(SECOND));
            clean.try_send(&wire::DISCONNECT);
        }
        nodes.iter().filter_map(|node| node.metric("connectedSessions")).sum::<f64>() == 2.0
            && nodes.iter().filter_map(|node| node.metric("allClientSessions")).sum::<f64>() == 2.0
    });
}

fn short_life(node: &Broker, random: &mut Random) {
    let level = *random.pick(&Level::ALL);
    let connect = Connect::new(level, format!("x{}", random.below(5) + 1));
    let connect = if random.below(2) == 0 { connect.persistent() } else { connect };
    let mut client = Client::open(node, level);
    let mut alive = client.try_send(&connect.bytes());
    for packet in 1..=random.below(6) as u16 {
        let filter = format!("r/{}", random.below(25));
        let subscribe = wire::subscribe(level, packet, &[], &[(filter.as_bytes(), 1)]);
        alive = alive && client.try_send(&subscribe);
    }
    if random.below(2) == 0 { client.reset() } else { drop(client) }
}

/// SES-01, SES-02, SES-07, SES-10, SES-11, SES-12: a session is found, or not, as on one node.
#[test]
fn a_session_is_the_same_on_every_node() {
    let Some(nodes) = nodes(2, &[]) else { return };
    let older = Connect::v311("older");
    let turns = [(true, false), (true, true), (false, false), (true, false)];
    for (turn, (resumes, present)) in turns.into_iter().enumerate() {
        let connect = if resumes { older.clone().persistent() } else { older.clone() };
        let found = Client::connect(&nodes[turn % 2], &connect);
        assert_eq!(found.session_present, present, "turn {turn}");
        found.disconnect();
    }
    let without_expiry = Connect::v5("v5").resume();
    Client::connect(&nodes[0], &without_expiry).disconnect();
    assert!(!Client::connect(&nodes[1], &without_expiry).session_present);

    let mut publisher = client(&nodes[1], "publisher");
    publisher.retain("kept", "value");
    let persistent = Connect::v5("s").persistent();
    let mut here = Client::connect(&nodes[0], &persistent);
    here.subscribe("kept", 1);
    assert_eq!(here.take().payload(), "value");
    here.disconnect();
    let mut there = Client::connect(&nodes[1], &persistent);
    assert!(there.session_present);
    publisher.publish("kept", "next", 1);
    assert_eq!(there.take().payload(), "next", "nothing is sent for the value of before");
    leave(there, 1);
    let lasts = Connect::v5("lasts").expiry(1);
    leave(Client::connect(&nodes[1], &lasts), 300);
    let ends = Client::connect(&nodes[0], &Connect::v5("ends").expiry(1));
    ends.disconnect();
    nodes[0].eventually("sessions end by themselves", |_| {
        let all = nodes.iter().filter_map(|node| node.metric("allClientSessions")).sum::<f64>();
        // The older one, the publisher, and the one whose last word was 300 s.
        all == 3.0
    });
    assert!(Client::connect(&nodes[0], &lasts.resume()).session_present);
    assert!(!Client::connect(&nodes[0], &persistent).session_present);
}

/// WIL-03, WIL-04, WIL-05, WIL-08, WIL-09, WIL-12: a Will goes out as on one node, whichever node
/// its client goes to next.
#[test]
fn a_will_follows_its_session_to_another_node() {
    let Some(nodes) = nodes(2, &[]) else { return };
    let mut watcher = client(&nodes[1], "watcher");
    watcher.subscribe("w", 1);
    let absent = Connect::v5("absent").persistent();
    let mut away = Client::connect(&nodes[1], &absent);
    away.subscribe("w", 2);
    away.disconnect();
    let will = |text: &str| Will::new("w", text).qos(2);
    let at_once = Connect::v5("1").will(will("no session").delay(3600));
    Client::connect(&nodes[0], &at_once).reset();
    assert_eq!(watcher.take().payload(), "no session");

    let waits = Connect::v5("2").persistent().will(will("a clean start").delay(3600));
    Client::connect(&nodes[0], &waits).reset();
    nodes[0].await_metric("connectedSessions", 0.0);
    let afresh = client(&nodes[1], "2");
    assert!(!afresh.session_present);
    assert_eq!(watcher.take().payload(), "a clean start");

    let mut asked = Client::connect(&nodes[0], &Connect::v5("3").will(will("asked for")));
    asked.send(&wire::frame(0xE0, &[4]));
    assert_eq!(watcher.take().payload(), "asked for");

    let device = Connect::v5("4").will(will("offline").retain());
    let _black_hole = Client::connect(&nodes[0], &device);
    let mut back = client(&nodes[1], "4");
    back.retain("w", "online");
    assert_eq!(payloads(&mut watcher, 2), ["offline", "online"], "never later");
    let mut late = client(&nodes[0], "late");
    late.subscribe("w", 1);
    assert_eq!(late.take().payload(), "online");
    let gone = Connect::v5("5").will(Will::new("last", "kept").retain());
    Client::connect(&nodes[1], &gone).reset();
    nodes[0].eventually("its Will is retained", |node| {
        let mut later = client(node, "later");
        later.subscribe("last", 1);
        let kept = later.take_within(SECOND / 2);
        kept.is_some_and(|one| one.retain && one.payload() == "kept")
    });

    let mut away = Client::connect(&nodes[0], &absent);
    let all = payloads(&mut away, 5);
    assert_eq!(all, ["no session", "a clean start", "asked for", "offline", "online"]);
}

/// RET-03, RET-05, RET-09, RET-17: what one node retains is replaced, cleared and forgotten
/// on all.
#[test]
fn what_is_retained_is_the_same_on_every_node() {
    let Some(nodes) = nodes(2, &[]) else { return };
    let mut publisher = client(&nodes[0], "publisher");
    let mut live = client(&nodes[1], "live");
    live.subscribe("t", 1);
    publisher.retain("t", "one");
    let got = live.take();
    assert!(!got.retain && got.payload() == "one");
    let mut older = Client::connect(&nodes[1], &Connect::v311("older"));
    for _ in 0..2 {
        older.subscribe("t", 1);
        let kept = older.take();
        assert!(kept.retain && kept.payload() == "one");
    }
    let mut other = client(&nodes[1], "other");
    other.retain("t", "");
    assert_eq!(live.take().payload(), "");
    let mut fresh = client(&nodes[0], "fresh");
    fresh.subscribe("t", 1);
    publisher.publish("t", "only live", 1);
    assert_eq!(fresh.take().payload(), "only live");
    publisher.publish_with("short", "soon gone", 1 << 1 | 1, &prop::four(2, 1));
    nodes[1].eventually("it expires on the other node", |node| {
        let mut looks = client(node, "looks");
        looks.subscribe("short", 1);
        looks.subscribe("end", 1);
        publisher.publish("end", "", 1);
        looks.take().topic() == "end"
    });
}

/// QOS-02, QOS-04, QOS-05, ORD-04, FLO-08: exchanges of QoS 2 go on on another node, from either
/// end, under their ids and in their order.
#[test]
fn exchanges_go_on_on_another_node() {
    let Some(nodes) = nodes(2, &[]) else { return };
    let connect = Connect::v5("s").persistent();
    let mut subscriber = Client::connect(&nodes[0], &connect);
    subscriber.subscribe("t", 2);
    let sender = Connect::v5("p").persistent();
    let mut publisher = Client::connect(&nodes[1], &sender);
    (0..6).for_each(|number| _ = publisher.publish("t", number.to_string(), 2));
    let first: Vec<_> = (0..6).map(|_| subscriber.expect_publish()).collect();
    // The first is finished, the second and third are received, the others were only sent.
    for publish in &first[..3] {
        subscriber.send(&wire::ack(5, publish.id));
        subscriber.acknowledged(AckKind::Pubrel, publish.id);
    }
    subscriber.send(&wire::ack(7, first[0].id));
    subscriber.ping();
    subscriber.reset();
    let mut subscriber = Client::connect(&nodes[1], &connect);
    assert!(subscriber.session_present);
    let mut released = Vec::new();
    let mut again = Vec::new();
    while released.len() + again.len() < 5 {
        match subscriber.recv() {
            Packet::Ack { kind: AckKind::Pubrel, id, .. } => released.push(id),
            Packet::Publish(publish) => again.push((publish.id, publish.dup, publish.payload())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(released, [first[1].id, first[2].id]);
    let expected: Vec<_> = first[3..].iter().map(|one| (one.id, true, one.payload())).collect();
    assert_eq!(again, expected);

    publisher.send(&wire::publish(Level::V5, 4, "t", 50, &[], "cut off"));
    publisher.acknowledged(AckKind::Pubrec, 50);
    publisher.reset();
    let mut publisher = Client::connect(&nodes[0], &sender);
    publisher.send(&wire::ack(6, 50));
    assert_eq!(publisher.acknowledged(AckKind::Pubcomp, 50), 0);
    publisher.send(&wire::ack(6, 51));
    assert_eq!(publisher.acknowledged(AckKind::Pubcomp, 51), 0x92, "never used");
    publisher.send(&wire::publish(Level::V5, 4 | 8, "t", 52, &[], "its first copy was lost"));
    publisher.acknowledged(AckKind::Pubrec, 52);
    publisher.send(&wire::ack(6, 52));
    publisher.acknowledged(AckKind::Pubcomp, 52);
    let rest = [subscriber.expect_publish(), subscriber.expect_publish()];
    assert_eq!(rest.map(|one| one.payload()), ["cut off", "its first copy was lost"]);
}
