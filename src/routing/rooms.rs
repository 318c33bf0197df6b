//! The rooms of shared groups (docs/decisions/010): in each, messages of one group wait that no
//! member could take. What is in a room is in a queue; here is what must be known beside it: which
//! rooms there are, and whether something may wait in one, so that what comes goes behind it.
//!
//! A room begins and ends with records of the log, and is part of the dispatcher's state: every
//! node, and every run of it, knows the same rooms at the same place.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::judge::Judge;
use super::rows::{decode_row, encode_row};
use crate::storage::{Committed, Position, QueueKey, StorageError};

/// What the log does not have yet.
const UNDER_WAY: u64 = u64::MAX;
/// Sessions that ended on this node, remembered for copies on their way to them. The oldest is
/// forgotten: what comes for it later is counted as lost with its session.
const DEPARTED: usize = 10_000;
/// Before the state of earlier versions, which begin with their own.
const STATE: u8 = 0x80;

/// Bounded by the number of groups: one that has no members any more has no room.
#[derive(Debug, Default)]
pub struct Rooms {
    rooms: Mutex<BTreeMap<Arc<str>, Room>>,
    /// How many of them may have something in them: mostly none, which is seen without a lock.
    busy: AtomicUsize,
    departed: Mutex<Departed>,
    /// Something has come to a room, or somebody may take from one.
    pub woken: Notify,
}

#[derive(Debug, Default)]
struct Departed {
    known: HashSet<(QueueKey, u64), ahash::RandomState>,
    order: VecDeque<(QueueKey, u64)>,
}

#[derive(Debug, Default)]
struct Room {
    /// It is a log, as that of an APPLICATION client; known from its first record on.
    application: bool,
    /// Of its queue; `None`: nothing has come to it yet.
    incarnation: Option<u64>,
    /// Its queue was opened by this run.
    opened: bool,
    /// Something may wait in it, or is on its way to it.
    busy: bool,
    /// What is known to go to it stands below this place of the log.
    until: u64,
}

/// A room as whoever empties it sees it.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) filter: Arc<str>,
    pub(super) queue: QueueKey,
    pub(super) incarnation: Option<u64>,
    pub(super) until: u64,
}

#[derive(Serialize, Deserialize)]
struct State<'a> {
    #[serde(borrow)]
    judge: &'a [u8],
    #[serde(borrow)]
    rooms: Vec<(&'a str, u64, bool)>,
}

/// The queue of a group's room.
fn queue_of(filter: Arc<str>, application: bool) -> QueueKey {
    match application {
        true => QueueKey::Shared(filter),
        false => QueueKey::Group(filter),
    }
}

impl Rooms {
    fn set_busy(&self, room: &mut Room, busy: bool) {
        match (room.busy, busy) {
            (false, true) => _ = self.busy.fetch_add(1, Ordering::AcqRel),
            (true, false) => _ = self.busy.fetch_sub(1, Ordering::AcqRel),
            (false, false) | (true, true) => {}
        }
        room.busy = busy;
    }

    // === the dispatcher's side ===

    /// Whether something may wait for the group: then a message that is to be acknowledged goes
    /// behind it.
    pub(super) fn is_busy(&self, filter: &str) -> bool {
        self.busy.load(Ordering::Acquire) > 0
            && self.rooms.lock().get(filter).is_some_and(|room| room.busy)
    }

    /// The queue of a group's room; of one that is new, as `is_new` says.
    pub(super) fn queue(&self, filter: Arc<str>, is_new: impl FnOnce() -> bool) -> QueueKey {
        let rooms = self.rooms.lock();
        let known = rooms.get(&filter).filter(|room| room.incarnation.is_some());
        let known = known.map(|room| room.application);
        drop(rooms);
        queue_of(filter, known.unwrap_or_else(is_new))
    }

    /// A message is to wait.
    pub(super) fn decided(&self, filter: &Arc<str>) {
        let mut rooms = self.rooms.lock();
        let room = rooms.entry(Arc::clone(filter)).or_default();
        room.until = UNDER_WAY;
        self.set_busy(room, true);
    }

    /// What was decided is in the log, below this place.
    pub(super) fn stored(&self, filter: &str, below: u64) {
        if let Some(room) = self.rooms.lock().get_mut(filter) {
            room.until = below;
        }
    }

    /// A record for the group stands here: into which queue it goes, and into which life of it.
    /// The first one says of which kind the room is.
    pub(super) fn passed(&self, filter: &Arc<str>, to: &QueueKey, at: Position) -> (QueueKey, u64) {
        let mut rooms = self.rooms.lock();
        let room = rooms.entry(Arc::clone(filter)).or_default();
        if room.incarnation.is_none() {
            room.application = to.is_application();
        }
        let queue = queue_of(Arc::clone(filter), room.application);
        room.until = room.until.max(at.offset + 1);
        self.set_busy(room, true);
        let incarnation = *room.incarnation.get_or_insert(at.offset + 1);
        drop(rooms);
        self.woken.notify_one();
        (queue, incarnation)
    }

