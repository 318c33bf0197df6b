//! The retained store against the reference matcher, page by page.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::retained::{Cursor, Retained, RetainedFull, RetainedLimits};
use super::trie::Trie;
use super::trie_tests::{filter, topic};
use crate::mqtt;

/// Reads a filter to its end; also tells how many pages that took.
fn read(store: &Retained<u32>, filter: &str, max: usize, now_ms: u64) -> (Vec<String>, usize) {
    let (mut topics, mut pages, mut cursor) = (Vec::new(), 0, None::<Cursor>);
    loop {
        let before = topics.len();
        cursor = store.page(filter, cursor.as_ref(), max, now_ms, |topic, _| {
            topics.push(topic.to_owned());
            true
        });
        pages += 1;
        assert!(topics.len() - before <= max, "a page is no longer than asked for");
        if cursor.is_none() {
            return (topics, pages);
        }
    }
}

fn filled<'a>(topics: impl IntoIterator<Item = &'a str>) -> Retained<u32> {
    let mut store = Retained::new();
    for topic in topics {
        store.set(topic, 0, 0, None).expect("no limit");
    }
    store
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// RET-15, TOP-01, TOP-02, TOP-03: retained set == live set == reference matcher, each topic
    /// once, whatever the size of a page.
    #[test]
    fn pages_hold_what_the_reference_matcher_says(
        topics in proptest::collection::btree_set(topic(), 0..80),
        filters in proptest::collection::vec(filter(), 1..12),
        max in 1_usize..7,
    ) {
        let store = filled(topics.iter().map(String::as_str));
        for filter in &filters {
            let (got, _) = read(&store, filter, max, 0);
            let once: BTreeSet<&str> = got.iter().map(String::as_str).collect();
            prop_assert_eq!(once.len(), got.len(), "a topic came twice for {}", filter);
            let matching = topics.iter().filter(|topic| mqtt::matches(filter, topic));
            let want: BTreeSet<&str> = matching.map(String::as_str).collect();
            prop_assert_eq!(&once, &want, "{}", filter);
            let mut live = Trie::new();
            live.insert(filter, (), ());
            for topic in &topics {
                let mut found = false;
                live.matches(topic, &mut |_| found = true);
                prop_assert_eq!(found, want.contains(topic.as_str()));
            }
        }
    }

    /// RET-14, RET-09: count, bytes, expiry order and contents follow a plain map through any
    /// history of sets, removals and sweeps.
    #[test]
    fn the_store_equals_a_plain_map(
        operations in proptest::collection::vec((topic(), 0_u8..10, 0_u64..50), 1..200),
    ) {
        let mut store = Retained::new();
        let mut model: BTreeMap<String, (u32, u64, Option<u64>)> = BTreeMap::new();
        for (round, (topic, what, number)) in operations.into_iter().enumerate() {
            let round = round as u32;
            match what {
                0 | 1 => {
                    let old = model.remove(&topic).map(|(value, _, _)| value);
                    prop_assert_eq!(store.remove(&topic), old);
                }
                2 => {
                    let gone = store.expire(number, 3, |_| false);
                    for topic in &gone {
                        let due = model.remove(topic).and_then(|(_, _, due)| due);
                        prop_assert!(due.is_some_and(|due| due <= number));
                    }
                    let late = model.values().filter_map(|(_, _, due)| *due).min();
                    prop_assert!(gone.len() == 3 || late.is_none_or(|due| due > number));
                }
                _ => {
                    let due = (what % 2 == 0).then_some(number);
                    let size = number + topic.len() as u64;
                    let old = model.insert(topic.clone(), (round, size, due));
                    let old = old.map(|(value, _, _)| value);
                    prop_assert_eq!(store.set(&topic, round, number, due), Ok(old));
                }
            }
            prop_assert_eq!(store.len(), model.len());
            prop_assert_eq!(store.bytes(), model.values().map(|(_, size, _)| size).sum::<u64>());
            let due = model.values().filter_map(|(_, _, due)| *due).min();
            prop_assert_eq!(store.next_due_ms(), due);
        }
        for (topic, (value, _, due)) in &model {
            prop_assert_eq!(store.get(topic, 0), (*due != Some(0)).then_some(value));
            prop_assert_eq!(store.get(topic, 60), due.is_none().then_some(value));
        }
    }
}

/// Subtrees stand together although `!` sorts below `/`: `a/#` never leaves its subtree early.
#[test]
fn neighbours_that_sort_between_slashes_do_not_split_a_subtree() {
    let store = filled(["a", "a!", "a!/x", "a/b", "a/b/c", "a\u{1}", "a0", "b"]);
    assert_eq!(read(&store, "a/#", 1, 0).0, ["a", "a/b", "a/b/c"]);
    assert_eq!(read(&store, "+", 1, 0).0, ["a", "a\u{1}", "a!", "a0", "b"]);
    assert_eq!(read(&store, "+/x", 1, 0).0, ["a!/x"]);
}

