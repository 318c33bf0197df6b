//! One task per log partition: batch → match → hand over → commit.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::assign::{Assignment, assign};
use super::decisions::Decisions;
use super::here::Here;
use super::judge::Judge;
use super::limits::Limits;
use super::retained_table::RetainedTable;
use super::runs::{Copy, Runs};
use super::subscriptions::{Entry, Inner, Subscriptions};
use super::{Pick, Standing, Subscriber, Turn};
use crate::delivery::{Outgoing, Slot, SlotId, SlotView, Slots, Toll};
use crate::mqtt::{ClientId, QoS};
use crate::storage::{
    Appended, Batch, DeviceQueues, DirectCopy, Kind, LogBatch, LogConsumer, LogItem, MessageRef,
    Origin, Position, PublishLog, Purse, QueueAppend, QueueEntry, QueueKey, SourceId,
};
use crate::telemetry::{self, Direction, DropReason, metrics};

/// How long to wait before a failed batch is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// How far the dispatcher of a partition has come: what a retained cursor waits for.
#[derive(Debug, Default)]
pub struct Progress {
    offset: AtomicU64,
    moved: Notify,
}

impl Progress {
    /// Everything below the last commit was dispatched by an earlier run.
    pub fn behind(committed: Position) -> Self {
        Self { offset: AtomicU64::new(committed.offset), moved: Notify::new() }
    }

    /// Waits until everything below `offset` was dispatched. Cancel safe: yes.
    pub async fn reached(&self, offset: u64) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.offset.load(Ordering::Acquire) >= offset {
                return;
            }
            moved.await;
        }
    }

    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    fn advance(&self, to: Position) {
        self.offset.store(to.offset, Ordering::Release);
        self.moved.notify_waiters();
    }
}

/// Copies on their way into one queue, and then to whoever reads it.
struct Queued {
    append: QueueAppend,
    slot: Option<Arc<Slot>>,
    /// By way of a subscription; else copies of a retained cursor.
    live: bool,
}

