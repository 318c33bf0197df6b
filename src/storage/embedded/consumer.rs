//! The consumer's end of the feed: memory while it keeps up, the log when it lags.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::applier::log_item;
use super::feed::{Feed, Item, Taken, item_bytes, item_len};
use super::format::{read_rows, rows_relaxed};
use super::tables::Tables;
use super::wal::{FrameKind, Wal};
use super::{Blocking, run_blocking};
use crate::storage::{
    BoxFuture, LogBatch, LogConsumer, LogItem, Position, Row, StorageError, Table,
};

/// A state above this size is not asked for at every commit of an idle consumer.
const CHEAP_STATE: usize = 4096;
const STATE_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) feed: Arc<Feed>,
    pub(super) wal: Wal,
    pub(super) tables: Arc<Tables>,
    pub(super) blocking: Blocking,
    pub(super) state_len: usize,
    pub(super) asked: Instant,
}

/// What one read of the log gave.
#[derive(Default)]
struct ReadBack {
    items: Vec<(Position, LogItem)>,
    /// Retained rows that stand before all items; they end the read.
    retained: Option<(u64, Vec<Row>)>,
    bytes: usize,
    messages: usize,
    /// Where the next read goes on.
    at: u64,
}

impl Consumer {
    fn tell(&self, offset: u64, rows: &[Row]) {
        rows.iter().for_each(|row| self.tables.tell(offset, row));
    }

    async fn read_back(&self, from: u64, to: u64) -> Result<LogBatch, StorageError> {
        let (wal, bounds) = (self.wal.clone(), self.feed.bounds);
        let read = run_blocking(self.blocking, move || {
            let mut read = ReadBack { at: from, ..ReadBack::default() };
            let next = wal.scan(from, to, &mut |offset, kind, head, body| {
                let full = read.bytes >= bounds.batch_bytes
                    || read.messages >= bounds.batch_messages
                    || read.retained.is_some();
                Ok(!full && read.frame(offset, kind, head, body)?)
            })?;
            read.at = next;
            Ok(read)
        })
        .await?;
        if let Some((offset, rows)) = &read.retained {
            self.tell(*offset, rows);
        }
        self.feed.read_back(read.items.first().map(|(_, item)| item), read.at);
        Ok(self.feed.batch(read.items, read.at))
    }
}

impl ReadBack {
    /// Takes one frame; `false` leaves it for the next read.
    fn frame(
        &mut self,
        offset: u64,
        kind: FrameKind,
        head: &Bytes,
        body: Bytes,
    ) -> Result<bool, StorageError> {
        match kind {
            FrameKind::Publishes | FrameKind::Direct => {
                let item = log_item(kind, head, body, None)?;
                self.messages += item_len(&item);
                self.bytes += item_bytes(&Item::Log(item.clone()));
                self.items.push((Position { partition: 0, offset }, item));
            }
            FrameKind::Rows => {
                rows_relaxed(head)?;
                let mut rows = read_rows(&body)?;
                rows.retain(|row| row.table == Table::Retained);
                if !rows.is_empty() {
                    if !self.items.is_empty() {
                        return Ok(false);
                    }
                    self.retained = Some((offset, rows));
                }
            }
            FrameKind::Received
            | FrameKind::IdRun
            | FrameKind::QueueOpen
            | FrameKind::QueueRemove => {}
        }
        Ok(true)
    }
}

impl LogConsumer for Consumer {
    fn next(&mut self) -> BoxFuture<'_, Result<LogBatch, StorageError>> {
        Box::pin(async move {
            loop {
                let feed = Arc::clone(&self.feed);
                let arrived = feed.arrived.notified();
                match feed.take() {
                    Taken::Batch(batch) => return Ok(batch),
                    Taken::Retained(offset, rows) => self.tell(offset, &rows),
                    Taken::Behind(from, to) => return self.read_back(from, to).await,
                    Taken::Nothing => arrived.await,
                }
            }
        })
    }

    fn commit(&mut self, position: Position, state: &mut dyn FnMut() -> Vec<u8>) {
        let cheap = self.state_len <= CHEAP_STATE || self.asked.elapsed() >= STATE_EVERY;
        if self.feed.wants_state(position.offset, cheap) {
            let encoded = state();
            self.state_len = encoded.len();
            self.asked = Instant::now();
            self.feed.commit(position.offset, encoded);
        }
    }
}
