//! APPLICATION clients (APP-1 to APP-3): a persistent session with a log of its own, bounded by its
//! retention alone.

use std::time::Duration;

use serde_json::json;

use crate::operator::{self, Operator};
use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Publish, Start, prop, wire};

const QUIET: Duration = Duration::from_millis(500);

/// Two kinds of users, `app` and `dev`.
fn begin(start: Start) -> (Broker, Operator) {
    let broker = start.start();
    let operator = Operator::login(&broker);
    credential(&operator, None, "app", "APPLICATION");
    credential(&operator, None, "dev", "DEVICE");
    (broker, operator)
}

fn credential(operator: &Operator, id: Option<&str>, user: &str, client_type: &str) -> String {
    let value = json!({ "userName": user });
    let mut body = json!({ "name": user, "clientType": client_type, "credentialsValue": value });
    if let Some(id) = id {
        body["id"] = json!(id);
    }
    let saved = operator.post("/api/mqtt/client/credentials", &body).ok();
    saved["id"].as_str().expect("an id").to_owned()
}

fn app(id: &str) -> Connect {
    Connect::v5(id).user("app").persistent()
}

fn dev(id: &str) -> Connect {
    Connect::v5(id).user("dev").persistent()
}

/// Publishes numbers, with at most a few of them open.
fn publish_numbers(publisher: &mut Client, topic: &str, numbers: std::ops::Range<usize>, qos: u8) {
    let all: Vec<usize> = numbers.collect();
    for some in all.chunks(100) {
        if qos == 2 {
            for number in some {
                publisher.publish(topic, number.to_string(), 2);
            }
            continue;
        }
        let ids: Vec<u16> = some.iter().map(|_| publisher.fresh_id()).collect();
        let packet = |(number, id): (&usize, &u16)| {
            wire::publish(publisher.level, 2, topic, *id, &[], number.to_string())
        };
        let packets: Vec<u8> = some.iter().zip(&ids).flat_map(packet).collect();
        publisher.send(&packets);
        publisher.acknowledged_all(AckKind::Puback, ids);
    }
}

/// Takes as many messages as are due; each must be the next number.
#[track_caller]
fn take_numbers(client: &mut Client, numbers: std::ops::Range<usize>) {
    for number in numbers {
        assert_eq!(client.take().payload(), number.to_string());
    }
}

/// How far a client's session lags behind, as the administration tells.
fn lag(operator: &Operator, id: &str) -> u64 {
    let session = operator.get(&format!("/api/client-session?clientId={id}")).ok();
    session["lag"].as_u64().expect("a lag")
}

/// Waits until everything up to here was routed: the same order brings it to another client.
fn routed(broker: &Broker, publisher: &mut Client) {
    let mut witness = Client::connect(broker, &Connect::v5("witness").user("dev"));
    witness.subscribe("witness", 1);
    publisher.publish("witness", "here", 1);
    assert_eq!(witness.take().payload(), "here");
    witness.disconnect();
}

/// APP-1, APP-3: the limit of DEVICE queues is not an APPLICATION client's: it finds every message,
/// once and in order, and QoS 1 and 2 in between; a DEVICE client beside it finds the newest ones.
#[test]
fn an_application_client_finds_all_that_was_published_meanwhile() {
    let limit = "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT";
    let (broker, operator) = begin(operator::start_basic().env(limit, 10));
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").user("dev"));
    publisher.publish("t/before", "nobody's", 1);
    for connect in [app("a"), dev("d")] {
        let mut client = Client::connect(&broker, &connect);
        client.subscribe("t/#", 2);
        client.disconnect();
    }
    publish_numbers(&mut publisher, "t/1", 0..1500, 1);
    publish_numbers(&mut publisher, "t/2", 1500..1600, 2);
    publish_numbers(&mut publisher, "t/1", 1600..2000, 1);
    routed(&broker, &mut publisher);
    assert_eq!(lag(&operator, "a"), 2000);
    let mut device = Client::connect(&broker, &dev("d"));
    take_numbers(&mut device, 1990..2000);
    let mut client = Client::connect(&broker, &app("a"));
    assert!(client.session_present);
    broker.await_metric("activeAppProcessors", 1.0);
    take_numbers(&mut client, 0..2000);
    client.ping();
    broker.eventually("all is acknowledged", |_| lag(&operator, "a") == 0);
    assert_eq!(broker.metric("appProcessor_total"), Some(2100.0), "100 of them twice: QoS 2");
    let timed = broker.metric("appProcessor_latency_seconds_count");
    assert!(timed.is_some_and(|timed| (2.0..=2100.0).contains(&timed)), "{timed:?} were timed");
    publish_numbers(&mut publisher, "t/1", 2000..2500, 1);
    take_numbers(&mut client, 2000..2500);
    client.expect_silence(QUIET);
    client.disconnect();
    broker.await_metric("activeAppProcessors", 0.0);
}

