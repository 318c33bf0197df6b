//! `ChangeLog` on Kafka. A put is one record of the log: that gives its rows one place in the one
//! order. The reader applies them, and the keeper writes them behind into their tables' compacted
//! topics, from which `load` reads.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rdkafka::topic_partition_list::Offset;

use super::KafkaSettings;
use super::format::{RecordKind, decode_value, encode_rows};
use super::read;
use super::watch::Watch;
use super::writer::Writer;
use crate::storage::{
    AppendSink, ChangeLog, Durability, Follower, Position, Row, StorageError, Table,
};

/// Rows of other nodes that came between a load and its follower; a start takes less.
const UNTOLD_MAX: usize = 1_000_000;

type Untold = BTreeMap<Table, VecDeque<(Position, Row)>>;

#[derive(Default)]
struct Followers {
    of: BTreeMap<Table, Arc<dyn Follower>>,
    /// What a follower that is still to come must be told.
    untold: Untold,
}

/// Rows of the log that do not stand in their topics yet, positions rising.
#[derive(Default)]
pub(super) struct Behind {
    /// They may be written at once.
    pub(super) plain: VecDeque<(u64, Row)>,
    /// Subscriptions and retained messages: they may be written when a commit has passed them.
    pub(super) routed: VecDeque<(u64, Row)>,
}

pub(super) struct Tables {
    pub(super) settings: Arc<KafkaSettings>,
    pub(super) partitions: BTreeMap<String, u32>,
    watch: Arc<Watch>,
    writer: Arc<Writer>,
    followers: Mutex<Followers>,
    /// There was a put: who does not follow by now never will.
    started: AtomicBool,
    pub(super) behind: Mutex<Behind>,
    /// Held while rows move from `behind` to their topics, and while a load looks at both.
    pub(super) moving: Mutex<()>,
    /// Up to where routed rows may be written: a commit that is durable.
    pub(super) committed: Mutex<u64>,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

fn at(offset: u64) -> Position {
    Position { partition: 0, offset }
}

fn keep(untold: &mut Untold, position: Position, row: &Row) {
    let untold = untold.entry(row.table).or_default();
    if untold.len() < UNTOLD_MAX {
        untold.push_back((position, row.clone()));
    }
}

fn is_routed(table: Table) -> bool {
    match table {
        Table::Subscriptions | Table::Retained => true,
        Table::Sessions | Table::Credentials | Table::Blocked | Table::Settings => false,
    }
}

impl Tables {
    pub(super) fn new(
        settings: Arc<KafkaSettings>,
        partitions: BTreeMap<String, u32>,
        watch: Arc<Watch>,
        writer: Arc<Writer>,
        committed: u64,
    ) -> Self {
        Self {
            settings,
            partitions,
            watch,
            writer,
            followers: Mutex::default(),
            started: AtomicBool::new(false),
            behind: Mutex::default(),
            moving: Mutex::new(()),
            committed: Mutex::new(committed),
        }
    }

    /// A put of the time before this start, found in the log.
    pub(super) fn found(&self, position: u64, rows: Vec<Row>) {
        // What the consumer will get again is routed as it was: its follower is told later.
        if position >= *self.committed.lock() {
            let untold = &mut self.followers.lock().untold;
            let late = rows.iter().filter(|row| row.table == Table::Subscriptions);
            late.for_each(|row| keep(untold, at(position), row));
        }
        self.push(position, rows);
    }

    /// The reader came across a put; `kept` rows will be found by the next start.
    pub(super) fn apply(&self, position: u64, rows: Vec<Row>, kept: bool) {
        // Held, so that a follower that comes meanwhile is told everything once.
        let mut followers = self.followers.lock();
        let Followers { of, untold } = &mut *followers;
        let started = self.started.load(Ordering::Acquire);
        for row in rows.iter().filter(|row| row.table != Table::Retained) {
            match of.get(&row.table) {
                Some(follower) => follower.apply(at(position), row),
                None if started => {}
                None => keep(untold, at(position), row),
            }
        }
        drop(followers);
        if kept {
            self.push(position, rows);
        }
    }

