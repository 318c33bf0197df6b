//! What this node remembers of the queues that its sessions have open: depths, for whoever must
//! not wait for an answer, and cursors that an orderly end has to write down.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Tags are hashes already; their lowest bits choose.
const PARTS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Known {
    parts: [Mutex<HashMap<u128, Held>>; PARTS],
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) depth: u64,
    pub(super) epoch: u64,
    /// The cursor was exact when the queue was opened, and nothing was said since.
    pub(super) exact: Option<Exact>,
}

/// What an orderly end says again.
#[derive(Clone, Debug)]
pub(super) struct Exact {
    pub(super) queue: crate::storage::QueueKey,
    pub(super) incarnation: u64,
    pub(super) sent_below: u64,
}

impl Known {
    fn part(&self, tag: u128) -> &Mutex<HashMap<u128, Held>> {
        &self.parts[tag as usize % PARTS]
    }

    pub(super) fn opened(&self, tag: u128, held: Held) {
        self.part(tag).lock().insert(tag, held);
    }

    pub(super) fn depth(&self, tag: u128) -> u64 {
        self.part(tag).lock().get(&tag).map_or(0, |held| held.depth)
    }

    /// Of queues that are open here; others are nobody's concern.
    pub(super) fn depth_is(&self, tag: u128, depth: u64) {
        if let Some(held) = self.part(tag).lock().get_mut(&tag) {
            held.depth = depth;
        }
    }

    /// A page was read: the queue is of interest here although nobody opened it.
    pub(super) fn read(&self, tag: u128, depth: u64) {
        let held = Held { depth, epoch: 0, exact: None };
        self.part(tag).lock().entry(tag).or_insert(held).depth = depth;
    }

    /// The epoch this node opened the queue with; 0: it did not say.
    pub(super) fn epoch(&self, tag: u128) -> u64 {
        self.part(tag).lock().get(&tag).map_or(0, |held| held.epoch)
    }

    /// The cursor moves, or will be said by somebody else.
    pub(super) fn touched(&self, tag: u128) {
        if let Some(held) = self.part(tag).lock().get_mut(&tag) {
            held.exact = None;
        }
    }

    pub(super) fn closed(&self, tag: u128) {
        self.part(tag).lock().remove(&tag);
    }

    pub(super) fn untouched(&self) -> Vec<(u64, Exact)> {
        let of_part = |part: &Mutex<HashMap<u128, Held>>| {
            let part = part.lock();
            let exact = part.values().filter_map(|held| Some((held.epoch, held.exact.clone()?)));
            exact.collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(of_part).collect()
    }
}
