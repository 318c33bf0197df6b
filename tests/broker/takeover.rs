//! Session takeover: one client id, one connection (TKO).
//!
//! The rows are also about several nodes; here both connections meet on one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Random, wire};

const SECOND: Duration = Duration::from_secs(1);

/// TKO-01, MQTT-3.1.4-3 (v5), MQTT-3.1.4-2 (3.1.1): the displaced client is told 0x8E on level 5,
/// and closed without a byte on the older ones, whatever level the newcomer speaks.
#[test]
fn the_displaced_client_knows_why() {
    let broker = Broker::start();
    for old in Level::ALL {
        for new in Level::ALL {
            let mut a = Client::connect(&broker, &Connect::new(old, "x"));
            let mut b = Client::connect(&broker, &Connect::new(new, "x"));
            a.expect_refusal(&[0x8E]);
            b.ping();
            b.disconnect();
        }
    }
    assert_eq!(broker.metric("sessionTakeovers_total"), Some(9.0));
}

/// TKO-02, MQTT-4.1.0-1: what ends with the old connection, however late, touches nothing of the
/// new one. The old sockets are broken at once, or keep their end open for two seconds.
#[test]
fn the_end_of_the_old_connection_touches_nothing_of_the_new() {
    const CLIENTS: usize = 200;
    let broker = Broker::start();
    let connect = |number: usize| {
        let id = format!("x{number}");
        match number % 4 {
            0 => Connect::v5(id),
            1 => Connect::v5(id).persistent(),
            2 => Connect::v311(id),
            _ => Connect::v311(id).persistent(),
        }
    };
    let join = |number: usize| {
        let mut client = Client::connect(&broker, &connect(number));
        client.subscribe(format!("to/{number}"), 1);
        client
    };
    let mut old: Vec<Client> = (0..CLIENTS).map(join).collect();
    let mut new: Vec<Client> = (0..CLIENTS).map(join).collect();
    let held = old.split_off(CLIENTS / 2);
    old.into_iter().for_each(Client::reset);
    thread::sleep(2 * SECOND);
    drop(held);
    thread::sleep(SECOND);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    for number in 0..CLIENTS {
        publisher.publish(format!("to/{number}"), "m", 1);
    }
    for (number, client) in new.iter_mut().enumerate() {
        assert_eq!(client.take().topic(), format!("to/{number}"));
        client.ping();
    }
    broker.await_metric("allClientSessions", CLIENTS as f64 + 1.0);
    broker.await_metric("subscriptions", CLIENTS as f64);
}

/// TKO-02: the same at once after each takeover, without a pause in which things could settle.
#[test]
fn a_subscription_made_at_once_after_a_takeover_holds() {
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let mut before: Option<Client> = None;
    for round in 0..60 {
        let connect = if round % 2 == 0 { Connect::v5("x") } else { Connect::v5("x").persistent() };
        let mut client = Client::connect(&broker, &connect);
        // The old connection says something, too, at the moment in which it is displaced.
        if let Some(mut before) = before.take() {
            before.try_send(&wire::unsubscribe(Level::V5, 9, &[b"t"]));
            before.reset();
        }
        assert!(client.subscribe("t", 1) < 0x80);
        publisher.publish("t", round.to_string(), 1);
        assert_eq!(client.take().payload(), round.to_string());
        before = Some(client);
    }
}

/// What a subscriber saw of one numbered message.
struct Seen {
    order: usize,
    id: u16,
}