/// RET-09, MQTT-3.3.2-5: an expired value is given to nobody, swept or not.
#[test]
fn an_expired_value_is_not_given_out_before_the_sweep() {
    let mut store = filled(["a/1"]);
    store.set("a/2", 0, 0, Some(1000)).expect("no limit");
    assert_eq!(read(&store, "a/+", 10, 999).0, ["a/1", "a/2"]);
    assert_eq!(read(&store, "a/+", 10, 1000).0, ["a/1"]);
    assert_eq!(read(&store, "a/2", 10, 1000).0, [""; 0]);
    // A later value without expiry takes the due time away.
    store.set("a/2", 1, 0, None).expect("no limit");
    assert_eq!(store.expire(5000, 10, |_| false), [""; 0]);
    assert_eq!(store.get("a/2", 5000), Some(&1));
}

/// Caps on count and bytes: refused with the old value in place, off at 0, smaller always taken.
#[test]
fn a_full_store_refuses_and_keeps_what_it_has() {
    let mut store = filled(["a", "b"]);
    store.limit(RetainedLimits { count: 2, bytes: 20 });
    assert_eq!(store.set("c", 1, 0, None), Err(RetainedFull::Count));
    assert_eq!(store.set("a", 1, 18, None), Ok(Some(0)));
    assert_eq!(store.bytes(), 20);
    assert_eq!(store.set("a", 2, 19, None), Err(RetainedFull::Bytes));
    assert_eq!(store.get("a", 0), Some(&1));
    store.limit(RetainedLimits { count: 1, bytes: 10 });
    assert_eq!(store.set("a", 3, 17, None), Ok(Some(1)));
    assert_eq!(store.len(), 2);
    assert_eq!(store.remove("a"), Some(3));
    assert_eq!(store.set("c", 1, 0, None), Err(RetainedFull::Count));
    assert_eq!(store.remove("b"), Some(0));
    assert_eq!(store.set("c", 1, 0, None), Ok(None));
}

/// RET-11: a scan skips what can't match, and a page ends even where nothing matches.
#[test]
fn a_scan_skips_and_a_page_is_bounded() {
    let mut topics = Vec::new();
    for device in 0..200 {
        topics.extend((0..500).map(|sensor| format!("site/{device}/raw/{sensor}")));
        topics.push(format!("site/{device}/status"));
    }
    let store = filled(topics.iter().map(String::as_str));
    // 100 200 topics, 200 of them wanted: a few keys looked at for each, all in one page.
    let (got, pages) = read(&store, "site/+/status", 500, 0);
    assert_eq!((got.len(), pages), (200, 1));
    assert_eq!(read(&store, "site/7/#", 1000, 0).0.len(), 501);
    assert_eq!(read(&store, "+/9/status", 10, 0), (vec!["site/9/status".to_owned()], 1));
    // Every sensor has to be looked at, and none matches: no page walks them all.
    let (got, pages) = read(&store, "+/+/+/+/x", 100, 0);
    assert_eq!(got, [""; 0]);
    assert!((281..330).contains(&pages), "{pages}");
    // RET-11: all of them come, however small the pages.
    assert_eq!(read(&store, "#", 64, 0).0.len(), topics.len());
}

/// The reader may end a page; the next one goes on behind what it saw, over changes in between.
#[test]
fn a_cursor_survives_changes_of_the_store() {
    let mut store = filled(["a/1", "a/3", "a/5", "a/7"]);
    let mut seen = Vec::new();
    let mut take_one = |store: &Retained<u32>, cursor: Option<&Cursor>| {
        store.page("a/+", cursor, 10, 0, |topic, _| {
            seen.push(topic.to_owned());
            false
        })
    };
    let cursor = take_one(&store, None).expect("there is more");
    store.remove("a/3");
    store.set("a/0", 0, 0, None).expect("no limit");
    store.set("a/4", 0, 0, None).expect("no limit");
    let mut cursor = take_one(&store, Some(&cursor));
    while let Some(at) = cursor {
        cursor = take_one(&store, Some(&at));
    }
    assert_eq!(seen, ["a/1", "a/4", "a/5", "a/7"]);
}

/// TOP-09: very deep topics cost a page no more than their bytes.
#[test]
fn deep_topics_are_read_without_recursion() {
    let deep: Vec<String> = (0..20).map(|n| "/".repeat(65_000 + n)).collect();
    let store = filled(deep.iter().map(String::as_str));
    assert_eq!(read(&store, "#", 100, 0).0.len(), 20);
    assert_eq!(read(&store, &format!("{}+", "+/".repeat(32_000)), 100, 0).0.len(), 0);
    let exact_depth = format!("{}#", "/".repeat(65_010));
    // The parent of `#` has 65 009 slashes: those from there on match.
    assert_eq!(read(&store, &exact_depth, 100, 0).0.len(), 11);
}
