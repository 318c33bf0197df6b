//! The nodes as the log tells of them, at one place of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::placement::rendezvous;

/// What a node says of itself, or of another, in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// The writer's run is this node from here on. It has what it needs to route everything from
    /// `commit` on.
    Joined { node: String, commit: u64 },
    /// It ends in good order.
    Left { node: String },
    /// The writer has not heard of that run for too long. The first such word counts.
    Dead { node: String, run: u64 },
    /// It lives, has routed everything below `commit`, durably; and if it keeps the tables, their
    /// topics have everything below `tables`.
    Beat { node: String, commit: u64, tables: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub run: u64,
    /// The place of its word.
    pub joined: u64,
    pub commit: u64,
    pub tables: u64,
    /// Where it left or died.
    pub gone: Option<u64>,
}

/// Everybody who counts: who lives, and who is gone and has left work that is not known to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    nodes: BTreeMap<String, Member>,
    /// Where the set of the living last changed.
    changed: u64,
}

impl Members {
    /// Takes a word of `run` at its place; `true`: who lives has changed.
    pub fn take(&mut self, position: u64, run: u64, word: &Word) -> bool {
        let changed = match word {
            Word::Joined { node, commit } => {
                // What an earlier run has routed stays routed.
                let commit = self.nodes.get(node).map_or(*commit, |old| old.commit.min(*commit));
                let member = Member { run, joined: position, commit, tables: 0, gone: None };
                self.nodes.insert(node.clone(), member);
                true
            }
            Word::Left { node } => self.gone(position, node, run),
            Word::Dead { node, run: dead } => self.admits(run) && self.gone(position, node, *dead),
            Word::Beat { node, commit, tables } => {
                if let Some(member) = self.living(node).filter(|member| member.run == run) {
                    member.commit = member.commit.max(*commit);
                    member.tables = member.tables.max(*tables);
                }
                false
            }
        };
        if changed {
            self.changed = position;
        }
        self.settle();
        changed
    }

    fn living(&mut self, node: &str) -> Option<&mut Member> {
        self.nodes.get_mut(node).filter(|member| member.gone.is_none())
    }

    fn gone(&mut self, position: u64, node: &str, run: u64) -> bool {
        let Some(member) = self.living(node).filter(|member| member.run == run) else {
            return false;
        };
        member.gone = Some(position);
        true
    }

    /// Forgets who is gone when all that may have inherited its work have come past its end.
    fn settle(&mut self) {
        let is_settled = |name: &String, at: u64| {
            let mut heirs = self
                .nodes
                .iter()
                .filter(|(other, heir)| *other != name && heir.gone.is_none_or(|gone| gone > at));
            let some = self.nodes.values().any(|heir| heir.gone.is_none());
            some && heirs.all(|(_, heir)| heir.commit > at)
        };
        let settled: Vec<String> = self
            .nodes
            .iter()
            .filter_map(|(name, member)| Some((name, member.gone?)))
            .filter(|(name, at)| is_settled(name, *at))
            .map(|(name, _)| name.clone())
            .collect();
        if settled.is_empty() {
            return;
        }
        for name in settled {
            self.nodes.remove(&name);
        }
        // What an heir that died since had still to do is done, too.
        self.settle();
    }

    /// Whether what this run writes counts: it is a living node's.
    pub fn admits(&self, run: u64) -> bool {
        self.nodes.values().any(|member| member.run == run && member.gone.is_none())
    }

    pub fn get(&self, node: &str) -> Option<&Member> {
        self.nodes.get(node)
    }

    /// Who lives, in order.
    pub fn alive(&self) -> impl Iterator<Item = (&str, &Member)> {
        let alive = self.nodes.iter().filter(|(_, member)| member.gone.is_none());
        alive.map(|(name, member)| (name.as_str(), member))
    }

