//! What a client may do: rules for publishing, subscribing, Wills, and for what is delivered.

use std::time::Duration;

use serde_json::{Value, json};

use crate::operator::{self, Operator};
use crate::support::{Broker, Client, Connect, Level, Packet, Will};

/// How long nothing must come, where something wrong might.
const QUIET: Duration = Duration::from_millis(300);

/// A broker, its administrator, and a credential `u` with these rules beside one that may do all.
fn with_rules(rules: &Value) -> (Broker, Operator, String) {
    let broker = operator::start_basic().start();
    let operator = Operator::login(&broker);
    operator.credential("all", &json!({ "userName": "all" }));
    let id = operator.credential("u", &json!({ "userName": "u", "authRules": rules }));
    (broker, operator, id)
}

fn as_u(level: Level, id: &str) -> Connect {
    Connect::new(level, id).user("u")
}

fn all(id: &str) -> Connect {
    Connect::v5(id).user("all")
}

fn allow(filters: &[&str]) -> Value {
    let rules: Vec<Value> =
        filters.iter().map(|filter| json!({ "action": "allow", "filter": filter })).collect();
    json!({ "rules": rules })
}

/// ACL-01: no filter that is wider than the rules brings a topic that they deny: it is refused with
/// 0x87, or what it would bring is held back: live, retained, queued, and behind an overlap.
#[test]
fn a_wide_filter_shows_nothing_that_is_denied() {
    let rules = json!({ "rules": [
        { "action": "deny", "filter": "u/1/secret/#" },
        { "action": "allow", "operation": "subscribe", "filter": "u/1/#" },
    ] });
    let (broker, _, _) = with_rules(&rules);
    let mut publisher = Client::connect(&broker, &all("publisher"));
    publisher.retain("u/2/old", "denied");
    publisher.retain("u/1/secret/old", "denied");
    publisher.retain("u/1/old", "allowed");
    let mut reader = Client::connect(&broker, &as_u(Level::V5, "reader").persistent());
    for wide in ["#", "+/+/x", "u/+/x", "$share/g/#", "u/#", "+/1/#", "u/1", "u/1/+"] {
        let expected = if wide.starts_with("u/1") { 1 } else { 0x87 };
        assert_eq!(reader.subscribe(wide, 1), expected, "{wide}");
    }
    assert_eq!(reader.subscribe("u/1/#", 1), 1, "it overlaps, and is allowed");
    let mut older = Client::connect(&broker, &as_u(Level::V311, "older"));
    assert_eq!(older.subscribe("#", 0), 0x80);
    let topics = |publishes: Vec<crate::support::Publish>| {
        let mut topics: Vec<String> = publishes.iter().map(|one| one.topic()).collect();
        topics.sort();
        topics.dedup();
        topics
    };
    assert_eq!(topics(reader.drain(QUIET)), ["u/1/old"]);
    for topic in ["u/2/x", "u/1/secret/x", "u/1/x", "x"] {
        publisher.publish(topic, "m", 1);
    }
    assert_eq!(topics(reader.drain(QUIET)), ["u/1/x"]);
    reader.disconnect();
    for topic in ["u/1/secret/y", "u/1/y", "u/2/y"] {
        publisher.publish(topic, "m", 1);
    }
    let mut reader = Client::connect(&broker, &as_u(Level::V5, "reader").persistent());
    assert_eq!(topics(reader.drain(QUIET)), ["u/1/y"]);
    assert!(broker.dropped("Not authorized") > 0);
}

/// ACL-02: the rules that count are the receiver's, at the moment of delivery; what a publisher was
/// allowed to say stays said. Both as docs/security-credentials.md has it, also after a kill.
#[test]
fn revoked_rights_act_on_what_was_stored_before() {
    let (mut broker, operator, id) = with_rules(&allow(&["a/#"]));
    let mut writer = Client::connect(&broker, &as_u(Level::V5, "writer"));
    assert_eq!(writer.retain("a/kept", "said"), 0);
    let mut reader = Client::connect(&broker, &as_u(Level::V5, "reader").persistent());
    reader.subscribe("a/#", 1);
    reader.take();
    reader.disconnect();
    let mut all_may = Client::connect(&broker, &all("all"));
    all_may.publish("a/queued", "m", 1);
    let rules = json!({ "rules": [
        { "action": "allow", "operation": "publish", "filter": "b" },
        { "action": "allow", "operation": "subscribe", "filter": "a/other/#" },
    ] });
    operator.change(&id, "u", &json!({ "userName": "u", "authRules": rules }));
    let mut publish = || writer.publish("a/kept", "again", 1);
    broker.eventually("the connection goes on, without right", |_| publish() == 0x87);
    for round in 0..2 {
        let mut other = Client::connect(&broker, &all("other"));
        other.subscribe("a/kept", 1);
        assert_eq!(other.take().payload(), "said", "round {round}");
        other.disconnect();
        broker.kill_and_restart();
    }
    let mut reader = Client::connect(&broker, &as_u(Level::V5, "reader").persistent());
    assert!(reader.session_present);
    let mut all_may = Client::connect(&broker, &all("all"));
    all_may.publish("a/other/1", "m", 1);
    assert_eq!(reader.take().topic(), "a/other/1", "what was queued under the old rules is gone");
    reader.expect_silence(QUIET);
}

