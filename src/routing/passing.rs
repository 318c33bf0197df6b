//! Copies that come by way of the log, each addressed to one queue: what becomes of them where
//! their record stands.

use std::ops::Range;
use std::sync::Arc;

use super::assign::Assignment;
use super::decisions::{Decisions, is_nobody};
use super::dispatcher::Parts;
use super::hand_over::Queued;
use super::subscriptions::Entry;
use super::{Group, Subscriber};
use crate::delivery::{GroupCopy, Outgoing, Slot, SlotId, SlotView, Toll};
use crate::storage::{
    Batch, DirectCopy, LogBatch, LogItem, MessageRef, Origin, Position, Purse, QueueAppend,
    QueueEntry, QueueKey, Source, SourceId, StorageError, Taken,
};
use crate::telemetry::{self, Direction, DropReason};

/// Where copies come back from that found nobody: no queue has such sequences.
pub(super) const FOUND_NOBODY: u64 = 1 << 63;

/// What moved copies leave behind, by where they come from.
pub(super) type Leaving = Vec<(Arc<Source>, Vec<u64>)>;

/// What the records of a stretch come to.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) queued: Vec<Queued>,
    /// Copies that found nobody, on their way back to their groups.
    pub(super) back: Vec<Assignment>,
}

impl Parts {
    /// Retained copies for persistent sessions, and a group's for the member that was picked, come
    /// by way of the log. A retained one is skipped when a newer value was stored before it: the
    /// subscriber got that one live (OUT-2).
    pub(super) fn direct_copies(
        &self,
        batch: &LogBatch,
        stretch: Range<usize>,
        decisions: &mut Decisions,
    ) -> Passed {
        let mut passed = Passed::default();
        for (position, log_item) in &batch.items[stretch] {
            let LogItem::Direct { to, incarnation, batch: copies, deliveries } = log_item else {
                continue;
            };
            if is_nobody(to) {
                self.refusals_come_by(copies, deliveries, *position, decisions);
                continue;
            }
            if deliveries.is_empty() {
                self.end_room(to, *incarnation);
                continue;
            }
            let mut entries = Vec::with_capacity(copies.len());
            let (mut live, mut leaving) = (false, Leaving::new());
            for (index, copy) in deliveries.iter().enumerate() {
                let message = MessageRef::new(Arc::clone(copies), index);
                let due = match (&copy.taken, &copy.origin) {
                    (Some(taken), _) => {
                        self.may_go(&taken.from) && decisions.takes(taken, *position)
                    }
                    (None, Some(origin)) => decisions.is_first(origin, *position),
                    (None, None) => self.is_newest(&message),
                };
                if !due {
                    continue;
                }
                leave(&mut leaving, copy.taken.as_ref());
                live |= copy.origin.is_some();
                let (incarnation, index) = (batch.incarnation, index as u32);
                entries.push(QueueEntry {
                    source: SourceId { incarnation, position: *position, index },
                    expires_at_ms: message.expires_at_ms(),
                    message,
                    delivery: copy.delivery,
                    subscription_ids: Arc::clone(&copy.subscription_ids),
                    group: copy.origin.map(|origin| origin.group),
                });
            }
            if entries.is_empty() {
                continue;
            }
            let (queue, incarnation) = match to.room() {
                Some(filter) => self.rooms.passed(filter, to, *position),
                None => (to.clone(), *incarnation),
            };
            let slot = self.slot_of(to);
            let append = QueueAppend { queue, incarnation, entries };
            self.direct(append, (slot, live), leaving, &mut passed);
        }
        passed
    }

    /// Copies that nobody gets: whoever keeps one for another node forgets it.
    fn refusals_come_by(
        &self,
        copies: &Batch,
        deliveries: &[DirectCopy],
        position: Position,
        decisions: &mut Decisions,
    ) {
        for (index, copy) in deliveries.iter().enumerate() {
            let Some(origin) = &copy.origin else { continue };
            decisions.is_first(origin, position);
            self.refused(copies.view(index).topic, origin, decisions);
        }
    }

    /// A group's last member has gone, and with it the group's room.
    fn end_room(&self, to: &QueueKey, incarnation: u64) {
        let ended = to.room().and_then(|filter| self.rooms.ended(filter, incarnation));
        ended.into_iter().for_each(|queue| self.queues.remove(&queue, incarnation));
    }

    /// Whether an entry may be taken from this queue here: not from a session that has a newer
    /// connection, or none any more.
    fn may_go(&self, from: &Source) -> bool {
        let Some(epoch) = from.epoch.filter(|_| self.here.is_some()) else { return true };
        let home = self.slot_of(&from.queue).and_then(|slot| slot.home());
        home.is_some_and(|(_, claimed)| claimed == epoch)
    }

