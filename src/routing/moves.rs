//! Messages of shared groups on their way from one queue to another (docs/decisions/010): from a
//! group's room to members that can take them, and from the queue of a member that is away, or
//! whose session ends, back to the group.
//!
//! A move is a record of the log that names the entry that it takes. The dispatcher puts the copy
//! into its new queue, and then takes it out of the old one; it is done when the dispatcher has
//! passed. So a crash at any place leaves the message in one of the two.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::assign::{Assignment, assign};
use super::dispatcher::Parts;
use super::passing::FOUND_NOBODY;
use super::rooms::View;
use super::subscriptions::Entry;
use super::{Group, Pick, Policy, Standing, Subscriber, Turn};
use crate::delivery::{Left, SlotId, SlotView};
use crate::mqtt::{ClientId, Delivery, QoS, TopicFilter};
use crate::storage::{
    BatchBuilder, DirectCopy, MessageRef, Origin, Publisher, QueueKey, QueuedMessage, Source,
    StorageError, Taken, once,
};
use crate::telemetry::{self, Direction, DropReason, clock};

/// Messages that move at a time.
const PAGE: usize = 256;
const PAGE_BYTES: usize = 1 << 20;
/// What a member without a queue, connected to another node, is given at a time: how much it can
/// take is known there only.
const BLIND: usize = 16;
/// No queue has sequences like that.
const BEYOND: u64 = 1 << 47;

/// Whose queue gives messages back.
#[derive(Clone, Debug)]
pub struct Lender {
    pub queue: QueueKey,
    pub incarnation: u64,
    pub epoch: u64,
    /// Its session is over: it gives back what was sent at QoS 1, too (SHR-5), and what nobody can
    /// take waits in the room of its group.
    pub over: bool,
}

/// Empties rooms, and takes back what members leave.
#[derive(Clone, Debug)]
pub struct GroupQueues {
    parts: Parts,
}

/// Copies that go back to their groups.
#[derive(Debug)]
pub struct Returning(Vec<Assignment>);

/// What is to be done about a page.
#[derive(Default)]
struct Plan {
    expired: Vec<u64>,
    moves: Vec<(QueueKey, u64, Vec<(MessageRef, DirectCopy)>)>,
    /// Something has to wait.
    waits: bool,
}

/// How much members can take, as far as this page has asked.
type Space = RefCell<HashMap<SlotId, usize, ahash::RandomState>>;

impl GroupQueues {
    pub fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// What a client without a queue leaves, on its way back to its groups; those that have no
    /// members any more are forgotten.
    pub fn returning(&self, client_id: &ClientId, epoch: u64, left: &[Left]) -> Returning {
        let queue = QueueKey::Client(client_id.clone());
        let from = Arc::new(Source { queue, incarnation: epoch, epoch: None });
        let mut plan = Plan::default();
        for (number, (message, group)) in left.iter().enumerate() {
            let Some(room) = self.parts.room_of(*group) else { continue };
            let seq = FOUND_NOBODY | number as u64;
            let taken = Some(Taken { from: Arc::clone(&from), seq });
            let copy = self.parts.waiting(message, *group, taken);
            plan.add((room, 0), message, copy);
        }
        Returning(plan.moves.into_iter().flat_map(assignments).collect())
    }

    /// Waits until they are safe.
    pub async fn give(&self, Returning(copies): Returning) {
        self.parts.hand_back(&copies).await;
    }

    /// Waits until something may have changed. Cancel safe: yes.
    pub async fn woken(&self) {
        self.parts.rooms.woken.notified().await;
    }

    /// Somebody may take now, or leaves something.
    pub fn wake(&self) {
        self.parts.rooms.woken.notify_one();
    }

    /// A session of this node has ended: what is still on its way to it goes back.
    pub fn departed(&self, queue: QueueKey, incarnation: u64) {
        self.parts.rooms.departed(queue, incarnation);
    }

    /// One page of each room that this node sees to. Whether anything moved; `None`: nothing waits,
    /// or nobody is there.
    pub async fn empty_rooms(&self) -> Result<Option<bool>, StorageError> {
        let mut moved = None;
        for room in self.parts.rooms.all_busy() {
            if self.parts.decides_for(&room.filter) {
                moved = moved.max(self.parts.empty_room(&room).await?);
            }
        }
        Ok(moved)
    }

    /// Ends the rooms of groups that have no members any more.
    pub async fn end_rooms(&self) {
        for room in self.parts.rooms.all() {
            let Some(incarnation) = room.incarnation else { continue };
            if self.parts.decides_for(&room.filter) && self.parts.is_deserted(&room) {
                self.parts.append_end(&room, incarnation).await;
            }
        }
    }

