//! Flow control among several nodes: congestion that moves with its session, limits that are the
//! cluster's.

use std::time::{Duration, Instant};

use crate::nodes::{nodes_with, payloads, settled_nodes};
use crate::operator::{self, Operator};
use crate::support::{AckKind, Broker, Client, Connect, Level, wire};

/// Marks so low that a few messages reach them.
const LOW_MARKS: [(&str, &str); 3] = [
    ("NETTY_WRITE_BUFFER_HIGH_WATER_MARK", "64"),
    ("NETTY_WRITE_BUFFER_LOW_WATER_MARK", "32"),
    ("NETTY_SO_SEND_BUFFER", "8"),
];

/// Of the client's packets only as many as fit into its socket leave the broker.
fn narrow(broker: &Broker, connect: &Connect) -> Client {
    Client::open_narrow(broker, Level::V5).say_hello(connect)
}

/// DEV-1, DEV-2, DEV-3, TKO-04: a session that is congested on one node and taken over by the
/// other, again and again, gets everything out of its queue, in order, and nothing is dropped.
#[test]
fn a_congested_session_recovers_on_another_node() {
    const MESSAGES: usize = 60;
    let Some(nodes) = nodes_with(2, &LOW_MARKS, &[]) else { return };
    let connect = Connect::v5("slow").persistent();
    let mut slow = narrow(&nodes[0], &connect);
    slow.subscribe("t", 1);
    let mut publishers = [0, 1].map(|at| {
        let broker: &Broker = &nodes[at];
        Client::connect(broker, &Connect::v5(format!("p{at}")))
    });
    let mut next = 0;
    for round in 0..2 {
        let (here, there) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        for number in 0..MESSAGES {
            let number = round * MESSAGES + number;
            publishers[number % 2].publish("t", format!("{number:<4096}"), 1);
        }
        here.await_metric("nonWritableClients", 1.0);
        // What it has read when it leaves it has not acknowledged.
        slow = narrow(there, &connect);
        assert!(slow.session_present, "round {round}");
        here.await_metric("nonWritableClients", 0.0);
        // It takes half of what is there, and is congested again on its new node.
        for _ in 0..MESSAGES / 2 {
            let payload = slow.take().payload();
            assert_eq!(payload.trim_end(), next.to_string(), "round {round}");
            next += 1;
        }
        slow.ping();
    }
    while next < 2 * MESSAGES {
        assert_eq!(slow.take().payload().trim_end(), next.to_string());
        next += 1;
    }
    slow.ping();
    for node in &nodes {
        node.await_metric("nonWritableClients", 0.0);
        node.await_metric("flowControl_inflightCount", 0.0);
        assert_eq!(node.metric("droppedMsgs_total"), Some(0.0));
    }
}

/// RM-2, RM-4: on its new node a client has the credit of its new CONNECT, what is sent again takes
/// of it, and QoS 0 needs none.
#[test]
fn credit_starts_afresh_on_another_node() {
    use crate::support::prop;
    let Some(nodes) = nodes_with(2, &[], &[]) else { return };
    let connect = |credit: u16| Connect::v5("c").persistent().with(prop::receive_maximum(credit));
    let mut client = Client::connect(&nodes[0], &connect(2));
    client.subscribe("t", 1);
    client.subscribe("zero", 0);
    let mut publisher = Client::connect(&nodes[1], &Connect::v5("p"));
    (0..10).for_each(|number| _ = publisher.publish("t", number.to_string(), 1));
    let first = [client.expect_publish(), client.expect_publish()];
    publisher.publish("zero", "z", 0);
    assert_eq!(client.take().payload(), "z", "QoS 0 needs no credit");
    let mut client = Client::connect(&nodes[1], &connect(5));
    let again: Vec<_> = (0..5).map(|_| client.expect_publish()).collect();
    assert_eq!(again[..2].iter().map(|one| one.id).collect::<Vec<_>>(), first.map(|one| one.id));
    assert!(again[..2].iter().all(|one| one.dup) && again[2..].iter().all(|one| !one.dup));
    publisher.publish("zero", "z", 0);
    assert_eq!(client.take().payload(), "z", "its five credits are taken");
    let acks: Vec<u8> = again.iter().flat_map(|one| crate::support::wire::ack(4, one.id)).collect();
    client.send(&acks);
    assert_eq!(payloads(&mut client, 5), ["5", "6", "7", "8", "9"]);
}