/// APP-2, TBMQ #320: what is sent and not acknowledged is sent again with DUP under its id, what
/// was acknowledged is not, and no gap is between that and what follows; over a stop and a kill.
#[test]
fn unacknowledged_messages_come_again_and_others_do_not() {
    let (mut broker, _) = begin(operator::start_basic());
    let connect = || app("a").with(prop::receive_maximum(20));
    let mut client = Client::connect(&broker, &connect());
    client.subscribe("t", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").user("dev"));
    publish_numbers(&mut publisher, "t", 0..100, 1);
    let mut next = 0;
    for round in 0..3 {
        let sent: Vec<Publish> = (0..20).map(|_| client.expect_publish()).collect();
        let numbers = sent.iter().map(Publish::payload);
        assert!(numbers.eq((next..next + 20).map(|number| number.to_string())));
        client.ping();
        client.expect_silence(QUIET);
        // Two are acknowledged out of order, behind the first seven.
        for publish in sent[..7].iter().chain([&sent[9], &sent[8]]) {
            client.send(&wire::ack(4, publish.id));
        }
        let more: Vec<Publish> = (0..9).map(|_| client.expect_publish()).collect();
        assert_eq!(more[8].payload(), (next + 28).to_string());
        client.ping();
        match round {
            0 => client.reset(),
            1 => {
                client.disconnect();
                broker.restart();
            }
            _ => {
                broker.kill();
                broker.start_again();
            }
        }
        client = Client::connect(&broker, &connect());
        assert!(client.session_present);
        let open = [&sent[7..8], &sent[10..], &more].concat();
        if round == 2 {
            // A kill may take what was acknowledged: then that comes again, too.
            break;
        }
        for earlier in &open[..20] {
            let again = client.expect_publish();
            assert_eq!((again.payload(), again.id), (earlier.payload(), earlier.id));
            assert!(again.dup, "{} comes again", again.payload());
            client.send(&wire::ack(4, again.id));
        }
        next += 29;
    }
    let mut rest: Vec<usize> = Vec::new();
    while rest.last() != Some(&99) {
        rest.push(client.take().payload().parse().unwrap());
    }
    assert!(rest.is_sorted_by(|a, b| a < b), "in order, each once: {rest:?}");
    assert!(rest.ends_with(&(next + 29..100).collect::<Vec<_>>()));
    let skipped = [next..next + 7, next + 8..next + 10].into_iter().flatten();
    let owed = (next..next + 29).filter(|number| !skipped.clone().any(|done| done == *number));
    assert!(owed.into_iter().all(|number| rest.contains(&number)), "{rest:?}");
}

/// APP-2, MQTT-4.3.3: an exchange of QoS 2 goes on where it stands, over a kill as well: after
/// PUBREC there is only PUBREL.
#[test]
fn an_exchange_of_qos_2_goes_on_where_it_stands() {
    let (mut broker, _) = begin(operator::start_basic());
    let mut client = Client::connect(&broker, &app("a"));
    client.subscribe("t", 2);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").user("dev"));
    publish_numbers(&mut publisher, "t", 0..3, 2);
    let sent: Vec<Publish> = (0..3).map(|_| client.expect_publish()).collect();
    client.send(&wire::ack(5, sent[1].id));
    assert_eq!(client.acknowledged(AckKind::Pubrel, sent[1].id), 0);
    broker.kill_and_restart();
    let mut client = Client::connect(&broker, &app("a"));
    let first = client.expect_publish();
    assert_eq!((first.payload(), first.id, first.dup), ("0".into(), sent[0].id, true));
    assert_eq!(client.acknowledged(AckKind::Pubrel, sent[1].id), 0);
    client.send(&wire::ack(7, sent[1].id));
    let third = client.expect_publish();
    assert_eq!((third.payload(), third.id, third.dup), ("2".into(), sent[2].id, true));
    client.ping();
    client.expect_silence(QUIET);
}

/// APP-2: a client that does not read stops its own log's reader, and nothing else; when it reads
/// again, everything is there once, in order. It costs no memory but a page and the high mark.
#[test]
fn a_client_that_does_not_read_pauses_its_own_log() {
    let (broker, operator) = begin(operator::start_basic());
    let mut slow = Client::open_narrow(&broker, Level::V5).say_hello(&app("a"));
    slow.subscribe("t", 1);
    let mut other = Client::connect(&broker, &app("b"));
    other.subscribe("t", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").user("dev"));
    let payload = |number: usize| format!("{number} {}", "x".repeat(30_000));
    for number in 0..300 {
        publisher.publish("t", payload(number), 1);
        assert_eq!(other.take().payload(), payload(number));
    }
    assert!(lag(&operator, "a") >= 290, "{}", lag(&operator, "a"));
    for number in 0..300 {
        assert_eq!(slow.take().payload(), payload(number));
    }
    slow.ping();
    assert_eq!(lag(&operator, "a"), 0);
}

/// APP-3: over the retention the oldest messages go, and are counted; what is left is in order,
/// up to the newest.
#[test]
fn retention_takes_the_oldest_and_counts_them() {
    if !crate::services().is_empty() {
        // Kafka removes whole segments, in its own time.
        return;
    }
    let name = "TB_KAFKA_APP_PERSISTED_MSG_TOPIC_PROPERTIES";
    let (broker, operator) = begin(operator::start_basic().env(name, "retention.bytes:65536"));
    let mut client = Client::connect(&broker, &app("a"));
    client.subscribe("t", 1);
    client.disconnect();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").user("dev"));
    let payload = |number: usize| format!("{number} {}", "x".repeat(900));
    for number in 0..200 {
        publisher.publish("t", payload(number), 1);
    }
    routed(&broker, &mut publisher);
    let left = lag(&operator, "a") as usize;
    assert!((60..=75).contains(&left), "{left} of 64 KiB");
    broker.eventually("the loss is counted", |broker| {
        broker.dropped("Queue limit exceeded") == 200 - left
    });
    let mut client = Client::connect(&broker, &app("a"));
    for number in 200 - left..200 {
        assert_eq!(client.take().payload(), payload(number));
    }
    client.expect_silence(QUIET);
}

/// APP-1: the log goes with its session, by a clean start as by an administrator, and what it held
/// is counted; the next session finds nothing.
#[test]
fn the_log_goes_with_its_session() {
    let (broker, operator) = begin(operator::start_basic());
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").user("dev"));
    for (round, clean) in [true, false].into_iter().enumerate() {
        let mut client = Client::connect(&broker, &app("a"));
        assert!(!client.session_present);
        client.subscribe("t", 1);
        client.disconnect();
        publish_numbers(&mut publisher, "t", 0..10, 1);
        routed(&broker, &mut publisher);
        match clean {
            true => Client::connect(&broker, &Connect::v5("a").user("app")).disconnect(),
            false => drop(operator.delete("/api/client-session/remove?clientId=a").ok()),
        }
        broker.eventually("the loss is counted", |broker| {
            broker.dropped("Session ended") == 10 * (round + 1)
        });
    }
    let mut client = Client::connect(&broker, &app("a"));
    assert!(!client.session_present);
    client.subscribe("t", 1);
    publish_numbers(&mut publisher, "t", 10..12, 1);
    take_numbers(&mut client, 10..12);
}

/// APP-1: a session stays what it began as: a client whose credential changes loses nothing that
/// waits for it, in either direction; a clean start makes its session what the client is now.
#[test]
fn a_client_that_changes_its_type_loses_nothing() {
    let (broker, operator) = begin(operator::start_basic());
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").user("dev"));
    let id = credential(&operator, None, "changes", "DEVICE");
    let connect = || Connect::v5("c").user("changes").persistent();
    let shown = || {
        let session = operator.get("/api/client-session?clientId=c").ok();
        session["clientType"].as_str().expect("a type").to_owned()
    };
    for (before, after) in [("DEVICE", "APPLICATION"), ("APPLICATION", "DEVICE")] {
        let mut client = Client::connect(&broker, &connect());
        client.subscribe("t", 1);
        client.ping();
        assert_eq!(shown(), before);
        client.disconnect();
        publish_numbers(&mut publisher, "t", 0..50, 1);
        credential(&operator, Some(&id), "changes", after);
        let mut client = Client::connect(&broker, &connect());
        assert!(client.session_present);
        take_numbers(&mut client, 0..50);
        publish_numbers(&mut publisher, "t", 50..60, 1);
        take_numbers(&mut client, 50..60);
        assert_eq!(shown(), before);
        client.disconnect();
        Client::connect(&broker, &Connect::v5("c").user("changes")).disconnect();
        broker.eventually("the session is gone", |_| {
            operator.get("/api/client-session?clientId=c").status == 404
        });
    }
}

/// QTA-05: one persistent APPLICATION client too many is refused with 0x97 (v3: 3); others are
/// not, nor one that comes back, and a place is free when its session is gone.
#[test]
fn application_clients_are_limited() {
    let start = operator::start_basic().env("MQTT_APPLICATION_CLIENTS_LIMIT", 2);
    let (mut broker, operator) = begin(start);
    Client::connect(&broker, &app("a")).disconnect();
    let mut second = Client::connect(&broker, &app("b"));
    let refused = |broker: &Broker, connect: &Connect, code: u8| {
        let mut client = Client::open(broker, connect.level);
        client.send(&connect.bytes());
        match client.recv() {
            Packet::Connack { code: answered, .. } => assert_eq!(answered, code),
            other => panic!("CONNECT was answered with {other:?}"),
        }
        client.expect_close();
    };
    refused(&broker, &app("c"), 0x97);
    refused(&broker, &Connect::v311("c").user("app").persistent(), 3);
    Client::connect(&broker, &Connect::v5("c").user("app")).disconnect();
    Client::connect(&broker, &dev("d")).disconnect();
    second.ping();
    Client::connect(&broker, &app("a")).disconnect();
    Client::connect(&broker, &app("b")).disconnect();
    broker.restart();
    refused(&broker, &app("c"), 0x97);
    let operator = Operator { address: broker.http_address(), ..operator };
    operator.delete("/api/client-session/remove?clientId=a").ok();
    Client::connect(&broker, &app("c")).disconnect();
}
