//! The throughput quota, and the limit of copies into durable queues. Windows are so long that no
//! token comes back within a test.

use std::time::Duration;

use serde_json::Value;

use crate::operator::{self, Operator};
use crate::support::{AckKind, Broker, Client, Connect, Level, Publish, Start, Will, wire};

/// How long nothing comes when nothing should.
const QUIET: Duration = Duration::from_millis(150);

/// What the log says when the quota refuses.
const REACHED: &str = "licensed throughput reached";

fn budget(tokens: u32) -> Start {
    operator::start()
        .env("MQTT_TOTAL_RATE_LIMITS_ENABLED", true)
        .env("MQTT_TOTAL_RATE_LIMITS_CONFIG", format!("{tokens}:86400"))
        .allow_log(REACHED)
}

/// Publishes at QoS 1 so many times, each after the answer to the one before.
fn publish(client: &mut Client, topic: &str, times: usize) -> Vec<u8> {
    // 0x10 is as good: nobody subscribed.
    let plain = |code| if code == 0x10 { 0 } else { code };
    (0..times).map(|n| plain(client.publish(topic, n.to_string(), 1))).collect()
}

fn admitted(codes: &[u8]) -> usize {
    assert!(codes.iter().all(|code| matches!(code, 0 | 0x97)), "{codes:02x?}");
    codes.iter().filter(|code| **code == 0).count()
}

fn reached(broker: &Broker) -> Value {
    Operator::login(broker).get("/api/license/throughput").ok()
}

/// What the broker sent so far.
fn sent_so_far(client: &mut Client) -> usize {
    client.ping();
    client.drain(Duration::from_millis(20)).len()
}

fn delivered(broker: &Broker) -> usize {
    broker.metric("deliveredMsgs_total").unwrap_or(0.0) as usize
}

fn take(client: &mut Client, copies: usize) -> Vec<Publish> {
    (0..copies).map(|_| client.take()).collect()
}

/// QUO-1, QUO-2, QUO-3, QUO-5: a publish costs one, one for each persistent subscriber, on-line or
/// not, and one for each shared group; its delivery then costs nothing, also after a reconnect;
/// beyond the budget it is refused, and nothing of it is stored.
#[test]
fn a_publish_is_charged_with_its_whole_fan_out() {
    let broker = budget(20).start();
    let mut online = Client::connect(&broker, &Connect::v5("online").persistent());
    online.subscribe("t/#", 1);
    // Two filters of one session are one copy.
    online.subscribe("t/+", 2);
    let away = Connect::v5("away").persistent();
    let mut gone = Client::connect(&broker, &away);
    gone.subscribe("t/x", 1);
    gone.disconnect();
    let mut members = ["m1", "m2"].map(|id| Client::connect(&broker, &Connect::v311(id)));
    for member in &mut members {
        member.subscribe("$share/g/t/x", 1);
    }
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    let codes = publish(&mut publisher, "t/x", 8);
    assert_eq!(codes, [0, 0, 0, 0, 0, 0x97, 0x97, 0x97], "four tokens each");
    let payload = |one: &Publish| String::from_utf8(one.payload.clone()).unwrap();
    let all = ["0", "1", "2", "3", "4"];
    assert_eq!(take(&mut online, 5).iter().map(payload).collect::<Vec<_>>(), all);
    broker.eventually("a group's copies are free", |broker| delivered(broker) == 10);
    assert_eq!(members.iter_mut().map(sent_so_far).sum::<usize>(), 5);
    let mut back = Client::connect(&broker, &away.resume());
    assert_eq!(take(&mut back, 5).iter().map(payload).collect::<Vec<_>>(), all);
    assert_eq!(broker.dropped("Rate limits"), 3);
    let mut old = Client::connect(&broker, &Connect::v311("old"));
    old.send(&wire::publish(Level::V311, 0, "t/x", 0, &[], "m"));
    old.expect_refusal(&[]);
    assert_eq!(broker.metric("rateLimited_total"), Some(4.0));
}