/// TKO-04, MQTT-3.1.2-5, MQTT-4.4.0-1: nothing that was acknowledged is lost between an old
/// connection and a new one; what comes again has DUP and its old id; first copies are in order.
#[test]
fn takeovers_under_load_lose_nothing() {
    const TAKEOVERS: usize = 100;
    let broker = Broker::start();
    let connect = Connect::v5("x").persistent();
    let mut client = Client::connect(&broker, &connect);
    client.subscribe("t", 1);
    let stop = AtomicBool::new(false);
    let mut seen: BTreeMap<usize, Seen> = BTreeMap::new();
    let acked = thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
            let mut acked = 0;
            while !stop.load(Ordering::Relaxed) {
                assert!(publisher.publish("t", acked.to_string(), 1) < 0x80);
                acked += 1;
                thread::sleep(Duration::from_millis(1));
            }
            acked
        });
        for _ in 0..TAKEOVERS {
            let until = Instant::now() + Duration::from_millis(15);
            while Instant::now() < until {
                if let Some(packet) = client.recv_within(Duration::from_millis(5)) {
                    note(&mut seen, &packet, Some(&mut client));
                }
            }
            let next = Client::connect(&broker, &connect);
            assert!(next.session_present);
            let mut displaced = std::mem::replace(&mut client, next);
            let closed = displaced.expect_close();
            assert_eq!(closed.reason(), Some(0x8E));
            closed.packets.iter().for_each(|packet| note(&mut seen, packet, None));
        }
        stop.store(true, Ordering::Relaxed);
        publisher.join().unwrap()
    });
    while seen.len() < acked {
        let packet = client.recv();
        note(&mut seen, &packet, Some(&mut client));
    }
    assert!(acked > TAKEOVERS, "only {acked} were published");
    assert!(seen.keys().copied().eq(0..acked), "the union is what was acknowledged");
    let orders: Vec<usize> = seen.values().map(|seen| seen.order).collect();
    assert!(orders.is_sorted(), "first copies came out of order: {orders:?}");
}

/// Books a PUBLISH, and acknowledges it where there is somebody to do so.
#[track_caller]
fn note(seen: &mut BTreeMap<usize, Seen>, packet: &Packet, client: Option<&mut Client>) {
    let Packet::Publish(publish) = packet else { return };
    let number: usize = publish.payload().parse().unwrap();
    let order = seen.len();
    match seen.get(&number) {
        None => drop(seen.insert(number, Seen { order, id: publish.id })),
        Some(seen) => {
            assert!(publish.dup, "{number} came again without DUP");
            assert_eq!(publish.id, seen.id, "{number} came again under another id");
        }
    }
    if let Some(client) = client {
        client.try_send(&wire::ack(4, publish.id));
    }
}

/// TKO-04 without load: the last message before a takeover, and the one during it, reach the new
/// connection without a further one to push them.
#[test]
fn the_last_message_of_a_burst_is_not_left_behind() {
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let connect = Connect::v5("x").persistent();
    let mut client = Client::connect(&broker, &connect);
    client.subscribe("t", 1);
    for round in 0..150 {
        let payload = round.to_string();
        let id = publisher.fresh_id();
        publisher.send(&wire::publish(Level::V5, 2, "t", id, &[], &payload));
        let next = Client::connect(&broker, &connect);
        drop(std::mem::replace(&mut client, next));
        assert_eq!(client.take().payload(), payload);
        assert_eq!(publisher.acknowledged(AckKind::Puback, id), 0);
        // Whether or not the displaced client took it, nothing else is owed now.
        client.ping();
    }
}

