//! Rendezvous hashing: each node's claim to a thing is a hash of both, and the highest one has it.
//! When a node goes, only what it had moves, and to all the others alike.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What a client id or a name of a group counts as.
pub fn place_of(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// Which of the nodes has it; `None`: there is no node.
pub fn rendezvous<'a>(thing: u64, nodes: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    nodes.max_by_key(|node| (xxh3_64_with_seed(node.as_bytes(), thing), *node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(nodes: &[&str]) -> Vec<usize> {
        let mut shares = vec![0; nodes.len()];
        for client in 0..3000 {
            let thing = place_of(&format!("client {client}"));
            let chosen = rendezvous(thing, nodes.iter().copied()).expect("there are nodes");
            shares[nodes.iter().position(|node| *node == chosen).expect("one of them")] += 1;
        }
        shares
    }

    /// What a node had is shared out among the others, and nothing else moves.
    #[test]
    fn only_what_the_lost_node_had_moves() {
        let (all, left) = (["a", "b", "c"], ["a", "c"]);
        for client in 0..3000 {
            let thing = place_of(&format!("client {client}"));
            let before = rendezvous(thing, all.into_iter());
            let after = rendezvous(thing, left.into_iter());
            assert!(before == Some("b") || before == after);
        }
        assert!(shares(&all).iter().all(|share| (900..1100).contains(share)));
        assert!(shares(&left).iter().all(|share| (1400..1600).contains(share)));
        assert_eq!(rendezvous(1, std::iter::empty()), None);
    }
}