/// QUO-4, QUO-5: copies for others are charged when they are sent, and dropped and counted without
/// budget: what was let in and what was sent is what the budget had.
#[test]
fn copies_for_non_persistent_subscribers_are_charged_when_sent() {
    let broker = budget(30).start();
    let mut subscribers = ["a", "b"].map(|id| Client::connect(&broker, &Connect::v5(id)));
    for one in &mut subscribers {
        one.subscribe("t/#", 1);
    }
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    let codes = publish(&mut publisher, "t/x", 40);
    let admitted = admitted(&codes);
    broker.eventually("each copy is sent or dropped", |broker| {
        delivered(broker) + broker.dropped("Rate limits") == 40 - admitted + 2 * admitted
    });
    let sent: usize = subscribers.iter_mut().map(sent_so_far).sum();
    assert_eq!(admitted + sent, 30, "{codes:02x?}");
    let dropped = (40 - admitted) + (2 * admitted - sent);
    assert_eq!(broker.dropped("Rate limits"), dropped);
}

/// QUO-4, QUO-5: retained messages are charged on SUBSCRIBE and cut short without budget; the
/// SUBSCRIBE itself succeeds, and nothing counts as dropped.
#[test]
fn retained_copies_are_cut_short() {
    let broker = budget(10).start();
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    (0..4).for_each(|n| assert_eq!(publisher.retain(format!("t/{n}"), "v") & 0x80, 0));
    let mut first = Client::connect(&broker, &Connect::v5("first"));
    assert_eq!(first.subscribe("t/#", 0), 0);
    take(&mut first, 4);
    let mut second = Client::connect(&broker, &Connect::v5("second").persistent());
    assert_eq!(second.subscribe("t/#", 1), 1);
    take(&mut second, 2);
    let mut third = Client::connect(&broker, &Connect::v311("third"));
    assert_eq!(third.subscribe("t/#", 0), 0);
    assert!(third.drain(QUIET).is_empty());
    assert!(second.drain(QUIET).is_empty());
    assert_eq!(broker.dropped("Rate limits"), 0);
}

/// QUO-2: Wills are charged like publishes; one beyond the budget is lost, and counted. One that
/// comes before the bucket was asked again goes out, and is owed.
#[test]
fn wills_are_charged() {
    let broker = budget(2).start();
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    let die = |id: &str| {
        let connect = Connect::v5(id).will(Will::new("w/x", "gone").qos(1));
        Client::connect(&broker, &connect).reset();
        broker.await_metric("lastWillClients", 0.0);
    };
    die("first");
    broker.await_metric("publishedWills_total", 1.0);
    assert_eq!(publisher.publish("t/x", "m", 1) & 0x80, 0);
    let mut beyond = 0;
    let wills = |broker: &Broker| broker.metric("publishedWills_total").unwrap_or(0.0) as usize;
    while broker.dropped("Rate limits") == beyond {
        // The bucket is known to be empty for a second.
        beyond += 1;
        assert_eq!(publish(&mut publisher, "t/x", 1), [0x97]);
        die(&format!("beyond {beyond}"));
        let all = 2 * beyond + 1;
        broker.eventually("it went out, or it is counted", |broker| {
            wills(broker) + broker.dropped("Rate limits") == all
        });
        assert!(beyond < 10, "Wills go out without a budget");
    }
}

