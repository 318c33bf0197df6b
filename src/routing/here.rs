//! What of the log is this node's to deliver, where several nodes route it (docs/decisions/008).
//!
//! Every node routes every message, so each has the copies of all persistent sessions in its hands.
//! It puts those into queues whose sessions it owns at that place of the log, and keeps the others
//! until their owner is known to have put them there. When a session comes to this node, what is
//! kept for it goes into its queue before anything behind: that may be there already, and is not
//! taken twice.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cluster::{Members, place_of};
use crate::delivery::{Slot, Slots};
use crate::limits::KEPT_FOR_OTHERS_BYTES;
use crate::mqtt::ClientId;
use crate::storage::{
    Batch, Change, LogBatch, Origin, Peers, Position, QueueAppend, QueueEntry, QueueKey,
};

/// Copies whose owner is another node.
#[derive(Debug, Default)]
struct Kept {
    of: HashMap<QueueKey, Vec<(u64, QueueEntry)>, ahash::RandomState>,
    bytes: usize,
}

#[derive(Debug)]
struct State {
    /// As of what was routed.
    members: Arc<Members>,
    /// This run's own beginning was passed. Before it nobody knows what it will own: it puts all
    /// that comes into queues, where most of it is.
    joined: bool,
    kept: Kept,
    /// In the order of the log; at most [`OFFERS`], the oldest go first.
    offers: VecDeque<Offer>,
}

/// Messages for groups of other nodes. More than that, and a node that dies so late takes some
/// decisions with it.
const OFFERS: usize = 100_000;

/// A message for a group that another node decides for.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) origin: Origin,
    pub(super) batch: Arc<Batch>,
    /// Who decides, in which run; and where it has come to do so.
    decider: Arc<str>,
    run: u64,
    since: u64,
}

/// What this node has to do from here on that was another's.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) appends: Vec<QueueAppend>,
    pub(super) offers: Vec<Offer>,
    /// Below it everybody has decided everything, if that has moved.
    pub(super) settled: Option<u64>,
}

/// This node among others, as its dispatcher sees it.
#[derive(Debug)]
pub struct Here {
    peers: Arc<Peers>,
    /// What an earlier run of this node has decided.
    decided_below: u64,
    state: Mutex<State>,
}

/// What a copy that waits takes of its bound.
pub(super) fn cost(entry: &QueueEntry) -> usize {
    let view = entry.message.view();
    view.payload.len() + view.topic.len() + view.properties.len() + 128
}

impl Here {
    pub fn new(peers: Arc<Peers>) -> Self {
        let (members, kept, offers) = Default::default();
        let decided_below = peers.decided_below();
        Self {
            peers,
            decided_below,
            state: Mutex::new(State { members, joined: false, kept, offers }),
        }
    }

    /// Whether the copies of this session are another node's to deliver.
    pub(super) fn is_elsewhere(&self, slot: &Slot) -> bool {
        slot.is_elsewhere() && self.state.lock().joined
    }

    /// Whether another node decides who of a group gets a message; then the message is kept for
    /// the case that it dies before.
    pub(super) fn leaves(&self, origin: &Origin, batch: &Arc<Batch>) -> bool {
        let mut state = self.state.lock();
        let decider = state.members.rendezvous(origin.group).unwrap_or_default();
        if state.joined && decider == &**self.peers.node() {
            return false;
        }
        let run = state.members.get(decider).map_or(0, |member| member.run);
        let decider = Arc::from(decider);
        let acknowledged = batch.view(origin.index as usize).qos.is_acknowledged();
        if acknowledged {
            let (origin, batch) = (*origin, Arc::clone(batch));
            state.offers.push_back(Offer { origin, batch, decider, run, since: 0 });
            if state.offers.len() > OFFERS {
                state.offers.pop_front();
            }
        }
        true
    }

    /// Whether this node decides for a group of this number, and empties its room.
    pub(super) fn decides(&self, group: u64) -> bool {
        let state = self.state.lock();
        state.joined
            && state.members.rendezvous(group).is_some_and(|node| node == &**self.peers.node())
    }

    /// Whether this node counts what concerns them all.
    pub(super) fn counts(&self) -> bool {
        let state = self.state.lock();
        state.members.keeper().is_none_or(|node| node == &**self.peers.node())
    }

    /// Keeps copies for another node's session; gives back what must go into queues to make room.
    pub(super) fn keep(&self, append: QueueAppend) -> Vec<QueueAppend> {
        let mut state = self.state.lock();
        if append.queue.client().is_none() {
            return Vec::new();
        }
        state.kept.bytes += append.entries.iter().map(cost).sum::<usize>();
        let kept = state.kept.of.entry(append.queue).or_default();
        kept.extend(append.entries.into_iter().map(|entry| (append.incarnation, entry)));
        if state.kept.bytes < KEPT_FOR_OTHERS_BYTES {
            return Vec::new();
        }
        let all: Vec<QueueKey> = state.kept.of.keys().cloned().collect();
        tracing::info!(sessions = all.len(), "other nodes are late: their queues are filled here");
        all.into_iter().flat_map(|queue| state.kept.take(queue)).collect()
    }