/// What a dispatcher works with.
#[derive(Clone)]
pub struct Parts {
    pub slots: Arc<Slots>,
    pub subscriptions: Arc<Subscriptions>,
    pub retained: Arc<RetainedTable>,
    pub judge: Arc<Judge>,
    pub log: Arc<dyn PublishLog>,
    pub queues: Arc<dyn DeviceQueues>,
    pub progress: Arc<Progress>,
    pub limits: Arc<Limits>,
    /// Among other nodes; `None`: there are none.
    pub here: Option<Arc<Here>>,
    /// `mqtt.shared-subscriptions.skip-non-writable`.
    pub turn: Turn,
    /// What copies without a Subscription Identifier share.
    pub no_ids: Arc<[u32]>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// Routes what the consumer gives, until the task is aborted. It never waits for an outbox
/// (invariant 4): a full one answers at once.
///
/// `decided` is what the log told when the consumer was opened.
pub async fn run(
    mut consumer: Box<dyn LogConsumer>,
    parts: Parts,
    decided: Vec<(Position, Origin)>,
) {
    let mut runs = Runs::default();
    let mut decisions = Decisions::recovered(decided);
    loop {
        let batch = match consumer.next().await {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!(%error, "the publish log can't be read");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let started = Instant::now();
        let mut messages = 0;
        if let Some(here) = &parts.here {
            let due = here.take(&batch, &parts.slots);
            parts.enqueue_appends(due).await;
        }
        for stretch in stretches(&batch) {
            let begun = Instant::now();
            messages += parts.collect(&batch, stretch.clone(), &mut runs, &decisions);
            metrics::SUBSCRIPTION_LOOKUP.observe(begun.elapsed());
            parts.hand_over(&batch, stretch, &runs, &mut decisions).await;
        }
        decisions.passed(batch.end);
        parts.subscriptions.advance(batch.end.offset);
        consumer.commit(batch.end, &mut || parts.judge.encode());
        parts.progress.advance(batch.end);
        metrics::CONSUMED_TOTAL.add(messages);
        metrics::CONSUMED_SUCCESSFUL.add(messages);
        metrics::CONSUMED_PACK_TIME.observe(started.elapsed());
    }
}

/// The items of a batch, cut where messages and copies addressed to one queue follow each other: a
/// queue takes entries in the order of their sources only, and what comes behind a later one is
/// taken for a replay.
pub(super) fn stretches(batch: &LogBatch) -> impl Iterator<Item = Range<usize>> {
    let direct = |item: &(Position, LogItem)| matches!(item.1, LogItem::Direct { .. });
    let mut from = 0;
    batch.items.chunk_by(move |a, b| direct(a) == direct(b)).map(move |stretch| {
        from += stretch.len();
        from - stretch.len()..from
    })
}

impl Parts {
    /// Matches every message of the stretch, and sorts the copies by recipient.
    pub(super) fn collect(
        &self,
        batch: &LogBatch,
        stretch: Range<usize>,
        runs: &mut Runs,
        decisions: &Decisions,
    ) -> u64 {
        runs.begin(self.slots.id_end());
        let mut messages = 0;
        let mut inner = self.subscriptions.read();
        for item in stretch {
            let (position, log_item) = &batch.items[item];
            let LogItem::Publishes(publishes) = log_item else { continue };
            if inner.is_behind(position.offset) {
                drop(inner);
                self.subscriptions.advance(position.offset);
                inner = self.subscriptions.read();
            }
            for index in 0..publishes.len() {
                messages += 1;
                if self.counts(publishes, index) {
                    let place = (item, index);
                    self.route(&inner, runs, publishes, *position, place, decisions);
                }
            }
        }
        messages
    }

    /// Whether this record is a message to deliver: not a release, not a second copy.
    fn counts(&self, batch: &Batch, index: usize) -> bool {
        let view = batch.view(index);
        match (view.kind, view.packet_id) {
            (Kind::Publish, Some(id)) if view.qos == QoS::ExactlyOnce => {
                self.judge.admit(batch.publisher(), id)
            }
            (Kind::Publish, _) => true,
            (Kind::Will, _) => self.judge.fire(batch.publisher()),
            (Kind::Release, id) => {
                if let Some(id) = id {
                    self.judge.release(batch.publisher(), id);
                }
                false
            }
        }
    }

    fn route(
        &self,
        inner: &Inner,
        runs: &mut Runs,
        batch: &Batch,
        position: Position,
        place: (usize, usize),
        decisions: &Decisions,
    ) {
        let view = batch.view(place.1);
        let before = runs.copies();
        let mut nobody = false;
        let mut plain = std::mem::take(&mut runs.plain);
        let mut picked = std::mem::take(&mut runs.picked);
        inner.index.matches(
            view.topic,
            &mut |one| {
                if one.entry.since < position.offset {
                    plain.push((one.key, one.entry));
                }
            },
            &mut |group| {
                let number = group.number();
                if !self.decides(number) {
                    nobody = true;
                    return;
                }
                if decisions.is_taken(&Origin { position, index: place.1 as u32, group: number }) {
                    nobody = true;
                    return;
                }
                let standing =
                    |member: &Subscriber<SlotId, Entry>| self.standing(member, position, view.qos);
                match group.pick(self.turn, standing) {
                    Pick::Deliver(member) | Pick::Keep(member) => {
                        picked.push((member.key, member.entry, number));
                    }
                    Pick::Nobody => {
                        nobody = true;
                        let (why, by) = (DropReason::NoSubscribers, batch.publisher());
                        let client = by.client_id.as_str();
                        telemetry::dropped_of(why, Direction::Outbound, client, view.topic, 1);
                    }
                }
            },
        );
        for (slot, entry) in plain.drain(..) {
            // MQTT-3.8.3-3, by client id, whatever connection it was published on (SUB-05).
            if entry.options.no_local && self.is_client(slot, &batch.publisher().client_id) {
                continue;
            }
            runs.add(slot, Copy::new(place, &view, &entry.options));
        }
        for (slot, entry, group) in picked.drain(..) {
            runs.add(slot, Copy::new(place, &view, &entry.options).of_group(group));
        }
        (runs.plain, runs.picked) = (plain, picked);
        let (position, copies) = (position.offset, runs.copies() - before);
        let client = &batch.publisher().client_id;
        tracing::trace!(stop = 8, %client, topic = view.topic, position, copies, "matched");
        // A group's copy that nobody could take is counted already, or its copy follows.
        if runs.copies() == before && !nobody && self.counts_for_all() {
            let reason = DropReason::NoSubscribers;
            telemetry::dropped_of(reason, Direction::Inbound, client.as_str(), view.topic, 1);
        }
    }

    fn is_client(&self, slot: SlotId, client_id: &ClientId) -> bool {
        self.slots.by_id(slot).is_some_and(|slot| slot.client_id() == client_id)
    }

    fn standing(
        &self,
        member: &Subscriber<SlotId, Entry>,
        position: Position,
        qos: QoS,
    ) -> Standing {
        let view = self.slots.by_id(member.key).map(|slot| slot.view()).unwrap_or_default();
        let qos = qos.min(member.entry.options.qos);
        let keeps = view.persistent && qos.is_acknowledged();
        match view.outbox {
            _ if member.entry.since >= position.offset => Standing::Away { keeps: false },
            Some(outbox) if outbox.is_writable() => Standing::Usable,
            Some(_) => Standing::Congested { keeps },
            None if self.is_connected_elsewhere(member.key) => Standing::Usable,
            None => Standing::Away { keeps },
        }
    }

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
            let SlotView { incarnation, persistent, outbox } = slot.view();
            let queue = || QueueKey::Client(slot.client_id().clone());
            if self.here.as_ref().is_some_and(|here| here.is_elsewhere(&slot)) {
                let copies = &run.copies;
                assignments.extend(self.assignments(batch, &queue(), incarnation, copies, true));
                let entries = if persistent { self.entries(batch, copies) } else { Vec::new() };
                queued.extend(self.keep(QueueAppend { queue: queue(), incarnation, entries }));
                continue;
            }
            if persistent {
                let queue = queue();
                let copies = admitted.of(batch, &slot, &run.copies);
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
        metrics::NOT_PERSISTENT_PROCESSING.observe(started.elapsed());
        if !queued.is_empty() {
            self.enqueue(queued).await;
        }
        if !assignments.is_empty() {
            assign(&*self.log, &assignments, decisions).await;
        }
    }

    fn decides(&self, group: u64) -> bool {
        self.here.as_ref().is_none_or(|here| here.decides(group))
    }

    fn counts_for_all(&self) -> bool {
        self.here.as_ref().is_none_or(|here| here.counts())
    }

    fn is_connected_elsewhere(&self, slot: SlotId) -> bool {
        self.here.is_some()
            && self.slots.by_id(slot).is_some_and(|slot| slot.is_connected_elsewhere())
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
    async fn enqueue_appends(&self, appends: Vec<QueueAppend>) {
        if appends.is_empty() {
            return;
        }
        let slot = |queue: &QueueKey| match queue {
            QueueKey::Client(id) => self.slots.by_client(id.as_str()),
            QueueKey::Group(_) => None,
        };
        let queued = |append: QueueAppend| Queued { slot: slot(&append.queue), append, live: true };
        self.enqueue(appends.into_iter().map(queued).collect()).await;
    }

    async fn enqueue(&self, queued: Vec<Queued>) {
        let started = Instant::now();
        let appended = loop {
            let appends = queued.iter().map(|one| one.append.clone()).collect();
            match self.queues.append(appends).await {
                Ok(appended) => break appended,
                Err(error) => {
                    tracing::warn!(%error, "device queues refuse; trying again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        metrics::DEVICE_PACK_TIME.observe(started.elapsed());
        for (Queued { append, slot, live }, appended) in queued.iter().zip(appended) {
            let Appended::Taken { first_seq, skipped } = appended else {
                // The session ended between the match and here.
                let lost = append.entries.len() as u64;
                metrics::DEVICE_TOTAL.add(lost);
                metrics::DEVICE_FAILED.add(lost);
                let client = match &append.queue {
                    QueueKey::Client(id) => id.as_str(),
                    QueueKey::Group(name) => name,
                };
                for entry in &append.entries {
                    let (why, topic) = (DropReason::SessionEnded, entry.message.view().topic);
                    telemetry::dropped_of(why, Direction::Outbound, client, topic, 1);
                }
                continue;
            };
            let taken = (append.entries.len() - skipped) as u64;
            tracing::trace!(stop = 9, queue = %append.queue, first_seq, copies = taken, "queued");
            metrics::DEVICE_TOTAL.add(taken);
            metrics::DEVICE_SUCCESSFUL.add(taken);
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
            let slot = match to {
                QueueKey::Client(id) => self.slots.by_client(id.as_str()),
                QueueKey::Group(_) => None,
            };
            let append = QueueAppend { queue: to.clone(), incarnation: *incarnation, entries };
            queued.extend(self.direct(append, slot, live));
        }
        queued
    }

    /// Direct copies go where their session is. Of a group, they may be for one without a queue.
    fn direct(
        &self,
        append: QueueAppend,
        slot: Option<Arc<Slot>>,
        live: bool,
    ) -> Vec<Queued> {
        let Some(there) = slot.as_ref().filter(|_| self.here.is_some()) else {
            return vec![Queued { append, slot, live }];
        };
        let SlotView { incarnation, persistent, outbox } = there.view();
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

    fn is_newest(&self, copy: &MessageRef) -> bool {
        let view = copy.view();
        self.retained.get(view.topic).is_some_and(|newest| {
            let same_time = newest.batch().received_at_ms() == copy.batch().received_at_ms();
            same_time && newest.view().payload == view.payload
        })
    }
}

fn item<'a>(batch: &'a LogBatch, copy: &Copy) -> (Position, &'a Arc<Batch>) {
    let (position, item) = &batch.items[copy.item as usize];
    match item {
        LogItem::Publishes(publishes) | LogItem::Direct { batch: publishes, .. } => {
            (*position, publishes)
        }
    }
}

/// One copy that its recipient will not get.
pub(super) fn lost(reason: DropReason, of: &Slot, batch: &LogBatch, copy: &Copy) {
    let (_, publishes) = item(batch, copy);
    let topic = publishes.view(copy.index as usize).topic;
    telemetry::dropped_of(reason, Direction::Outbound, of.client_id().as_str(), topic, 1);
}

fn outgoing<'a>(batch: &'a LogBatch, copy: &'a Copy) -> Outgoing<'a> {
    let (_, publishes) = item(batch, copy);
    Outgoing {
        batch: publishes,
        index: copy.index as usize,
        delivery: copy.delivery,
        subscription_ids: copy.ids(),
        paid: copy.group.is_some(),
    }
}
