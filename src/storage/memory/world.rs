//! The state behind all ports: one log, its projection, and snapshots a crash may fall back to.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::queue::MemoryQueue;
use super::{Faults, MemoryConfig};
use crate::storage::{
    AppendOutcome, AppendSink, Durability, Follower, IdRun, LogItem, Position, QueueKey, Row, Table,
};

/// How many snapshots a crash can choose from.
const SNAPSHOTS: usize = 4;

#[derive(Clone, Debug)]
pub(super) enum Record {
    Item(LogItem),
    Rows { rows: Arc<[Row]>, relaxed: bool },
    Open(QueueKey, u64),
    Remove(QueueKey, u64),
    Received(QueueKey, u64, Vec<u64>),
    Run(QueueKey, u64, IdRun),
}

#[derive(Clone, Debug)]
pub(super) struct Logged {
    pub(super) offset: u64,
    pub(super) record: Record,
    pub(super) durable: bool,
}

pub(super) struct Pending {
    record: Record,
    durability: Durability,
    sink: Arc<dyn AppendSink>,
    ticket: u64,
}

pub(super) type Rows = BTreeMap<(Table, Bytes), (u64, Bytes)>;
pub(super) type Queues = BTreeMap<QueueKey, Arc<MemoryQueue>>;

/// What would be durable: commit, queues and rows of one moment.
#[derive(Clone, Debug)]
struct Snapshot {
    applied: u64,
    commit: (u64, Vec<u8>),
    queues: Queues,
    rows: Arc<Rows>,
    routed: Arc<Rows>,
}

/// A small seeded generator.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % sides.max(1)
    }
}

pub(super) struct State {
    pub(super) incarnation: u64,
    pub(super) dice: Dice,
    pub(super) faults: Faults,
    pub(super) limit: u64,
    pub(super) ttl_ms: u64,
    pub(super) dead: bool,
    pending: VecDeque<Pending>,
    pub(super) log: VecDeque<Logged>,
    /// Where the next record will stand.
    pub(super) end: u64,
    /// The consumer sees records below it: those whose sinks were told.
    pub(super) visible: u64,
    pub(super) consumer_taken: bool,
    /// Where the consumer reads next.
    pub(super) at: u64,
    /// The end of the last batch that was handed out.
    pub(super) told: u64,
    pub(super) passed: u64,
    pub(super) commit: (u64, Vec<u8>),
    pub(super) rows: Arc<Rows>,
    /// Subscriptions and retained messages as they were at the commit.
    pub(super) routed: Arc<Rows>,
    pub(super) queues: Queues,
    pub(super) followers: BTreeMap<Table, Arc<dyn Follower>>,
    snapshots: VecDeque<Snapshot>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("end", &self.end)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) state: Mutex<State>,
    /// Something waits to be settled.
    work: Notify,
    /// Something new is visible to the consumer.
    pub(super) arrived: Notify,
}

impl From<State> for World {
    fn from(state: State) -> Self {
        Self { state: Mutex::new(state), work: Notify::new(), arrived: Notify::new() }
    }
}

impl World {
    pub(super) fn new(config: &MemoryConfig) -> Self {
        let mut dice = Dice(config.seed);
        let state = State {
            incarnation: 1 + dice.roll(1 << 30),
            dice,
            faults: Faults::default(),
            limit: config.queue_limit,
            ttl_ms: u64::try_from(config.queue_ttl.as_millis()).unwrap_or(u64::MAX),
            dead: false,
            pending: VecDeque::new(),
            log: VecDeque::new(),
            end: 1,
            visible: 1,
            consumer_taken: false,
            at: 1,
            told: 1,
            passed: 1,
            commit: (1, Vec::new()),
            rows: Arc::default(),
            routed: Arc::default(),
            queues: BTreeMap::new(),
            followers: BTreeMap::new(),
            snapshots: VecDeque::new(),
        };
        Self::from(state)
    }

    pub(super) fn submit(
        &self,
        record: Record,
        durability: Durability,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let mut state = self.state.lock();
        // A dead backend tells nobody anything: its process is gone.
        if !state.dead {
            state.pending.push_back(Pending { record, durability, sink, ticket });
            drop(state);
            self.work.notify_one();
        }
    }

    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.dead = true;
        state.pending.clear();
    }
}