    /// The consumer has passed what stands before these.
    pub(super) fn tell_retained(&self, position: Position, rows: &[Row]) {
        let follower = self.followers.lock().of.get(&Table::Retained).cloned();
        if let Some(follower) = follower {
            rows.iter().for_each(|row| follower.apply(position, row));
        }
    }

    fn push(&self, position: u64, rows: Vec<Row>) {
        let mut behind = self.behind.lock();
        for row in rows {
            match is_routed(row.table) {
                true => behind.routed.push_back((position, row)),
                false => behind.plain.push_back((position, row)),
            }
        }
    }

    /// The topic, and how many partitions it has.
    pub(super) fn place(&self, table: Table) -> (String, u32) {
        let name = self.settings.name(self.settings.table(table));
        let partitions = self.partitions.get(&name).copied().unwrap_or(1);
        (name, partitions)
    }

    /// The newest row of each key, deletions included.
    fn newest(&self, table: Table) -> Result<HashMap<Bytes, (u64, Option<Bytes>)>, StorageError> {
        let _still = self.moving.lock();
        let mut newest: HashMap<Bytes, (u64, Option<Bytes>)> = HashMap::new();
        let mut put = |key: Bytes, position: u64, value: Option<Bytes>| {
            let entry = newest.entry(key).or_insert((0, None));
            if entry.0 <= position {
                *entry = (position, value);
            }
        };
        let (topic, partitions) = self.place(table);
        let config = self.settings.consumer(self.settings.table(table));
        let (from, patience) = (Offset::Beginning, self.settings.config.command_timeout);
        read::to_the_end(&config, &self.watch, &topic, partitions, from, patience, &mut |found| {
            if found.mark.kind == RecordKind::TableRow {
                let value = found.payload.map(decode_value).transpose()?;
                put(Bytes::copy_from_slice(found.key), found.mark.number, value);
            }
            Ok(())
        })?;
        let committed = *self.committed.lock();
        let behind = self.behind.lock();
        let (rows, until) = match is_routed(table) {
            true => (&behind.routed, committed),
            false => (&behind.plain, u64::MAX),
        };
        for (position, row) in
            rows.iter().filter(|(position, row)| row.table == table && *position < until)
        {
            put(row.key.clone(), *position, row.value.clone());
        }
        drop(behind);
        Ok(newest)
    }
}

/// The port: the tables, kept from being a reference of their own threads.
#[derive(Debug)]
pub(super) struct KafkaTables(pub(super) Arc<Tables>);

impl ChangeLog for KafkaTables {
    /// Relaxed rows take their place in the log like durable ones, and are forgotten with it.
    fn put(&self, rows: Vec<Row>, durability: Durability, sink: Arc<dyn AppendSink>, ticket: u64) {
        let tables = &self.0;
        if !tables.started.swap(true, Ordering::AcqRel) {
            tables.followers.lock().untold.clear();
        }
        let payload = encode_rows(&rows);
        let kind = match durability {
            Durability::Durable => RecordKind::Rows,
            Durability::Relaxed => RecordKind::Relaxed,
        };
        tables.writer.append(kind, &[], &payload, sink, ticket);
    }

    fn load(
        &self,
        table: Table,
        visit: &mut dyn FnMut(Position, &[u8], &[u8]),
    ) -> Result<(), StorageError> {
        for (key, (position, value)) in self.0.newest(table)? {
            if let Some(value) = value {
                visit(at(position), &key, &value);
            }
        }
        Ok(())
    }

    fn follow(&self, table: Table, follower: Arc<dyn Follower>) {
        let mut followers = self.0.followers.lock();
        for (position, row) in followers.untold.remove(&table).unwrap_or_default() {
            follower.apply(position, &row);
        }
        followers.of.insert(table, follower);
    }
}
