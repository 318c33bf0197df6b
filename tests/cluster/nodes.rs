//! Several nodes behave as one broker (CLU; the forms over nodes of TKO, SES, WIL, RET, QOS, SHR).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::services::services;
use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Start, Will, wire};

/// Nodes `a`, `b`, … on one Kafka and one Redis; none where there are no services.
pub(crate) fn nodes(count: usize, allowed: &[&str]) -> Option<Vec<Broker>> {
    nodes_with(count, &[], allowed)
}

/// The same with settings.
pub(crate) fn nodes_with(
    count: usize,
    settings: &[(&str, &str)],
    allowed: &[&str],
) -> Option<Vec<Broker>> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let settings: Vec<(String, String)> = settings.iter().map(own).collect();
    settled_nodes(&vec![settings; count], allowed)
}

/// The same, each with settings of its own.
pub(crate) fn settled_nodes(
    settings: &[Vec<(String, String)>],
    allowed: &[&str],
) -> Option<Vec<Broker>> {
    static CLUSTERS: AtomicU32 = AtomicU32::new(0);
    services()?;
    let prefix = format!("n{}.", CLUSTERS.fetch_add(1, Ordering::Relaxed));
    let start = |(node, own): (&str, &Vec<(String, String)>)| {
        let start = Start::new()
            .env("TB_SERVICE_ID", node)
            .env("TB_KAFKA_PREFIX", &prefix)
            .env("CACHE_PREFIX", &prefix);
        let start = own.iter().fold(start, |start, (name, value)| start.env(name, value));
        allowed.iter().fold(start, |start, text| start.allow_log(text)).start()
    };
    Some(["a", "b", "c"].into_iter().zip(settings).map(start).collect())
}

fn client(broker: &Broker, id: &str) -> Client {
    Client::connect(broker, &Connect::v5(id))
}

pub(crate) fn payloads(client: &mut Client, count: usize) -> Vec<String> {
    (0..count).map(|_| client.take().payload()).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// ORD-01, ORD-05, RET: what is published on one node comes to the subscribers of the other, in
/// order, live and retained, and a PUBLISH accepted anywhere after a SUBACK is routed to it.
#[test]
fn a_message_reaches_the_subscribers_of_every_node() {
    let Some(nodes) = nodes(2, &[]) else { return };
    let mut publisher = client(&nodes[0], "publisher");
    publisher.retain("kept/1", "retained on a");
    for (round, qos) in [0, 1, 2].into_iter().enumerate() {
        let mut there = client(&nodes[1], "there");
        let topic = format!("t/{round}");
        there.subscribe(&topic, 2);
        (0..20).for_each(|number| _ = publisher.publish(&topic, number.to_string(), qos));
        assert_eq!(payloads(&mut there, 20), numbers(0..20));
        there.disconnect();
    }
    let mut there = client(&nodes[1], "there");
    there.subscribe("kept/#", 1);
    assert_eq!(there.take().payload(), "retained on a");
    there.retain("kept/1", "");
    there.disconnect();
    let mut here = client(&nodes[0], "here");
    here.subscribe("kept/#", 1);
    here.subscribe("t/end", 1);
    publisher.publish("t/end", "nothing before", 1);
    assert_eq!(here.take().payload(), "nothing before");
}

/// RET, SUB, OUT-2: whoever subscribes on one node while a topic's retained message is replaced on
/// another gets each value once: first the retained one, then those behind it, none missing.
#[test]
fn a_value_is_retained_or_live_and_never_both() {
    const ROUNDS: usize = 40;
    let Some(nodes) = nodes(2, &[]) else { return };
    let mut publisher = client(&nodes[0], "publisher");
    publisher.retain("k", "0");
    let over = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0;
            while over.load(Ordering::Relaxed) == 0 {
                value += 1;
                publisher.retain("k", value.to_string());
            }
        });
        // Ends the publisher, also when an assertion ends this thread.
        let _end = Defer(|| over.store(1, Ordering::Relaxed));
        for round in 0..ROUNDS {
            let mut subscriber = client(&nodes[1], &format!("s{round}"));
            subscriber.subscribe("k", (round % 3) as u8);
            let values = payloads(&mut subscriber, 4);
            let values: Vec<usize> = values.iter().map(|value| value.parse().unwrap()).collect();
            let expected: Vec<usize> = (values[0]..values[0] + 4).collect();
            assert_eq!(values, expected, "round {round}");
        }
    });
}

struct Defer<F: FnMut()>(F);

