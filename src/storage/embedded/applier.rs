//! What the log's thread does with each frame when it is as durable as was asked: rows go to the
//! tables, queue frames to the queues, messages to the feed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::checkpoint::{EARLY_ROWS, Kick};
use super::feed::{Feed, Item, Waiting, item_bytes};
use super::format::{read_direct_frame, read_rows, rows_relaxed};
use super::queues::Queues;
use super::tables::{ROUTED, Tables};
use super::wal::{Applier, Frame, FrameKind, Live};
use crate::storage::{Batch, LogItem, Row, StorageError, Table};

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) tables: Arc<Tables>,
    pub(super) queues: Arc<Queues>,
    pub(super) feed: Arc<Feed>,
    /// Everything below it is applied.
    pub(super) applied: Arc<AtomicU64>,
    pub(super) fresh: Vec<Waiting>,
    pub(super) kick: Arc<Kick>,
}

/// The item of a publishes or direct frame; what rides along saves the parsing.
pub(super) fn log_item(
    kind: FrameKind,
    head: &Bytes,
    body: Bytes,
    live: Option<&Live>,
) -> Result<LogItem, StorageError> {
    match live {
        Some(Live::Batch(batch)) => return Ok(LogItem::Publishes(Arc::clone(batch))),
        Some(Live::Direct(item)) => return Ok(item.clone()),
        Some(Live::Rows(_)) | None => {}
    }
    if kind == FrameKind::Publishes {
        return Ok(LogItem::Publishes(Arc::new(Batch::parse(body)?)));
    }
    let (to, incarnation, deliveries) = read_direct_frame(head)?;
    let batch = Arc::new(Batch::parse(body)?);
    if deliveries.len() != batch.len() {
        return Err(StorageError::Damaged("direct frame: copies and messages differ".into()));
    }
    Ok(LogItem::Direct { to, incarnation, batch, deliveries })
}

fn only_retained(rows: &Arc<[Row]>) -> Arc<[Row]> {
    match rows.iter().all(|row| row.table == Table::Retained) {
        true => Arc::clone(rows),
        false => rows.iter().filter(|row| row.table == Table::Retained).cloned().collect(),
    }
}

impl Machine {
    fn try_apply(&mut self, offset: u64, frame: &Frame) -> Result<(), StorageError> {
        match frame.kind {
            FrameKind::Publishes | FrameKind::Direct => {
                let body = frame.body.clone();
                let item = log_item(frame.kind, &frame.head, body, frame.live.as_ref())?;
                self.fresh(offset, Item::Log(item));
            }
            FrameKind::Rows => {
                let rows = match &frame.live {
                    Some(Live::Rows(rows)) => Arc::clone(rows),
                    Some(Live::Batch(_) | Live::Direct(_)) | None => read_rows(&frame.body)?.into(),
                };
                self.rows(offset, &rows, rows_relaxed(&frame.head)?);
            }
            FrameKind::Received
            | FrameKind::IdRun
            | FrameKind::QueueOpen
            | FrameKind::QueueRemove => self.queues.apply(offset, frame.kind, &frame.head)?,
        }
        Ok(())
    }

    fn rows(&mut self, offset: u64, rows: &Arc<[Row]>, relaxed: bool) {
        let mut retained = false;
        for row in rows.iter() {
            if !relaxed {
                self.tables.keep(offset, row);
            }
            if row.table == Table::Retained {
                retained = true;
            } else {
                self.tables.tell(offset, row);
            }
        }
        if retained {
            self.fresh(offset, Item::Retained(only_retained(rows)));
        }
    }

    fn fresh(&mut self, offset: u64, item: Item) {
        let bytes = item_bytes(&item);
        self.fresh.push(Waiting { offset, item, bytes });
    }
}

impl Applier for Machine {
    fn apply(&mut self, offset: u64, frame: &Frame) {
        if let Err(error) = self.try_apply(offset, frame) {
            // This process encoded the frame a moment ago, so it can only be a fault of ours.
            tracing::error!(offset, kind = ?frame.kind, %error, "a frame could not be applied");
        }
    }

    fn group_end(&mut self, end: u64) {
        self.applied.store(end, Ordering::Release);
        if self.tables.dirty_bytes() > EARLY_ROWS {
            self.kick.now();
        }
    }

    fn group_settled(&mut self, end: u64) {
        self.feed.push(&mut self.fresh, end);
    }
}

/// What recovery does with each frame above the checkpoint. Messages are not touched: the
/// consumer reads them from its commit on.
pub(super) fn replay(
    tables: &Tables,
    queues: &Queues,
    offset: u64,
    kind: FrameKind,
    head: &Bytes,
    body: &Bytes,
    applied: bool,
) -> Result<(), StorageError> {
    match kind {
        FrameKind::Publishes | FrameKind::Direct => Ok(()),
        FrameKind::Rows => {
            if !rows_relaxed(head)? {
                let rows = read_rows(body)?;
                let missing = |row: &&Row| !applied || ROUTED.contains(&row.table);
                rows.iter().filter(missing).for_each(|row| tables.keep(offset, row));
            }
            Ok(())
        }
        FrameKind::Received | FrameKind::IdRun | FrameKind::QueueOpen | FrameKind::QueueRemove => {
            queues.apply(offset, kind, head)
        }
    }
}
