//! Which member a group's policy prefers, of those that may get the message (SHR-1, SHR-2).

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::shared_group::{Choice, Groups, Pick, Policy, Standing, Turn, rendezvous};
use super::subscribers::Subscriber;
use crate::mqtt::TopicFilter;

const NAME: &str = "$share/g/t";

type Member = Subscriber<usize, ()>;

/// A group whose members 0, 1, 2, … stand and are loaded as it is said.
struct Arena {
    groups: Groups<usize, ()>,
    standings: Vec<Standing>,
    loads: Vec<Option<u64>>,
}

impl Arena {
    fn new(standings: &[Standing]) -> Self {
        let mut groups = Groups::new();
        let filter = TopicFilter::new(NAME).expect("a valid filter");
        for member in 0..standings.len() {
            groups.join(&filter, member, ());
        }
        let loads = vec![Some(0); standings.len()];
        Self { groups, standings: standings.to_vec(), loads }
    }

    /// Who gets a message of this key, and whether it is delivered.
    fn picks(&self, policy: Policy, turn: Turn, key: &str) -> Option<(usize, bool)> {
        let group = self.groups.get(self.groups.find(NAME)?)?;
        let hash = |member: &Member| rendezvous(&member.key.to_string(), key);
        let load = |member: &Member| self.loads[member.key];
        let choice = match policy {
            Policy::RoundRobin => Choice::Turn,
            Policy::Sticky => Choice::Sticky,
            Policy::HashClient | Policy::HashTopic => Choice::Highest(&hash),
            Policy::LeastInflight => Choice::Least(&load),
        };
        match group.pick(turn, &choice, |member| self.standings[member.key]) {
            Pick::Deliver(member) => Some((member.key, true)),
            Pick::Keep(member) => Some((member.key, false)),
            Pick::Nobody => None,
        }
    }

    fn member(&self, policy: Policy, key: &str) -> usize {
        self.picks(policy, Turn::NextConnected, key).expect("somebody is usable").0
    }
}

#[test]
fn policies_are_known_by_their_names() {
    for (name, policy) in Policy::NAMES {
        let dashes = name.to_lowercase().replace('_', "-");
        assert_eq!((Policy::parse(name), policy.name()), (Some(policy), name));
        assert_eq!(Policy::parse(&dashes), Some(policy));
    }
    assert_eq!(Policy::parse("RANDOM"), None);
}

/// SHR-1: sticky stays while its member is usable, and does not go back.
#[test]
fn sticky_stays_while_its_member_is_usable() {
    let mut arena = Arena::new(&[Standing::Usable; 3]);
    assert_eq!([(); 5].map(|()| arena.member(Policy::Sticky, "")), [0; 5]);
    arena.standings[0] = Standing::Congested { keeps: true };
    arena.standings[1] = Standing::Away { keeps: true };
    assert_eq!([(); 5].map(|()| arena.member(Policy::Sticky, "")), [2; 5]);
    arena.standings = vec![Standing::Usable; 3];
    assert_eq!([(); 5].map(|()| arena.member(Policy::Sticky, "")), [2; 5]);
    arena.groups.leave(NAME, &2).expect("a member");
    assert_eq!([(); 5].map(|()| arena.member(Policy::Sticky, "")), [0; 5]);
    arena.groups.leave(NAME, &0).expect("a member");
    assert_eq!([(); 5].map(|()| arena.member(Policy::Sticky, "")), [1; 5]);
}

/// A key goes to one member, whoever was picked in between; of two hundred keys every one of ten
/// members has some; and a member that leaves moves its own keys and no others.
#[test]
fn a_hash_moves_the_part_of_the_member_that_left() {
    let mut arena = Arena::new(&[Standing::Usable; 10]);
    let keys: Vec<String> = (0..200).map(|number| format!("client-{number}")).collect();
    let owners = |arena: &Arena| -> Vec<usize> {
        keys.iter().map(|key| arena.member(Policy::HashClient, key)).collect()
    };
    let before = owners(&arena);
    assert_eq!(owners(&arena), before);
    let mut parts: BTreeMap<usize, usize> = BTreeMap::new();
    before.iter().for_each(|member| *parts.entry(*member).or_default() += 1);
    assert!(parts.len() == 10 && parts.values().all(|part| *part >= 5), "{parts:?}");
    arena.groups.leave(NAME, &3).expect("a member");
    let after = owners(&arena);
    for (was, is) in before.iter().zip(&after) {
        assert!(is == was || *was == 3, "only the keys of 3 move");
        assert_ne!(*is, 3);
    }
    let filter = TopicFilter::new(NAME).expect("a valid filter");
    arena.groups.join(&filter, 3, ());
    assert_eq!(owners(&arena), before, "it has its part again, wherever it stands in the turn");
}

