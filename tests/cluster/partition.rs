//! A node that is cut off from Kafka, from Redis, or from both, while the others are not (CLU-01,
//! TKO, STO-07): whatever it thinks of itself, a session has one owner in the end.

use std::time::Duration;

use crate::cable::Cable;
use crate::nodes::payloads;
use crate::operator::{Operator, PASSWORD};
use crate::services::{Services, services};
use crate::support::{AckKind, Broker, Client, Connect, Start, free_port, wire};

/// Node `a` at the services, and node `b` at the ends of two cables to them.
struct Split {
    a: Broker,
    b: Broker,
    kafka: Cable,
    redis: Cable,
    _services: Services,
}

impl Split {
    fn start() -> Option<Split> {
        services()?;
        let (kafka_port, redis_port) = (free_port(), free_port());
        let services = Services::start(&["--kafka-behind", &kafka_port.to_string()]).unwrap();
        let all = services.settings();
        let port = |name: &str| -> u16 {
            let (_, value) = all.iter().find(|(known, _)| known == name).unwrap();
            value.rsplit(':').next().unwrap().parse().unwrap()
        };
        let kafka = Cable::lay(kafka_port, port("KAFKA_BEHIND"));
        let redis = Cable::lay(redis_port, port("REDIS_PORT"));
        let node = |name: &str| {
            let start =
                all.iter().fold(Start::new(), |start, (name, value)| start.env(name, value));
            start
                .env("TB_SERVICE_ID", name)
                .env("TB_KAFKA_PREFIX", "split.")
                .env("CACHE_PREFIX", "split.")
                .env("SECURITY_ADMIN_PASSWORD", PASSWORD)
                .allow_log("WARN")
        };
        let a = node("a").start();
        let b = node("b")
            .env("TB_KAFKA_SERVERS", format!("127.0.0.1:{kafka_port}"))
            .env("REDIS_PORT", redis_port)
            .allow_log("this node ends")
            .start();
        Some(Split { a, b, kafka, redis, _services: services })
    }
}

/// The payload of the next message that is none again: an acknowledgement may have been cut off.
fn next(client: &mut Client) -> String {
    loop {
        let publish = client.take();
        if !publish.dup {
            return publish.payload();
        }
    }
}

fn node_of(broker: &Broker, client: &str) -> String {
    let session = Operator::login(broker).get(&format!("/api/client-session?clientId={client}"));
    session.ok()["nodeId"].as_str().unwrap().to_owned()
}

/// A node that Kafka does not hear from is taken for dead, and acknowledges nothing meanwhile;
/// its sessions go on elsewhere. When it hears of that it ends, and as a new run it has what it
/// is given.
fn a_node_without_kafka_loses_its_sessions(cut: impl Fn(&Split), mend: impl Fn(&Split)) {
    let Some(mut split) = Split::start() else { return };
    let mover = Connect::v5("mover").persistent();
    let mut old = Client::connect(&split.b, &mover);
    old.subscribe("t", 1);
    let unsure = Connect::v5("unsure").persistent();
    let mut far = Client::connect(&split.b, &unsure);
    let mut near = Client::connect(&split.a, &Connect::v5("near"));
    for (number, client) in [(0, &mut near), (1, &mut far)] {
        client.publish("t", number.to_string(), 1);
    }
    assert_eq!(payloads(&mut old, 2), ["0", "1"]);
    old.ping();
    cut(&split);
    far.send(&wire::publish(far.level, 2, "t", 7, &[], "2"));
    split.a.eventually("the others take it for dead", |a| a.log().contains("a node was silent"));
    let mut new = Client::connect(&split.a, &mover);
    assert!(new.session_present);
    near.publish("t", "3", 1);
    assert_eq!(next(&mut new), "3", "what nobody acknowledged has not come");
    new.ping();
    assert_eq!(node_of(&split.a, "mover"), "a");
    far.expect_silence(Duration::from_millis(10));
    mend(&split);
    assert_eq!(split.b.await_exit().code(), Some(1), "{}", split.b.log());
    old.expect_close();
    // It may have come through behind all that: then it is in the log, and counts.
    far.expect_close();
    let mut far = Client::connect(&split.a, &unsure);
    assert!(far.session_present);
    far.send(&wire::publish(far.level, 2 | 8, "t", 7, &[], "2"));
    assert_eq!(far.acknowledged(AckKind::Puback, 7) & 0x80, 0);
    let mut came = vec![next(&mut new)];
    near.publish("t", "4", 1);
    while came.last().is_some_and(|last| last != "4") {
        came.push(new.take().payload());
    }
    came.dedup();
    assert_eq!(came, ["2", "4"]);
    split.b.start_again();
    assert_eq!([&split.a, &split.b].map(|node| node_of(node, "mover")), ["a", "a"]);
    let mut back = Client::connect(&split.b, &mover);
    assert!(back.session_present);
    new.expect_refusal(&[0x8E]);
    near.publish("t", "5", 1);
    let mut came = payloads(&mut back, 1);
    while came.last().is_some_and(|last| last != "5") {
        came.push(back.take().payload());
    }
    assert_eq!([&split.a, &split.b].map(|node| node_of(node, "mover")), ["b", "b"]);
}

