//! What a copy says that moves from one queue to another.

use std::sync::Arc;

use super::ports::{DirectCopy, Origin, Position};
use super::queue_key::QueueKey;

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