/// DEV-7, INV-2: the copies into durable queues of all nodes come out of one bucket; what was
/// refused is counted where the session lives, and doesn't come when it moves.
#[test]
fn nodes_share_the_limit_of_copies_into_queues() {
    const TOKENS: usize = 5;
    let windows = format!("{TOKENS}:86400");
    let settings = [
        ("MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_ENABLED", "true"),
        ("MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_CONFIG", windows.as_str()),
    ];
    let Some(nodes) = nodes_with(2, &settings, &[]) else { return };
    let connects = ["a", "b"].map(|id| Connect::v5(id).persistent());
    let mut clients: Vec<Client> = Vec::new();
    for (node, connect) in nodes.iter().zip(&connects) {
        let mut client = Client::connect(node, connect);
        client.subscribe("t", 1);
        clients.push(client);
    }
    let mut publisher = Client::connect(&nodes[0], &Connect::v5("p"));
    (0..10).for_each(|number| _ = publisher.publish("t", number.to_string(), 1));
    let dropped = || nodes.iter().map(|node| node.dropped("Rate limits")).sum::<usize>();
    nodes[0].eventually("the surplus is counted", |_| dropped() == 20 - TOKENS);
    drop(clients);
    let mut got = 0;
    for (connect, node) in connects.iter().zip([&nodes[1], &nodes[0]]) {
        let mut client = Client::connect(node, connect);
        assert!(client.session_present);
        let copies = client.drain(Duration::from_secs(1));
        let numbers: Vec<usize> = copies.iter().map(|one| one.payload().parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        got += numbers.len();
    }
    assert_eq!((got, dropped()), (TOKENS, 20 - TOKENS), "no node takes tokens for another one's");
}

/// DEV-7, MET-2: a session that moves before the refusal of a copy stands in the log takes the copy
/// with it, and nobody counts it as lost.
#[test]
fn a_session_that_moves_before_a_refusal_takes_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let fuse = folder.path().join("fuse");
    let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let limited = vec![
        own("MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_ENABLED", "true"),
        own("MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_CONFIG", "1:86400"),
    ];
    let point = own("SLUICE_FAIL_POINT", &format!("copies.refused:1:{}", fuse.display()));
    let settings = [[limited.clone(), vec![point]].concat(), limited];
    let Some(nodes) = settled_nodes(&settings, &["WARN"]) else { return };
    let connect = Connect::v5("a").persistent();
    let mut client = Client::connect(&nodes[0], &connect);
    client.subscribe("t", 1);
    client.disconnect();
    let mut watcher = Client::connect(&nodes[0], &Connect::v5("watcher"));
    watcher.subscribe("end", 1);
    let mut publisher = Client::connect(&nodes[1], &Connect::v5("p"));
    publisher.publish("t", "0", 1);
    publisher.publish("end", "the only token is gone", 1);
    watcher.take();
    std::fs::write(&fuse, "stop").unwrap();
    publisher.publish("t", "1", 1);
    nodes[1].eventually("its node stands still", |_| !fuse.exists());
    let mut client = Client::connect(&nodes[1], &connect);
    nodes[0].resume();
    assert!(client.session_present);
    assert_eq!(payloads(&mut client, 2), ["0", "1"]);
    // The first is routed there when the refusal is in the log, the second behind it.
    for text in ["stored", "passed"] {
        publisher.publish("end", text, 1);
        assert_eq!(watcher.take().payload(), text);
    }
    let dropped = nodes.iter().map(|node| node.dropped("Rate limits")).sum::<usize>();
    assert_eq!(dropped, 0, "it came");
}

/// MET-2: each node tells what all have lost, and the sum is that of their counters; to delete the
/// rows on one deletes them on all.
#[test]
fn the_ledger_is_that_of_all_nodes() {
    let settings = [("SECURITY_ADMIN_PASSWORD", operator::PASSWORD)];
    let Some(nodes) = nodes_with(2, &settings, &[]) else { return };
    let lose = |node: &Broker, id: &str, times: usize| {
        let mut client = Client::connect(node, &Connect::v5(id));
        (0..times).for_each(|_| _ = client.publish("nobody", "m", 1));
    };
    lose(&nodes[0], "a", 3);
    lose(&nodes[1], "b", 4);
    lose(&nodes[1], "a", 5);
    let counters = || nodes.iter().filter_map(|node| node.metric("droppedMsgs_total")).sum::<f64>();
    nodes[0].eventually("all is counted", |_| counters() == 12.0);
    let list = |node: &Broker, query: &str| -> serde_json::Value {
        Operator::login(node).get(&format!("/api/dropped-messages?{query}")).ok()
    };
    for node in &nodes {
        node.eventually("all rows", |node| list(node, "")["totalCount"] == 12);
        let of_a = list(node, "clientId=a&pageSize=1");
        assert_eq!((&of_a["totalElements"], &of_a["data"][0]["count"]), (&1.into(), &8.into()));
    }
    assert_eq!(Operator::login(&nodes[0]).delete("/api/dropped-messages").status, 200);
    for node in &nodes {
        node.eventually("no row", |node| list(node, "")["totalElements"] == 0);
    }
    assert_eq!(counters(), 12.0, "counters stay");
    lose(&nodes[1], "again", 1);
    nodes[0].eventually("a new row", |node| list(node, "")["totalCount"] == 1);
}

