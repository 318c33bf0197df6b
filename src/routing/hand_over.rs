//! From the copies of a stretch to queues, outboxes and, by way of the log, to members of groups
//! and sessions of other nodes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;

use super::assign::{Assignment, assign};
use super::decisions::{Decisions, is_nobody};
use super::dispatcher::{Parts, RETRY, item, lost, outgoing};
use super::runs::{Copy, Runs};
use crate::delivery::{Outgoing, Slot, SlotView, Toll};
use crate::storage::{
    Appended, DirectCopy, LogBatch, LogItem, MessageRef, Origin, Purse, QueueAppend, QueueEntry,
    QueueKey, SourceId, StorageError,
};
use crate::telemetry::{self, Direction, DropReason, Throttle, fail_point, metrics};

static REFUSED: Throttle = Throttle::per_minute();

/// Copies on their way into one queue, and then to whoever reads it.
pub(super) struct Queued {
    pub(super) append: QueueAppend,
    slot: Option<Arc<Slot>>,
    /// By way of a subscription; else copies of a retained cursor.
    live: bool,
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
        let mut queued = self.direct_copies(batch, stretch, decisions);
        let mut assignments = Vec::new();
        for run in runs.iter() {
            let Some(slot) = self.slots.by_id(run.slot) else { continue };
            let SlotView { incarnation, persistent, application, outbox } = slot.view();
            let queue = || QueueKey::of(slot.client_id(), application);
            if self.here.as_ref().is_some_and(|here| here.is_elsewhere(&slot)) {
                let copies = &run.copies;
                assignments.extend(self.assignments(batch, &queue(), incarnation, copies, true));
                let entries = if persistent { self.entries(batch, copies) } else { Vec::new() };
                queued.extend(self.keep(QueueAppend { queue: queue(), incarnation, entries }));
                continue;
            }
            if persistent {
                let queue = queue();
                let copies = match application {
                    // DEV-7 is of DEVICE clients.
                    true => Cow::Borrowed(run.copies.as_slice()),
                    false => admitted.of(batch, &slot, &run.copies, decisions),
                };
                assignments.extend(self.assignments(batch, &queue, incarnation, &copies, false));
                let entries = self.entries(batch, &copies);
                if !entries.is_empty() {
                    let append = QueueAppend { queue, incarnation, entries };
                    queued.push(Queued { append, slot: Some(Arc::clone(&slot)), live: true });
                }
            }
            let live = run.copies.iter().filter(|copy| !persistent || !copy.is_queued());
            match outbox {
                Some(outbox) => {
                    let outgoing_rate = self.outgoing_rate(&slot);
                    let mut toll = Toll { outgoing: outgoing_rate, purse: &mut purse };
                    outbox.offer(live.map(|copy| outgoing(batch, copy)), &mut toll);
                }
                // A QoS 0 copy for a session that is away: nobody was promised it.
                None if persistent => {}
                None => {
                    live.for_each(|copy| lost(DropReason::SessionEnded, &slot, batch, copy));
                }
            }
        }
        self.give_change(purse);
        let refusals = admitted.refusals(batch, self);
        if !refusals.is_empty() {
            admitted.note(batch, decisions);
            fail_point::pass("copies.refused");
            assign(&*self.log, &refusals, decisions).await;
        }
        metrics::NOT_PERSISTENT_PROCESSING.observe(started.elapsed());
        if !queued.is_empty() {
            self.enqueue(queued).await;
        }
        if !assignments.is_empty() {
            assign(&*self.log, &assignments, decisions).await;
        }
    }

    /// Copies for a session of another node; what comes back is put into queues here.
    fn keep(&self, append: QueueAppend) -> Vec<Queued> {
        let Some(here) = self.here.as_ref().filter(|_| !append.entries.is_empty()) else {
            return Vec::new();
        };
        let queued = |append| Queued { append, slot: None, live: true };
        here.keep(append).into_iter().map(queued).collect()
    }

    /// Copies that were another node's to deliver until now.
    pub(super) async fn enqueue_appends(&self, appends: Vec<QueueAppend>) {
        if appends.is_empty() {
            return;
        }
        let queued =
            |append: QueueAppend| Queued { slot: self.slot_of(&append.queue), append, live: true };
        self.enqueue(appends.into_iter().map(queued).collect()).await;
    }

    async fn enqueue(&self, queued: Vec<Queued>) {
        if !self.backlog.is_empty() {
            return self.backlog.push(self, queued).await;
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
                        return self.backlog.push(self, queued).await;
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    pub(super) async fn append(&self, queued: &[Queued]) -> Result<Vec<Appended>, StorageError> {
        let started = Instant::now();
        let appends = queued.iter().map(|one| one.append.clone()).collect();
        fail_point::pass("queue.appending");
        let appended = self.queues.append(appends).await?;
        fail_point::pass("queue.appended");
        metrics::DEVICE_PACK_TIME.observe(started.elapsed());
        Ok(appended)
    }

    /// They are in their queues: whoever reads these is told.
    pub(super) fn appended(&self, queued: &[Queued], appended: Vec<Appended>) {
        for (Queued { append, slot, live }, appended) in queued.iter().zip(appended) {
            let Appended::Taken { first_seq, skipped } = appended else {
                // The session ended between the match and here.
                let lost = append.entries.len() as u64;
                if !append.queue.is_application() {
                    metrics::DEVICE_TOTAL.add(lost);
                    metrics::DEVICE_FAILED.add(lost);
                }
                let client = append.queue.name();
                for entry in &append.entries {
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
            }
        }));
        entries
    }

    /// What groups picked this queue for, by item of the batch.
    fn assignments(
        &self,
        batch: &LogBatch,
        queue: &QueueKey,
        incarnation: u64,
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
                });
                Assignment::new((queue.clone(), incarnation), publishes, &indices, direct.collect())
            })
            .collect()
    }

    /// Retained copies for persistent sessions, and a group's for the member that was picked, come
    /// by way of the log. A retained one is skipped when a newer value was stored before it: the
    /// subscriber got that one live (OUT-2).
    fn direct_copies(
        &self,
        batch: &LogBatch,
        stretch: Range<usize>,
        decisions: &mut Decisions,
    ) -> Vec<Queued> {
        let mut queued = Vec::new();
        for (position, log_item) in &batch.items[stretch] {
            let LogItem::Direct { to, incarnation, batch: copies, deliveries } = log_item else {
                continue;
            };
            if is_nobody(to) {
                for (index, copy) in deliveries.iter().enumerate() {
                    let Some(origin) = &copy.origin else { continue };
                    decisions.is_first(origin, *position);
                    self.refused(copies.view(index).topic, origin, decisions);
                }
                continue;
            }
            let mut entries = Vec::with_capacity(copies.len());
            let mut live = false;
            for (index, copy) in deliveries.iter().enumerate() {
                let message = MessageRef::new(Arc::clone(copies), index);
                let due = match &copy.origin {
                    Some(origin) => decisions.is_first(origin, *position),
                    None => self.is_newest(&message),
                };
                if !due {
                    continue;
                }
                live |= copy.origin.is_some();
                entries.push(QueueEntry {
                    source: SourceId {
                        incarnation: batch.incarnation,
                        position: *position,
                        index: index as u32,
                    },
                    expires_at_ms: message.expires_at_ms(),
                    message,
                    delivery: copy.delivery,
                    subscription_ids: Arc::clone(&copy.subscription_ids),
                });
            }
            let slot = self.slot_of(to);
            let append = QueueAppend { queue: to.clone(), incarnation: *incarnation, entries };
            queued.extend(self.direct(append, slot, live));
        }
        queued
    }

    /// Direct copies go where their session is. Of a group, they may be for one without a queue.
    fn direct(&self, append: QueueAppend, slot: Option<Arc<Slot>>, live: bool) -> Vec<Queued> {
        let Some(there) = slot.as_ref().filter(|_| self.here.is_some()) else {
            return vec![Queued { append, slot, live }];
        };
        let SlotView { incarnation, persistent, outbox, .. } = there.view();
        let QueueAppend { queue, incarnation: of, entries } = append;
        let acknowledged = |entry: &QueueEntry| entry.delivery.qos.is_acknowledged();
        let (entries, lively): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| persistent && acknowledged(entry));
        if let Some(outbox) = outbox.filter(|_| incarnation == of && !lively.is_empty()) {
            let outgoing = lively.iter().map(|entry| Outgoing {
                batch: entry.message.batch(),
                index: entry.message.index(),
                delivery: entry.delivery,
                subscription_ids: &entry.subscription_ids,
                paid: true,
            });
            let mut purse = Purse::UNLIMITED;
            let outgoing_rate = self.outgoing_rate(there);
            outbox.offer(outgoing, &mut Toll { outgoing: outgoing_rate, purse: &mut purse });
        }
        let append = QueueAppend { queue, incarnation: of, entries };
        if append.entries.is_empty() {
            Vec::new()
        } else if self.here.as_ref().is_some_and(|here| here.is_elsewhere(there)) {
            self.keep(append)
        } else {
            vec![Queued { append, slot, live }]
        }
    }

    fn slot_of(&self, queue: &QueueKey) -> Option<Arc<Slot>> {
        self.slots.by_client(queue.client()?.as_str())
    }

    fn is_newest(&self, copy: &MessageRef) -> bool {
        let view = copy.view();
        self.retained.get(view.topic).is_some_and(|newest| {
            let same_time = newest.batch().received_at_ms() == copy.batch().received_at_ms();
            same_time && newest.view().payload == view.payload
        })
    }
}