    /// Whether somebody else than this member could take a copy of one of its groups now; `None`:
    /// nobody is there. `known`: what was found of groups in this look.
    pub fn takers(
        &self,
        lender: &ClientId,
        known: &mut HashMap<TopicFilter, Option<bool>>,
    ) -> Option<bool> {
        let slot = self.parts.slots.by_client(lender.as_str())?;
        let filters = self.parts.subscriptions.filters(slot.id());
        let inner = self.parts.subscriptions.read();
        let groups = inner.index.groups();
        let shared = filters.iter().filter(|filter| filter.is_shared());
        let of = shared.map(|filter| {
            *known.entry(filter.clone()).or_insert_with(|| {
                let group = groups.find(filter.as_str()).and_then(|id| groups.get(id));
                let group = group.filter(|group| self.parts.has_connected(group));
                group.map(|group| self.parts.has_usable(group))
            })
        });
        of.max().flatten()
    }

    /// The members of groups whose clients are away: they may have something to give back.
    pub fn away_members(&self) -> Vec<ClientId> {
        let inner = self.parts.subscriptions.read();
        let members = inner.index.groups().iter().flat_map(Group::members);
        let slots: HashSet<SlotId> = members.map(|member| member.key).collect();
        drop(inner);
        let slots = slots.into_iter().filter_map(|slot| self.parts.slots.by_id(slot));
        let away = slots.filter(|slot| slot.is_persistent() && !slot.is_connected());
        away.map(|slot| slot.client_id().clone()).collect()
    }

    /// Gives back what a member's queue has of groups. The caller sees to it that no connection
    /// reads the queue meanwhile. `false`: some of it has to wait for somebody to take it.
    pub async fn give_back(&self, lender: &Lender) -> Result<bool, StorageError> {
        let (queue, incarnation) = (&lender.queue, lender.incarnation);
        let queues = &self.parts.queues;
        let state = queues.open_as(queue, incarnation, lender.epoch).await?;
        let all = self.give_back_behind(lender, state.sent_below).await;
        // Whoever opens the queue next is to know how far the last connection has come.
        queues.ack(queue, incarnation, &[], state.sent_below);
        all
    }

    async fn give_back_behind(
        &self,
        lender: &Lender,
        sent_below: u64,
    ) -> Result<bool, StorageError> {
        let Lender { queue, incarnation, epoch, over: _ } = lender;
        let from = Source { queue: queue.clone(), incarnation: *incarnation, epoch: Some(*epoch) };
        let (from, mut after, mut all) = (Arc::new(from), 0, true);
        loop {
            let page = self.parts.queues.read(queue, *incarnation, after, PAGE, PAGE_BYTES).await?;
            let Some(last) = page.messages.last() else { return Ok(all) };
            after = last.seq;
            let plan = self.parts.plan(&from, &page.messages, Some((lender, sent_below)));
            all &= !plan.waits;
            self.parts.carry_out(&from, plan).await?;
        }
    }
}

impl Parts {
    /// Whether this node sees to the rooms of a group.
    fn decides_for(&self, filter: &str) -> bool {
        let number = xxhash_rust::xxh3::xxh3_64(filter.as_bytes());
        self.here.as_ref().is_none_or(|here| here.decides(number))
    }

    /// Everything that was for the group is in its room, and nobody is left in it.
    fn is_deserted(&self, room: &View) -> bool {
        self.progress.offset() >= room.until
            && self.subscriptions.read().index.groups().find(&room.filter).is_none()
    }

    async fn append_end(&self, room: &View, incarnation: u64) {
        let nobody = Publisher { client_id: ClientId::new(""), incarnation: 0, epoch: 0 };
        let batch = BatchBuilder::new(Arc::new(nobody), clock::wall_ms()).finish();
        let (sink, mut settled) = once();
        let room = room.queue.clone();
        self.log.append_direct(room, incarnation, batch, Arc::from([]), sink, 0);
        // Else the next look does it again.
        settled.outcome().await;
    }

    /// Whether something moved; `None`: nothing waits, or nobody is there.
    async fn empty_room(&self, room: &View) -> Result<Option<bool>, StorageError> {
        let Some(incarnation) = room.incarnation else { return Ok(None) };
        let whole = self.progress.offset() >= room.until;
        let usable = {
            let inner = self.subscriptions.read();
            let groups = inner.index.groups();
            let group = groups.find(&room.filter).and_then(|id| groups.get(id));
            group.is_some_and(|group| self.has_connected(group))
        };
        if !usable {
            return Ok(None);
        }
        let queue = room.queue.clone();
        self.open_room(&queue, incarnation).await?;
        let page = match self.queues.read(&queue, incarnation, 0, PAGE, PAGE_BYTES).await {
            Ok(page) => page,
            Err(StorageError::Fenced) => return Ok(None),
            Err(error) => return Err(error),
        };
        if page.messages.is_empty() {
            let empty = whole && self.rooms.found_empty(room);
            return Ok((!empty).then_some(false));
        }
        let from = Arc::new(Source { queue, incarnation, epoch: None });
        self.look_at_queues(&room.filter).await;
        let plan = self.plan(&from, &page.messages, None);
        self.carry_out(&from, plan).await.map(Some)
    }

