//! Shared groups: turns, policy, and independence of plain subscriptions.

use std::collections::BTreeMap;

use super::index::SubscriptionIndex;
use super::shared_group::{Choice, Groups, Pick, Standing, Turn};
use crate::mqtt::{self, TopicFilter};

const AWAY: Standing = Standing::Away { keeps: false };
const PARKED: Standing = Standing::Away { keeps: true };
const CONGESTED: Standing = Standing::Congested { keeps: false };
const QUEUED: Standing = Standing::Congested { keeps: true };

fn filter(text: &str) -> TopicFilter {
    TopicFilter::new(text).expect("a valid filter")
}

/// A group whose members 0, 1, 2, … stand as `standings` says.
struct Arena {
    groups: Groups<usize, ()>,
    standings: Vec<Standing>,
}

impl Arena {
    fn new(standings: &[Standing]) -> Self {
        let mut groups = Groups::new();
        for member in 0..standings.len() {
            groups.join(&filter("$share/g/t"), member, ());
        }
        Self { groups, standings: standings.to_vec() }
    }

    fn picks<const N: usize>(&self, turn: Turn) -> [Option<usize>; N] {
        let group = self.groups.get(self.groups.find("$share/g/t").expect("it exists"));
        let group = group.expect("it lives");
        std::array::from_fn(|_| {
            match group.pick(turn, &Choice::Turn, |member| self.standings[member.key]) {
                Pick::Deliver(member) | Pick::Keep(member) => Some(member.key),
                Pick::Nobody => None,
            }
        })
    }

    fn join(&mut self, member: usize) {
        self.groups.join(&filter("$share/g/t"), member, ());
    }

    fn leave(&mut self, member: usize) {
        self.groups.leave("$share/g/t", &member).expect("a member");
    }
}

/// SHR-1: while anyone is usable, the turn goes over connected members, writable or not.
#[test]
fn the_turn_goes_over_connected_members_and_ignores_writability() {
    let arena = Arena::new(&[Standing::Usable, AWAY, CONGESTED, PARKED, QUEUED]);
    let picks = arena.picks(Turn::NextConnected);
    assert_eq!(picks, [Some(0), Some(2), Some(4), Some(0), Some(2), Some(4)]);
}

/// SHR-1: `skip-non-writable` passes congested members over.
#[test]
fn the_turn_may_skip_members_that_are_not_writable() {
    let arena = Arena::new(&[Standing::Usable, CONGESTED, Standing::Usable, QUEUED]);
    assert_eq!(arena.picks(Turn::NextUsable), [Some(0), Some(2), Some(0), Some(2)]);
}

/// SHR-2: nobody is usable and nobody keeps it: dropped, for the caller to count.
#[test]
fn without_a_usable_or_persistent_member_nobody_is_picked() {
    for turn in [Turn::NextConnected, Turn::NextUsable] {
        assert_eq!(Arena::new(&[CONGESTED, AWAY, CONGESTED]).picks(turn), [None]);
    }
}

/// SHR-3, SHR-05: nobody is usable: queues take it in turn, connected members before absent ones.
#[test]
fn persistent_members_keep_what_nobody_can_take() {
    let mut arena = Arena::new(&[PARKED, CONGESTED, QUEUED, PARKED, QUEUED, AWAY]);
    assert_eq!(arena.picks(Turn::NextConnected), [Some(2), Some(4), Some(2)]);
    arena.standings = vec![PARKED, AWAY, AWAY, PARKED, PARKED, AWAY];
    assert_eq!(arena.picks(Turn::NextConnected), [Some(3), Some(4), Some(0), Some(3)]);
}

/// SHR-03, SHR-04: members come and go; nobody's turn is lost or given twice.
#[test]
fn the_order_survives_members_that_join_and_leave() {
    let mut arena = Arena::new(&[Standing::Usable; 6]);
    assert_eq!(arena.picks(Turn::NextConnected), [Some(0), Some(1), Some(2)]);
    arena.leave(1);
    assert_eq!(arena.picks(Turn::NextConnected), [Some(3)]);
    // The one whose turn it is leaves: the one after it is next.
    arena.leave(4);
    // One that joined again comes last in the round.
    arena.join(1);
    assert_eq!(arena.picks(Turn::NextConnected), [Some(5), Some(1), Some(0), Some(2), Some(3)]);
    // Gaps are closed in between without moving the turn.
    for member in [0, 2, 3] {
        arena.leave(member);
    }
    assert_eq!(arena.picks(Turn::NextConnected), [Some(5), Some(1), Some(5)]);
    arena.leave(5);
    assert_eq!(arena.picks(Turn::NextConnected), [Some(1), Some(1)]);
}

