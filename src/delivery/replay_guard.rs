//! The order between retained copies and live ones (OUT-2): what went out live while a retained
//! cursor is open is not sent by the cursor.

use std::collections::HashSet;

use super::Outgoing;
use super::channel::Channel;

/// Topics heard live while a retained cursor is open; beyond it the cursor's copies are all
/// skipped for topics that hash alike, never sent out of order.
const REPLAY_GUARD_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct ReplayGuard {
    cursors: usize,
    topics: HashSet<u64>,
    hasher: ahash::RandomState,
}

impl Channel {
    pub(super) fn open_cursor(&mut self) {
        let guard = self.replay_guard.get_or_insert_with(|| {
            let hasher = ahash::RandomState::new();
            Box::new(ReplayGuard { cursors: 0, topics: HashSet::new(), hasher })
        });
        guard.cursors += 1;
    }

    pub(super) fn close_cursor(&mut self) {
        let Some(guard) = &mut self.replay_guard else { return };
        guard.cursors -= 1;
        if guard.cursors == 0 {
            self.replay_guard = None;
        }
    }

    /// Only a new retained value makes the cursor's copy an older one.
    pub(super) fn note_live(&mut self, copy: &Outgoing<'_>) {
        let Some(guard) = &mut self.replay_guard else { return };
        let view = copy.batch.view(copy.index);
        if view.retain && guard.topics.len() < REPLAY_GUARD_MAX {
            guard.topics.insert(guard.hasher.hash_one(view.topic));
        }
    }

    /// Whether `topic` went out live since the cursor was opened: its retained copy is older.
    pub(super) fn went_live(&self, topic: &str) -> bool {
        let Some(guard) = &self.replay_guard else { return false };
        guard.topics.len() >= REPLAY_GUARD_MAX
            || guard.topics.contains(&guard.hasher.hash_one(topic))
    }
}
