//! Order (ORD): what one publisher sends arrives in its order, live, queued and sent again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{AckKind, Broker, Client, Connect, Level, Publish, Random, prop, wire};

/// First deliveries of each topic rise by one: the numbers are the payloads.
#[derive(Default)]
struct Order {
    next: BTreeMap<String, usize>,
}

impl Order {
    #[track_caller]
    fn take(&mut self, publish: &Publish) {
        let number: usize = publish.payload().parse().unwrap();
        let next = self.next.entry(publish.topic()).or_default();
        assert!(number <= *next, "{}: {number} came before {next}", publish.topic());
        if number == *next {
            *next += 1;
        } else {
            assert!(publish.dup, "{}: {number} came again without DUP", publish.topic());
        }
    }

    fn all(&self, topics: usize, count: usize) -> bool {
        self.next.len() == topics && self.next.values().all(|next| *next == count)
    }
}

/// ORD-01, MQTT-4.6.0-5, -6: a subscriber that comes and goes while a publisher goes on sees every
/// message first in the order of publication: live ones wait behind the backlog. QoS 1 and 2,
/// twenty topics through one wildcard.
#[test]
fn live_messages_wait_behind_the_backlog() {
    const TOPICS: usize = 20;
    const PER_TOPIC: usize = 60;
    for qos in [1, 2] {
        let broker = Broker::start();
        let connect = Connect::v5("sub").persistent().with(prop::receive_maximum(30));
        let mut sub = Client::connect(&broker, &connect);
        sub.subscribe("ord/+", qos);
        let mut random = Random::seeded(u64::from(qos));
        let mut order = Order::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut publisher = Client::connect(&broker, &Connect::v311("pub"));
                for number in 0..PER_TOPIC {
                    for topic in 0..TOPICS {
                        publisher.publish(format!("ord/{topic}"), number.to_string(), qos);
                    }
                }
            });
            while !order.all(TOPICS, PER_TOPIC) {
                for _ in 0..random.below(60) {
                    let Some(publish) = sub.take_within(Duration::from_millis(50)) else { break };
                    order.take(&publish);
                }
                sub.reset();
                sub = Client::connect(&broker, &connect);
                assert!(sub.session_present);
            }
        });
    }
}

/// ORD-02 (one node), MQTT-4.6.0-5: with many publishers on one topic, each one's order holds.
#[test]
fn many_publishers_on_one_topic_keep_their_order() {
    const PUBLISHERS: usize = 8;
    const EACH: usize = 300;
    let broker = Broker::start();
    let mut sub = Client::connect(&broker, &Connect::v5("sub"));
    sub.subscribe("one", 1);
    std::thread::scope(|scope| {
        for number in 0..PUBLISHERS {
            let broker = &broker;
            scope.spawn(move || {
                let connect = Connect::v311(format!("pub{number}"));
                let mut publisher = Client::connect(broker, &connect);
                let publish = |index: usize| {
                    let text = format!("{number} {index}");
                    wire::publish(Level::V311, 2, "one", index as u16 + 1, &[], text)
                };
                for index in 0..EACH {
                    publisher.send(&publish(index));
                }
                let ids = 1..=EACH as u16;
                publisher.acknowledged_all(AckKind::Puback, ids);
            });
        }
        let mut next = [0; PUBLISHERS];
        for _ in 0..PUBLISHERS * EACH {
            let payload = sub.take().payload();
            let (number, index) = payload.split_once(' ').unwrap();
            let number: usize = number.parse().unwrap();
            assert_eq!(index.parse(), Ok(next[number]), "publisher {number}");
            next[number] += 1;
        }
    });
}

/// ORD-04, MQTT-4.4.0-1: what was sent and not acknowledged comes again in its first order, with
/// its ids and DUP=1: after a reconnect, and after kill -9.
#[test]
fn resends_keep_their_order_and_ids() {
    const WINDOW: usize = 50;
    let mut broker = Broker::start();
    let connect = Connect::v5("sub").persistent().with(prop::receive_maximum(WINDOW as u16));
    let mut sub = Client::connect(&broker, &connect);
    sub.subscribe("#", 2);
    let mut publisher = Client::connect(&broker, &Connect::v5("pub"));
    for number in 0..WINDOW + 10 {
        publisher.publish(format!("t{}", number % 7), number.to_string(), 1 + number as u8 % 2);
    }
    let line = |publish: Publish| (publish.id, publish.qos, publish.topic(), publish.payload());
    let first: Vec<_> = (0..WINDOW).map(|_| line(sub.expect_publish())).collect();
    sub.ping();
    sub.expect_silence(Duration::from_millis(50));
    for how in ["reconnect", "kill"] {
        sub.reset();
        if how == "kill" {
            broker.kill_and_restart();
        }
        sub = Client::connect(&broker, &connect);
        let again: Vec<Publish> = (0..WINDOW).map(|_| sub.expect_publish()).collect();
        assert!(again.iter().all(|publish| publish.dup), "{how}: DUP=1");
        let again: Vec<_> = again.into_iter().map(line).collect();
        assert_eq!(again, first, "{how}");
    }
}

/// ORD-05, MQTT-3.8.4-1: what is published after SUBACK is delivered, from another connection at
/// once and from the same one behind SUBSCRIBE.
#[test]
fn a_subscription_works_when_suback_is_there() {
    let broker = Broker::start();
    let mut sub = Client::connect(&broker, &Connect::v5("sub"));
    let mut publisher = Client::connect(&broker, &Connect::v5("pub"));
    for round in 0..300 {
        let topic = format!("g/{round}/x");
        sub.subscribe(format!("g/{round}/#"), (round % 3) as u8);
        publisher.publish(&topic, round.to_string(), (round % 2) as u8);
        let got = sub.take();
        assert_eq!((got.topic(), got.payload()), (topic, round.to_string()));
    }
    for round in 0..100_u16 {
        let topic = format!("h/{round}");
        let subscribe = wire::subscribe(Level::V5, 1000 + round, &[], &[(topic.as_bytes(), 1)]);
        let publish = wire::publish(Level::V5, 2, &topic, 2000 + round, &[], "own");
        sub.send(&wire::all(&[&subscribe, &publish]));
        assert_eq!(sub.take().topic(), topic, "SUBSCRIBE and PUBLISH in one write");
    }
}

/// ORD-06, MQTT-4.6.0-2, INV-3: acknowledgements and deliveries are in the order of the packets,
/// for a publisher that pipelines ten thousand, with the broker standing still in between.
#[test]
fn acknowledgements_and_deliveries_are_in_packet_order() {
    const ALL: u16 = 10_000;
    let broker = Broker::start();
    let mut sub = Client::connect(&broker, &Connect::v311("sub").persistent());
    sub.subscribe("t", 1);
    let mut publisher = Client::connect(&broker, &Connect::v311("pub"));
    let mut chunk = Vec::new();
    for id in 1..=ALL {
        chunk.extend(wire::publish(Level::V311, 2, "t", id, &[], id.to_string()));
        if id % 1000 == 0 {
            publisher.send(&std::mem::take(&mut chunk));
        }
        if id == ALL / 2 {
            broker.pause();
            std::thread::sleep(Duration::from_millis(200));
            broker.resume();
        }
    }
    for id in 1..=ALL {
        match publisher.recv() {
            crate::support::Packet::Ack { kind: AckKind::Puback, id: got, .. } => {
                assert_eq!(got, id, "PUBACK in the order of PUBLISH");
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    for id in 1..=ALL {
        assert_eq!(sub.take().payload(), id.to_string());
    }
}