/// TKO-06: there is at most one live connection, and it gets everything.
#[test]
fn there_is_one_connection_and_it_gets_all() {
    let broker = Broker::start();
    let mut a = Client::connect(&broker, &Connect::v5("x"));
    a.subscribe("t", 1);
    let mut b = Client::connect(&broker, &Connect::v311("x"));
    b.subscribe("t", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    for number in 0..100 {
        publisher.publish("t", number.to_string(), 1);
    }
    for number in 0..100 {
        assert_eq!(b.take().payload(), number.to_string());
    }
    let closed = a.expect_close();
    assert_eq!(closed.packets.len(), 1, "the displaced client got {closed:?}");
    broker.await_metric("connectedSessions", 2.0);
    broker.await_metric("allClientSessions", 2.0);
}

/// TKO-07: same ids, random clean starts, jittering subscriptions, broken sockets and a flood:
/// nobody else notices, and nothing is left behind.
#[test]
fn a_riot_of_equal_ids_harms_nobody() {
    let mut broker = Broker::start();
    let mut canary = Client::connect(&broker, &Connect::v5("canary"));
    canary.subscribe("canary", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..16 {
            let (broker, stop) = (&broker, &stop);
            scope.spawn(move || {
                let mut random = Random::seeded(seed + 1);
                while !stop.load(Ordering::Relaxed) {
                    riot(broker, &mut random);
                }
            });
        }
        scope.spawn(|| {
            let mut flood = Client::connect(&broker, &Connect::v5("flood"));
            while !stop.load(Ordering::Relaxed) {
                for number in 0..25 {
                    flood.publish(format!("r/{number}/x"), "flood", 0);
                }
                flood.ping();
                thread::sleep(Duration::from_millis(5));
            }
        });
        let until = Instant::now() + 3 * SECOND;
        while Instant::now() < until {
            canary.publish("canary", "alive", 1);
            assert_eq!(canary.take().payload(), "alive");
        }
        stop.store(true, Ordering::Relaxed);
    });
    // A CONNECT whose socket was broken at once may come to its turn behind a clean one.
    broker.eventually("nothing is left but the canary", |broker| {
        for number in 1..=5 {
            let clean = Connect::v5(format!("x{number}"));
            Client::connect(broker, &clean).disconnect();
        }
        broker.metric("allClientSessions") == Some(1.0)
    });
    broker.await_metric("subscriptions", 1.0);
    broker.await_metric("connectedSessions", 1.0);
    assert!(broker.is_running());
}

/// One short life among equals; it may be cut at any point.
fn riot(broker: &Broker, random: &mut Random) {
    let id = format!("x{}", random.below(5) + 1);
    let level = *random.pick(&Level::ALL);
    let connect = Connect::new(level, id);
    let connect = if random.below(2) == 0 { connect.persistent() } else { connect };
    let mut client = Client::open(broker, level);
    let mut alive = client.try_send(&connect.bytes());
    for packet in 1..=10 {
        let filter = match random.below(3) {
            0 => format!("r/{}/x", random.below(25)),
            1 => format!("r/{}/#", random.below(25)),
            _ => format!("$share/g/r/{}/+", random.below(25)),
        };
        let filter = filter.as_bytes();
        let bytes = match random.below(3) {
            0 => wire::unsubscribe(level, packet, &[filter]),
            _ => wire::subscribe(level, packet, &[], &[(filter, random.below(3) as u8)]),
        };
        alive = alive && client.try_send(&bytes);
    }
    drop(client.recv_within(Duration::from_millis(random.below(40) as u64)));
    if random.below(3) > 0 {
        client.reset();
    }
}

/// TKO-08: two clients that reconnect without a pause: each loser is told, others don't notice,
/// afterwards the id is usable, and the fight makes no new metric series.
#[test]
fn a_fight_over_an_id_ends_with_a_usable_id() {
    let broker = Broker::start();
    let mut canary = Client::connect(&broker, &Connect::v5("canary"));
    canary.subscribe("canary", 1);
    let series = |broker: &Broker| {
        let page = broker.scrape();
        page.lines().filter(|line| !line.starts_with('#')).count()
    };
    canary.publish("canary", "before", 1);
    canary.take();
    let before = series(&broker);
    let (stop, losses) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut client = Client::connect(&broker, &Connect::v5("x"));
                    while !stop.load(Ordering::Relaxed) {
                        match client.recv_within(Duration::from_millis(50)) {
                            None => {}
                            Some(Packet::Disconnect { code: 0x8E, .. }) => {
                                losses.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                            Some(other) => panic!("{other:?}"),
                        }
                    }
                }
            });
        }
        for number in 0..200 {
            canary.publish("canary", number.to_string(), 1);
            assert_eq!(canary.take().payload(), number.to_string());
            thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let losses = losses.into_inner();
    assert!(losses > 20, "only {losses} takeovers");
    assert!(broker.metric("sessionTakeovers_total") >= Some(losses as f64));
    assert_eq!(series(&broker), before, "metric series");
    Client::connect(&broker, &Connect::v5("x")).ping();
}