    pub fn lives(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|member| member.gone.is_none())
    }

    /// Everybody who counts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    pub fn knows(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    /// Who keeps the tables' topics, and deletes what nobody needs.
    pub fn keeper(&self) -> Option<&str> {
        self.alive().next().map(|(name, _)| name)
    }

    /// Whose session it is that `home` claimed at `claimed`: its node's, as long as that is the run
    /// that claimed it; else everybody agrees who has it.
    pub fn owner(&self, client: u64, home: &str, claimed: u64) -> Option<&str> {
        match self.nodes.get_key_value(home) {
            Some((name, member)) if member.gone.is_none() && member.joined <= claimed => Some(name),
            Some(_) | None => self.rendezvous(client),
        }
    }

    /// Who decides, of those that live.
    pub fn rendezvous(&self, thing: u64) -> Option<&str> {
        rendezvous(thing, self.alive().map(|(name, _)| name))
    }

    /// Where the set of the living last changed.
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// Below it the node has done all that it owns; 0: since who lives has changed it said nothing.
    pub fn done_below(&self, node: &str) -> u64 {
        let commit = self.nodes.get(node).map_or(0, |member| member.commit);
        if commit > self.changed { commit } else { 0 }
    }

    /// Below it no node but `except` needs a record any more.
    pub fn needed_but(&self, except: &str) -> Option<u64> {
        let others = self.nodes.iter().filter(|(name, _)| *name != except);
        others.map(|(_, member)| member.commit).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(node: &str, commit: u64) -> Word {
        Word::Joined { node: node.into(), commit }
    }

    fn beat(node: &str, commit: u64) -> Word {
        Word::Beat { node: node.into(), commit, tables: 0 }
    }

    fn three() -> Members {
        let mut members = Members::default();
        for (at, node) in ["a", "b", "c"].into_iter().enumerate() {
            assert!(members.take(10 + at as u64, 100 + at as u64, &joined(node, 5)));
        }
        members
    }

    /// The first word about a death counts, for the run that it names.
    #[test]
    fn a_run_dies_once() {
        let mut members = three();
        let dead = Word::Dead { node: "b".into(), run: 101 };
        assert!(members.take(20, 100, &dead));
        assert!(!members.take(21, 102, &dead), "known");
        assert!(!members.admits(101) && !members.lives("b"));
        assert!(!members.take(22, 101, &Word::Dead { node: "a".into(), run: 100 }), "a dead one's");
        assert!(members.take(23, 200, &joined("b", 5)));
        assert!(!members.take(24, 100, &dead), "that was the run before");
        assert!(members.admits(200) && members.lives("b"));
        assert!(!members.take(25, 101, &beat("b", 99)) && members.done_below("b") == 0);
    }

    /// A session stays with the run that claimed it; then everybody names the same heir.
    #[test]
    fn an_orphan_has_one_owner() {
        let mut members = three();
        assert_eq!(members.owner(7, "b", 15), Some("b"));
        members.take(20, 100, &Word::Dead { node: "b".into(), run: 101 });
        let heir = members.owner(7, "b", 15).expect("somebody lives").to_owned();
        assert!(heir == "a" || heir == "c");
        members.take(30, 200, &joined("b", 5));
        let owner = members.owner(7, "b", 15);
        assert_eq!(owner, members.rendezvous(7), "the new run did not claim it");
        assert_eq!(members.owner(7, "b", 31), Some("b"));
        assert_eq!(Members::default().owner(7, "b", 1), None);
    }

    /// Records stay until all heirs have come past the end of whoever is gone.
    #[test]
    fn nothing_is_forgotten_that_an_heir_owes() {
        let mut members = three();
        for (at, node) in ["a", "b", "c"].into_iter().enumerate() {
            members.take(15, 100 + at as u64, &beat(node, 14));
        }
        members.take(20, 100, &Word::Dead { node: "b".into(), run: 101 });
        members.take(30, 100, &beat("a", 29));
        assert_eq!(members.needed_but("a"), Some(14), "c has not come so far");
        members.take(31, 100, &Word::Dead { node: "c".into(), run: 102 });
        assert!(members.knows("b") && members.knows("c"), "c died before it had b's work done");
        members.take(40, 100, &beat("a", 39));
        assert_eq!(members.needed_but("a"), None);
        assert_eq!(members.done_below("a"), 39);
    }

    #[test]
    fn the_last_one_stays_known() {
        let mut members = Members::default();
        members.take(1, 9, &joined("a", 1));
        members.take(2, 9, &beat("a", 2));
        assert!(members.take(5, 9, &Word::Left { node: "a".into() }));
        assert!(members.knows("a") && members.keeper().is_none());
        assert!(members.take(6, 10, &joined("a", 2)));
        assert_eq!((members.keeper(), members.get("a").map(|a| a.joined)), (Some("a"), Some(6)));
    }
}
