//! From the copies of a stretch to queues, outboxes and, by way of the log, to members of groups
//! and sessions of other nodes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;

use super::assign::{Assignment, assign};
use super::decisions::Decisions;
use super::dispatcher::{Parts, RETRY, item, item_at, lost, outgoing};
use super::passing::{Leaving, Passed};
use super::runs::{Copy, Parked, Runs};
use crate::delivery::{Slot, SlotView, Toll};
use crate::storage::{
    Appended, DirectCopy, LogBatch, MessageRef, Origin, Purse, QueueAppend, QueueEntry, QueueKey,
    SourceId, StorageError,
};
use crate::telemetry::{self, Direction, DropReason, Throttle, fail_point, metrics};

static REFUSED: Throttle = Throttle::per_minute();

/// Copies on their way into one queue, and then to whoever reads it.
pub(super) struct Queued {
    pub(super) append: QueueAppend,
    pub(super) slot: Option<Arc<Slot>>,
    /// By way of a subscription; else copies of a retained cursor.
    pub(super) live: bool,
    /// What leaves other queues when they are in this one.
    pub(super) taken: Leaving,
}

impl Parts {
    /// Queues first, then outboxes: the queue is the authoritative copy at all times (DEV-1).
    pub(super) async fn hand_over(
        &self,
        batch: &LogBatch,
        stretch: Range<usize>,
        runs: &Runs,
        decisions: &mut Decisions,
    ) {
        let started = Instant::now();
        let mut admitted = self.admit_queued(batch, &stretch, runs).await;
        let mut purse = self.purse(runs).await;
        let Passed { mut queued, mut back } = self.direct_copies(batch, stretch, decisions);
        let mut assignments = self.parkings(batch, &runs.parked);
        let mut late = Vec::new();
        for run in runs.iter() {
            let Some(slot) = self.slots.by_id(run.slot) else {
                // The session has ended since.
                late.extend(run.copies.iter().filter(|copy| copy.is_groups()));
                continue;
            };
            let mut copies = Cow::Borrowed(run.copies.as_slice());
            let view = slot.view();
            if view.persistent && !view.application && !self.is_anothers_session(&slot) {
                // DEV-7 is of DEVICE clients.
                copies = admitted.of(batch, &slot, &run.copies, decisions);
            }
            assignments.extend(self.decided_in(batch, &slot, &view, &copies));
            queued.extend(self.queued_in(batch, &slot, &view, &copies));
            late.extend(self.live_in(batch, (&slot, view), &run.copies, &mut purse));
        }
        self.give_change(purse);
        let refusals = admitted.refusals(batch, self);
        if !refusals.is_empty() {
            admitted.note(batch, decisions);
            fail_point::pass("copies.refused");
            assign(&*self.log, &refusals, Some(decisions)).await;
        }
        metrics::NOT_PERSISTENT_PROCESSING.observe(started.elapsed());
        if !queued.is_empty() {
            back.extend(self.enqueue(queued).await);
        }
        self.hand_back(&back).await;
        let late = self.park_late(late);
        assignments.extend(self.parkings(batch, &late));
        if !assignments.is_empty() {
            let last = assign(&*self.log, &assignments, Some(decisions)).await;
            for parked in runs.parked.iter().chain(&late) {
                self.rooms.stored(parked.room.name(), last.offset + 1);
            }
        }
    }

    fn is_anothers_session(&self, slot: &Slot) -> bool {
        self.here.as_ref().is_some_and(|here| here.is_elsewhere(slot))
    }

    /// What a run has for its queue.
    fn queued_in(
        &self,
        batch: &LogBatch,
        slot: &Arc<Slot>,
        view: &SlotView,
        copies: &[Copy],
    ) -> Vec<Queued> {
        let entries = if view.persistent { self.entries(batch, copies) } else { Vec::new() };
        if entries.is_empty() {
            return Vec::new();
        }
        let (queue, incarnation) = (queue_of(slot, view), view.incarnation);
        let append = QueueAppend { queue, incarnation, entries };
        if self.is_anothers_session(slot) {
            return self.keep(append);
        }
        vec![Queued { append, slot: Some(Arc::clone(slot)), live: true, taken: Leaving::new() }]
    }

    /// What a run has of groups that goes by way of the log: for a queue, and among several nodes
    /// always. Who decides next, if this node dies, is to know of it.
    fn decided_in(
        &self,
        batch: &LogBatch,
        slot: &Slot,
        view: &SlotView,
        copies: &[Copy],
    ) -> Vec<Assignment> {
        if !view.persistent && self.here.is_none() {
            return Vec::new();
        }
        let elsewhere = self.is_anothers_session(slot);
        self.assignments(batch, slot, view, copies, elsewhere)
    }

