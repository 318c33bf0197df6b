//! The copies of one log batch, sorted by recipient, so that each outbox and each queue is
//! touched once a batch.

use std::sync::Arc;

use super::subscriptions::Entry;
use crate::delivery::SlotId;
use crate::mqtt::{Delivery, QoS, SubscriptionOptions};
use crate::storage::{MessageView, QueueKey};

/// One copy of one message: which message, and how it goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// Which item of the log batch.
    pub(super) item: u32,
    /// Which message of the item.
    pub(super) index: u32,
    pub(super) delivery: Delivery,
    /// The number of the shared group it was picked from. Such a copy is never merged with a plain
    /// subscription's (SHR-12).
    pub(super) group: Option<u64>,
    ids: Ids,
}

/// Subscription identifiers: hardly ever more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ids {
    None,
    One([u32; 1]),
    Many(Vec<u32>),
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) slot: SlotId,
    pub(super) copies: Vec<Copy>,
}

/// Reused from batch to batch: steady routing allocates nothing per copy.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// For each slot number, one more than the place of its run; 0: none in this batch.
    place: Vec<u32>,
    runs: Vec<Run>,
    used: usize,
    copies: usize,
    /// Scratch for the matches of one message.
    pub(super) plain: Vec<(SlotId, Entry)>,
    pub(super) picked: Vec<(SlotId, Entry, u64)>,
    /// Messages that go to rooms of their groups.
    pub(super) parked: Vec<Parked>,
}

/// A message that waits for its group.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) room: QueueKey,
    pub(super) number: u64,
    pub(super) item: usize,
    pub(super) index: usize,
}

/// A run's list keeps at most this capacity from batch to batch.
const KEEP_COPIES: usize = 4096;

impl Copy {
    pub(super) fn new(
        (item, index): (usize, usize),
        message: &MessageView<'_>,
        options: &SubscriptionOptions,
    ) -> Self {
        let qos = message.qos.min(options.qos);
        // MQTT-3.3.1-12, -13: live copies carry RETAIN only where it is kept as published.
        let retain = message.retain && options.retain_as_published;
        let ids = options.subscription_id.map_or(Ids::None, |id| Ids::One([id]));
        let delivery = Delivery { qos, retain };
        Self { item: item as u32, index: index as u32, delivery, group: None, ids }
    }

    #[must_use]
    pub(super) fn of_group(mut self, number: u64) -> Self {
        self.group = Some(number);
        self
    }

    pub(super) fn ids(&self) -> &[u32] {
        match &self.ids {
            Ids::None => &[],
            Ids::One(one) => one,
            Ids::Many(many) => many,
        }
    }

    pub(super) fn shared_ids(&self, none: &Arc<[u32]>) -> Arc<[u32]> {
        if self.ids().is_empty() { Arc::clone(none) } else { Arc::from(self.ids()) }
    }

    pub(super) fn is_queued(&self) -> bool {
        self.delivery.qos != QoS::AtMostOnce
    }

    /// It is owed to a group, whoever of it gets it.
    pub(super) fn is_groups(&self) -> bool {
        self.is_queued() && self.group.is_some()
    }

    /// Overlapping filters of one session: one copy, highest QoS, all identifiers (CLI-01).
    fn merge(&mut self, other: &Copy) {
        self.delivery.qos = self.delivery.qos.max(other.delivery.qos);
        self.delivery.retain |= other.delivery.retain;
        for id in other.ids() {
            if !self.ids().contains(id) {
                let mut many = self.ids().to_vec();
                many.push(*id);
                self.ids = if many.len() == 1 { Ids::One([*id]) } else { Ids::Many(many) };
            }
        }
    }
}

impl Runs {
    /// Forgets the batch before; `slots` is one past the largest slot number.
    pub(super) fn begin(&mut self, slots: usize) {
        for run in &mut self.runs[..self.used] {
            self.place[run.slot.0 as usize] = 0;
            run.copies.clear();
            run.copies.shrink_to(KEEP_COPIES);
        }
        self.used = 0;
        self.copies = 0;
        self.parked.clear();
        if self.place.len() < slots {
            self.place.resize(slots, 0);
        }
    }

    /// Copies so far.
    pub(super) fn copies(&self) -> usize {
        self.copies
    }

    /// Copies of one recipient so far.
    pub(super) fn copies_of(&self, slot: SlotId) -> usize {
        let place = self.place.get(slot.0 as usize).copied().unwrap_or(0) as usize;
        place.checked_sub(1).map_or(0, |run| self.runs[run].copies.len())
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Run> {
        self.runs[..self.used].iter()
    }

    pub(super) fn add(&mut self, slot: SlotId, copy: Copy) {
        let number = slot.0 as usize;
        if number >= self.place.len() {
            self.place.resize(number + 1, 0);
        }
        if self.place[number] == 0 {
            if self.used == self.runs.len() {
                self.runs.push(Run { slot, copies: Vec::new() });
            }
            self.runs[self.used].slot = slot;
            self.used += 1;
            self.place[number] = self.used as u32;
        }
        let run = &mut self.runs[self.place[number] as usize - 1];
        self.copies += 1;
        // Copies of one message come one after another; the group's ones come last.
        if let Some(last) = run.copies.last_mut()
            && copy.group.is_none()
            && last.group.is_none()
            && (last.item, last.index) == (copy.item, copy.index)
        {
            return last.merge(&copy);
        }
        run.copies.push(copy);
    }
}
