//! What one connection loses, counted by itself: a stuck client loses every message that is
//! published to it, and that must cost the others nothing.
//!
//! The first loss of a name (topic and reason) copies the name and tells the ledger of a cell for
//! it; every further one is an addition to that cell, without a lock and without an allocation.
//! The ledger's fold empties the cells once a second, and lets go of those whose connection has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::drop_reason::{Direction, DropReason, dropped};
use super::ledger;

/// Names a connection has cells for. More: counted under the ledger's locks, like the losses of
/// those who have no connection.
const NAMES_MAX: usize = 4;
/// Cells of all connections together. More: as above.
const CELLS_MAX: usize = 100_000;

/// The losses of one client on one topic for one reason that are not in the ledger yet.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) client: Box<str>,
    pub(super) topic: Box<str>,
    pub(super) reason: DropReason,
    count: AtomicU64,
}

/// A connection's cells.
#[derive(Debug, Default)]
pub struct Losses(Vec<Arc<Cell>>);

/// The cells of all connections.
#[derive(Debug, Default)]
pub(super) struct Cells(Mutex<Vec<Arc<Cell>>>);

impl Losses {
    /// Counts one message that does not reach `client`.
    pub fn count(&mut self, reason: DropReason, client: &str, topic: &str) {
        if !ledger::is_kept() {
            return dropped(reason, Direction::Outbound, 1);
        }
        let known = self.0.iter().find(|cell| cell.reason == reason && *cell.topic == *topic);
        // The row first: a reader that sees the count finds the name.
        match known {
            Some(cell) => _ = cell.count.fetch_add(1, Ordering::Release),
            None if self.0.len() < NAMES_MAX => {
                let count = AtomicU64::new(1);
                let cell = Cell { client: client.into(), topic: topic.into(), reason, count };
                let cell = Arc::new(cell);
                if !ledger::cells().add(&cell) {
                    return ledger::dropped_of(reason, Direction::Outbound, client, topic, 1);
                }
                self.0.push(cell);
            }
            None => return ledger::dropped_of(reason, Direction::Outbound, client, topic, 1),
        }
        dropped(reason, Direction::Outbound, 1);
    }
}

impl Cells {
    fn add(&self, cell: &Arc<Cell>) -> bool {
        let mut cells = self.0.lock();
        let room = cells.len() < CELLS_MAX;
        if room {
            cells.push(Arc::clone(cell));
        }
        room
    }

    /// Hands out what was counted, and forgets the cells of connections that are gone.
    pub(super) fn empty(&self, mut into: impl FnMut(&Cell, u64)) {
        self.0.lock().retain(|cell| {
            // In this order: whoever has let go of it counts no more.
            let in_use = Arc::strong_count(cell) > 1;
            let count = cell.count.swap(0, Ordering::Acquire);
            if count > 0 {
                into(cell, count);
            }
            in_use
        });
    }

    #[cfg(test)]
    pub(super) fn hold<T>(&self, meanwhile: impl FnOnce() -> T) -> T {
        let _held = self.0.lock();
        meanwhile()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emptied(cells: &Cells) -> Vec<u64> {
        let mut counts = Vec::new();
        cells.empty(|_, count| counts.push(count));
        counts
    }

    /// MET-2: what a connection counted is told once, also when it has gone meanwhile; then its
    /// cell goes.
    #[test]
    fn a_cell_outlives_its_connection_until_it_was_told() {
        let cells = Cells::default();
        let (client, topic) = ("c".into(), "t".into());
        let reason = DropReason::ProcessingGiveUp;
        let cell = Arc::new(Cell { client, topic, reason, count: AtomicU64::new(1) });
        assert!(cells.add(&cell));
        cell.count.fetch_add(2, Ordering::Release);
        assert_eq!((emptied(&cells), emptied(&cells)), (vec![3], vec![]));
        cell.count.fetch_add(5, Ordering::Release);
        drop(cell);
        assert_eq!(emptied(&cells), [5]);
        assert!(cells.0.lock().is_empty());
    }
}
