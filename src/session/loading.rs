//! A table is read on one thread and taken up on another: both are half of a long start.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::storage::{ChangeLog, Position, StorageError, Table};

/// Rows handed over at once.
const PAGE_ROWS: usize = 1024;
/// Pages on their way; a reader that is ahead waits.
const PAGES: usize = 8;

/// Rows one behind the other, so that a page is two allocations.
#[derive(Debug, Default)]
struct Page {
    bytes: Vec<u8>,
    /// Position, and the lengths of key and value.
    rows: Vec<(Position, usize, usize)>,
}

impl Page {
    fn each(&self, take: &mut impl FnMut(Position, &[u8], &[u8])) {
        let mut rest = &self.bytes[..];
        for &(position, key, value) in &self.rows {
            let (row, behind) = rest.split_at(key + value);
            let (key, value) = row.split_at(key);
            take(position, key, value);
            rest = behind;
        }
    }
}

/// Gives every row of the table to `take`, in order, on a thread beside this one.
pub(super) fn load_beside(
    tables: &dyn ChangeLog,
    table: Table,
    mut take: impl FnMut(Position, &[u8], &[u8]) + Send,
) -> Result<(), StorageError> {
    let (send, receive): (SyncSender<Page>, Receiver<Page>) = sync_channel(PAGES);
    std::thread::scope(|scope| {
        scope.spawn(move || receive.iter().for_each(|page| page.each(&mut take)));
        let mut page = Page::default();
        tables.load(table, &mut |position, key, value| {
            page.bytes.extend_from_slice(key);
            page.bytes.extend_from_slice(value);
            page.rows.push((position, key.len(), value.len()));
            if page.rows.len() == PAGE_ROWS {
                // It fails only when the other thread has panicked, which the scope hands on.
                drop(send.send(std::mem::take(&mut page)));
            }
        })?;
        drop(send.send(page));
        drop(send);
        Ok(())
    })
}