/// ACL-04: a rule names its topic level by level, and nothing that only begins like it.
#[test]
fn a_rule_is_no_prefix() {
    let lists = [allow(&["allowed"]), json!({ "pubAuthRulePatterns": ["allowed"] })];
    for rules in lists {
        let (broker, _, _) = with_rules(&rules);
        let mut client = Client::connect(&broker, &as_u(Level::V5, "c"));
        assert_eq!(client.publish("allowed", "m", 1), 0);
        for other in ["allowed/x", "allowedx", "ALLOWED", "allowed/", "xallowed", "/allowed"] {
            assert_eq!(client.publish(other, "m", 1), 0x87, "{other} by {rules}");
        }
    }
}

/// ACL-05: what stands for a placeholder is no pattern; ids that could be one are refused.
#[test]
fn a_placeholder_can_not_widen_a_rule() {
    let lists = [
        allow(&["dev/${clientId}/#"]),
        json!({ "subAuthRulePatterns": ["dev/${clientId}/.*"] }),
        json!({ "subAuthRulePatterns": ["dev/${clientId}/#"] }),
        allow(&["dev/x-${username}-${clientId}/#"]),
    ];
    for rules in lists {
        let (broker, _, _) = with_rules(&rules);
        for id in ["#", "+", "+/x", "a/b"] {
            let mut client = Client::open(&broker, Level::V5);
            client.send(&as_u(Level::V5, id).bytes());
            assert!(matches!(client.recv(), Packet::Connack { code: 0x87, .. }), "{id}: {rules}");
        }
        let mut own = Client::connect(&broker, &as_u(Level::V5, "a.*"));
        for other in ["dev/other/#", "dev/abc/#", "dev/+/#", "dev/#"] {
            assert_eq!(own.subscribe(other, 0), 0x87, "{other} by {rules}");
        }
        let prefix = if rules.to_string().contains("username") { "x-u-" } else { "" };
        assert_eq!(own.subscribe(format!("dev/{prefix}a.*/#"), 0), 0, "{rules}");
    }
}

/// ACL-06: a denied PUBLISH is answered (v5) or ends the connection (v3.x), is never stored, and
/// its identifier is free again; a repeat of it has no other fate.
#[test]
fn a_denied_publish_is_answered_and_not_stored() {
    let (broker, _, _) = with_rules(&allow(&["ok"]));
    let mut watcher = Client::connect(&broker, &all("watcher"));
    watcher.subscribe("#", 2);
    let mut client = Client::connect(&broker, &as_u(Level::V5, "v5"));
    assert_eq!(client.publish("denied", "m", 0), 0);
    assert_eq!(client.publish("denied", "m", 1), 0x87);
    let denied = crate::support::wire::publish(Level::V5, 2 << 1, "denied", 9, &[], "m");
    let again = crate::support::wire::publish(Level::V5, 2 << 1 | 8, "denied", 9, &[], "m");
    for packet in [denied, again] {
        client.send(&packet);
        assert_eq!(client.acknowledged(crate::support::AckKind::Pubrec, 9), 0x87);
    }
    let good = crate::support::wire::publish(Level::V5, 1 << 1, "ok", 9, &[], "good");
    client.send(&good);
    assert_eq!(client.acknowledged(crate::support::AckKind::Puback, 9), 0);
    for qos in [1, 2] {
        let mut older = Client::connect(&broker, &as_u(Level::V311, "v311"));
        older.send(&crate::support::wire::publish(Level::V311, qos << 1, "denied", 1, &[], "m"));
        older.expect_refusal(&[]);
    }
    assert_eq!(watcher.take().topic(), "ok");
    watcher.expect_silence(QUIET);
    assert_eq!(broker.dropped("Not authorized"), 6);
}