    /// Hands a connection what comes from no queue. Copies of groups that it does not take any more
    /// are handed back.
    fn live_in<'a>(
        &self,
        batch: &LogBatch,
        (slot, view): (&Slot, SlotView),
        copies: &'a [Copy],
        purse: &mut Purse,
    ) -> Vec<&'a Copy> {
        if self.is_anothers_session(slot) {
            return Vec::new();
        }
        let (persistent, several) = (view.persistent, self.here.is_some());
        let live = copies.iter().filter(|copy| {
            let by_log = persistent || several && copy.group.is_some();
            !copy.is_queued() || !by_log
        });
        let Some(outbox) = view.outbox else {
            if persistent {
                // A QoS 0 copy for a session that is away: nobody was promised it.
                return Vec::new();
            }
            let (back, gone): (Vec<&Copy>, Vec<&Copy>) = live.partition(|copy| copy.is_groups());
            gone.into_iter().for_each(|copy| lost(DropReason::SessionEnded, slot, batch, copy));
            return back;
        };
        let mut toll = Toll { outgoing: self.outgoing_rate(slot), purse };
        let back = outbox.offer(live.clone().map(|copy| outgoing(batch, copy)), &mut toll);
        back.into_iter().filter_map(|at| live.clone().nth(at)).collect()
    }

    /// Copies of groups for members that had gone when they came.
    fn park_late(&self, copies: Vec<&Copy>) -> Vec<Parked> {
        let parked = |copy: &Copy| {
            let number = copy.group?;
            let room = self.room_of(number)?;
            room.room().into_iter().for_each(|filter| self.rooms.decided(filter));
            let (item, index) = (copy.item as usize, copy.index as usize);
            Some(Parked { room, number, item, index })
        };
        copies.into_iter().filter_map(parked).collect()
    }

    /// Copies for a session of another node; what comes back is put into queues here.
    pub(super) fn keep(&self, append: QueueAppend) -> Vec<Queued> {
        let Some(here) = self.here.as_ref().filter(|_| !append.entries.is_empty()) else {
            return Vec::new();
        };
        let queued = |append| Queued { append, slot: None, live: true, taken: Leaving::new() };
        here.keep(append).into_iter().map(queued).collect()
    }

    /// Copies that were another node's to deliver until now.
    pub(super) async fn enqueue_appends(&self, appends: Vec<QueueAppend>) {
        if appends.is_empty() {
            return;
        }
        let queued = |append: QueueAppend| {
            let (slot, taken) = (self.slot_of(&append.queue), Leaving::new());
            Queued { slot, append, live: true, taken }
        };
        let back = self.enqueue(appends.into_iter().map(queued).collect()).await;
        self.hand_back(&back).await;
    }

    /// Durable before anything behind them is committed, like all decisions.
    pub(super) async fn hand_back(&self, copies: &[Assignment]) {
        if !copies.is_empty() {
            assign(&*self.log, copies, None).await;
        }
    }

    /// What comes back found nobody, and goes to the rooms of its groups.
    async fn enqueue(&self, queued: Vec<Queued>) -> Vec<Assignment> {
        if !self.backlog.is_empty() {
            self.backlog.push(self, queued).await;
            return Vec::new();
        }
        loop {
            match self.append(&queued).await {
                Ok(appended) => return self.appended(&queued, appended),
                Err(error) => {
                    if let Some(unsaid) = REFUSED.ready() {
                        tracing::warn!(%error, unsaid, "queues refuse: what is for them waits");
                    }
                    if self.here.is_some() {
                        // What needs no queue goes on.
                        self.backlog.push(self, queued).await;
                        return Vec::new();
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    pub(super) async fn append(&self, queued: &[Queued]) -> Result<Vec<Appended>, StorageError> {
        let started = Instant::now();
        self.open_rooms(queued).await?;
        let appends = queued.iter().map(|one| one.append.clone()).collect();
        fail_point::pass("queue.appending");
        let appended = self.queues.append(appends).await?;
        self.are_rooms_there(queued, &appended)?;
        self.take_out(queued).await?;
        fail_point::pass("queue.appended");
        metrics::DEVICE_PACK_TIME.observe(started.elapsed());
        Ok(appended)
    }

    /// Redis may have lost a room that was open: it is opened once more.
    fn are_rooms_there(&self, queued: &[Queued], answers: &[Appended]) -> Result<(), StorageError> {
        for (Queued { append, .. }, answer) in queued.iter().zip(answers) {
            if let Some(filter) = append.queue.room()
                && *answer == Appended::NoQueue
                && self.rooms.is_opened(filter, append.incarnation)
            {
                self.rooms.opened(filter, append.incarnation, false);
                return Err(StorageError::Unavailable("a group's room was not there".into()));
            }
        }
        Ok(())
    }

    /// They are in their queues: whoever reads these is told. What found no queue, and is of a
    /// group, is handed back.
    pub(super) fn appended(&self, queued: &[Queued], appended: Vec<Appended>) -> Vec<Assignment> {
        let mut back = Vec::new();
        for (Queued { append, slot, live, .. }, appended) in queued.iter().zip(appended) {
            let Appended::Taken { first_seq, skipped } = appended else {
                // The session ended between the match and here.
                let lost = append.entries.len() as u64;
                if !append.queue.is_application() {
                    metrics::DEVICE_TOTAL.add(lost);
                    metrics::DEVICE_FAILED.add(lost);
                }
                let client = append.queue.name();
                let of_groups = self.goes_back(append);
                if of_groups {
                    back.extend(self.back(&append.queue, append.incarnation, &append.entries));
                }
                let lost = |entry: &&QueueEntry| !of_groups || entry.group.is_none();
                for entry in append.entries.iter().filter(lost) {
                    let (why, topic) = (DropReason::SessionEnded, entry.message.view().topic);
                    telemetry::dropped_of(why, Direction::Outbound, client, topic, 1);
                }
                continue;
            };
            let taken = (append.entries.len() - skipped) as u64;
            tracing::trace!(stop = 9, queue = %append.queue, first_seq, copies = taken, "queued");
            if !append.queue.is_application() {
                metrics::DEVICE_TOTAL.add(taken);
                metrics::DEVICE_SUCCESSFUL.add(taken);
            }
            // Looked up behind the append: a connection that attaches meanwhile either is told
            // here, or reads its queue later than this.
            if let Some(outbox) = slot.as_ref().and_then(|slot| slot.view().outbox) {
                let fresh = &append.entries[skipped..];
                if fresh.is_empty() {
                    // Another node was quicker.
                    outbox.heard_of(append.incarnation, first_seq);
                    continue;
                }
                outbox.offer_queued(append.incarnation, first_seq, fresh, *live);
            }
        }
        back
    }

    /// Whether this node is to see that a group's copies for a session that is over find another
    /// member: where there are several, the one that had it.
    fn goes_back(&self, append: &QueueAppend) -> bool {
        append.queue.client().is_some()
            && match self.here {
                None => !self.is_replayed(&append.entries),
                Some(_) => self.rooms.has_departed(&append.queue, append.incarnation),
            }
    }

    fn entries(&self, batch: &LogBatch, copies: &[Copy]) -> Vec<QueueEntry> {
        let queued = copies.iter().filter(|copy| copy.is_queued() && copy.group.is_none());
        let mut entries = Vec::with_capacity(copies.len());
        entries.extend(queued.map(|copy| {
            let (position, publishes) = item(batch, copy);
            let index = copy.index as usize;
            QueueEntry {
                source: SourceId { incarnation: batch.incarnation, position, index: copy.index },
                message: MessageRef::new(Arc::clone(publishes), index),
                delivery: copy.delivery,
                subscription_ids: copy.shared_ids(&self.no_ids),
                expires_at_ms: publishes.expires_at_ms(index),
                group: None,
            }
        }));
        entries
    }

    /// What waits for its group, by room and item.
    fn parkings(&self, batch: &LogBatch, parked: &[Parked]) -> Vec<Assignment> {
        let mut parked: Vec<&Parked> = parked.iter().collect();
        parked.sort_by_key(|one| (one.number, one.item));
        let by_item = parked.chunk_by(|a, b| (a.number, a.item) == (b.number, b.item));
        by_item
            .map(|parked| {
                let (position, publishes) = item_at(batch, parked[0].item);
                let indices: Vec<usize> = parked.iter().map(|one| one.index).collect();
                let direct = parked.iter().map(|one| {
                    let message = MessageRef::new(Arc::clone(publishes), one.index);
                    let (group, index) = (one.number, one.index as u32);
                    let origin = Some(Origin { position, index, group });
                    DirectCopy { origin, ..self.waiting(&message, group, None) }
                });
                let room = parked[0].room.clone();
                Assignment::new((room, 0), publishes, &indices, direct.collect())
            })
            .collect()
    }

    /// What groups picked this queue for, by item of the batch.
    fn assignments(
        &self,
        batch: &LogBatch,
        slot: &Slot,
        view: &SlotView,
        copies: &[Copy],
        elsewhere: bool,
    ) -> Vec<Assignment> {
        let of_group = |copy: &&Copy| (elsewhere || copy.is_queued()) && copy.group.is_some();
        let copies: Vec<&Copy> = copies.iter().filter(of_group).collect();
        let by_item = copies.chunk_by(|a, b| a.item == b.item);
        by_item
            .map(|copies| {
                let (position, publishes) = item(batch, copies[0]);
                let indices: Vec<usize> = copies.iter().map(|copy| copy.index as usize).collect();
                let direct = copies.iter().map(|copy| DirectCopy {
                    delivery: copy.delivery,
                    subscription_ids: copy.shared_ids(&self.no_ids),
                    origin: copy.group.map(|group| Origin { position, index: copy.index, group }),
                    taken: None,
                });
                let to = (queue_of(slot, view), view.incarnation);
                Assignment::new(to, publishes, &indices, direct.collect())
            })
            .collect()
    }
}

fn queue_of(slot: &Slot, view: &SlotView) -> QueueKey {
    QueueKey::of(slot.client_id(), view.application)
}
