//! APPLICATION clients whose node changes, or dies (APP-1, APP-2).

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use serde_json::json;
use sluice::storage::{Applications, KafkaConfig, KafkaSettings};

use crate::operator::{Operator, PASSWORD};
use crate::services::services;
use crate::support::{AckKind, Broker, Client, Connect, Publish, Start, prop, wire};

/// Two nodes on one Kafka and one Redis, and a credential of an APPLICATION.
fn nodes(prefix: &str) -> Option<Vec<Broker>> {
    services()?;
    let start = |node: &str| {
        Start::new()
            .env("TB_SERVICE_ID", node)
            .env("TB_KAFKA_PREFIX", prefix)
            .env("CACHE_PREFIX", prefix)
            .env("SECURITY_ADMIN_PASSWORD", PASSWORD)
            .env("SECURITY_MQTT_BASIC_ENABLED", "true")
            .start()
    };
    let nodes: Vec<Broker> = ["a", "b"].into_iter().map(start).collect();
    let operator = Operator::login(&nodes[0]);
    operator.credential("dev", &json!({ "userName": "dev" }));
    let value = json!({ "userName": "app" });
    let body = json!({ "name": "app", "clientType": "APPLICATION", "credentialsValue": value });
    operator.post("/api/mqtt/client/credentials", &body).ok();
    let other = Operator::login(&nodes[1]);
    nodes[1].eventually("the credential is known to every node", |_| {
        let list = other.get("/api/mqtt/client/credentials?pageSize=10").ok();
        list["totalElements"] == 2
    });
    Some(nodes)
}

fn app() -> Connect {
    Connect::v5("mover/1").user("app").persistent().with(prop::receive_maximum(10))
}

fn publish(publisher: &mut Client, numbers: std::ops::Range<usize>, qos: u8) {
    for number in numbers {
        publisher.publish("t", number.to_string(), qos);
    }
}

/// APP-2, TKO-01: a client that comes to another node goes on there: what it has not acknowledged
/// comes with DUP under its id, an exchange of QoS 2 stands where it stood, and what was published
/// meanwhile follows in order, from either node.
#[test]
fn an_application_client_goes_on_at_another_node() {
    let Some(nodes) = nodes("am.") else { return };
    let mut old = Client::connect(&nodes[0], &app());
    old.subscribe("t", 2);
    let mut publishers: Vec<Client> = (0..2)
        .map(|at| Client::connect(&nodes[at], &Connect::v5(format!("p{at}")).user("dev")))
        .collect();
    let mut next = 0;
    for round in 0..3 {
        publish(&mut publishers[round % 2], next..next + 2, 2);
        publish(&mut publishers[(round + 1) % 2], next + 2..next + 20, 1);
        let sent: Vec<Publish> = (0..10).map(|_| old.expect_publish()).collect();
        assert_eq!(sent[9].payload(), (next + 9).to_string(), "round {round}");
        old.send(&wire::ack(5, sent[1].id));
        assert_eq!(old.acknowledged(AckKind::Pubrel, sent[1].id), 0);
        let mut new = Client::connect(&nodes[(round + 1) % 2], &app());
        assert!(new.session_present, "round {round}");
        old.expect_refusal(&[0x8E]);
        assert_eq!(new.acknowledged(AckKind::Pubrel, sent[1].id), 0);
        new.send(&wire::ack(7, sent[1].id));
        for (at, earlier) in sent.iter().enumerate().filter(|(at, _)| *at != 1) {
            let again = new.expect_publish();
            assert_eq!((again.payload(), again.id), (earlier.payload(), earlier.id), "{at}");
            assert!(again.dup, "{at} comes again");
            match again.qos {
                1 => new.send(&wire::ack(4, again.id)),
                _ => {
                    new.send(&wire::ack(5, again.id));
                    assert_eq!(new.acknowledged(AckKind::Pubrel, again.id), 0);
                    new.send(&wire::ack(7, again.id));
                }
            }
        }
        for number in next + 10..next + 20 {
            assert_eq!(new.take().payload(), number.to_string(), "round {round}");
        }
        new.ping();
        next += 20;
        old = new;
    }
}