impl<F: FnMut()> Drop for Defer<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// TKO-01, SES-06, SES-08, WIL-01: a client that comes to another node takes its session with it;
/// the old connection is told 0x8E; what is queued comes once and in order; a Will goes out as on
/// one node.
#[test]
fn a_session_moves_with_its_client() {
    let Some(nodes) = nodes(2, &[]) else { return };
    let mut watcher = client(&nodes[0], "watcher");
    watcher.subscribe("w", 1);
    let mover = Connect::v5("mover").persistent();
    let will = Will::new("w", "cut").qos(1);
    let mut old = Client::connect(&nodes[0], &mover.clone().will(will));
    assert!(!old.session_present);
    old.subscribe("q", 1);
    let mut publisher = client(&nodes[1], "publisher");
    for round in 0..4 {
        let (from, to) = (round * 10, round * 10 + 10);
        let mut new = Client::connect(&nodes[(round + 1) % 2], &mover);
        assert!(new.session_present, "round {round}");
        old.expect_refusal(&[0x8E]);
        (from..to).for_each(|number| _ = publisher.publish("q", number.to_string(), 1));
        assert_eq!(payloads(&mut new, 10), numbers(from..to), "round {round}");
        new.ping();
        old = new;
    }
    assert_eq!(watcher.take().payload(), "cut");
    old.disconnect();
    (40..60).for_each(|number| _ = publisher.publish("q", number.to_string(), 1));
    let mut back = Client::connect(&nodes[1], &mover);
    assert!(back.session_present);
    assert_eq!(payloads(&mut back, 20), numbers(40..60));
    back.ping();
    back.unsubscribe(&[b"q"]);
    back.disconnect();
    let afresh = Client::connect(&nodes[0], &Connect::v5("mover"));
    assert!(!afresh.session_present, "a clean start ends it everywhere");
    afresh.disconnect();
    assert!(!Client::connect(&nodes[1], &mover).session_present);
}

/// QOS-01: a publisher's exchanges are judged alike on every node: what it repeats on another one
/// is delivered once.
#[test]
fn a_qos2_exchange_goes_on_on_another_node() {
    let Some(nodes) = nodes(2, &[]) else { return };
    let mut subscriber = client(&nodes[1], "subscriber");
    subscriber.subscribe("t", 2);
    let connect = Connect::v5("publisher").persistent();
    let publish = |client: &mut Client, dup: u8, id: u16, payload: &str| {
        client.send(&wire::publish(client.level, 4 | dup << 3, "t", id, &[], payload));
        assert_eq!(client.acknowledged(AckKind::Pubrec, id), 0);
    };
    let mut publisher = Client::connect(&nodes[0], &connect);
    publish(&mut publisher, 0, 1, "one");
    publish(&mut publisher, 0, 2, "two");
    publisher.reset();
    let mut publisher = Client::connect(&nodes[1], &connect);
    assert!(publisher.session_present);
    publish(&mut publisher, 1, 1, "one");
    publish(&mut publisher, 1, 2, "two");
    for id in [1, 2] {
        publisher.send(&wire::ack(6, id));
        assert_eq!(publisher.acknowledged(AckKind::Pubcomp, id), 0);
    }
    publish(&mut publisher, 0, 1, "three");
    assert_eq!(payloads(&mut subscriber, 3), ["one", "two", "three"]);
    subscriber.ping();
    subscriber.expect_silence(Duration::from_millis(100));
}

/// SHR-1: members of a group on two nodes, with queues and without, get each message once between
/// them.
#[test]
fn a_group_has_members_on_every_node() {
    let Some(nodes) = nodes(2, &[]) else { return };
    let mut members = vec![
        client(&nodes[0], "m0"),
        client(&nodes[1], "m1"),
        Client::connect(&nodes[0], &Connect::v5("m2").persistent()),
        Client::connect(&nodes[1], &Connect::v5("m3").persistent()),
    ];
    members.iter_mut().for_each(|member| _ = member.subscribe("$share/g/t", 2));
    let mut publishers = [client(&nodes[0], "p0"), client(&nodes[1], "p1")];
    for number in 0..60 {
        publishers[number % 2].publish("t", number.to_string(), (number % 3) as u8);
    }
    // What ends each member's share comes behind it.
    let mut all = Vec::new();
    for member in &mut members {
        let got: Vec<String> =
            member.drain(Duration::from_secs(1)).iter().map(|one| one.payload()).collect();
        assert!(!got.is_empty(), "everybody is connected");
        all.extend(got);
    }
    all.sort_by_key(|number| number.parse::<usize>().unwrap());
    assert_eq!(all, numbers(0..60));
}