/// Settles what waits, in order, as late as the faults say.
pub(super) async fn settle(world: Arc<World>) {
    loop {
        world.work.notified().await;
        let delay = {
            let mut state = world.state.lock();
            let most = u64::try_from(state.faults.delay.as_micros()).unwrap_or(u64::MAX);
            Duration::from_micros(if most == 0 { 0 } else { state.dice.roll(most) })
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        settle_now(&world);
    }
}

pub(super) fn settle_now(world: &World) {
    loop {
        let mut state = world.state.lock();
        let Some(pending) = state.pending.pop_front() else { return };
        let Pending { record, durability, sink, ticket } = pending;
        let (stored, doubt) = match &record {
            Record::Item(_) if state.faults.no_messages => (false, false),
            _ => state.fate(),
        };
        let outcome = match (stored, doubt) {
            (_, true) => AppendOutcome::InDoubt,
            (true, false) => AppendOutcome::Stored(Position { partition: 0, offset: state.end }),
            (false, false) => AppendOutcome::NotStored,
        };
        let told = if stored { state.store(record, durability) } else { Vec::new() };
        let end = state.end;
        drop(state);
        for (follower, position, row) in told {
            follower.apply(position, &row);
        }
        sink.settled(ticket, outcome);
        world.state.lock().visible = end;
        world.arrived.notify_one();
    }
}

fn put(rows: &mut Rows, offset: u64, row: &Row) {
    let key = (row.table, row.key.clone());
    match &row.value {
        Some(value) => rows.insert(key, (offset, value.clone())),
        None => rows.remove(&key),
    };
}

type Told = Vec<(Arc<dyn Follower>, Position, Row)>;

impl State {
    /// Whether the next append is stored, and whether anybody knows.
    fn fate(&mut self) -> (bool, bool) {
        let roll = self.dice.roll(1000);
        let Faults { not_stored, in_doubt, .. } = self.faults;
        if roll < u64::from(not_stored) {
            (false, false)
        } else if roll < u64::from(not_stored + in_doubt) {
            (self.dice.roll(2) == 0, true)
        } else {
            (true, false)
        }
    }

    fn store(&mut self, record: Record, durability: Durability) -> Told {
        let offset = self.end;
        self.end += 1;
        let durable = durability == Durability::Durable;
        self.log.push_back(Logged { offset, record: record.clone(), durable });
        self.apply(offset, &record)
    }

    /// What a record changes; the followers to be told of it.
    fn apply(&mut self, offset: u64, record: &Record) -> Told {
        match record {
            Record::Item(_) => {}
            Record::Rows { rows, relaxed } => {
                let position = Position { partition: 0, offset };
                if !relaxed {
                    rows.iter().for_each(|row| self.keep(offset, row));
                }
                let others = rows.iter().filter(|row| row.table != Table::Retained);
                let told = others.filter_map(|row| {
                    let follower = self.followers.get(&row.table)?;
                    Some((Arc::clone(follower), position, row.clone()))
                });
                return told.collect();
            }
            Record::Open(key, incarnation) => {
                let known = self.queues.get(key);
                if known.is_none_or(|queue| queue.incarnation != *incarnation) {
                    let fresh = Arc::new(MemoryQueue::new(*incarnation));
                    if let Some(old) = self.queues.insert(key.clone(), fresh) {
                        old.thrown_away();
                    }
                }
            }
            Record::Remove(key, incarnation) => {
                let known = self.queues.get(key);
                if known.is_some_and(|queue| queue.incarnation == *incarnation)
                    && let Some(old) = self.queues.remove(key)
                {
                    old.thrown_away();
                }
            }
            Record::Received(key, incarnation, seqs) => {
                if let Some(queue) = self.queue(key, *incarnation) {
                    queue.received(seqs);
                }
            }
            Record::Run(key, incarnation, run) => {
                if let Some(queue) = self.queue(key, *incarnation) {
                    queue.reserve(*run);
                }
            }
        }
        Vec::new()
    }

    fn keep(&mut self, offset: u64, row: &Row) {
        put(Arc::make_mut(&mut self.rows), offset, row);
    }

    /// The commit moves to `end`: what stands up to there is what a replay begins with.
    pub(super) fn route_to(&mut self, end: u64) {
        for (offset, row) in self.routed_from(self.commit.0) {
            if offset < end {
                put(Arc::make_mut(&mut self.routed), offset, &row);
            }
        }
    }

    /// Durable rows that routing looks at, from an offset on, in order.
    pub(super) fn routed_from(&self, from: u64) -> Vec<(u64, Row)> {
        let first = self.log.partition_point(|logged| logged.offset < from);
        let mut found = Vec::new();
        for Logged { offset, record, .. } in self.log.range(first..) {
            if let Record::Rows { rows, relaxed: false } = record {
                let routed = [Table::Subscriptions, Table::Retained];
                let ours = rows.iter().filter(|row| routed.contains(&row.table));
                found.extend(ours.map(|row| (*offset, row.clone())));
            }
        }
        found
    }

    pub(super) fn queue(&mut self, key: &QueueKey, incarnation: u64) -> Option<&mut MemoryQueue> {
        let queue = self.queues.get_mut(key)?;
        (queue.incarnation == incarnation).then(|| Arc::make_mut(queue))
    }

    // === what survives ===

    /// Remembers this moment as one that would be durable.
    pub(super) fn snapshot(&mut self) {
        self.snapshots.push_back(Snapshot {
            applied: self.end,
            commit: self.commit.clone(),
            queues: self.queues.clone(),
            rows: Arc::clone(&self.rows),
            routed: Arc::clone(&self.routed),
        });
        if self.snapshots.len() > SNAPSHOTS {
            self.snapshots.pop_front();
        }
        let oldest = self.snapshots.front();
        let needed = oldest.map_or(0, |oldest| oldest.commit.0.min(oldest.applied));
        while self.log.front().is_some_and(|logged| logged.offset < needed) {
            self.log.pop_front();
        }
    }

    pub(super) fn crash(&mut self) -> State {
        if self.faults.rollback {
            self.survive_some_pending();
            self.lose_tail();
        }
        let back = match self.faults.rollback {
            true => self.dice.roll(self.snapshots.len() as u64 + 1) as usize,
            false => 0,
        };
        let chosen = self.snapshots.len().checked_sub(back + 1);
        let snapshot = chosen.and_then(|chosen| self.snapshots.get(chosen)).cloned();
        // Before the first snapshot is pushed out of the list, the beginning can be fallen back to.
        let whole = self.log.front().map_or(self.end, |first| first.offset) == 1;
        let oldest = self.snapshots.front().cloned();
        let fallback = if whole { None } else { oldest };
        self.revive(snapshot.or(fallback), false)
    }

    pub(super) fn restart(&mut self) -> State {
        self.snapshot();
        let newest = self.snapshots.back().cloned();
        self.revive(newest, true)
    }

    /// What was on its way may have been stored although nobody was told.
    fn survive_some_pending(&mut self) {
        let survive = self.dice.roll(self.pending.len() as u64 + 1);
        for _ in 0..survive {
            if let Some(pending) = self.pending.pop_front() {
                let durable = pending.durability == Durability::Durable;
                let offset = self.end;
                self.end += 1;
                self.log.push_back(Logged { offset, record: pending.record, durable });
            }
        }
    }

    /// Only what is durable holds what stands before it.
    fn lose_tail(&mut self) {
        let durable = self.log.iter().rposition(|logged| logged.durable).map_or(0, |at| at + 1);
        let keep = durable as u64 + self.dice.roll((self.log.len() - durable) as u64 + 1);
        self.log.truncate(keep as usize);
        // The lost offsets are not used again.
        self.end += 1;
    }

    fn revive(&mut self, snapshot: Option<Snapshot>, orderly: bool) -> State {
        let start = || Snapshot {
            applied: 1,
            commit: (1, Vec::new()),
            queues: BTreeMap::new(),
            rows: Arc::default(),
            routed: Arc::default(),
        };
        let Snapshot { applied, commit, queues, rows, routed } = snapshot.unwrap_or_else(start);
        let mut next = State {
            incarnation: self.incarnation,
            dice: self.dice.clone(),
            faults: self.faults,
            limit: self.limit,
            ttl_ms: self.ttl_ms,
            dead: false,
            pending: VecDeque::new(),
            log: self.log.clone(),
            end: self.end,
            visible: self.end,
            consumer_taken: false,
            at: commit.0,
            told: commit.0,
            passed: commit.0,
            commit: commit.clone(),
            rows,
            routed,
            queues,
            followers: BTreeMap::new(),
            snapshots: VecDeque::new(),
        };
        for Logged { offset, record, .. } in &self.log {
            if *offset >= applied {
                next.apply(*offset, record);
            }
        }
        if !orderly {
            next.queues.values_mut().for_each(|queue| Arc::make_mut(queue).recovered());
        }
        next.snapshot();
        // The log must go on holding what a second crash would replay.
        next
    }
}
