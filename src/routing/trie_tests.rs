//! The trie against the reference matcher and against a naive list.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::trie::Trie;
use crate::mqtt::{self, TopicFilter};

/// Few distinct levels, so that filters overlap, share prefixes and differ late.
const LEVELS: [&str; 7] = ["", "a", "b", "ab", "$x", "é", "a!"];

pub(super) fn topic() -> impl Strategy<Value = String> {
    let level = proptest::sample::select(LEVELS.to_vec());
    let topic = proptest::collection::vec(level, 1..6).prop_map(|levels| levels.join("/"));
    topic.prop_filter("a topic is not empty", |topic| !topic.is_empty())
}

pub(super) fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![
        3 => proptest::sample::select(LEVELS.to_vec()),
        2 => Just("+"),
    ];
    let levels = proptest::collection::vec(level, 0..6);
    let filter = (levels, any::<bool>()).prop_map(|(mut levels, multi)| {
        if multi || levels.is_empty() {
            levels.push("#");
        }
        levels.join("/")
    });
    filter.prop_filter("a filter is valid", |filter| TopicFilter::new(filter).is_ok())
}

fn found(trie: &Trie<usize, ()>, topic: &str) -> Vec<usize> {
    let mut found = Vec::new();
    trie.matches(topic, &mut |one| found.push(one.key));
    found.sort_unstable();
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// TOP-01, TOP-02, TOP-03, MQTT-4.7.1-1, MQTT-4.7.1-2, MQTT-4.7.2-1: the index gives what
    /// the reference matcher gives, each subscription once, before and after some have gone.
    #[test]
    fn the_trie_agrees_with_the_reference_matcher(
        filters in proptest::collection::vec(filter(), 1..60),
        topics in proptest::collection::vec(topic(), 1..20),
    ) {
        let mut trie = Trie::new();
        for (key, filter) in filters.iter().enumerate() {
            prop_assert_eq!(trie.insert(filter, key, ()), None);
        }
        let expected = |topic: &str, from: usize| -> Vec<usize> {
            let keys = from..filters.len();
            keys.filter(|&key| mqtt::matches(&filters[key], topic)).collect()
        };
        for topic in &topics {
            prop_assert_eq!(found(&trie, topic), expected(topic, 0));
        }
        let half = filters.len() / 2;
        for (key, filter) in filters.iter().enumerate().take(half) {
            prop_assert_eq!(trie.remove(filter, &key), Some(()));
        }
        for topic in &topics {
            prop_assert_eq!(found(&trie, topic), expected(topic, half));
        }
        for (key, filter) in filters.iter().enumerate().skip(half) {
            prop_assert_eq!(trie.remove(filter, &key), Some(()));
        }
        prop_assert_eq!((trie.len(), trie.nodes()), (0, 0));
    }
}

