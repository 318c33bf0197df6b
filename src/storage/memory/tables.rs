//! The tables.

use std::sync::Arc;

use super::world::{Record, World};
use crate::storage::{
    AppendSink, ChangeLog, Durability, Follower, Position, Row, StorageError, Table,
};

#[derive(Debug)]
pub(super) struct MemoryTables {
    pub(super) world: Arc<World>,
}

impl ChangeLog for MemoryTables {
    fn put(&self, rows: Vec<Row>, durability: Durability, sink: Arc<dyn AppendSink>, ticket: u64) {
        let relaxed = durability == Durability::Relaxed;
        let record = Record::Rows { rows: rows.into(), relaxed };
        self.world.submit(record, durability, sink, ticket);
    }

    fn load(
        &self,
        table: Table,
        visit: &mut dyn FnMut(Position, &[u8], &[u8]),
    ) -> Result<(), StorageError> {
        let rows = match table {
            Table::Subscriptions | Table::Retained => Arc::clone(&self.world.state.lock().routed),
            Table::Sessions | Table::Credentials | Table::Blocked | Table::Settings => {
                Arc::clone(&self.world.state.lock().rows)
            }
        };
        for ((_, key), (offset, value)) in rows.iter().filter(|(key, _)| key.0 == table) {
            visit(Position { partition: 0, offset: *offset }, key, value);
        }
        Ok(())
    }

    fn follow(&self, table: Table, follower: Arc<dyn Follower>) {
        let mut state = self.world.state.lock();
        if table == Table::Subscriptions {
            let late = state.routed_from(state.commit.0).into_iter();
            for (offset, row) in late.filter(|(_, row)| row.table == table) {
                follower.apply(Position { partition: 0, offset }, &row);
            }
        }
        state.followers.insert(table, follower);
    }
}
