//! The `ChangeLog`: rows go through the log, are applied on the log's thread, and wait in memory
//! only until the next checkpoint has written them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::format::rows_frame;
use super::projection::{Changes, Projection, Space};
use super::records::{read_row, row_record};
use super::wal::{Frame, FrameKind, Live, Wal};
use crate::storage::{
    AppendOutcome, AppendSink, ChangeLog, Durability, Follower, Position, Row, StorageError, Table,
};

/// What routing looks at. A replay needs it as it was at the consumer's commit.
pub(super) const ROUTED: [Table; 2] = [Table::Subscriptions, Table::Retained];

type Dirty = HashMap<Bytes, (u64, Option<Bytes>), ahash::RandomState>;

#[derive(Default)]
struct TableState {
    /// Newer than the projection.
    dirty: Dirty,
    /// On its way into the projection.
    flushing: Arc<Dirty>,
    follower: Option<Arc<dyn Follower>>,
}

impl fmt::Debug for TableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableState({} dirty)", self.dirty.len())
    }
}

#[derive(Debug)]
pub(super) struct Tables {
    tables: [Mutex<TableState>; 6],
    /// Bytes of rows that are newer than the projection.
    dirty_bytes: AtomicU64,
    /// Rows of `ROUTED` that are newer than the consumer's commit, positions rising. The projection
    /// gets them only with a commit behind them.
    routed: Mutex<VecDeque<(u64, Row)>>,
}

fn place(table: Table) -> usize {
    table as usize - 1
}

fn row_bytes(key: &Bytes, value: Option<&Bytes>) -> u64 {
    (key.len() + value.map_or(0, Bytes::len) + 64) as u64
}

impl Tables {
    pub(super) fn new() -> Self {
        let (tables, routed) = Default::default();
        Self { tables, dirty_bytes: AtomicU64::new(0), routed }
    }

    pub(super) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Remembers a durable row for the next checkpoint.
    pub(super) fn keep(&self, offset: u64, row: &Row) {
        // Copied: a row is a slice of its put, which it would otherwise keep alive as a whole.
        let key = Bytes::copy_from_slice(&row.key);
        let value = row.value.as_ref().map(|value| Bytes::copy_from_slice(value));
        self.dirty_bytes.fetch_add(row_bytes(&key, value.as_ref()), Ordering::Relaxed);
        let row = Row { table: row.table, key, value };
        if ROUTED.contains(&row.table) {
            self.routed.lock().push_back((offset, row));
        } else {
            self.dirty(offset, row);
        }
    }

