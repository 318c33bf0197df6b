//! What administrators settle about shared subscriptions: their entities and policies, whether
//! APPLICATION clients need one, and whether there are any at all (SHR-1, SHR-4, SHR-14).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::operator::{self, Operator};
use crate::support::{AckKind, Broker, Client, Connect, Level, Start, wire};

const SUBS: &str = "/api/app/shared/subs";
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);

/// Two kinds of users, `app` and `dev`.
pub(crate) fn begin(start: Start) -> (Broker, Operator) {
    let broker = start.start();
    let operator = Operator::login(&broker);
    for (user, kind) in [("app", "APPLICATION"), ("dev", "DEVICE")] {
        let value = json!({ "userName": user });
        let body = json!({ "name": user, "clientType": kind, "credentialsValue": value });
        operator.post("/api/mqtt/client/credentials", &body).ok();
    }
    (broker, operator)
}

pub(crate) fn app(broker: &Broker, id: &str) -> Client {
    Client::connect(broker, &Connect::v5(id).user("app").persistent())
}

pub(crate) fn dev(broker: &Broker, id: &str) -> Client {
    Client::connect(broker, &Connect::v5(id).user("dev"))
}

fn entity(operator: &Operator, filter: &str, policy: Option<&str>) -> Value {
    let body = json!({ "name": "n", "topicFilter": filter, "partitions": 1,
        "processingType": policy });
    operator.post(SUBS, &body).ok()
}

/// Takes `total` messages, whoever of the members gets them: what each got, topics and payloads. (A
/// group's copies may come later than what is subscribed to plainly, so nothing marks their end.)
#[track_caller]
fn shared_out(members: &mut [Client], total: usize) -> Vec<Vec<(String, String)>> {
    let mut got = vec![Vec::new(); members.len()];
    let until = Instant::now() + PATIENCE;
    while got.iter().map(Vec::len).sum::<usize>() < total {
        for (member, got) in members.iter_mut().zip(&mut got) {
            while let Some(one) = member.take_within(LOOK) {
                got.push((one.topic(), one.payload()));
            }
        }
        let counts: Vec<usize> = got.iter().map(Vec::len).collect();
        assert!(Instant::now() < until, "{counts:?} of {total}");
    }
    got
}

