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
}

macro_rules! of_a_queue {
    ($file:literal) => {
        concat!(include_str!("lua/prelude.lua"), "\n", include_str!($file))
    };
}

pub(super) const ALL: [(Script, &str); 8] = [
    (Script::Open, of_a_queue!("lua/open.lua")),
    (Script::Append, of_a_queue!("lua/append.lua")),
    (Script::Read, of_a_queue!("lua/read.lua")),
    (Script::Ack, of_a_queue!("lua/ack.lua")),
    (Script::Received, of_a_queue!("lua/received.lua")),
    (Script::Reserve, of_a_queue!("lua/reserve.lua")),
    (Script::Remove, of_a_queue!("lua/remove.lua")),
    (Script::Bucket, include_str!("lua/bucket.lua")),
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