/// SHR-03: whatever the size and the history, a full round serves every member exactly once.
#[test]
fn a_round_serves_everyone_once_in_joining_order() {
    let mut arena = Arena::new(&[Standing::Usable; 1000]);
    let mut order: Vec<usize> = (0..1000).collect();
    let mut seed = 3_u64;
    for _ in 0..3000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let member = (seed >> 33) as usize % 1000;
        match order.iter().position(|&m| m == member) {
            Some(at) => {
                order.remove(at);
                arena.leave(member);
            }
            None => {
                order.push(member);
                arena.join(member);
            }
        }
        arena.picks::<1>(Turn::NextConnected);
    }
    let group = arena.groups.get(arena.groups.find("$share/g/t").expect("it exists"));
    let group = group.expect("it lives");
    assert_eq!(group.members().map(|member| member.key).collect::<Vec<_>>(), order);
    let mut round: Vec<usize> = Vec::new();
    for _ in 0..order.len() {
        match group.pick(Turn::NextConnected, &Choice::Turn, |_| Standing::Usable) {
            Pick::Deliver(member) => round.push(member.key),
            Pick::Keep(_) | Pick::Nobody => panic!("everyone is usable"),
        }
    }
    let first = order.iter().position(|&m| m == round[0]).expect("a member");
    order.rotate_left(first);
    assert_eq!(round, order);
}

/// SHR-12, SHR-13, MQTT-3.10.4-1: a hundred thousand random operations of plain and shared
/// subscriptions over the same roots leave exactly what a map of (filter, session) holds.
#[test]
fn shared_and_plain_subscriptions_never_touch_each_other() {
    let texts = [
        "t/x",
        "t/+",
        "t/#",
        "#",
        "+/x",
        "t",
        "$share/g/t/x",
        "$share/g/t/+",
        "$share/h/t/x",
        "$share/g/#",
        "$share/h/#",
        "$share/g/+/x",
        "$share/g/t",
        "$share/G/t",
        "$share/g//t/x",
        "/t/x",
    ];
    let filters: Vec<TopicFilter> = texts.iter().map(|text| filter(text)).collect();
    let topics = ["t/x", "t", "t/y", "u/x", "/t/x", "$SYS/x", "t/x/y"];
    let mut index = SubscriptionIndex::new();
    let mut model: BTreeMap<(&str, u32), u64> = BTreeMap::new();
    let mut seed = 5_u64;
    for round in 0..100_000_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (seed >> 33) as usize;
        let (filter, session) = (&filters[pick % filters.len()], (pick / 64 % 40) as u32);
        let row = (filter.as_str(), session);
        if (seed >> 61) < if round / 5000 % 2 == 0 { 5 } else { 2 } {
            assert_eq!(index.subscribe(filter, session, round), model.insert(row, round));
        } else {
            assert_eq!(index.unsubscribe(filter, &session), model.remove(&row));
        }
        assert_eq!(index.get(filter, &session), model.get(&row));
        assert_eq!(index.len(), model.len());
        if round % 20 == 0 {
            let topic = topics[pick % topics.len()];
            let mut got = Vec::new();
            let mut groups = Vec::new();
            index.matches(topic, &mut |one| got.push(("", one.key, one.entry)), &mut |group| {
                groups.extend(group.members().map(|m| (group.filter().as_str().to_owned(), m.key)));
            });
            got.sort_unstable();
            groups.sort_unstable();
            let hits: Vec<_> = model
                .iter()
                .filter(|((text, _), _)| {
                    let filter = filters.iter().find(|f| f.as_str() == *text).expect("known");
                    mqtt::matches(filter.plain(), topic)
                })
                .collect();
            let (shared, plain): (Vec<_>, Vec<_>) =
                hits.into_iter().partition(|((text, _), _)| text.starts_with("$share/"));
            let mut want: Vec<_> =
                plain.iter().map(|((_, key), entry)| ("", *key, **entry)).collect();
            want.sort_unstable();
            let mut want_groups: Vec<_> =
                shared.iter().map(|((text, key), _)| ((*text).to_owned(), *key)).collect();
            want_groups.sort_unstable();
            assert_eq!((got, groups), (want, want_groups), "{topic}");
        }
    }
    for (text, session) in model.keys() {
        index.unsubscribe(&filter(text), session);
    }
    assert_eq!((index.len(), index.nodes()), (0, 0));
}