    /// How much waits in the queues of members that are connected to other nodes is asked for.
    async fn look_at_queues(&self, filter: &str) {
        if self.here.is_none() {
            return;
        }
        let members: Vec<SlotId> = {
            let inner = self.subscriptions.read();
            let groups = inner.index.groups();
            let group = groups.find(filter).and_then(|id| groups.get(id));
            group.into_iter().flat_map(Group::members).map(|member| member.key).collect()
        };
        for member in members.into_iter().filter(|member| self.is_connected_elsewhere(*member)) {
            let Some(slot) = self.slots.by_id(member) else { continue };
            let SlotView { incarnation, persistent, application, .. } = slot.view();
            if persistent && !application {
                let queue = QueueKey::of(slot.client_id(), application);
                // A page beyond the end tells the depth and nothing else.
                drop(self.queues.read(&queue, incarnation, BEYOND, 1, 1).await);
            }
        }
    }

    /// Who gets which message of a page; of a lender's, those that it is to give back. A message
    /// that nobody can take holds those of its group behind it.
    fn plan(
        &self,
        from: &Arc<Source>,
        messages: &[QueuedMessage],
        lender: Option<(&Lender, u64)>,
    ) -> Plan {
        let (mut plan, mut stuck) = (Plan::default(), HashSet::new());
        let (space, now_ms) = (Space::default(), clock::wall_ms());
        let inner = self.subscriptions.read();
        let groups = inner.index.groups();
        let owner = lender.and_then(|(lender, _)| self.slot_of(&lender.queue));
        for message in messages {
            let Some(number) = message.group else { continue };
            let Some(group) = groups.by_number(number) else { continue };
            if let Some((lender, sent_below)) = lender {
                let over = lender.over || owner.as_ref().is_none_or(|owner| !group.has(owner.id()));
                if !goes_back(message, sent_below, over) {
                    continue;
                }
            } else if message.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
                plan.expired.push(message.seq);
                self.expired(group, message);
                continue;
            }
            if stuck.contains(&number) {
                plan.waits = true;
                continue;
            }
            let taken = Some(Taken { from: Arc::clone(from), seq: message.seq });
            let pick = self.next(group, message, &space);
            if let Some(member) = pick
                && let Some(slot) = self.slots.by_id(member.key)
            {
                let SlotView { incarnation, application, .. } = slot.view();
                let to = QueueKey::of(slot.client_id(), application);
                plan.add((to, incarnation), &message.message, self.copy(member, message, taken));
                if let Some(left) = space.borrow_mut().get_mut(&member.key) {
                    *left = left.saturating_sub(1);
                }
            } else if lender.is_some_and(|(lender, _)| lender.over) && group.len() > 1
                || lender.is_some() && owner.as_ref().is_none_or(|owner| !group.has(owner.id()))
            {
                let room = self.room(group);
                let copy = self.waiting(&message.message, number, taken);
                plan.add((room, 0), &message.message, copy);
            } else {
                stuck.insert(number);
                plan.waits = true;
            }
        }
        plan
    }

    /// Who takes what waits. A policy that chooses by what a message is waits for its member; the
    /// others pass over those that have their hands full.
    fn next<'a>(
        &self,
        group: &'a Group<SlotId, Entry>,
        message: &QueuedMessage,
        space: &Space,
    ) -> Option<&'a Subscriber<SlotId, Entry>> {
        let publisher = message.message.batch().publisher().client_id.as_str();
        let of = (publisher, message.message.view().topic);
        let policy = self.subscriptions.shares().policy(group.filter());
        let waits = matches!(policy, Policy::HashClient | Policy::HashTopic | Policy::Sticky);
        // Who has the most room has the least to do.
        let load = |member: &Subscriber<SlotId, Entry>| {
            let left = self.left(member.key, space) as u64;
            Some(u64::MAX - left)
        };
        let standing = |member: &Subscriber<SlotId, Entry>| match waits {
            true if self.is_there(member.key) => Standing::Usable,
            true => Standing::Away { keeps: false },
            false => self.takes(member, space),
        };
        let pick = self.choose(group, of, Turn::NextUsable, &load, standing);
        let Pick::Deliver(member) = pick else { return None };
        (self.left(member.key, space) > 0).then_some(member)
    }

    fn copy(
        &self,
        member: &Subscriber<SlotId, Entry>,
        message: &QueuedMessage,
        taken: Option<Taken>,
    ) -> DirectCopy {
        let (view, options) = (message.message.view(), &member.entry.options);
        let ids = match options.subscription_id {
            Some(id) => Arc::from([id]),
            None => Arc::clone(&self.no_ids),
        };
        let (qos, retain) = (view.qos.min(options.qos), view.retain && options.retain_as_published);
        let origin = message.group.map(Origin::of_group);
        DirectCopy { delivery: Delivery { qos, retain }, subscription_ids: ids, origin, taken }
    }

    /// DEV-4: one that nobody gets any more.
    fn expired(&self, group: &Group<SlotId, Entry>, message: &QueuedMessage) {
        let (why, topic) = (DropReason::MessageExpired, message.message.view().topic);
        telemetry::dropped_of(why, Direction::Outbound, group.filter().as_str(), topic, 1);
    }

    fn has_usable(&self, group: &Group<SlotId, Entry>) -> bool {
        let space = Space::default();
        group.members().any(|member| self.takes(member, &space) == Standing::Usable)
    }

    fn has_connected(&self, group: &Group<SlotId, Entry>) -> bool {
        group.members().any(|member| self.is_there(member.key))
    }

    fn is_there(&self, member: SlotId) -> bool {
        let here = self.slots.by_id(member).is_some_and(|slot| slot.is_connected());
        here || self.is_connected_elsewhere(member)
    }

    /// Whether a member takes one more of what waits: less than a window of it is in its hands.
    fn takes(&self, member: &Subscriber<SlotId, Entry>, space: &Space) -> Standing {
        match self.left(member.key, space) {
            0 => Standing::Away { keeps: false },
            _ => Standing::Usable,
        }
    }

    fn left(&self, member: SlotId, space: &Space) -> usize {
        *space.borrow_mut().entry(member).or_insert_with(|| self.space(member))
    }

    fn space(&self, member: SlotId) -> usize {
        let Some(slot) = self.slots.by_id(member) else { return 0 };
        let SlotView { persistent, application, outbox, .. } = slot.view();
        let elsewhere = self.is_connected_elsewhere(member);
        if outbox.as_ref().map_or(!elsewhere, |outbox| !outbox.is_writable()) {
            return 0;
        }
        if persistent {
            let depth = self.queues.depth(&QueueKey::of(slot.client_id(), application));
            return self.window.saturating_sub(depth) as usize;
        }
        outbox.map_or(BLIND, |outbox| usize::from(outbox.spare()))
    }

    /// `true` when something moved, which has happened everywhere here when this returns.
    async fn carry_out(&self, from: &Source, plan: Plan) -> Result<bool, StorageError> {
        let Plan { expired, moves, waits: _ } = plan;
        let moved = !expired.is_empty() || !moves.is_empty();
        if !expired.is_empty() {
            self.queues.take_out(&from.queue, from.incarnation, &expired).await?;
        }
        if !moves.is_empty() {
            let assignments: Vec<Assignment> = moves.into_iter().flat_map(assignments).collect();
            let last = assign(&*self.log, &assignments, None).await;
            self.progress.queued(last.offset + 1).await;
        }
        Ok(moved)
    }
}