/// CLU-01, CLU-03, SES-06, WIL-11: a node is killed under load. What was acknowledged comes to its
/// sessions on another node, once and in order; its Wills go out.
#[test]
fn nothing_is_lost_with_a_killed_node() {
    let allowed = ["a node was silent"];
    let Some(mut nodes) = nodes(3, &allowed) else { return };
    let mut watcher = client(&nodes[1], "watcher");
    watcher.subscribe("w", 1);
    let away = Connect::v5("away").persistent();
    let mut client_away = Client::connect(&nodes[0], &away);
    client_away.subscribe("q", 1);
    client_away.disconnect();
    let here = Connect::v5("here").persistent();
    let mut client_here =
        Client::connect(&nodes[0], &here.clone().will(Will::new("w", "gone").qos(1)));
    client_here.subscribe("q", 1);
    let mut publisher = client(&nodes[1], "publisher");
    (0..50).for_each(|number| _ = publisher.publish("q", number.to_string(), 1));
    assert_eq!(payloads(&mut client_here, 50), numbers(0..50));
    client_here.ping();
    nodes[0].kill();
    (50..100).for_each(|number| _ = publisher.publish("q", number.to_string(), 1));
    assert_eq!(watcher.take().payload(), "gone");
    (100..120).for_each(|number| _ = publisher.publish("q", number.to_string(), 1));
    let mut back = Client::connect(&nodes[2], &here);
    assert!(back.session_present);
    // Acknowledgements of the last moment may be lost with the node.
    let mut got = vec![back.take()];
    while got.last().is_some_and(|last| last.payload() != "119") {
        got.push(back.take());
    }
    let acknowledged = got.iter().take_while(|one| one.payload().parse::<u32>().unwrap() < 50);
    let again = acknowledged.count();
    assert!(got[..again].iter().all(|one| one.dup));
    let got: Vec<String> = got[again..].iter().map(|one| one.payload()).collect();
    assert_eq!(got, numbers(50..120));
    back.ping();
    let mut back = Client::connect(&nodes[1], &away);
    assert!(back.session_present);
    assert_eq!(payloads(&mut back, 120), numbers(0..120));
    back.ping();
    back.expect_silence(Duration::from_millis(100));
    nodes[0].start_again();
    let mut again = Client::connect(&nodes[0], &away);
    publisher.publish("q", "after", 1);
    assert_eq!(again.take().payload(), "after");
}

/// TKO-06, WIL-11, CLU-07: a node that stood still for too long acts on nothing any more: it says
/// so and ends, and its clients' sessions are where they went meanwhile.
#[test]
fn a_node_that_wakes_late_has_no_part_any_more() {
    let allowed = ["a node was silent", "this node ends"];
    let Some(mut nodes) = nodes(2, &allowed) else { return };
    let mut watcher = client(&nodes[1], "watcher");
    watcher.subscribe("w", 1);
    let connect = Connect::v5("x").persistent();
    let with_will = connect.clone().will(Will::new("w", "gone").qos(1));
    let mut old = Client::connect(&nodes[0], &with_will);
    old.subscribe("q", 1);
    old.ping();
    nodes[0].pause();
    assert_eq!(watcher.take().payload(), "gone", "the others take it for dead");
    let mut new = Client::connect(&nodes[1], &connect);
    assert!(new.session_present);
    nodes[0].resume();
    old.expect_close();
    let status = nodes[0].await_exit();
    assert_eq!(status.code(), Some(1), "{}", nodes[0].log());
    let mut publisher = client(&nodes[1], "publisher");
    publisher.publish("q", "to the new one", 1);
    assert_eq!(new.take().payload(), "to the new one");
    watcher.ping();
    watcher.expect_silence(Duration::from_millis(100));
}

/// CLU-05, ORD-05: filters of their own, which many clients subscribe to at once on all nodes, are
/// granted, and get what is published on another node behind each SUBACK.
#[test]
fn many_wildcards_on_all_nodes_lose_nothing() {
    const CLIENTS: usize = 150;
    let Some(nodes) = nodes(3, &[]) else { return };
    let connect = |number: usize| client(&nodes[number % 3], &format!("c{number}"));
    let mut clients: Vec<Client> = (0..CLIENTS).map(connect).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let filters: Vec<String> = (0..5).map(|k| format!("c/{number}/{k}/+/#")).collect();
        let filters: Vec<(&[u8], u8)> = filters.iter().map(|one| (one.as_bytes(), 1)).collect();
        client.send(&wire::subscribe(client.level, 1, &[], &filters));
    }
    let mut publishers = [0, 1, 2].map(|node| client(&nodes[node], &format!("p{node}")));
    for (number, client) in clients.iter_mut().enumerate() {
        match client.recv() {
            Packet::Suback { codes, .. } => assert_eq!(codes, [1; 5]),
            other => panic!("{other:?}"),
        }
        let publisher = &mut publishers[(number + 1) % 3];
        let publish = |k: u16| {
            let (topic, payload) = (format!("c/{number}/{k}/x/y"), k.to_string());
            wire::publish(Level::V5, 2, topic, k + 1, &[], payload)
        };
        publisher.send(&(0..5).flat_map(publish).collect::<Vec<u8>>());
        publisher.acknowledged_all(AckKind::Puback, 1..=5);
    }
    for client in &mut clients {
        assert_eq!(payloads(client, 5), numbers(0..5));
    }
}

/// SES-06: a node that leaves in good order hands on what it has.
#[test]
fn a_node_that_leaves_hands_on_what_it_has() {
    let Some(mut nodes) = nodes(2, &[]) else { return };
    let connect = Connect::v5("x").persistent();
    let mut old = Client::connect(&nodes[0], &connect);
    old.subscribe("q", 1);
    old.ping();
    let mut publisher = client(&nodes[1], "publisher");
    nodes[0].stop();
    (0..20).for_each(|number| _ = publisher.publish("q", number.to_string(), 1));
    let mut new = Client::connect(&nodes[1], &connect);
    assert!(new.session_present);
    let got: BTreeSet<String> = payloads(&mut new, 20).into_iter().collect();
    assert_eq!(got, numbers(0..20).into_iter().collect());
}