    /// Direct copies go where their session is. Of a group, they may be for one without a queue.
    fn direct(
        &self,
        append: QueueAppend,
        (slot, live): (Option<Arc<Slot>>, bool),
        taken: Leaving,
        passed: &mut Passed,
    ) {
        let Some(there) = slot.as_ref().filter(|_| live || self.here.is_some()) else {
            return passed.queued.push(Queued { append, slot, live, taken });
        };
        let SlotView { incarnation, persistent, outbox, .. } = there.view();
        let elsewhere = self.here.as_ref().is_some_and(|here| here.is_elsewhere(there));
        let QueueAppend { queue, incarnation: of, entries } = append;
        let acknowledged = |entry: &QueueEntry| entry.delivery.qos.is_acknowledged();
        let (entries, lively): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .partition(|entry| (persistent || incarnation != of) && acknowledged(entry));
        if let Some(outbox) = outbox.filter(|_| incarnation == of && !lively.is_empty()) {
            let waited = !taken.is_empty();
            let outgoing = lively.iter().map(|entry| Outgoing {
                batch: entry.message.batch(),
                index: entry.message.index(),
                delivery: entry.delivery,
                subscription_ids: &entry.subscription_ids,
                paid: true,
                share: entry.group.map(|group| GroupCopy { group, waited }),
            });
            let mut purse = Purse::UNLIMITED;
            let outgoing_rate = self.outgoing_rate(there);
            let mut toll = Toll { outgoing: outgoing_rate, purse: &mut purse };
            let refused = outbox.offer(outgoing, &mut toll);
            let refused: Vec<_> = refused.into_iter().map(|at| lively[at].clone()).collect();
            passed.back.extend(self.back(&queue, of, &refused));
        } else if !elsewhere && !self.is_replayed(&lively) {
            passed.back.extend(self.back(&queue, of, &lively));
        }
        let append = QueueAppend { queue, incarnation: of, entries };
        if elsewhere {
            let empty = QueueAppend { entries: Vec::new(), ..append.clone() };
            passed.queued.extend(self.keep(append));
            if !taken.is_empty() {
                passed.queued.push(Queued { append: empty, slot: None, live, taken });
            }
        } else if !append.entries.is_empty() || !taken.is_empty() {
            passed.queued.push(Queued { append, slot, live, taken });
        }
    }

    /// What an earlier run has passed may have found somebody then, who is gone by now.
    pub(super) fn is_replayed(&self, entries: &[QueueEntry]) -> bool {
        entries.first().is_some_and(|entry| entry.source.position.offset < self.replayed)
    }

    /// Copies of groups that found nobody go back to the rooms of their groups.
    pub(super) fn back(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        entries: &[QueueEntry],
    ) -> Vec<Assignment> {
        let from = Arc::new(Source { queue: queue.clone(), incarnation, epoch: None });
        let mut back = Vec::new();
        for entry in entries {
            let Some(group) = entry.group.filter(|_| entry.delivery.qos.is_acknowledged()) else {
                continue;
            };
            let Some(room) = self.room_of(group) else {
                let (why, view) = (DropReason::SessionEnded, entry.message.view());
                let client = queue.name();
                telemetry::dropped_of(why, Direction::Outbound, client, view.topic, 1);
                continue;
            };
            let SourceId { position, index, .. } = entry.source;
            let seq = FOUND_NOBODY | position.offset << 16 | u64::from(index);
            let copy =
                self.waiting(&entry.message, group, Some(Taken { from: Arc::clone(&from), seq }));
            let copies = std::iter::once((entry.message.clone(), copy));
            back.extend(Assignment::moved((room, 0), copies));
        }
        back
    }

    /// A message as it waits in its group's room.
    pub(super) fn waiting(
        &self,
        message: &MessageRef,
        group: u64,
        taken: Option<Taken>,
    ) -> DirectCopy {
        let view = message.view();
        DirectCopy {
            delivery: crate::mqtt::Delivery { qos: view.qos, retain: view.retain },
            subscription_ids: Arc::clone(&self.no_ids),
            origin: Some(Origin::of_group(group)),
            taken,
        }
    }

    /// The queue of a group's room: a log, as soon as there are APPLICATION clients in the group
    /// when the room begins.
    pub(super) fn room(&self, group: &Group<SlotId, Entry>) -> QueueKey {
        let is_one = |member: &Subscriber<SlotId, Entry>| {
            self.slots.by_id(member.key).is_some_and(|slot| slot.view().application)
        };
        self.rooms.queue(Arc::from(group.filter().as_str()), || group.members().any(is_one))
    }

    /// That of a group that has members.
    pub(super) fn room_of(&self, group: u64) -> Option<QueueKey> {
        let inner = self.subscriptions.read();
        inner.index.groups().by_number(group).map(|group| self.room(group))
    }

    /// The queues that moved copies come from let go of them: behind the moment when they are in
    /// the others.
    pub(super) async fn take_out(&self, queued: &[Queued]) -> Result<(), StorageError> {
        for (from, seqs) in queued.iter().flat_map(|one| &one.taken) {
            self.queues.take_out(&from.queue, from.incarnation, seqs).await?;
        }
        Ok(())
    }

    /// Rooms that something is for have their queues.
    pub(super) async fn open_rooms(&self, queued: &[Queued]) -> Result<(), StorageError> {
        for Queued { append: QueueAppend { queue, incarnation, .. }, .. } in queued {
            if queue.room().is_some() {
                self.open_room(queue, *incarnation).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn open_room(
        &self,
        queue: &QueueKey,
        incarnation: u64,
    ) -> Result<(), StorageError> {
        let Some(filter) = queue.room().filter(|one| !self.rooms.is_opened(one, incarnation))
        else {
            return Ok(());
        };
        // Whoever comes late with an earlier life of the room does not empty a later one.
        match self.queues.open_as(queue, incarnation, incarnation).await {
            Ok(_) => self.rooms.opened(filter, incarnation, true),
            Err(StorageError::Fenced) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(super) fn slot_of(&self, queue: &QueueKey) -> Option<Arc<Slot>> {
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

fn leave(leaving: &mut Leaving, taken: Option<&Taken>) {
    let Some(Taken { from, seq }) = taken.filter(|taken| taken.seq & FOUND_NOBODY == 0) else {
        return;
    };
    match leaving.iter_mut().find(|(known, _)| known == from) {
        Some((_, seqs)) => seqs.push(*seq),
        None => leaving.push((Arc::clone(from), vec![*seq])),
    }
}
