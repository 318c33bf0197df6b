//! Who gets a copy of one message: plain subscriptions, and of each shared one the member that is
//! picked, by whichever node decides for it.

use std::sync::Arc;

use super::decisions::Decisions;
use super::dispatcher::Parts;
use super::here::Offer;
use super::runs::{Copy, Parked, Runs};
use super::subscriptions::{Entry, Inner};
use super::{Choice, Group, Pick, Policy, Standing, Subscriber, Turn, rendezvous};
use crate::delivery::{Outbox, SlotId};
use crate::mqtt::{ClientId, QoS};
use crate::storage::{Batch, LogBatch, LogItem, Origin, Position, QueueKey};
use crate::telemetry::{self, Direction, DropReason};

/// With `mqtt.shared-subscriptions.app-leave-when-non-writable`, an APPLICATION member that has not
/// been sent more than this is out of its groups.
const APP_UNSENT: u64 = 1024;

/// What becomes of one message of a group.
enum Chosen {
    Member(SlotId, Entry),
    /// It waits in the group's room.
    Room(QueueKey),
    /// Nobody can take it, and that is counted.
    Nobody,
}

impl Parts {
    pub(super) fn route(
        &self,
        inner: &Inner,
        runs: &mut Runs,
        batch: &Arc<Batch>,
        position: Position,
        place: (usize, usize),
        decisions: &Decisions,
    ) {
        let view = batch.view(place.1);
        let before = runs.copies();
        let mut nobody = false;
        let mut plain = std::mem::take(&mut runs.plain);
        let mut picked = std::mem::take(&mut runs.picked);
        let mut parked = std::mem::take(&mut runs.parked);
        inner.index.matches(
            view.topic,
            &mut |one| {
                if one.entry.since < position.offset {
                    plain.push((one.key, one.entry));
                }
            },
            &mut |group| {
                let origin = Origin { position, index: place.1 as u32, group: group.number() };
                if self.is_anothers(&origin, batch) || decisions.is_taken(&origin) {
                    nobody = true;
                    return;
                }
                match self.pick(group, &origin, batch, runs) {
                    Chosen::Member(slot, entry) => picked.push((slot, entry, origin.group)),
                    Chosen::Room(room) => {
                        nobody = true;
                        let (number, (item, index)) = (origin.group, place);
                        parked.push(Parked { room, number, item, index });
                    }
                    Chosen::Nobody => nobody = true,
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
        (runs.plain, runs.picked, runs.parked) = (plain, picked, parked);
        let (position, copies) = (position.offset, runs.copies() - before);
        let client = &batch.publisher().client_id;
        tracing::trace!(stop = 8, %client, topic = view.topic, position, copies, "matched");
        // A group's copy that nobody could take is counted already, or its copy follows.
        if runs.copies() == before && !nobody && self.counts_for_all() {
            let reason = DropReason::NoSubscribers;
            telemetry::dropped_of(reason, Direction::Inbound, client.as_str(), view.topic, 1);
        }
    }

    /// Whether another node decides who of a group gets a message; it is kept until that is known
    /// to have happened.
    fn is_anothers(&self, origin: &Origin, batch: &Arc<Batch>) -> bool {
        self.here.as_ref().is_some_and(|here| here.leaves(origin, batch))
    }

    /// Who of the group gets the message.
    fn pick(
        &self,
        group: &Group<SlotId, Entry>,
        origin: &Origin,
        batch: &Batch,
        runs: &Runs,
    ) -> Chosen {
        let view = batch.view(origin.index as usize);
        let room = || {
            let room = self.room(group);
            room.room().into_iter().for_each(|filter| self.rooms.decided(filter));
            Chosen::Room(room)
        };
        if view.qos.is_acknowledged() && self.rooms.is_busy(group.filter().as_str()) {
            // Behind what waits already.
            return room();
        }
        let standing =
            |member: &Subscriber<SlotId, Entry>| self.standing(member, origin.position, view.qos);
        let of = (batch.publisher().client_id.as_str(), view.topic);
        let load = |member: &Subscriber<SlotId, Entry>| self.load(member.key, runs);
        match self.choose(group, of, self.turn, &load, standing) {
            Pick::Deliver(member) => Chosen::Member(member.key, member.entry),
            Pick::Keep(_) => room(),
            Pick::Nobody => {
                let (why, by) = (DropReason::NoSubscribers, batch.publisher());
                let client = by.client_id.as_str();
                telemetry::dropped_of(why, Direction::Outbound, client, view.topic, 1);
                Chosen::Nobody
            }
        }
    }

    /// Whom the group's policy chooses for a message of this publisher and topic.
    pub(super) fn choose<'a>(
        &self,
        group: &'a Group<SlotId, Entry>,
        (publisher, topic): (&str, &str),
        turn: Turn,
        load: &dyn Fn(&Subscriber<SlotId, Entry>) -> Option<u64>,
        standing: impl Fn(&Subscriber<SlotId, Entry>) -> Standing,
    ) -> Pick<'a, SlotId, Entry> {
        let by = |key: &str, member: &Subscriber<SlotId, Entry>| {
            let slot = self.slots.by_id(member.key);
            slot.map_or(0, |slot| rendezvous(slot.client_id().as_str(), key))
        };
        let by_client = |member: &Subscriber<SlotId, Entry>| by(publisher, member);
        let by_topic = |member: &Subscriber<SlotId, Entry>| by(topic, member);
        let choice = match self.subscriptions.shares().policy(group.filter()) {
            Policy::RoundRobin => Choice::Turn,
            Policy::Sticky => Choice::Sticky,
            Policy::HashClient => Choice::Highest(&by_client),
            Policy::HashTopic => Choice::Highest(&by_topic),
            Policy::LeastInflight => Choice::Least(load),
        };
        group.pick(turn, &choice, standing)
    }

    /// Decides about messages whose decider is gone: the same as [`Self::collect`] would have, but
    /// for their groups alone.
    pub(super) fn collect_offers(
        &self,
        offers: Vec<Offer>,
        incarnation: u64,
        runs: &mut Runs,
        decisions: &Decisions,
    ) -> LogBatch {
        runs.begin(self.slots.id_end());
        let inner = self.subscriptions.read();
        let mut items = Vec::with_capacity(offers.len());
        for Offer { origin, batch, .. } in offers {
            if decisions.is_taken(&origin) {
                continue;
            }
            let (view, place) = (batch.view(origin.index as usize), items.len());
            let (mut chosen, index) = (Chosen::Nobody, origin.index as usize);
            inner.index.matches(view.topic, &mut |_| {}, &mut |group| {
                if group.number() == origin.group {
                    chosen = self.pick(group, &origin, &batch, runs);
                }
            });
            let number = origin.group;
            match chosen {
                Chosen::Member(slot, entry) => {
                    let copy = Copy::new((place, index), &view, &entry.options);
                    runs.add(slot, copy.of_group(number));
                }
                Chosen::Room(room) => {
                    runs.parked.push(Parked { room, number, item: place, index });
                }
                Chosen::Nobody => {}
            }
            items.push((origin.position, LogItem::Publishes(batch)));
        }
        LogBatch { incarnation, changes: Vec::new(), items, end: Position::default() }
    }

    pub(super) fn is_connected_elsewhere(&self, slot: SlotId) -> bool {
        self.here.is_some()
            && self.slots.by_id(slot).is_some_and(|slot| slot.is_connected_elsewhere())
    }

    fn counts_for_all(&self) -> bool {
        self.here.as_ref().is_none_or(|here| here.counts())
    }

    fn is_client(&self, slot: SlotId, client_id: &ClientId) -> bool {
        self.slots.by_id(slot).is_some_and(|slot| slot.client_id() == client_id)
    }

    /// What a member has not acknowledged, as far as this node knows: what waits for it, or is in
    /// flight, and what it gets of this batch. `None`: another node has it.
    fn load(&self, member: SlotId, runs: &Runs) -> Option<u64> {
        let slot = self.slots.by_id(member)?;
        let (view, of_batch) = (slot.view(), runs.copies_of(member) as u64);
        let outbox = view.outbox?;
        let waits = match view.persistent {
            true => self.queues.depth(&QueueKey::of(slot.client_id(), view.application)),
            false => u64::from(outbox.in_flight()),
        };
        Some(waits + of_batch)
    }

    /// SHR-4, the older document's form. A client that is fed from its log is not congested, it
    /// just takes nothing: then what it has not been sent says so.
    fn has_left(&self, member: SlotId, outbox: &Outbox) -> bool {
        if !self.subscriptions.shares().app_leaves() {
            return false;
        }
        let unsent = || {
            let slot = self.slots.by_id(member)?;
            let log = QueueKey::of(slot.client_id(), true);
            Some(self.queues.depth(&log).saturating_sub(u64::from(outbox.in_flight())))
        };
        !outbox.is_writable() || unsent().unwrap_or(0) > APP_UNSENT
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
            Some(ref outbox) if view.application && self.has_left(member.key, outbox) => {
                Standing::Away { keeps }
            }
            Some(outbox) if outbox.is_writable() => Standing::Usable,
            Some(_) => Standing::Congested { keeps },
            None if self.is_connected_elsewhere(member.key) => Standing::Usable,
            None => Standing::Away { keeps },
        }
    }
}