/// ACL-07: an empty list allows nothing, a list that is not there everything; a rule that could not
/// be understood is refused, not left out.
#[test]
fn an_empty_list_denies_everything() {
    for rules in
        [json!({ "pubAuthRulePatterns": [], "subAuthRulePatterns": [] }), json!({ "rules": [] })]
    {
        let (broker, operator, id) = with_rules(&rules);
        let mut client = Client::connect(&broker, &as_u(Level::V5, "c"));
        assert_eq!(client.publish("t", "m", 1), 0x87);
        assert_eq!(client.subscribe("t", 1), 0x87);
        operator.change(&id, "u", &json!({ "userName": "u" }));
        assert_eq!(client.subscribe("t", 1), 1);
        assert_eq!(client.publish("t", "m", 1), 0);
        client.take();
        let bad = [
            json!({ "pubAuthRulePatterns": ["("] }),
            json!({ "pubAuthRulePatterns": ["a)|(b"] }),
            json!({ "pubAuthRulePatterns": ["(a{1000}){1000}"] }),
            json!({ "pubAuthRulePatterns": ["x".repeat(2000)] }),
            json!({ "pubAuthRulePatterns": vec!["x"; 1000] }),
            json!({ "pubAuthRulePatterns": ["${clientid}"] }),
            allow(&["a/#/b"]),
            allow(&["${nobody}"]),
            json!({ "rules": [{ "action": "permit", "filter": "a" }] }),
            json!({ "rule": [] }),
        ];
        for rules in bad {
            let value = json!({ "userName": "u", "authRules": rules });
            let body = json!({ "id": id, "name": "u", "credentialsValue": value });
            let answer = operator.post("/api/mqtt/client/credentials", &body);
            assert_eq!(answer.status, 400, "{rules}: {}", answer.text);
        }
        assert_eq!(client.publish("t", "m", 1), 0, "what was refused changed nothing");
    }
}

/// A change of rules acts on clients that are connected, both ways (TBMQ's #195), and no other
/// connection is touched.
#[test]
fn a_change_of_rules_acts_on_connected_clients() {
    let (broker, operator, id) = with_rules(&allow(&["a/#"]));
    let mut client = Client::connect(&broker, &as_u(Level::V5, "c"));
    assert_eq!(client.subscribe("a/t", 1), 1);
    assert_eq!(client.publish("b/t", "m", 1), 0x87);
    operator.change(&id, "u", &json!({ "userName": "u", "authRules": allow(&["b/#"]) }));
    assert_eq!(client.publish("b/t", "m", 1), 0);
    assert_eq!(client.publish("a/t", "m", 1), 0x87);
    assert_eq!(client.subscribe("a/t", 1), 0x87);
    let mut all_may = Client::connect(&broker, &all("all"));
    assert_eq!(all_may.publish("a/t", "m", 1), 0, "it is subscribed, but not given it");
    client.expect_silence(QUIET);
    operator.change(&id, "u", &json!({ "userName": "u", "authRules": allow(&["+/t"]) }));
    all_may.publish("a/t", "now", 1);
    assert_eq!(client.take().payload(), "now");
}

/// A Will is judged at CONNECT, and again when it goes out.
#[test]
fn a_will_obeys_the_rules() {
    let (broker, operator, id) = with_rules(&allow(&["ok/#"]));
    let mut watcher = Client::connect(&broker, &all("watcher"));
    watcher.subscribe("#", 1);
    let with_will = |topic: &str| as_u(Level::V5, "c").will(Will::new(topic, "gone").qos(1));
    let mut denied = Client::open(&broker, Level::V5);
    denied.send(&with_will("denied").bytes());
    assert!(matches!(denied.recv(), Packet::Connack { code: 0x87, .. }));
    denied.expect_close();
    let client = Client::connect(&broker, &with_will("ok/1"));
    client.reset();
    assert_eq!(watcher.take().topic(), "ok/1");
    let mut client = Client::connect(&broker, &with_will("ok/2"));
    client.ping();
    operator.change(&id, "u", &json!({ "userName": "u", "authRules": allow(&["other"]) }));
    client.reset();
    broker.await_metric("lastWillClients", 0.0);
    watcher.expect_silence(QUIET);
    assert_eq!(broker.dropped("Not authorized"), 1);
}

/// TBMQ's two lists: expressions match the whole topic or filter, each list for its own direction.
#[test]
fn expressions_are_judged_as_tbmq_does() {
    let rules = json!({ "pubAuthRulePatterns": ["out/.*", "x|y"],
        "subAuthRulePatterns": ["in/.*", "sensors/\\+/t"] });
    let (broker, _, _) = with_rules(&rules);
    let mut client = Client::connect(&broker, &as_u(Level::V5, "c"));
    for (topic, code) in [("out/a/b", 0), ("x", 0), ("y", 0), ("xy", 0x87), ("in/a", 0x87)] {
        assert_eq!(client.publish(topic, "m", 1), code, "{topic}");
    }
    let filters =
        [("in/#", 1), ("in/a", 1), ("sensors/+/t", 1), ("sensors/1/t", 1), ("out/a", 0x87)];
    for (filter, code) in filters {
        assert_eq!(client.subscribe(filter, 1), code, "{filter}");
    }
    let mut all_may = Client::connect(&broker, &all("all"));
    for topic in ["in/1", "in", "sensors/1/t"] {
        all_may.publish(topic, "m", 1);
    }
    let topics: Vec<String> = client.drain(QUIET).iter().map(|one| one.topic()).collect();
    assert_eq!(topics, ["in/1", "sensors/1/t"], "in/# reaches `in`, which in/.* does not");
}