/// The fewest first; equals take turns; who is not known here is neither starved nor flooded.
#[test]
fn the_least_loaded_member_is_next() {
    let mut arena = Arena::new(&[Standing::Usable; 3]);
    arena.loads = vec![Some(5), Some(2), Some(9)];
    assert_eq!([(); 3].map(|()| arena.member(Policy::LeastInflight, "")), [1; 3]);
    arena.loads = vec![Some(2), Some(9), Some(2)];
    let picked = [(); 4].map(|()| arena.member(Policy::LeastInflight, ""));
    assert_eq!(picked, [2, 0, 2, 0]);
    arena.loads = vec![Some(2), Some(9), None];
    let picked = [(); 4].map(|()| arena.member(Policy::LeastInflight, ""));
    assert_eq!(picked, [2, 0, 2, 0]);
    arena.loads = vec![None; 3];
    let mut picked = [(); 3].map(|()| arena.member(Policy::LeastInflight, ""));
    picked.sort_unstable();
    assert_eq!(picked, [0, 1, 2]);
}

fn standing() -> impl Strategy<Value = Standing> {
    prop_oneof![
        Just(Standing::Usable),
        any::<bool>().prop_map(|keeps| Standing::Congested { keeps }),
        any::<bool>().prop_map(|keeps| Standing::Away { keeps }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// SHR-1, SHR-2: the two steps hold for every policy. If anybody is usable, a connected member
    /// gets the message, a usable one if others are to be skipped; else who keeps it, connected
    /// ones first; else nobody.
    #[test]
    fn the_two_steps_hold_for_every_policy(
        members in proptest::collection::vec((standing(), proptest::option::of(0_u64..4)), 1..25),
        left in proptest::collection::vec(0_usize..25, 0..20),
        rounds in 1_usize..6,
        skip in any::<bool>(),
        which in 0..Policy::NAMES.len(),
        key in "[a-c]{1,2}",
    ) {
        let (policy, turn) = (Policy::NAMES[which].1, match skip {
            true => Turn::NextUsable,
            false => Turn::NextConnected,
        });
        let standings: Vec<Standing> = members.iter().map(|(standing, _)| *standing).collect();
        let mut arena = Arena::new(&standings);
        arena.loads = members.iter().map(|(_, load)| *load).collect();
        for member in left.iter().filter(|left| **left < members.len()) {
            arena.groups.leave(NAME, member);
        }
        let there: Vec<usize> = match arena.groups.find(NAME).and_then(|id| arena.groups.get(id)) {
            Some(group) => group.members().map(|member| member.key).collect(),
            None => Vec::new(),
        };
        let any = |wanted: &dyn Fn(Standing) -> bool| there.iter().any(|m| wanted(standings[*m]));
        let usable = any(&|one| one == Standing::Usable);
        let queued = any(&|one| one == Standing::Congested { keeps: true });
        let parked = any(&|one| one == Standing::Away { keeps: true });
        for _ in 0..rounds {
            let got = arena.picks(policy, turn, &key);
            if let Some((member, _)) = got {
                prop_assert!(there.contains(&member));
            }
            match got {
                Some((member, true)) => {
                    prop_assert!(usable);
                    match standings[member] {
                        Standing::Usable => {}
                        Standing::Congested { .. } => {
                            prop_assert!(!skip && policy != Policy::Sticky);
                        }
                        Standing::Away { .. } => prop_assert!(false, "it is not connected"),
                    }
                }
                Some((member, false)) => {
                    prop_assert!(!usable);
                    match standings[member] {
                        Standing::Congested { keeps } => prop_assert!(keeps),
                        Standing::Away { keeps } => prop_assert!(keeps && !queued),
                        Standing::Usable => prop_assert!(false, "it is usable"),
                    }
                }
                None => prop_assert!(!usable && !queued && !parked),
            }
        }
    }
}
