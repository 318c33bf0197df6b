//! What a shared group's copy says of what it rests on: the decision that picked its member, or the
//! queue that it moves from.

use std::sync::Arc;

use super::ports::{DirectCopy, Position};
use super::queue_key::QueueKey;

/// One decision about one message for one shared subscription: which member gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// Where the message stands, in the log that holds the decision, too.
    pub position: Position,
    pub index: u32,
    /// Names the group: the hash of its whole filter.
    pub group: u64,
}

/// A queue that copies are taken from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    pub queue: QueueKey,
    pub incarnation: u64,
    /// Of a session's queue, where several nodes have sessions: the copy is taken only while this
    /// connection is the session's newest where the record stands.
    pub epoch: Option<u64>,
}

/// Where one copy is taken from. Each entry of a queue is taken once: of several records that name
/// it, the first one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub from: Arc<Source>,
    pub seq: u64,
}

impl Origin {
    /// Of a copy that moves: its message was decided about before.
    pub fn of_group(group: u64) -> Self {
        Self { position: Position::default(), index: 0, group }
    }
}

impl DirectCopy {
    /// The decision about a message that this copy stands for; one that was decided about before,
    /// and only moves, stands for none.
    pub fn decision(&self) -> Option<Origin> {
        self.origin.filter(|_| self.taken.is_none())
    }
}
