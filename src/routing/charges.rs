//! What a dispatcher's pass costs: copies into queues under their limit (DEV-7), copies to others
//! out of the throughput quota (QUO-4).

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::assign::Assignment;
use super::decisions::{Decisions, recipient};
use super::dispatcher::{Parts, item, lost};
use super::runs::{Copy, Runs};
use crate::delivery::{Slot, SlotView};
use crate::limits::{RateKey, RateTable};
use crate::mqtt::ClientId;
use crate::storage::{DirectCopy, LogBatch, Origin, Purse};
use crate::telemetry::{self, Direction, DropReason, metrics};

/// A record of refusals holds at most so many: a message that goes to everybody could be refused
/// to everybody.
const REFUSALS: usize = 1000;

#[derive(Clone, Debug)]
struct Refused {
    copy: Copy,
    origin: Origin,
    client_id: ClientId,
}

/// Which copies may enter queues, if not all may; and which may not.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// How many copies of each message still.
    left: Option<HashMap<(u32, u32), u64, ahash::RandomState>>,
    refused: Vec<Refused>,
}

impl Admitted {
    fn up_to(left: HashMap<(u32, u32), u64, ahash::RandomState>) -> Self {
        Self { left: Some(left), refused: Vec::new() }
    }

    /// The copies of one recipient without those that may not enter its queue. What is refused now
    /// is counted as lost; what an earlier run refused was. Among several nodes it is counted when
    /// the refusal comes by: a session that has moved before that takes the copy with it.
    pub(super) fn of<'a>(
        &mut self,
        batch: &LogBatch,
        slot: &Slot,
        copies: &'a [Copy],
        decisions: &Decisions,
    ) -> Cow<'a, [Copy]> {
        if self.left.is_none() && !decisions.knows_any() {
            return Cow::Borrowed(copies);
        }
        let plain = recipient(slot.client_id());
        let mut admitted = Vec::with_capacity(copies.len());
        for copy in copies {
            let (position, _) = item(batch, copy);
            let group = copy.group.unwrap_or(plain);
            let origin = Origin { position, index: copy.index, group };
            if !copy.is_queued() {
                admitted.push(copy.clone());
            } else if decisions.is_taken(&origin) {
                // A group's decision that was taken has no copy here.
            } else if self.takes(copy) {
                admitted.push(copy.clone());
            } else {
                if !decisions.several {
                    metrics::LIMITED_DEVICE.inc();
                    lost(DropReason::RateLimits, slot, batch, copy);
                }
                let (copy, client_id) = (copy.clone(), slot.client_id().clone());
                self.refused.push(Refused { copy, origin, client_id });
            }
        }
        Cow::Owned(admitted)
    }

    fn takes(&mut self, copy: &Copy) -> bool {
        let Some(left) = &mut self.left else { return true };
        let left = left.get_mut(&(copy.item, copy.index)).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }

    /// Among several nodes: what is to be counted when it is known to stand in the log.
    pub(super) fn note(&self, batch: &LogBatch, decisions: &mut Decisions) {
        for one in self.refused.iter().filter(|_| decisions.several) {
            let (_, publishes) = item(batch, &one.copy);
            let topic = publishes.view(one.copy.index as usize).topic;
            decisions.refused.insert(one.origin, topic.into());
        }
    }

    /// What was refused, as records for the log, addressed to nobody. They are to be durable before
    /// anything enters a queue behind them (invariant 2).
    pub(super) fn refusals(&self, batch: &LogBatch, parts: &Parts) -> Vec<Assignment> {
        let mut refused: Vec<&Refused> = self.refused.iter().collect();
        refused.sort_by_key(|one| one.origin);
        let of_item = refused.chunk_by(|a, b| a.copy.item == b.copy.item);
        of_item
            .flat_map(|refused| refused.chunks(REFUSALS))
            .map(|refused| {
                let (_, publishes) = item(batch, &refused[0].copy);
                let whose = refused.iter().map(|one| (one.copy.index as usize, &one.client_id));
                let copies = refused.iter().map(|one| DirectCopy {
                    delivery: one.copy.delivery,
                    subscription_ids: Arc::clone(&parts.no_ids),
                    origin: Some(one.origin),
                    taken: None,
                });
                Assignment::to_nobody(publishes, whose, copies.collect())
            })
            .collect()
    }
}

impl Parts {
    /// DEV-7: when messages match more queues than tokens are left, earlier messages go first, and
    /// the surplus is dropped. What an earlier run dispatched is not asked again: its copies are in
    /// their queues, or their refusal is a record of the log (invariant 2).
    pub(super) async fn admit_queued(
        &self,
        batch: &LogBatch,
        stretch: &Range<usize>,
        runs: &Runs,
    ) -> Admitted {
        let Some(quota) = &self.limits.device_queues else { return Admitted::default() };
        let first = batch.items[stretch.clone()].first().map(|(position, _)| position.offset);
        if first.is_none_or(|offset| offset < self.limits.replayed_below) {
            return Admitted::default();
        }
        let mut wanted: Vec<(u32, u32)> = Vec::new();
        for run in runs.iter() {
            let Some(slot) = self.slots.by_id(run.slot) else { continue };
            // Another node asks for its own.
            if self.here.as_ref().is_some_and(|here| here.is_elsewhere(&slot)) {
                continue;
            }
            let SlotView { persistent, application, .. } = slot.view();
            if persistent && !application {
                let queued = run.copies.iter().filter(|copy| copy.is_queued());
                wanted.extend(queued.map(|copy| (copy.item, copy.index)));
            }
        }
        let purse = quota.take_up_to(wanted.len() as u64).await;
        if purse.holds() >= wanted.len() as u64 {
            return Admitted::default();
        }
        wanted.sort_unstable();
        wanted.truncate(purse.holds() as usize);
        let mut left = HashMap::default();
        wanted.into_iter().for_each(|message| *left.entry(message).or_insert(0) += 1);
        Admitted::up_to(left)
    }

    /// A refusal comes by. It holds unless the session has moved before it: its new node had kept
    /// the copy, and has put it into the queue then.
    pub(super) fn refused(&self, client_id: &str, origin: &Origin, decisions: &mut Decisions) {
        if let Some(here) = &self.here {
            here.refused(client_id, origin);
        }
        let Some(topic) = decisions.refused.remove(origin) else { return };
        if self.slots.by_client(client_id).is_none_or(|slot| !slot.is_elsewhere()) {
            metrics::LIMITED_DEVICE.inc();
            let reason = DropReason::RateLimits;
            telemetry::dropped_of(reason, Direction::Outbound, client_id, &topic, 1);
        }
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