    /// The room's end stands in the log: the queue that goes; `None`: it is over already, or is
    /// another one by now.
    pub(super) fn ended(&self, filter: &Arc<str>, incarnation: u64) -> Option<QueueKey> {
        let mut rooms = self.rooms.lock();
        let room = rooms.get_mut(filter)?;
        if room.incarnation != Some(incarnation) {
            return None;
        }
        let queue = queue_of(Arc::clone(filter), room.application);
        if room.until == UNDER_WAY {
            // Something is on its way to it: that makes a new one.
            (room.incarnation, room.opened) = (None, false);
            return Some(queue);
        }
        self.set_busy(room, false);
        rooms.remove(filter);
        Some(queue)
    }

    pub(super) fn is_opened(&self, filter: &str, incarnation: u64) -> bool {
        let rooms = self.rooms.lock();
        rooms.get(filter).is_some_and(|room| room.opened && room.incarnation == Some(incarnation))
    }

    pub(super) fn opened(&self, filter: &str, incarnation: u64, opened: bool) {
        let mut rooms = self.rooms.lock();
        if let Some(room) = rooms.get_mut(filter)
            && room.incarnation == Some(incarnation)
        {
            room.opened = opened;
        }
    }

    // === sessions that have ended ===

    /// A session of this node has ended, and its queue with it.
    pub fn departed(&self, queue: QueueKey, incarnation: u64) {
        let mut departed = self.departed.lock();
        let gone = (queue, incarnation);
        if departed.known.insert(gone.clone()) {
            departed.order.push_back(gone);
        }
        if departed.order.len() > DEPARTED
            && let Some(oldest) = departed.order.pop_front()
        {
            departed.known.remove(&oldest);
        }
    }

    pub(super) fn has_departed(&self, queue: &QueueKey, incarnation: u64) -> bool {
        self.departed.lock().known.contains(&(queue.clone(), incarnation))
    }

    // === the side that empties rooms ===

    pub(super) fn all_busy(&self) -> Vec<View> {
        let rooms = self.rooms.lock();
        let busy = rooms.iter().filter(|(_, room)| room.busy);
        busy.map(|(filter, room)| room.view(filter)).collect()
    }

    pub(super) fn all(&self) -> Vec<View> {
        self.rooms.lock().iter().map(|(filter, room)| room.view(filter)).collect()
    }

    /// A look found nothing; `false`: something has been decided since.
    pub(super) fn found_empty(&self, seen: &View) -> bool {
        let mut rooms = self.rooms.lock();
        let Some(room) = rooms.get_mut(&seen.filter) else { return true };
        let same = room.until == seen.until && room.incarnation == seen.incarnation;
        if same {
            self.set_busy(room, false);
        }
        same
    }

    // === what outlives a run ===

    /// The dispatcher's state: the judge's, and which rooms there are.
    pub(super) fn encode(&self, judge: &Judge) -> Vec<u8> {
        let (judge, rooms) = (judge.encode(), self.rooms.lock());
        let named = rooms
            .iter()
            .filter_map(|(name, room)| Some((&**name, room.incarnation?, room.application)));
        let state = State { judge: &judge, rooms: named.collect() };
        [&[STATE], &encode_row(&state)[..]].concat()
    }

    /// What an earlier run left with its commit. Whether something waits in a room is found out:
    /// `end` is where the log ends.
    pub fn decode(committed: &Committed, end: u64) -> Result<(Judge, Self), StorageError> {
        let rooms = Self::default();
        let Some((&STATE, state)) = committed.state.split_first() else {
            return Ok((Judge::decode(&committed.state)?, rooms));
        };
        let state: State<'_> = decode_row(state, "dispatcher state")?;
        let judge = Judge::decode(state.judge)?;
        let mut all = rooms.rooms.lock();
        for (name, incarnation, application) in state.rooms {
            let incarnation = Some(incarnation);
            let mut room = Room { application, incarnation, until: end, ..Room::default() };
            rooms.set_busy(&mut room, true);
            all.insert(Arc::from(name), room);
        }
        drop(all);
        Ok((judge, rooms))
    }
}

impl Room {
    fn view(&self, filter: &Arc<str>) -> View {
        let queue = queue_of(Arc::clone(filter), self.application);
        let filter = Arc::clone(filter);
        View { filter, queue, incarnation: self.incarnation, until: self.until }
    }
}

/// Copies that were taken from queues, lately: of several records that take the same one, the
/// first counts. There is a second one where an append was in doubt, or where two nodes, for a
/// moment, both went by what they knew.
#[derive(Debug, Default)]
pub(super) struct Takings {
    known: HashMap<u64, HashSet<u64, ahash::RandomState>, ahash::RandomState>,
    order: VecDeque<(u64, u64, u64)>,
}

/// As many as could be repeated by one write of the log that was in doubt.
const TAKINGS: usize = 32_768;

impl Takings {
    /// `of` names the queue and its life.
    pub(super) fn is_first(&mut self, of: u64, seq: u64, at: Position) -> bool {
        let first = self.known.entry(of).or_default().insert(seq);
        if first {
            self.order.push_back((at.offset, of, seq));
            if self.order.len() > TAKINGS {
                self.forget();
            }
        }
        first
    }

    /// Every node has passed this place.
    pub(super) fn settled(&mut self, position: u64) {
        while self.order.front().is_some_and(|(at, ..)| *at < position) {
            self.forget();
        }
    }

    fn forget(&mut self) {
        let Some((_, of, seq)) = self.order.pop_front() else { return };
        if let Some(seqs) = self.known.get_mut(&of) {
            seqs.remove(&seq);
            if seqs.is_empty() {
                self.known.remove(&of);
            }
        }
    }
}