/// SHR-4: an entity is made, shown, listed, changed in what may change, and deleted; what is wrong
/// with a request is said with the name of its field.
#[test]
fn entities_are_made_listed_changed_and_deleted() {
    let (mut broker, operator) = begin(operator::start_basic());
    let made = entity(&operator, "$share/g/a/b", Some("hash-client"));
    assert_eq!((&made["partitions"], &made["processingType"]), (&json!(1), &json!("HASH_CLIENT")));
    let other = json!({ "name": "all groups", "topicFilter": "a/c", "partitions": 12 });
    let other = operator.post(SUBS, &other).ok();
    assert_eq!((&other["partitions"], &other["processingType"]), (&json!(12), &Value::Null));
    let id = made["id"].as_str().unwrap().to_owned();
    let one = format!("{SUBS}/{id}");
    assert_eq!(operator.get(&one).ok(), made);
    assert_eq!(operator.get(&format!("{SUBS}?topic=$share/g/a/b")).ok(), made);
    operator.get(&format!("{SUBS}?topic=a/b")).refused(404);
    let list = operator.get(&format!("{SUBS}?sortProperty=name&textSearch=A/")).ok();
    let names = |list: &Value| -> Vec<Value> {
        list["data"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect()
    };
    assert_eq!(names(&list), [json!("all groups"), json!("n")]);
    let page = operator.get(&format!("{SUBS}?pageSize=1&page=1&sortProperty=partitions")).ok();
    assert_eq!((names(&page), &page["totalElements"]), (vec![json!("all groups")], &json!(2)));
    let bad = [
        (json!({ "topicFilter": "x" }), 400, "name"),
        (json!({ "name": " ", "topicFilter": "x" }), 400, "name"),
        (json!({ "name": 7, "topicFilter": "x" }), 400, "name"),
        (json!({ "name": "n" }), 400, "topicFilter"),
        (json!({ "name": "n", "topicFilter": "a/#/b" }), 400, "topicFilter"),
        (json!({ "name": "n", "topicFilter": "$share/g" }), 400, "topicFilter"),
        (json!({ "name": "n", "topicFilter": "x", "partitions": 0 }), 400, "partitions"),
        (json!({ "name": "n", "topicFilter": "x", "partitions": "1" }), 400, "partitions"),
        (json!({ "name": "n", "topicFilter": "x", "processingType": "?" }), 400, "processingType"),
        (json!({ "name": "n", "topicFilter": "$share/g/a/b" }), 409, &*id),
        (json!({ "id": "x", "name": "n", "topicFilter": "x" }), 404, "shared subscription"),
        (json!({ "id": id, "name": "n", "topicFilter": "x" }), 400, "topicFilter"),
        (
            json!({ "id": id, "name": "n", "topicFilter": "$share/g/a/b", "partitions": 2 }),
            400,
            "partitions",
        ),
    ];
    for (body, status, word) in bad {
        let answer = operator.post(SUBS, &body);
        let told = answer.body["message"].as_str().unwrap_or_default();
        assert!(told.contains(word), "{body}: {}", answer.text);
        answer.refused(status);
    }
    let change = json!({ "id": id, "name": "m", "topicFilter": "$share/g/a/b" });
    let changed = operator.post(SUBS, &change).ok();
    assert_eq!((&changed["name"], &changed["processingType"]), (&json!("m"), &Value::Null));
    assert_eq!(changed["createdTime"], made["createdTime"]);
    operator.post(&format!("{SUBS}/createTopics"), &json!({})).ok();
    broker.kill_and_restart();
    let operator = Operator::login(&broker);
    assert_eq!(operator.get(&one).ok(), changed, "it outlives the node");
    operator.delete(&one).ok();
    operator.delete(&one).refused(404);
    operator.get(&one).refused(404);
}

/// SHR-4, TBMQ's rule as a setting: an APPLICATION client is refused a share without an entity,
/// with a clear code; other clients are not; an entity in use stays.
#[test]
fn application_clients_may_need_an_entity() {
    let setting = "MQTT_SHARED_SUBSCRIPTIONS_APP_WITHOUT_ENTITY";
    let (broker, operator) = begin(operator::start_basic().env(setting, false));
    let mut client = app(&broker, "a");
    let old = Connect::v311("old").user("app").persistent();
    let mut old = Client::connect(&broker, &old);
    let asked: [(&[u8], u8); 2] = [(b"$share/g/t", 1), (b"t", 1)];
    assert_eq!(client.subscribe_with(&asked, &[]), [0x8F, 1]);
    assert_eq!(old.subscribe_with(&asked, &[]), [0x80, 1]);
    assert_eq!(dev(&broker, "d").subscribe("$share/g/t", 1), 1);
    let passing = Connect::v5("passing").user("app");
    assert_eq!(Client::connect(&broker, &passing).subscribe("$share/g/t", 1), 1, "it has no log");
    let id = entity(&operator, "t", None)["id"].as_str().unwrap().to_owned();
    assert_eq!(client.subscribe("$share/g/t", 1), 1);
    assert_eq!(old.subscribe("$share/h/t", 1), 1, "in TBMQ's form it is for all groups");
    assert_eq!(client.subscribe("$share/g/u", 1), 0x8F);
    operator.delete(&format!("{SUBS}/{id}")).refused(409);
    client.unsubscribe(&[b"$share/g/t"]);
    old.unsubscribe(&[b"$share/h/t"]);
    broker.eventually("nobody rests on it", |_| {
        operator.delete(&format!("{SUBS}/{id}")).status == 200
    });
    assert_eq!(client.subscribe("$share/g/t", 1), 0x8F);
}

/// SHR-14: with shared subscriptions switched off, CONNACK says so and who tries is disconnected
/// with 0x9E; v3 clients are told in the SUBACK, and nothing of that name is subscribed to.
#[test]
fn shared_subscriptions_can_be_switched_off() {
    let broker = Start::new().env("MQTT_SHARED_SUBSCRIPTIONS_ENABLED", false).start();
    let mut client = Client::connect(&broker, &Connect::v5("c"));
    assert_eq!(client.connack.number(0x2A), Some(0));
    assert_eq!(client.subscribe("t", 1), 1);
    client.send(&wire::subscribe(Level::V5, 7, &[], &[(b"u", 1), (b"$share/g/t", 1)]));
    client.expect_refusal(&[0x9E]);
    let mut old = Client::connect(&broker, &Connect::v311("old"));
    let asked: [(&[u8], u8); 2] = [(b"$share/g/t", 1), (b"t", 1)];
    assert_eq!(old.subscribe_with(&asked, &[]), [0x80, 1]);
    Client::connect(&broker, &Connect::v5("p")).publish("t", "m", 1);
    assert_eq!(old.take().payload(), "m");
    let other = Broker::start();
    let on = Client::connect(&other, &Connect::v5("c"));
    assert_eq!(on.connack.number(0x2A), None, "it is on by default");
}

/// SHR-1: a group's policy is its entity's, else that of all; a change acts on the next message.
#[test]
fn a_group_keeps_to_its_policy() {
    let all = "MQTT_SHARED_SUBSCRIPTIONS_PROCESSING_TYPE";
    let (broker, operator) = begin(operator::start_basic().env(all, "sticky"));
    let mut members: Vec<Client> = (0..3).map(|n| dev(&broker, &format!("m{n}"))).collect();
    for member in &mut members {
        member.subscribe("$share/g/t/+", 1);
    }
    let mut publisher = dev(&broker, "publisher");
    let mut round = |members: &mut [Client]| -> Vec<Vec<(String, String)>> {
        for number in 0..60 {
            publisher.publish(format!("t/{}", number % 20), number.to_string(), 1);
        }
        shared_out(members, 60)
    };
    let counts = |got: &[Vec<(String, String)>]| got.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(counts(&round(&mut members)), [60, 0, 0], "sticky");
    let made = entity(&operator, "t/+", Some("HASH_TOPIC"));
    let got = round(&mut members);
    let mut of_topic: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (member, got) in got.iter().enumerate() {
        got.iter().for_each(|(topic, _)| _ = of_topic.entry(topic).or_default().insert(member));
        let numbers: Vec<u32> = got.iter().map(|(_, text)| text.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "in order");
    }
    assert_eq!(counts(&got).iter().sum::<usize>(), 60);
    assert!(of_topic.len() == 20 && of_topic.values().all(|members| members.len() == 1));
    let policy = |policy: &str| {
        let change = json!({ "id": made["id"], "name": "n", "topicFilter": "t/+",
            "processingType": policy });
        operator.post(SUBS, &change).ok();
    };
    policy("hash_client");
    let mut one = counts(&round(&mut members));
    one.sort_unstable();
    assert_eq!(one, [0, 0, 60], "one publisher, one member");
    policy("ROUND_ROBIN");
    assert_eq!(counts(&round(&mut members)), [20, 20, 20]);
    policy("LEAST_INFLIGHT");
    assert_eq!(counts(&round(&mut members)).iter().sum::<usize>(), 60);
    let groups = operator.get("/api/subscription").ok();
    let group = &groups["data"][0];
    assert_eq!((&group["shareName"], &group["topicFilter"]), (&json!("g"), &json!("t/+")));
    assert_eq!(group["processingType"], "LEAST_INFLIGHT");
    assert_eq!((&group["entityId"], &group["application"]), (&made["id"], &json!(false)));
    let names: Vec<&Value> =
        group["members"].as_array().unwrap().iter().map(|one| &one["clientId"]).collect();
    assert_eq!(names, ["m0", "m1", "m2"]);
    assert!(group["members"].as_array().unwrap().iter().all(|one| one["connected"] == true));
    assert_eq!(operator.get("/api/subscription?textSearch=nothing").ok()["totalElements"], 0);
}

/// SHR-1: the fewest messages that are not acknowledged: who acknowledges nothing gets no more than
/// its share of what was there, and the others go on.
#[test]
fn the_least_loaded_member_gets_the_next_message() {
    let all = "MQTT_SHARED_SUBSCRIPTIONS_PROCESSING_TYPE";
    let broker = Start::new().env(all, "LEAST_INFLIGHT").start();
    let connect = |id: &str| Client::connect(&broker, &Connect::v5(id));
    let (mut idle, mut busy) = (connect("idle"), connect("busy"));
    idle.subscribe("$share/g/t", 1);
    busy.subscribe("$share/g/t", 1);
    let mut publisher = connect("publisher");
    for number in 0..50 {
        publisher.publish("t", number.to_string(), 1);
        if number == 0 {
            idle.expect_publish();
            continue;
        }
        // It has none, the other has one; acknowledged before the next one comes.
        assert_eq!(busy.take().payload(), number.to_string());
        busy.ping();
    }
}

/// TBMQ #88, #224: an APPLICATION group has as many members as it likes, whatever the partitions of
/// its entity, and without one; each of six gets its part, every message goes to exactly one.
#[test]
fn every_member_of_an_application_group_gets_its_part() {
    let (broker, operator) = begin(operator::start_basic());
    entity(&operator, "$share/with/t", None);
    for share in ["with", "without"] {
        let filter = format!("$share/{share}/t");
        let mut members: Vec<Client> =
            (0..6).map(|number| app(&broker, &format!("{share}{number}"))).collect();
        for member in &mut members {
            assert_eq!(member.subscribe(&filter, 1), 1);
        }
        broker.await_metric("activeSharedAppProcessors", 6.0);
        let mut publisher = dev(&broker, "publisher");
        for number in 0..600 {
            publisher.publish("t", number.to_string(), 1);
        }
        let mut all: Vec<u32> = Vec::new();
        for got in shared_out(&mut members, 600) {
            let got: Vec<u32> = got.iter().map(|(_, text)| text.parse().unwrap()).collect();
            assert!(got.len() == 100 && got.is_sorted(), "{share}: {}", got.len());
            all.extend(got);
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(0..600), "{share}: each once");
        let groups = operator.get(&format!("/api/subscription?textSearch={share}/")).ok();
        let group = &groups["data"][0];
        assert_eq!((&group["application"], &group["waitingMessages"]), (&json!(true), &json!(0)));
        assert_eq!(group["members"].as_array().unwrap().len(), 6);
        assert_eq!(group["entityId"].is_string(), share == "with");
        for mut member in members {
            member.unsubscribe(&[filter.as_bytes()]);
        }
        broker.await_metric("activeSharedAppProcessors", 0.0);
    }
}

/// SHR-4: a congested APPLICATION member keeps its turn, and what falls to it waits in its log; or,
/// as the older document has it, it is out of the group until it is writable.
#[test]
fn a_congested_application_member_stays_or_leaves() {
    const OWN: usize = 1500;
    for leaves in [false, true] {
        let start = operator::start_basic()
            .env("NETTY_WRITE_BUFFER_HIGH_WATER_MARK", 64)
            .env("NETTY_WRITE_BUFFER_LOW_WATER_MARK", 32)
            .env("NETTY_SO_SEND_BUFFER", 8)
            .env("MQTT_SHARED_SUBSCRIPTIONS_APP_LEAVE", leaves);
        let (broker, operator) = begin(start);
        let mut narrow = Client::open_narrow(&broker, Level::V5)
            .say_hello(&Connect::v5("narrow").user("app").persistent());
        narrow.subscribe("$share/g/t", 1);
        narrow.subscribe("own", 1);
        let mut publisher = dev(&broker, "publisher");
        let own: Vec<u16> = (0..OWN).map(|_| publisher.fresh_id()).collect();
        for ids in own.chunks(100) {
            let packet = |id: &u16| wire::publish(Level::V5, 2, "own", *id, &[], [b'x'; 1024]);
            publisher.send(&ids.iter().flat_map(packet).collect::<Vec<u8>>());
            publisher.acknowledged_all(AckKind::Puback, ids.iter().copied());
        }
        broker.eventually("it is behind", |_| {
            let session = operator.get("/api/client-session?clientId=narrow").ok();
            session["lag"].as_u64().is_some_and(|lag| lag as usize == OWN)
        });
        let mut quick = app(&broker, "quick");
        quick.subscribe("$share/g/t", 1);
        for number in 0..20 {
            publisher.publish("t", number.to_string(), 1);
        }
        let of_quick = if leaves { 20 } else { 10 };
        (0..of_quick).for_each(|_| assert_eq!(quick.take().topic(), "t"));
        let rest: Vec<String> = (of_quick..OWN + 20).map(|_| narrow.take().topic()).collect();
        let own = rest.iter().filter(|topic| *topic == "own").count();
        assert_eq!((own, rest.len()), (OWN, OWN + 20 - of_quick), "leaves: {leaves}");
        narrow.ping();
        if leaves {
            // It is writable again, and back.
            broker.await_metric("nonWritableClients", 0.0);
            (0..2).for_each(|_| _ = publisher.publish("t", "back", 1));
            assert_eq!([narrow.take().payload(), quick.take().payload()], ["back", "back"]);
        }
    }
}

/// MQTT 5 section 4.8.2: what an entity says of a group changes nothing about whose filter it is.
#[test]
fn a_plain_subscription_is_no_business_of_an_entity() {
    let setting = "MQTT_SHARED_SUBSCRIPTIONS_APP_WITHOUT_ENTITY";
    let (broker, operator) = begin(operator::start_basic().env(setting, false));
    entity(&operator, "t", Some("STICKY"));
    let mut clients = ["a", "b"].map(|id| app(&broker, id));
    for client in &mut clients {
        assert_eq!(client.subscribe("t", 1), 1);
    }
    dev(&broker, "publisher").publish("t", "m", 1);
    for client in &mut clients {
        assert_eq!(client.take().payload(), "m");
    }
}

/// SHR-4, APP-3, SHR-01 (TBMQ #290, #224): what an APPLICATION group's members are not there for
/// waits in the group's log, bounded by retention and not by the limit of DEVICE queues, over a
/// crash; whoever comes first gets it in order, and what is live goes behind it.
#[test]
fn what_waits_for_an_application_group_is_bounded_by_retention_alone() {
    const WAIT: usize = 300;
    let limit = "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT";
    let (mut broker, _) = begin(operator::start_basic().env(limit, 5));
    for id in ["a", "b"] {
        let mut member = app(&broker, id);
        member.subscribe("$share/g/t", 1);
        member.disconnect();
    }
    let mut publisher = dev(&broker, "publisher");
    (0..WAIT).for_each(|number| _ = publisher.publish("t", number.to_string(), 1));
    publisher.ping();
    broker.kill_and_restart();
    let mut first = app(&broker, "a");
    assert!(first.session_present);
    let mut publisher = dev(&broker, "publisher");
    (WAIT..WAIT + 20).for_each(|number| _ = publisher.publish("t", number.to_string(), 1));
    let got: Vec<usize> = (0..WAIT + 20).map(|_| first.take().payload().parse().unwrap()).collect();
    assert_eq!(got, (0..WAIT + 20).collect::<Vec<_>>());
    let mut members = [first, app(&broker, "b")];
    (0..20).for_each(|number| _ = publisher.publish("t", number.to_string(), 1));
    let got = shared_out(&mut members, 20);
    assert!(got.iter().all(|got| got.len() == 10), "turns: {got:?}");
    assert_eq!(broker.metric("droppedMsgs_total"), Some(0.0));
}