/// APP-1, CLU-01: a node is killed while its client is away, with a backlog that it had appended;
/// everything is there on the other node, once and in order, with what came after the death.
#[test]
fn a_backlog_outlives_the_node_that_appended_it() {
    let Some(mut nodes) = nodes("ak.") else { return };
    let mut client = Client::connect(&nodes[0], &app());
    client.subscribe("t", 1);
    let mut publisher = Client::connect(&nodes[1], &Connect::v5("p").user("dev"));
    publish(&mut publisher, 0..5, 1);
    for number in 0..5 {
        assert_eq!(client.take().payload(), number.to_string());
    }
    client.ping();
    client.disconnect();
    publish(&mut publisher, 5..150, 1);
    nodes[0].kill();
    publish(&mut publisher, 150..200, 1);
    let mut client = Client::connect(&nodes[1], &app());
    assert!(client.session_present);
    let mut got: Vec<usize> = Vec::new();
    while got.last() != Some(&199) {
        got.push(client.take().payload().parse().unwrap());
    }
    // What was acknowledged in the last moment may come again.
    let first = got[0];
    assert!(first <= 5, "{got:?}");
    assert_eq!(got, (first..200).collect::<Vec<_>>());
}

/// The topics of APPLICATION sessions, and up to where Kafka's group has each.
fn group(prefix: &str) -> Vec<(String, u64)> {
    let servers = services().expect("they run").kafka().to_owned();
    let prefix = prefix.to_owned();
    Applications::group(&KafkaSettings::new(KafkaConfig { servers, prefix, ..Default::default() }))
        .unwrap()
}

/// APP-1, APP-2: the position is committed to a Kafka group, for lag tools; the topic goes with its
/// session.
#[test]
fn lag_tools_see_where_an_application_client_is() {
    let Some(nodes) = nodes("ag.") else { return };
    let mut client = Client::connect(&nodes[0], &app());
    client.subscribe("t", 1);
    let mut publisher = Client::connect(&nodes[1], &Connect::v5("p").user("dev"));
    publish(&mut publisher, 0..30, 1);
    for number in 0..30 {
        assert_eq!(client.take().payload(), number.to_string());
    }
    client.ping();
    client.disconnect();
    nodes[0].eventually("the group is told", |_| {
        let groups = group("ag.");
        let [(name, committed)] = groups.as_slice() else { panic!("one topic: {groups:?}") };
        // An id with a slash is hashed.
        assert_eq!(name.split('.').nth(4).map(str::len), Some(64), "{name}");
        *committed == 30
    });
    Client::connect(&nodes[1], &Connect::v5("mover/1").user("app")).disconnect();
    nodes[0].eventually("the topic goes with its session", |_| group("ag.").is_empty());
}

/// APP-1: topics that sessions left behind, because Kafka was away or their node died in that
/// moment, are found by the log of all sessions and deleted; those of sessions stay with what is in
/// them, wherever their client is, and so do topics of others.
#[test]
fn topics_of_sessions_that_are_over_are_deleted() {
    let Some(nodes) = nodes("orphans.") else { return };
    let mut away = Client::connect(&nodes[0], &app());
    away.subscribe("t", 1);
    away.disconnect();
    let plain = Connect::v5("plain").user("app").persistent();
    let mut there = Client::connect(&nodes[1], &plain);
    there.subscribe("t", 1);
    let mut publisher = Client::connect(&nodes[1], &Connect::v5("p").user("dev"));
    publish(&mut publisher, 0..20, 1);
    let app = |rest: &str| format!("orphans.tbmq.msg.app.{rest}");
    let digest = "0123456789abcdef".repeat(2);
    let orphans = [app("plain.1"), app("ghost.5"), app(&format!("shared.g-t-{digest}.7"))];
    let others = [app("ghost"), app("shared.5"), app("shared.a.b")];
    let of_sessions: Vec<String> = group("orphans.").into_iter().map(|(name, _)| name).collect();
    assert_eq!(of_sessions.len(), 2);
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", services().expect("they run").kafka())
        .create()
        .unwrap();
    let made = |name| NewTopic::new(name, 1, TopicReplication::Fixed(1));
    let topics: Vec<NewTopic<'_>> =
        orphans.iter().chain(&others).map(|name| made(name.as_str())).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(admin.create_topics(&topics, &AdminOptions::new())).unwrap();
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let operator = Operator::login(&nodes[0]);
    let mut removed: Vec<String> = Vec::new();
    nodes[0].eventually("the orphans are gone", |_| {
        let told = operator.delete("/api/app/remove-topics").ok();
        removed.extend(told.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()));
        orphans.iter().all(|orphan| removed.contains(orphan))
    });
    assert!(removed.iter().all(|topic| orphans.contains(topic)), "{removed:?}");
    nodes[0].eventually("they are gone in Kafka, too", |_| {
        let mut left: Vec<String> = group("orphans.").into_iter().map(|(name, _)| name).collect();
        let mut wanted: Vec<String> = of_sessions.iter().chain(&others).cloned().collect();
        left.sort_unstable();
        wanted.sort_unstable();
        left == wanted
    });
    let mut away = Client::connect(&nodes[1], &self::app());
    for client in [&mut away, &mut there] {
        for number in 0..20 {
            assert_eq!(client.take().payload(), number.to_string());
        }
    }
}