    /// The owner of this client's session has refused it a copy, so it is kept no longer.
    pub(super) fn refused(&self, client_id: &str, origin: &Origin) {
        let mut state = self.state.lock();
        let Kept { of, bytes } = &mut state.kept;
        let queue = QueueKey::Client(ClientId::new(client_id));
        let Some(entries) = of.get_mut(&queue) else { return };
        entries.retain(|(_, entry)| {
            let source = &entry.source;
            let stays = (source.position, source.index) != (origin.position, origin.index);
            *bytes -= if stays { 0 } else { cost(entry) };
            stays
        });
    }

    /// Takes note of what has changed in front of this batch's messages; gives back what is this
    /// node's to put into queues from here on.
    pub(super) fn take(&self, batch: &LogBatch, slots: &Slots) -> Due {
        let mut due = Due::default();
        for (position, change) in &batch.changes {
            let mut state = self.state.lock();
            match change {
                Change::Nodes(members) => self.nodes(&mut state, members, slots, &mut due),
                Change::Claimed { client, by, .. } => {
                    due.appends.extend(self.claimed(&mut state, slots, client, by, *position));
                }
            }
        }
        due
    }

    fn nodes(&self, state: &mut State, members: &Arc<Members>, slots: &Slots, due: &mut Due) {
        let moved = state.members.changed() != members.changed();
        state.members = Arc::clone(members);
        state.joined |= members.admits(self.peers.run());
        due.settled = members.needed_but("").or(due.settled);
        self.offers(state, moved, due);
        if moved {
            slots.each(|slot| {
                let Some((home, claimed)) = slot.home() else { return };
                let owner = members.owner(place_of(slot.client_id().as_str()), &home, claimed);
                let elsewhere = owner.is_some_and(|owner| owner != &**self.peers.node());
                slot.set_elsewhere(elsewhere);
                if !elsewhere {
                    due.appends.extend(state.kept.take_of(slot.client_id()));
                }
            });
        }
        state.kept.forget(members, slots);
    }

    /// Messages whose decider has decided go; those whose decider is gone get another one.
    fn offers(&self, state: &mut State, moved: bool, due: &mut Due) {
        let State { members, offers, joined, .. } = state;
        let us = &**self.peers.node();
        for mut offer in std::mem::take(offers) {
            let position = offer.origin.position.offset;
            let decider = members.get(&offer.decider).filter(|member| member.run == offer.run);
            let there = decider.is_some_and(|member| member.gone.is_none());
            // Its own earlier run, if that got so far; it may not have said so.
            let by_us = *offer.decider == *us && position < self.decided_below;
            if by_us || decider.is_some_and(|one| one.commit > position.max(offer.since)) {
                continue;
            }
            if !there && (moved || offer.decider.is_empty()) {
                let heir = members.rendezvous(offer.origin.group).unwrap_or_default();
                if heir == us && *joined {
                    due.offers.push(offer);
                    continue;
                }
                offer.run = members.get(heir).map_or(0, |member| member.run);
                (offer.decider, offer.since) = (Arc::from(heir), members.changed());
            }
            offers.push_back(offer);
        }
    }

    fn claimed(
        &self,
        state: &mut State,
        slots: &Slots,
        client: &ClientId,
        by: &Arc<str>,
        position: Position,
    ) -> Vec<QueueAppend> {
        let Some(slot) = slots.by_client(client.as_str()) else { return Vec::new() };
        slot.set_home(by, position.offset);
        let elsewhere = by != self.peers.node();
        slot.set_elsewhere(elsewhere);
        if elsewhere { Vec::new() } else { state.kept.take_of(client) }
    }
}

impl Kept {
    /// All that is kept for a client.
    fn take_of(&mut self, client_id: &ClientId) -> Vec<QueueAppend> {
        let queues = [false, true].map(|application| QueueKey::of(client_id, application));
        queues.into_iter().flat_map(|queue| self.take(queue)).collect()
    }

    fn take(&mut self, queue: QueueKey) -> Vec<QueueAppend> {
        let mut appends: Vec<QueueAppend> = Vec::new();
        for (incarnation, entry) in self.of.remove(&queue).unwrap_or_default() {
            self.bytes -= cost(&entry);
            match appends.last_mut().filter(|last| last.incarnation == incarnation) {
                Some(last) => last.entries.push(entry),
                None => appends.push(QueueAppend {
                    queue: queue.clone(),
                    incarnation,
                    entries: vec![entry],
                }),
            }
        }
        appends
    }

    /// What the owner of a session is known to have put into its queue, since it has it.
    fn forget(&mut self, members: &Members, slots: &Slots) {
        let bytes = &mut self.bytes;
        self.of.retain(|queue, entries| {
            let client_id = queue.name();
            let home = slots.by_client(client_id).and_then(|slot| slot.home());
            let Some((home, claimed)) = home else {
                // The session has ended.
                *bytes -= entries.iter().map(|(_, entry)| cost(entry)).sum::<usize>();
                return false;
            };
            let owner = members.owner(place_of(client_id), &home, claimed);
            let done = owner.map_or(0, |owner| members.done_below(owner));
            if done > claimed {
                entries.retain(|(_, entry)| {
                    let stays = entry.source.position.offset >= done;
                    *bytes -= if stays { 0 } else { cost(entry) };
                    stays
                });
            }
            !entries.is_empty()
        });
    }
}