/// QUO-9: a refusal raises the indicator, for REST and for the log; to acknowledge it clears it.
#[test]
fn a_refusal_raises_the_indicator() {
    let broker = budget(1).start();
    assert_eq!(reached(&broker)["reached"], false);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    assert_eq!(publish(&mut publisher, "t/x", 3), [0, 0x97, 0x97]);
    let raised = reached(&broker);
    assert_eq!(raised["reached"], true);
    assert!(raised["reachedSince"].as_u64() > Some(1_700_000_000_000));
    assert_eq!(broker.log().matches(REACHED).count(), 1, "at most once a minute");
    let operator = Operator::login(&broker);
    let taken = operator.ask("POST", "/api/license/throughput/acknowledge", None);
    assert_eq!(taken.status, 200);
    assert_eq!(reached(&broker)["reached"], false);
    assert_eq!(publish(&mut publisher, "t/x", 1), [0x97]);
    assert_eq!(reached(&broker)["reached"], true);
}

/// Decision 9: a QoS 2 repeat costs nothing, and what a resumed session sends again is not refused.
#[test]
fn repeats_are_not_refused_for_quota() {
    let broker = budget(2).start();
    let connect = Connect::v5("p").persistent();
    let mut publisher = Client::connect(&broker, &connect);
    for _ in 0..5 {
        publisher.send(&wire::publish(Level::V5, 4 | 8, "t/x", 1, &[], "a"));
        assert_eq!(publisher.acknowledged(AckKind::Pubrec, 1) & 0x80, 0);
    }
    assert_eq!(publish(&mut publisher, "t/y", 2), [0, 0x97]);
    publisher.reset();
    let mut publisher = Client::connect(&broker, &connect.resume());
    publisher.send(&wire::publish(Level::V5, 2 | 8, "t/x", 9, &[], "b"));
    assert_eq!(publisher.acknowledged(AckKind::Puback, 9) & 0x80, 0);
    assert_eq!(publish(&mut publisher, "t/y", 1), [0x97]);
}

/// QUO-1: no plan, no setting: no quota, and the reply says so. A plan needs a build with a key.
#[test]
fn without_a_plan_or_setting_there_is_no_quota() {
    let broker = operator::start().start();
    let said = reached(&broker);
    assert_eq!((&said["limited"], &said["plan"]), (&false.into(), &Value::Null));
    if option_env!("SLUICE_PLAN_PUBLIC_KEY").is_none() {
        let refused = Start::new().env("TBMQ_LICENSE_FILE", "plan.jwt").allow_log("takes no plan");
        let Err((status, log)) = refused.try_start() else { panic!("a plan was taken") };
        assert_eq!(status.code(), Some(1));
        assert!(log.contains("built without a public key"), "{log}");
    }
}

/// DEV-7: of the copies into durable queues that all messages together ask for, as many are taken
/// as there are tokens, earlier messages first; the surplus is dropped and counted, and what
/// entered a queue stays there, over a kill, too (invariant 2).
#[test]
fn copies_into_durable_queues_are_limited() {
    let mut broker = Start::new()
        .env("MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_ENABLED", true)
        .env("MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_CONFIG", "5:86400")
        .start();
    let connects = ["a", "b", "c"].map(|id| Connect::v5(id).persistent());
    for connect in &connects {
        let mut client = Client::connect(&broker, connect);
        client.subscribe("t/#", 1);
        client.disconnect();
    }
    let mut plain = Client::connect(&broker, &Connect::v5("plain"));
    plain.subscribe("t/#", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publish(&mut publisher, "t/x", 3);
    take(&mut plain, 3);
    broker.eventually("the surplus is counted", |broker| broker.dropped("Rate limits") == 4);
    assert_eq!(broker.metric("rateLimited_total"), Some(4.0));
    broker.kill_and_restart();
    // What was refused is a record of the log: it doesn't come after all, nor do ids move.
    publish(&mut Client::connect(&broker, &Connect::v5("p")), "end", 1);
    let second = connects.into_iter().filter(|connect| {
        let mut client = Client::connect(&broker, &connect.clone().resume());
        assert_eq!(client.take().payload, b"0");
        let more = client.drain(Duration::from_secs(1));
        assert!(more.len() <= 1 && more.iter().all(|one| one.payload == b"1"), "{more:?}");
        !more.is_empty()
    });
    assert_eq!(second.count(), 2);
}
