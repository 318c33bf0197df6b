//! The scripts that change queues: one call a queue and batch, atomic, in one slot.

use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Open,
    Append,
    Read,
    Ack,
    Received,
    Reserve,
    Remove,
    Bucket,
    Place,
}

/// What every script of a queue begins with, and parts in the order in which they run.
macro_rules! of_a_queue {
    ($($part:literal),+) => {
        concat!(include_str!("lua/core.lua"), $("\n", include_str!($part)),+)
    };
}

pub(super) const ALL: [(Script, &str); 9] = [
    (Script::Open, of_a_queue!("lua/list.lua", "lua/open.lua")),
    (Script::Append, of_a_queue!("lua/append.lua", "lua/list.lua", "lua/append_trim.lua")),
    (Script::Read, of_a_queue!("lua/read.lua", "lua/list.lua", "lua/read_parked.lua")),
    (Script::Ack, of_a_queue!("lua/ack.lua", "lua/list.lua", "lua/ack_scattered.lua")),
    (Script::Received, of_a_queue!("lua/list.lua", "lua/received.lua")),
    (Script::Reserve, of_a_queue!("lua/list.lua", "lua/reserve.lua")),
    (Script::Remove, of_a_queue!("lua/remove.lua")),
    (Script::Bucket, include_str!("lua/bucket.lua")),
    (Script::Place, include_str!("lua/place.lua")),
];

impl Script {
    /// The name under which a server that has loaded it runs it.
    pub(super) fn sha(self) -> &'static str {
        static HASHES: OnceLock<Vec<String>> = OnceLock::new();
        let hash = |(_, text): &(Script, &str)| redis::Script::new(text).get_hash().to_owned();
        let hashes = HASHES.get_or_init(|| ALL.iter().map(hash).collect());
        &hashes[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_stands_at_its_number() {
        for (at, (script, _)) in ALL.iter().enumerate() {
            assert_eq!(*script as usize, at);
        }
        assert_ne!(Script::Open.sha(), Script::Ack.sha());
    }
}
