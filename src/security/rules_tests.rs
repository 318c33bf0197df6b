//! The rules against the reference matcher, and in their corners.

use proptest::prelude::*;

use super::rules::{Action, AuthRules, Operation, Rights, Rule};
use super::template::Who;
use crate::mqtt::{TopicFilter, matches};

const WHO: Who<'static> = Who { client_id: "c1", username: Some("u"), cn: None };

fn rule(action: Action, filter: &str) -> Rule {
    Rule { action, operation: Operation::All, filter: filter.into() }
}

fn ordered(rules: Vec<Rule>) -> Rights {
    let rules = AuthRules { rules: Some(rules), ..AuthRules::default() };
    assert_eq!(rules.fault(), None);
    Rights::compile(&rules, &WHO).expect("they can hold")
}

#[test]
fn the_first_rule_that_fits_decides() {
    let rights = ordered(vec![
        rule(Action::Deny, "a/secret/#"),
        rule(Action::Allow, "a/#"),
        rule(Action::Deny, "#"),
        rule(Action::Allow, "b"),
    ]);
    assert!(rights.may_publish("a") && rights.may_publish("a/b"));
    assert!(!rights.may_publish("a/secret") && !rights.may_publish("b"));
    assert!(rights.may_subscribe("a/#"), "what is denied of it is held back copy by copy");
    assert!(!rights.may_subscribe("#") && !rights.may_subscribe("+/b"));
    assert!(!rights.may_receive("a/secret/x") && rights.may_receive("a/x"));
}

/// ACL-05
#[test]
fn values_of_placeholders_are_text() {
    let rules = |filter: &str| AuthRules {
        rules: Some(vec![rule(Action::Allow, filter)]),
        ..AuthRules::default()
    };
    for client_id in ["a/b", "+", "#", "a+", ""] {
        let who = Who { client_id, ..WHO };
        assert!(Rights::compile(&rules("dev/${clientId}/#"), &who).is_err(), "{client_id}");
    }
    assert!(Rights::compile(&rules("dev/${cn}/#"), &WHO).is_err(), "it has no common name");
    let rights = Rights::compile(&rules("dev/x-${clientId}-${username}/+"), &WHO);
    let rights = rights.expect("they can hold");
    assert!(rights.may_publish("dev/x-c1-u/t") && !rights.may_publish("dev/x-c2-u/t"));
    let list = AuthRules { publish: Some(vec!["${clientId}/.".into()]), ..AuthRules::default() };
    let who = Who { client_id: "a.c", ..WHO };
    let rights = Rights::compile(&list, &who).expect("they can hold");
    assert!(rights.may_publish("a.c/x") && !rights.may_publish("abc/x"));
}

#[test]
fn each_direction_has_its_own_rules() {
    let rules = AuthRules {
        publish: Some(vec!["out/.*".into()]),
        rules: Some(vec![Rule {
            action: Action::Allow,
            operation: Operation::Subscribe,
            filter: "in/#".into(),
        }]),
        ..AuthRules::default()
    };
    let rights = Rights::compile(&rules, &WHO).expect("they can hold");
    assert!(rights.may_publish("out/x") && !rights.may_publish("in/x"));
    assert!(rights.may_subscribe("in/+") && !rights.may_subscribe("out/x"));
    let open = Rights::default();
    assert!(!open.restricts_publish() && open.may_publish("x") && open.may_subscribe("#"));
}

fn level() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just(""), Just("$s"), Just("+")].prop_map(str::to_owned)
}

fn filter() -> impl Strategy<Value = String> {
    (prop::collection::vec(level(), 1..4), any::<bool>()).prop_map(|(mut levels, rest)| {
        if rest {
            levels.push("#".to_owned());
        }
        levels.join("/")
    })
}

fn topic() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof![Just("a"), Just("b"), Just(""), Just("$s")], 1..5)
        .prop_map(|levels| levels.join("/"))
}

proptest! {
    /// A rule's filter means what it means to MQTT; and a filter that may be subscribed to brings
    /// nothing that may not be received.
    #[test]
    fn a_rule_is_an_mqtt_filter(own in filter(), wanted in filter(), topic in topic()) {
        prop_assume!(TopicFilter::new(&own).is_ok() && TopicFilter::new(&wanted).is_ok());
        prop_assume!(!topic.is_empty());
        let rights = ordered(vec![rule(Action::Allow, &own)]);
        prop_assert_eq!(rights.may_receive(&topic), matches(&own, &topic));
        if rights.may_subscribe(&wanted) && matches(&wanted, &topic) {
            prop_assert!(rights.may_receive(&topic), "{} lets {} in for {}", own, topic, wanted);
        }
    }
}