    fn dirty(&self, offset: u64, row: Row) {
        let mut state = self.tables[place(row.table)].lock();
        let key_bytes = row_bytes(&row.key, None);
        if let Some((_, old)) = state.dirty.insert(row.key, (offset, row.value)) {
            let bytes = key_bytes + old.map_or(0, |old| old.len() as u64);
            self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// The consumer's commit stands here: what routing knew before it belongs to the next
    /// checkpoint.
    pub(super) fn committed(&self, offset: u64) {
        let mut routed = self.routed.lock();
        while routed.front().is_some_and(|(at, _)| *at < offset) {
            let Some((at, row)) = routed.pop_front() else { break };
            self.dirty(at, row);
        }
    }

    /// Tells the table's follower.
    pub(super) fn tell(&self, offset: u64, row: &Row) {
        let follower = self.tables[place(row.table)].lock().follower.clone();
        if let Some(follower) = follower {
            follower.apply(Position { partition: 0, offset }, row);
        }
    }

    /// A follower of subscriptions is told at once what `load` has left out; one of retained
    /// messages gets it by the consumer.
    pub(super) fn set_follower(&self, table: Table, follower: Arc<dyn Follower>) {
        if table == Table::Subscriptions {
            let routed = self.routed.lock();
            for (offset, row) in routed.iter().filter(|(_, row)| row.table == table) {
                follower.apply(Position { partition: 0, offset: *offset }, row);
            }
        }
        self.tables[place(table)].lock().follower = Some(follower);
    }

    /// Takes what is dirty of these tables for a checkpoint; [`Self::flushed`] says how it went.
    pub(super) fn flush(&self, tables: impl Iterator<Item = Table>) -> Vec<(Table, Arc<Dirty>)> {
        let mut taken = Vec::new();
        for table in tables {
            let mut state = self.tables[place(table)].lock();
            if !state.dirty.is_empty() {
                state.flushing = Arc::new(std::mem::take(&mut state.dirty));
                taken.push((table, Arc::clone(&state.flushing)));
            }
        }
        taken
    }

    pub(super) fn change(changes: &mut Changes, table: Table, dirty: &Dirty) {
        for (key, (offset, value)) in dirty {
            match value {
                Some(value) => {
                    changes.put(Space::Table(table), key.to_vec(), row_record(*offset, value));
                }
                None => changes.delete(Space::Table(table), key.to_vec()),
            }
        }
    }

    pub(super) fn flushed(&self, table: Table, dirty: &Arc<Dirty>, stored: bool) {
        let mut state = self.tables[place(table)].lock();
        state.flushing = Arc::default();
        let mut bytes = 0;
        for (key, row) in dirty.iter() {
            let newer = state.dirty.contains_key(key);
            if stored || newer {
                bytes += row_bytes(key, row.1.as_ref());
            } else {
                state.dirty.insert(key.clone(), row.clone());
            }
        }
        self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn load(
        &self,
        projection: &dyn Projection,
        table: Table,
        visit: &mut dyn FnMut(Position, &[u8], &[u8]),
    ) -> Result<(), StorageError> {
        let (dirty, flushing) = {
            let state = self.tables[place(table)].lock();
            (state.dirty.clone(), Arc::clone(&state.flushing))
        };
        let newest = |key: &[u8]| dirty.get(key).or_else(|| flushing.get(key));
        let at = |offset| Position { partition: 0, offset };
        projection.scan(Space::Table(table), &[], &[], &mut |key, record| {
            if newest(key).is_none() {
                let (offset, value) = read_row(record)?;
                visit(at(offset), key, value);
            }
            Ok(true)
        })?;
        // By key, so that a start does the same things in the same order every time.
        let newest: BTreeMap<_, _> = flushing.iter().chain(&dirty).collect();
        for (key, (offset, value)) in newest {
            if let Some(value) = value {
                visit(at(*offset), key, value);
            }
        }
        Ok(())
    }
}

/// The port: the tables, the log they go through, and the projection they are loaded from.
#[derive(Debug)]
pub(super) struct TablePort {
    pub(super) tables: Arc<Tables>,
    pub(super) wal: Wal,
    pub(super) projection: Arc<dyn Projection>,
    pub(super) row_bytes: u64,
}

impl ChangeLog for TablePort {
    /// Relaxed rows take their place in the log like all others, so that their positions are
    /// unique and in order with durable rows of the same key; a recovery passes over them.
    fn put(&self, rows: Vec<Row>, durability: Durability, sink: Arc<dyn AppendSink>, ticket: u64) {
        let relaxed = durability == Durability::Relaxed;
        if !relaxed && self.tables.dirty_bytes() > self.row_bytes {
            sink.settled(ticket, AppendOutcome::NotStored);
            return;
        }
        let (head, body) = rows_frame(&rows, relaxed);
        let live = Some(Live::Rows(rows.into()));
        let frame = Frame { kind: FrameKind::Rows, head, body, live };
        self.wal.submit(frame, durability, sink, ticket);
    }

    fn load(
        &self,
        table: Table,
        visit: &mut dyn FnMut(Position, &[u8], &[u8]),
    ) -> Result<(), StorageError> {
        self.tables.load(&*self.projection, table, visit)
    }

    fn follow(&self, table: Table, follower: Arc<dyn Follower>) {
        self.tables.set_follower(table, follower);
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::TABLES;
    use super::*;

    fn row(text: &'static str) -> Row {
        let value = Some(Bytes::from_static(text.as_bytes()));
        Row { table: Table::Sessions, key: Bytes::from_static(b"key"), value }
    }

    /// A row that is replaced before it was written takes no room any more: what counts towards
    /// the bound that refuses puts must come back to nothing.
    #[test]
    fn a_replaced_row_gives_its_bytes_back() {
        let tables = Tables::new();
        for _ in 0..1000 {
            tables.keep(1, &row("long"));
            tables.keep(2, &row("s"));
        }
        assert_eq!(tables.dirty_bytes(), row_bytes(&row("").key, row("s").value.as_ref()));
        for stored in [false, true] {
            let taken = tables.flush(TABLES.into_iter());
            tables.keep(3, &row("newer"));
            taken.iter().for_each(|(table, dirty)| tables.flushed(*table, dirty, stored));
        }
        let taken = tables.flush(TABLES.into_iter());
        taken.iter().for_each(|(table, dirty)| tables.flushed(*table, dirty, true));
        assert_eq!(tables.dirty_bytes(), 0);
    }
}
