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
use super::writer::{Content, Writer};
use crate::mqtt::ClientId;
use crate::storage::{
    AppendSink, ChangeLog, Durability, Follower, InForce, Position, Resolver, Row, StorageError,
    Table,
};

/// Rows of other nodes that came between a load and its follower; a start takes less.
const UNTOLD_MAX: usize = 1_000_000;

/// A claim that came into force: whose session, by which node, and whether it was another's.
type Claim = (ClientId, Arc<str>, bool);

type Untold = BTreeMap<Table, VecDeque<(Position, Row)>>;

#[derive(Default)]
struct Followers {
    of: BTreeMap<Table, Arc<dyn Follower>>,
    /// What a follower that is still to come must be told.
    untold: Untold,
    /// Tables that several nodes write.
    resolvers: BTreeMap<Table, Resolver>,
    /// The rows in force of those whose resolver asks for them, until their follower can tell.
    current: HashMap<Bytes, (u64, Bytes), ahash::RandomState>,
}

impl Followers {
    /// What becomes of a row; `None`: nothing.
    fn resolve(&mut self, position: u64, row: Row) -> Option<InForce> {
        let Some(resolver) = self.resolvers.get(&row.table) else {
            return Some(InForce { row, claimed: None });
        };
        if !resolver.remembers {
            return (resolver.how)(at(position), None, row);
        }
        let follower = self.of.get(&row.table);
        let before = match follower {
            Some(follower) => follower.recall(&row.key),
            None => self.current.get(&row.key).cloned(),
        };
        if before.as_ref().is_some_and(|(newest, _)| *newest >= position) {
            // Its topic has it already, or something newer.
            return None;
        }
        let before = before.as_ref().map(|(_, value)| value.as_ref());
        let resolved = (resolver.how)(at(position), before, row)?;
        if follower.is_some() {
            return Some(resolved);
        }
        let key = resolved.row.key.clone();
        match &resolved.row.value {
            Some(value) => drop(self.current.insert(key, (position, value.clone()))),
            None => drop(self.current.remove(&key)),
        }
        Some(resolved)
    }
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
    /// The start is over: rows may be written behind.
    loaded: AtomicBool,
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

/// Keys with their newest rows.
type Newest = HashMap<Bytes, (u64, Option<Bytes>)>;

fn put(newest: &mut Newest, key: Bytes, position: u64, value: Option<Bytes>) {
    let entry = newest.entry(key).or_insert((0, None));
    if entry.0 <= position {
        *entry = (position, value);
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
            loaded: AtomicBool::new(false),
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
    pub(super) fn apply(&self, position: u64, rows: Vec<Row>, kept: bool) -> Vec<Claim> {
        // Held, so that a follower or a load that comes meanwhile finds everything once.
        let mut followers = self.followers.lock();
        let (mut claims, mut in_force) = (Vec::new(), Vec::with_capacity(rows.len()));
        let started = self.started.load(Ordering::Acquire);
        for row in rows {
            let Some(InForce { row, claimed }) = followers.resolve(position, row) else { continue };
            if let Some((by, moved)) = claimed {
                let client = ClientId::new(&String::from_utf8_lossy(&row.key));
                claims.push((client, by, moved));
            }
            // At once: what resolves the next one may ask for it.
            let Followers { of, untold, .. } = &mut *followers;
            match of.get(&row.table) {
                _ if row.table == Table::Retained => {}
                Some(follower) => follower.apply(at(position), &row),
                None if started => {}
                None => keep(untold, at(position), &row),
            }
            in_force.push(row);
        }
        if kept {
            self.push(position, in_force);
        }
        claims
    }

    pub(super) fn may_write(&self) {
        self.loaded.store(true, Ordering::Release);
    }

    pub(super) fn writes(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// Another node has written everything below `position` behind.
    pub(super) fn written_by_another(&self, position: u64) {
        let mut behind = self.behind.lock();
        let Behind { plain, routed } = &mut *behind;
        for rows in [plain, routed] {
            while rows.front().is_some_and(|(at, _)| *at < position) {
                rows.pop_front();
            }
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
    fn newest(&self, table: Table) -> Result<Newest, StorageError> {
        let _still = self.moving.lock();
        let mut newest = Newest::new();
        let (topic, partitions) = self.place(table);
        let config = self.settings.consumer(self.settings.table(table));
        let (from, patience) = (Offset::Beginning, self.settings.config.command_timeout);
        read::to_the_end(&config, &self.watch, &topic, partitions, from, patience, &mut |found| {
            if found.mark.kind == RecordKind::TableRow {
                let value = found.payload.map(decode_value).transpose()?;
                let key = Bytes::copy_from_slice(found.key);
                put(&mut newest, key, found.mark.number, value);
            }
            Ok(())
        })?;
        let committed = *self.committed.lock();
        let mut followers = self.followers.lock();
        let mut behind = self.behind.lock();
        if let Some(resolver) = followers.resolvers.get(&table).cloned() {
            followers.settle(table, &resolver, &mut newest, &mut behind);
        }
        let (rows, until) = match is_routed(table) {
            true => (&behind.routed, committed),
            false => (&behind.plain, u64::MAX),
        };
        for (position, row) in
            rows.iter().filter(|(position, row)| row.table == table && *position < until)
        {
            put(&mut newest, row.key.clone(), *position, row.value.clone());
        }
        drop(behind);
        Ok(newest)
    }
}

impl Followers {
    /// Brings what the start found in the log into force: it was put before anybody could say how.
    fn settle(
        &mut self,
        table: Table,
        resolver: &Resolver,
        newest: &mut Newest,
        behind: &mut Behind,
    ) {
        if resolver.remembers {
            let live = newest.iter().filter_map(|(key, (position, value))| {
                Some((key.clone(), (*position, value.clone()?)))
            });
            self.current = live.collect();
            self.untold.remove(&table);
        }
        let rows = match is_routed(table) {
            true => &mut behind.routed,
            false => &mut behind.plain,
        };
        let found = std::mem::take(rows);
        for (position, row) in found {
            if row.table != table {
                rows.push_back((position, row));
                continue;
            }
            let known = newest.get(&row.key).is_some_and(|(newest, _)| *newest >= position);
            if known && resolver.remembers {
                continue;
            }
            if let Some(resolved) = self.resolve(position, row) {
                rows.push_back((position, resolved.row));
            }
        }
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
            tables.may_write();
        }
        let payload = encode_rows(&rows);
        let kind = match durability {
            Durability::Durable => RecordKind::Rows,
            Durability::Relaxed => RecordKind::Relaxed,
        };
        let content = Content::Encoded { key: Vec::new(), payload };
        tables.writer.append(kind, content, sink, ticket);
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

    fn resolve_by(&self, table: Table, resolver: Resolver) {
        self.0.followers.lock().resolvers.insert(table, resolver);
    }

    fn follow(&self, table: Table, follower: Arc<dyn Follower>) {
        let mut followers = self.0.followers.lock();
        let remembers = followers.resolvers.get(&table).is_some_and(|one| one.remembers);
        for (position, row) in followers.untold.remove(&table).unwrap_or_default() {
            // Those of a table that remembers were resolved when they came.
            let resolved = match remembers {
                true => Some(row),
                false => followers.resolve(position.offset, row).map(|resolved| resolved.row),
            };
            if let Some(row) = resolved {
                follower.apply(position, &row);
            }
        }
        if remembers {
            followers.current = HashMap::default();
        }
        followers.of.insert(table, follower);
    }
}