/// QUO-1, QUO-10: three nodes whose publishers ask for twice as much share one budget, also while
/// one is killed and comes back: never more than the bucket had, and what the dead node had on
/// lease.
/// For `SLUICE_TESTS_QUOTA_SECONDS` (3); from 30 on also not less than 95 % of it.
#[test]
fn nodes_share_one_budget() {
    const RATE: u64 = 200;
    let seconds = std::env::var("SLUICE_TESTS_QUOTA_SECONDS").ok().and_then(|s| s.parse().ok());
    let seconds: u64 = seconds.unwrap_or(3);
    let windows = format!("{RATE}:1");
    let settings =
        [("MQTT_TOTAL_RATE_LIMITS_ENABLED", "true"), ("MQTT_TOTAL_RATE_LIMITS_CONFIG", &windows)];
    let allowed = ["licensed throughput reached", "a node was silent"];
    let Some(mut nodes) = nodes_with(3, &settings, &allowed) else { return };
    let begun = Instant::now();
    let (end, third) = (Duration::from_secs(seconds), Duration::from_secs(seconds) / 3);
    let (two, other) = nodes.split_at_mut(2);
    let (admitted, refused) = std::thread::scope(|scope| {
        let publish = |node| scope.spawn(move || overload(node, RATE, begun + end));
        let mut counts: Vec<_> = two.iter().map(publish).collect();
        let first = overload(&other[0], RATE, begun + third);
        other[0].kill();
        std::thread::sleep(third);
        other[0].start_again();
        let node = &other[0];
        counts.push(scope.spawn(move || overload(node, RATE, begun + end)));
        let counts = counts.into_iter().map(|one| one.join().unwrap());
        counts.fold(first, |a, b| (a.0 + b.0, a.1 + b.1))
    });
    let elapsed = begun.elapsed().as_secs_f64();
    let budget = RATE as f64 * elapsed;
    eprintln!(
        "QUO-10: {admitted} admitted, {refused} refused in {elapsed:.1} s: {:.1} % of the budget",
        100.0 * admitted as f64 / budget
    );
    // A full bucket at the start; a lease of a tenth of a second for each node and each run.
    let most = budget + (RATE + 4 * RATE / 10) as f64;
    assert!(admitted as f64 <= most, "{admitted} admitted of {budget:.0}");
    assert!(refused > 0, "that was no overload");
    if seconds >= 30 {
        let within = (budget * 0.95)..=(budget * 1.05);
        assert!(within.contains(&(admitted as f64)), "{admitted} admitted of {budget:.0}");
    }
}

/// One of three publishers that ask for twice the budget together, by the clock: how much of that
/// was admitted and refused.
fn overload(node: &Broker, rate: u64, end: Instant) -> (u64, u64) {
    const AT_ONCE: u16 = 8;
    let mut client = Client::connect(node, &Connect::v5(""));
    let (mut admitted, mut refused) = (0, 0);
    let pause = Duration::from_secs_f64(f64::from(AT_ONCE) / (2.0 * rate as f64 / 3.0));
    let mut next = Instant::now();
    while next < end {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next += pause;
        let publish = |id| wire::publish(Level::V5, 2, "nobody", id, &[], "m");
        client.send(&(1..=AT_ONCE).flat_map(publish).collect::<Vec<u8>>());
        for id in 1..=AT_ONCE {
            match client.acknowledged(AckKind::Puback, id) {
                0x97 => refused += 1,
                code => {
                    assert_eq!(code & 0x80, 0, "{code:#x}");
                    admitted += 1;
                }
            }
        }
    }
    (admitted, refused)
}
