//! The thread that reads a log as it grows: messages go to the feed, rows are applied, and
//! whoever appended a record here is told that it was read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::Offset;

use super::feed::{Feed, batch_of};
use super::format::{RecordKind, decode_rows, decode_state, log_item, retained_rows};
use super::position;
use super::read::{Found, found, is_final};
use super::tables::Tables;
use super::watch::{Listener, Watch, note_error, unavailable};
use super::writer::Writer;
use crate::cluster::{Members, Word};
use crate::storage::{
    AppendOutcome, Batch, Change, Kind, LogItem, Peers, Position, Row, StorageError, Table,
};

/// A little above whole milliseconds: the library waits for those, and asks in a loop for the rest.
const TICK: Duration = Duration::from_micros(50_100);

pub(super) struct Reader {
    pub(super) consumer: BaseConsumer<Listener>,
    pub(super) topic: String,
    pub(super) feed: Arc<Feed>,
    pub(super) writer: Arc<Writer>,
    pub(super) tables: Option<Arc<Tables>>,
    pub(super) watch: Arc<Watch>,
    /// Rows below it were taken up by the start.
    pub(super) known_to: u64,
    pub(super) peers: Arc<Peers>,
    /// The nodes as of where this thread is: behind `known_to` they are those of `peers`.
    pub(super) members: Mutex<Members>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Reader {
    /// Reads until `ended`; runs on a thread of its own.
    pub(super) fn run(&self, ended: &dyn Fn() -> bool) {
        while !ended() {
            if !self.feed.wait_for_room(TICK) {
                continue;
            }
            match self.consumer.poll(TICK) {
                Some(Ok(message)) => {
                    if let Err(error) = self.take(&message) {
                        tracing::error!(%error, "the log can't be read any further");
                        self.feed.fault(error);
                        return;
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) | None => {}
                Some(Err(error)) => self.trouble(&error),
            }
        }
    }

    fn trouble(&self, error: &KafkaError) {
        if is_final(error) {
            let error = unavailable(&format!("topic {} can't be read", self.topic), error);
            tracing::error!(%error, "the log can't be read");
            self.watch.note(error.to_string());
            self.feed.fault(error);
            // Where it reads on is the operator's to say; trying again is all that can be done.
            std::thread::sleep(TICK * 20);
        } else {
            note_error(&self.watch, error, "");
        }
    }

    fn take(&self, message: &BorrowedMessage<'_>) -> Result<(), StorageError> {
        match found(&self.topic, message)? {
            Some(record) => self.record(&record)?,
            None => {
                let offset = u64::try_from(message.offset()).unwrap_or(0);
                self.feed.rows(position(offset).offset, Vec::new());
            }
        }
        Ok(())
    }

    fn record(&self, found: &Found<'_>) -> Result<(), StorageError> {
        let at = position(found.offset);
        let payload = found.payload.unwrap_or_default();
        let ours = found.mark.writer == self.writer.run;
        let (number, stored) = (found.mark.number, AppendOutcome::Stored(at));
        if self.is_void(found)? {
            return self.void(found, ours);
        }
        match found.mark.kind {
            RecordKind::Publishes
            | RecordKind::Direct
            | RecordKind::Moved
            | RecordKind::Retaining => {
                let item = log_item(found.mark.kind, payload)?;
                self.writer.read_with(self.feed.waits(at.offset, batch_of(&item)));
                let retained = if found.mark.kind == RecordKind::Retaining {
                    retained_rows(payload, batch_of(&item))?
                } else {
                    Vec::new()
                };
                if !retained.is_empty() {
                    self.apply(at, retained.clone(), true);
                }
                if ours {
                    let bytes = payload.len() as u64;
                    self.writer.open.messages.read(number, bytes, stored);
                    self.writer.open.messages.settle();
                }
                self.feed.item(at.offset, item, retained);
            }
            RecordKind::Rows | RecordKind::Relaxed => {
                let kept = found.mark.kind == RecordKind::Rows;
                self.rows(at, decode_rows(payload)?, kept);
                if ours {
                    self.writer.open.rows.read(number, 0, stored);
                    self.writer.open.rows.settle();
                }
            }
            RecordKind::Word => self.word(at, found.mark.writer, &decode_state(payload)?),
            RecordKind::TableRow | RecordKind::State => self.feed.rows(at.offset, Vec::new()),
        }
        Ok(())
    }

    /// A node that is dead for the others may not know it: nothing that it says counts any more but
    /// what clients published through it.
    fn is_void(&self, found: &Found<'_>) -> Result<bool, StorageError> {
        if self.members.lock().admits(found.mark.writer) {
            return Ok(false);
        }
        Ok(match found.mark.kind {
            RecordKind::Rows | RecordKind::Relaxed | RecordKind::Direct | RecordKind::Moved => true,
            RecordKind::Publishes | RecordKind::Retaining => {
                let item = log_item(found.mark.kind, found.payload.unwrap_or_default())?;
                matches!(item, LogItem::Publishes(batch) if is_will(&batch))
            }
            RecordKind::Word | RecordKind::TableRow | RecordKind::State => false,
        })
    }

    fn void(&self, found: &Found<'_>, ours: bool) -> Result<(), StorageError> {
        let (number, open) = (found.mark.number, &self.writer.open);
        let bytes = found.payload.unwrap_or_default().len() as u64;
        if ours {
            let (appends, bytes) = match found.mark.kind {
                RecordKind::Rows | RecordKind::Relaxed => (&open.rows, 0),
                _ => (&open.messages, bytes),
            };
            appends.read(number, bytes, AppendOutcome::NotStored);
            appends.settle();
        }
        self.feed.rows(position(found.offset).offset, Vec::new());
        Ok(())
    }

    fn word(&self, at: Position, run: u64, word: &Word) {
        if at.offset >= self.known_to {
            self.peers.take(at.offset, run, word);
        }
        let mut members = self.members.lock();
        let changed = members.take(at.offset, run, word);
        let now = Arc::new(members.clone());
        drop(members);
        self.feed.change(at.offset, Change::Nodes(now), changed);
    }

    fn rows(&self, at: Position, rows: Vec<Row>, kept: bool) {
        let retained = rows.iter().filter(|row| row.table == Table::Retained).cloned().collect();
        self.apply(at, rows, kept);
        self.feed.rows(at.offset, retained);
    }

    fn apply(&self, at: Position, rows: Vec<Row>, kept: bool) {
        if let Some(tables) = self.tables.as_ref().filter(|_| at.offset >= self.known_to) {
            let several = self.members.lock().names().count() > 1;
            for (client, by, moved) in tables.apply(at.offset, rows, kept) {
                let moved = moved && several;
                self.feed.change(at.offset, Change::Claimed { client, by, moved }, moved);
            }
        }
    }
}

fn is_will(batch: &Batch) -> bool {
    batch.views().all(|view| view.kind == Kind::Will)
}

/// Where a consumer reads on that has come to `position`.
pub(super) fn offset_of(position: u64) -> Offset {
    Offset::Offset(i64::try_from(position.saturating_sub(1)).unwrap_or(i64::MAX))
}
