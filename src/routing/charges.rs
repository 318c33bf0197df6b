//! What a dispatcher's pass costs: copies into queues under their limit (DEV-7), copies to others
//! out of the throughput quota (QUO-4).

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::dispatcher::{Parts, lost};
use super::runs::{Copy, Runs};
use crate::delivery::Slot;
use crate::limits::{RateKey, RateTable};
use crate::storage::{LogBatch, Purse};
use crate::telemetry::{DropReason, metrics};

/// Which copies may enter queues, if not all may: how many of each message still.
#[derive(Debug, Default)]
pub(super) struct Admitted(Option<HashMap<(u32, u32), u64, ahash::RandomState>>);

impl Admitted {
    /// The copies of one recipient without those that may not enter its queue, which are counted
    /// as lost.
    pub(super) fn of<'a>(
        &mut self,
        batch: &LogBatch,
        slot: &Slot,
        copies: &'a [Copy],
    ) -> Cow<'a, [Copy]> {
        if self.0.is_none() {
            return Cow::Borrowed(copies);
        }
        let mut admitted = Vec::with_capacity(copies.len());
        for copy in copies {
            if !copy.is_queued() || self.takes(copy) {
                admitted.push(copy.clone());
            } else {
                metrics::LIMITED_DEVICE.inc();
                lost(DropReason::RateLimits, slot, batch, copy);
            }
        }
        Cow::Owned(admitted)
    }

    fn takes(&mut self, copy: &Copy) -> bool {
        let Some(left) = &mut self.0 else { return true };
        let left = left.get_mut(&(copy.item, copy.index)).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }
}

impl Parts {
    /// DEV-7: when messages match more queues than tokens are left, earlier messages go first, and
    /// the surplus is dropped. What an earlier run dispatched is not asked again: its copies may
    /// have been in their queues (invariant 2).
    pub(super) async fn admit_queued(
        &self,
        batch: &LogBatch,
        stretch: &Range<usize>,
        runs: &Runs,
    ) -> Admitted {
        let Some(quota) = &self.limits.device_queues else { return Admitted(None) };
        let first = batch.items[stretch.clone()].first().map(|(position, _)| position.offset);
        if first.is_none_or(|offset| offset < self.limits.replayed_below) {
            return Admitted(None);
        }
        let mut wanted: Vec<(u32, u32)> = Vec::new();
        for run in runs.iter() {
            let slot = self.slots.by_id(run.slot).map(|slot| slot.view());
            if slot.is_some_and(|slot| slot.persistent && !slot.application) {
                let queued = run.copies.iter().filter(|copy| copy.is_queued());
                wanted.extend(queued.map(|copy| (copy.item, copy.index)));
            }
        }
        let purse = quota.take_up_to(wanted.len() as u64).await;
        if purse.holds() >= wanted.len() as u64 {
            return Admitted(None);
        }
        wanted.sort_unstable();
        wanted.truncate(purse.holds() as usize);
        let mut left = HashMap::default();
        wanted.into_iter().for_each(|message| *left.entry(message).or_insert(0) += 1);
        Admitted(Some(left))
    }

    /// What all copies of the pass that pay on their way could cost.
    pub(super) async fn purse(&self, runs: &Runs) -> Purse {
        let Some(quota) = &self.limits.throughput else { return Purse::UNLIMITED };
        let mut copies = 0;
        for run in runs.iter() {
            let Some(slot) = self.slots.by_id(run.slot).filter(|slot| slot.is_connected()) else {
                continue;
            };
            let persistent = slot.is_persistent();
            let pays = |copy: &&Copy| !(copy.group.is_some() || persistent && copy.is_queued());
            copies += run.copies.iter().filter(pays).count() as u64;
        }
        if copies == 0 { Purse::EMPTY } else { quota.take_up_to(copies).await }
    }

    /// What was not spent goes back.
    pub(super) fn give_change(&self, purse: Purse) {
        if let Some(quota) = &self.limits.throughput {
            quota.empty(purse);
        }
    }

    pub(super) fn outgoing_rate(&self, slot: &Slot) -> Option<(&RateTable, RateKey)> {
        let table = self.limits.outgoing.as_ref()?;
        Some((table, table.key(slot.client_id().as_str())))
    }
}