impl Plan {
    fn add(&mut self, to: (QueueKey, u64), message: &MessageRef, copy: DirectCopy) {
        let copy = (message.clone(), copy);
        match self.moves.iter_mut().find(|known| (&known.0, known.1) == (&to.0, to.1)) {
            Some((_, _, copies)) => copies.push(copy),
            None => self.moves.push((to.0, to.1, vec![copy])),
        }
    }
}

/// One batch has one publisher and one time of receipt, on which expiry rests.
fn assignments(
    (to, incarnation, copies): (QueueKey, u64, Vec<(MessageRef, DirectCopy)>),
) -> Vec<Assignment> {
    let alike = |(one, _): &(MessageRef, DirectCopy), (other, _): &(MessageRef, DirectCopy)| {
        let (one, other) = (one.batch(), other.batch());
        one.publisher() == other.publisher() && one.received_at_ms() == other.received_at_ms()
    };
    let runs = copies.chunk_by(alike);
    let to = |run: &[(MessageRef, DirectCopy)]| {
        Assignment::moved((to.clone(), incarnation), run.iter().cloned())
    };
    runs.filter_map(to).collect()
}

/// Whether a member that is away gives a message back. One that may have been sent stays with its
/// session as long as that lives; at QoS 2 it ends with it (MQTT 4.8.2).
fn goes_back(message: &QueuedMessage, sent_below: u64, over: bool) -> bool {
    let sent = message.seq < sent_below;
    !message.received && (!sent || over && message.delivery.qos == QoS::AtLeastOnce)
}