/// CLU-01, TKO-06: cut off from everything.
#[test]
fn a_node_that_is_cut_off_has_no_sessions_any_more() {
    let cut = |split: &Split| {
        split.kafka.cut();
        split.redis.cut();
    };
    let mend = |split: &Split| {
        split.redis.mend();
        split.kafka.mend();
    };
    a_node_without_kafka_loses_its_sessions(cut, mend);
}

/// CLU-01: cut off from Kafka alone: that Redis still hears it gives it nothing.
#[test]
fn a_node_that_is_cut_off_from_kafka_has_no_sessions_any_more() {
    a_node_without_kafka_loses_its_sessions(|split| split.kafka.cut(), |split| split.kafka.mend());
}

/// STO-07: cut off from Redis alone: the node lives, and keeps its sessions. Who needs a queue
/// there waits or is refused; when it is back, everything comes, once, without a restart.
#[test]
fn a_node_that_is_cut_off_from_redis_goes_on_when_it_is_back() {
    let Some(split) = Split::start() else { return };
    let connect = Connect::v5("here").persistent();
    let mut here = Client::connect(&split.b, &connect);
    here.subscribe("t", 1);
    let mut near = Client::connect(&split.a, &Connect::v5("near"));
    near.publish("t", "before", 1);
    assert_eq!(payloads(&mut here, 1), ["before"]);
    here.ping();
    split.redis.cut();
    // Who needs no queue goes on, on either node.
    let mut clean = Client::connect(&split.b, &Connect::v5("clean"));
    clean.subscribe("t", 1);
    for number in 0..20 {
        near.publish("t", number.to_string(), 1);
        assert_eq!(payloads(&mut clean, 1), [number.to_string()]);
    }
    let backlog = |b: &Broker| b.metric("queueBacklogBytes").unwrap();
    split.b.eventually("copies wait", |b| backlog(b) > 0.0);
    let late = Connect::v5("late").persistent();
    let mut refused = Client::open(&split.b, late.level);
    refused.send(&late.bytes());
    refused.expect_connect_refused(&[0x88]);
    here.ping();
    split.redis.mend();
    let numbers: Vec<String> = (0..20).map(|number: usize| number.to_string()).collect();
    assert_eq!(payloads(&mut here, 20), numbers);
    here.ping();
    split.b.eventually("nothing waits", |b| backlog(b) == 0.0);
    clean.disconnect();
    Client::connect(&split.b, &late).disconnect();
    assert_eq!(node_of(&split.a, "here"), "b");
    let waits = split.b.log().lines().filter(|line| line.contains("queues refuse")).count();
    assert!(waits <= 1, "said {waits} times");
}
