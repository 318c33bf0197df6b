//! The publish log and its consumer.

use std::sync::Arc;

use super::world::{Logged, Record, State, World};
use crate::storage::{
    AppendSink, Batch, BoxFuture, Committed, DirectCopy, Durability, Follower, LogBatch,
    LogConsumer, LogItem, Origin, Position, PublishLog, QueueKey, Row, StorageError, Table,
};
use crate::telemetry::clock::wall_ms;

/// Items of one batch for the consumer.
const BATCH_ITEMS: u64 = 64;
/// Of so many commits one becomes a moment that a crash can fall back to.
const SNAPSHOT_EVERY: u64 = 3;

#[derive(Debug)]
pub(super) struct MemoryLog {
    pub(super) world: Arc<World>,
}

#[derive(Debug)]
struct MemoryConsumer {
    world: Arc<World>,
}

fn at(offset: u64) -> Position {
    Position { partition: 0, offset }
}

impl PublishLog for MemoryLog {
    fn append(
        &self,
        batch: Arc<Batch>,
        durability: Durability,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        self.world.submit(Record::Item(LogItem::Publishes(batch)), durability, sink, ticket);
    }

    fn append_direct(
        &self,
        to: QueueKey,
        incarnation: u64,
        batch: Arc<Batch>,
        deliveries: Arc<[DirectCopy]>,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let item = LogItem::Direct { to, incarnation, batch, deliveries };
        self.world.submit(Record::Item(item), Durability::Durable, sink, ticket);
    }

    fn consumer(&self, partition: u32) -> (Committed, Box<dyn LogConsumer>) {
        assert_eq!(partition, 0, "memory storage has one partition");
        let mut state = self.world.state.lock();
        assert!(!state.consumer_taken, "the caller opens one consumer of a partition");
        state.consumer_taken = true;
        let (offset, encoded) = state.commit.clone();
        let behind = state.log.iter().filter(|logged| logged.offset >= offset);
        let decided =
            behind.flat_map(decided).filter(|(_, origin)| origin.position.offset >= offset);
        let decided = decided.collect();
        let committed = Committed { position: at(offset), state: encoded, decided };
        (committed, Box::new(MemoryConsumer { world: Arc::clone(&self.world) }))
    }

    fn end(&self, _partition: u32) -> Position {
        at(self.world.state.lock().end)
    }

    fn lag(&self) -> (u64, u64) {
        let state = self.world.state.lock();
        let waiting = state.log.iter().filter(|logged| logged.offset >= state.passed);
        let batches: Vec<&Arc<Batch>> = waiting.filter_map(|logged| batch(logged)).collect();
        let bytes = batches.iter().map(|batch| batch.body().len() as u64).sum();
        let oldest = batches.first().map_or(0, |batch| batch.received_at_ms());
        let age = if batches.is_empty() { 0 } else { wall_ms().saturating_sub(oldest) };
        (bytes, age)
    }

    fn trouble(&self) -> Option<String> {
        let state = self.world.state.lock();
        (state.faults.not_stored >= 1000).then(|| "every append is refused".into())
    }
}

fn batch(logged: &Logged) -> Option<&Arc<Batch>> {
    match &logged.record {
        Record::Item(LogItem::Publishes(batch) | LogItem::Direct { batch, .. }) => Some(batch),
        Record::Rows { .. }
        | Record::Open(..)
        | Record::Remove(..)
        | Record::Received(..)
        | Record::Run(..) => None,
    }
}

fn decided(logged: &Logged) -> Vec<(Position, Origin)> {
    let Record::Item(LogItem::Direct { deliveries, .. }) = &logged.record else {
        return Vec::new();
    };
    deliveries.iter().filter_map(|copy| Some((at(logged.offset), copy.decision()?))).collect()
}

enum Step {
    Batch(LogBatch),
    Retained(Option<Arc<dyn Follower>>, Position, Vec<Row>),
    Nothing,
}

impl State {
    fn step(&mut self) -> Step {
        self.passed = self.passed.max(self.at);
        // Batches differ in size, so that nothing above can lean on where they end.
        let most = 1 + self.dice.roll(BATCH_ITEMS);
        let mut items: Vec<(Position, LogItem)> = Vec::new();
        let from = self.log.partition_point(|logged| logged.offset < self.at);
        let mut whole = true;
        for logged in self.log.range(from..) {
            if logged.offset >= self.visible || items.len() as u64 >= most {
                whole = logged.offset >= self.visible;
                break;
            }
            match &logged.record {
                Record::Item(item) => items.push((at(logged.offset), item.clone())),
                Record::Rows { rows, .. } => {
                    let retained = rows.iter().filter(|row| row.table == Table::Retained);
                    let rows: Vec<Row> = retained.cloned().collect();
                    if !rows.is_empty() {
                        if !items.is_empty() {
                            whole = false;
                            break;
                        }
                        self.at = logged.offset + 1;
                        let follower = self.followers.get(&Table::Retained).cloned();
                        return Step::Retained(follower, at(logged.offset), rows);
                    }
                }
                Record::Open(..) | Record::Remove(..) | Record::Received(..) | Record::Run(..) => {}
            }
            self.at = logged.offset + 1;
        }
        if whole {
            self.at = self.visible.max(self.at);
        }
        if self.at <= self.told {
            return Step::Nothing;
        }
        self.told = self.at;
        Step::Batch(LogBatch {
            incarnation: self.incarnation,
            changes: Vec::new(),
            items,
            end: at(self.at),
        })
    }
}

impl LogConsumer for MemoryConsumer {
    fn next(&mut self) -> BoxFuture<'_, Result<LogBatch, StorageError>> {
        Box::pin(async move {
            loop {
                let arrived = self.world.arrived.notified();
                let step = self.world.state.lock().step();
                match step {
                    Step::Batch(batch) => return Ok(batch),
                    Step::Retained(follower, position, rows) => {
                        for row in follower.iter().flat_map(|_| &rows) {
                            if let Some(follower) = &follower {
                                follower.apply(position, row);
                            }
                        }
                    }
                    Step::Nothing => arrived.await,
                }
            }
        })
    }

    fn commit(&mut self, position: Position, encode: &mut dyn FnMut() -> Vec<u8>) {
        let encoded = encode();
        let mut state = self.world.state.lock();
        state.passed = state.passed.max(position.offset);
        state.route_to(position.offset);
        state.commit = (position.offset, encoded);
        if state.dice.roll(SNAPSHOT_EVERY) == 0 {
            state.snapshot();
        }
    }
}