/// MQTT-3.8.4-3, MQTT-3.10.4-1: a hundred thousand random subscribes, unsubscribes and lookups
/// leave exactly what a plain map of (filter, key) holds, and nodes for nothing else.
#[test]
fn a_long_random_history_equals_a_plain_map() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut draw = |strategy: &dyn Fn() -> BoxedStrategy<String>| {
        use proptest::strategy::ValueTree;
        strategy().new_tree(&mut runner).expect("the strategy yields").current()
    };
    let filters: Vec<String> = (0..300).map(|_| draw(&|| filter().boxed())).collect();
    let topics: Vec<String> = (0..100).map(|_| draw(&|| topic().boxed())).collect();
    let mut trie = Trie::new();
    let mut model: BTreeMap<(&str, u32), u64> = BTreeMap::new();
    let mut seed = 42_u64;
    for round in 0..100_000_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (seed >> 33) as usize;
        let (filter, key) = (filters[pick % filters.len()].as_str(), (pick / 512 % 60) as u32);
        // Waves: the index fills and empties again and again.
        let insert = (seed >> 61) < if round / 10_000 % 2 == 0 { 5 } else { 2 };
        if insert {
            assert_eq!(trie.insert(filter, key, round), model.insert((filter, key), round));
        } else {
            assert_eq!(trie.remove(filter, &key), model.remove(&(filter, key)));
        }
        assert_eq!(trie.get(filter, &key), model.get(&(filter, key)));
        if round % 50 == 0 {
            let topic = &topics[pick % topics.len()];
            let mut got = Vec::new();
            trie.matches(topic, &mut |one| got.push((one.key, one.entry)));
            got.sort_unstable();
            let all = model.iter().filter(|((filter, _), _)| mqtt::matches(filter, topic));
            let mut want: Vec<_> = all.map(|((_, key), entry)| (*key, *entry)).collect();
            want.sort_unstable();
            assert_eq!(got, want, "{topic}");
            let distinct: BTreeSet<&str> = model.keys().map(|(filter, _)| *filter).collect();
            assert_eq!(trie.len(), model.len());
            assert!(trie.nodes() <= distinct.len() * 2);
        }
    }
    for ((filter, key), entry) in model {
        assert_eq!(trie.remove(filter, &key), Some(entry));
    }
    assert_eq!((trie.len(), trie.nodes()), (0, 0));
}

/// TOP-09: the depth of filters and topics costs neither stack nor a node per level.
#[test]
fn tens_of_thousands_of_levels_are_bounded() {
    let slashes = "/".repeat(65_534);
    let deep = "a/".repeat(32_000) + "a";
    let mut trie = Trie::new();
    let filters = [
        slashes.clone(),
        format!("{}#", &slashes[1..]),
        format!("{}+", &slashes[1..]),
        deep.clone(),
        "a/".repeat(32_000) + "#",
        "+/".repeat(32_000) + "+",
        "+/".repeat(20_000) + "#",
        "a/+/".repeat(16_000) + "a",
        "a/+/".repeat(16_000) + "b",
    ];
    for (key, filter) in filters.iter().enumerate() {
        trie.insert(filter, key, ());
    }
    assert!(trie.nodes() <= filters.len() * 2);
    assert_eq!(found(&trie, &slashes), [0, 1, 6]);
    assert_eq!(found(&trie, &slashes[1..]), [1, 2, 6]);
    assert_eq!(found(&trie, &deep), [3, 4, 5, 6, 7]);
    for (key, filter) in filters.iter().enumerate() {
        assert_eq!(trie.remove(filter, &key), Some(()));
    }
    assert_eq!(trie.nodes(), 0);
}

/// A topic that takes both branches at every level keeps its place without recursion and finds
/// every filter once, more of them than wait in line.
#[test]
fn a_topic_that_branches_at_every_level_finds_every_filter_once() {
    let mut trie = Trie::new();
    for key in 0..1 << 10 {
        let levels: Vec<&str> =
            (0..10).map(|bit| if key >> bit & 1 == 1 { "+" } else { "a" }).collect();
        trie.insert(&levels.join("/"), key, ());
    }
    let all: Vec<usize> = (0..1 << 10).collect();
    assert_eq!(found(&trie, "a/a/a/a/a/a/a/a/a/a"), all);
    assert_eq!(found(&trie, "a/a/a/a/a/a/a/a/a/b").len(), 1 << 9);
}

/// One filter with very many subscribers: any of them goes without a scan, the rest stay.
#[test]
fn a_crowd_on_one_filter_comes_and_goes_by_key() {
    let mut trie = Trie::new();
    for key in 0..100_000_usize {
        trie.insert("news/#", key, ());
    }
    for key in (0..100_000).filter(|key| key % 3 != 0) {
        assert_eq!(trie.remove("news/#", &key), Some(()));
    }
    assert_eq!(trie.nodes(), 1);
    let left: Vec<usize> = (0..100_000).step_by(3).collect();
    assert_eq!(found(&trie, "news"), left);
}
