//! What waits between the reader's thread and the consumer, bounded: a full one makes the reader
//! wait, and Kafka keeps what is not read.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::keeper::Keeper;
use super::tables::Tables;
use crate::cluster::Members;
use crate::limits::{FEED_BYTES, FEED_MESSAGES};
use crate::storage::{
    Batch, BoxFuture, Change, LogBatch, LogConsumer, LogItem, Position, Row, StorageError,
};
use crate::telemetry::clock::wall_ms;

/// Bounds of one batch for the consumer.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_MESSAGES: usize = 4096;

enum Fed {
    /// With what it retains, which comes into force when it was routed.
    Item(LogItem, usize, Vec<Row>),
    /// Retained rows: applied when the consumer has passed what stands before them.
    Retained(Vec<Row>),
    /// What the consumer must know before what stands behind it; the second says that nothing of
    /// what stands before may come with it.
    Change(Change, bool),
}

/// A record that was read and not passed by the consumer.
struct Waiting {
    offset: u64,
    bytes: u64,
    received_at_ms: u64,
}

#[derive(Default)]
struct Inner {
    fed: VecDeque<(u64, Fed)>,
    bytes: usize,
    messages: usize,
    /// Where the reader reads next.
    read_to: u64,
    /// The end of the last batch that was handed out.
    told: u64,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    fault: Option<StorageError>,
    ended: bool,
}

pub(super) struct Feed {
    inner: Mutex<Inner>,
    arrived: Notify,
    room: Condvar,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("read_to", &self.inner.lock().read_to).finish()
    }
}

pub(super) fn batch_of(item: &LogItem) -> &Arc<Batch> {
    match item {
        LogItem::Publishes(batch) | LogItem::Direct { batch, .. } => batch,
    }
}

impl Feed {
    /// A consumer begins at `from`.
    pub(super) fn new(from: u64) -> Self {
        let inner = Inner { read_to: from, told: from, ..Inner::default() };
        Self { inner: Mutex::new(inner), arrived: Notify::new(), room: Condvar::new() }
    }

    /// A record of messages waits from here on. Tells how many bytes do.
    pub(super) fn waits(&self, offset: u64, batch: &Batch) -> u64 {
        let bytes = batch.body().len() as u64;
        let received_at_ms = batch.received_at_ms();
        let mut inner = self.inner.lock();
        inner.waiting.push_back(Waiting { offset, bytes, received_at_ms });
        inner.waiting_bytes += bytes;
        inner.waiting_bytes
    }

    /// The consumer may have it: whoever appended it was told.
    pub(super) fn item(&self, offset: u64, item: LogItem, retained: Vec<Row>) {
        let mut inner = self.inner.lock();
        let batch = batch_of(&item);
        let (bytes, messages) = (batch.body().len(), batch.len());
        inner.bytes += bytes;
        inner.messages += messages;
        inner.fed.push_back((offset, Fed::Item(item, messages, retained)));
        self.read(inner, offset);
    }

    /// A record that is not the consumer's was read; `retained` rows of it are.
    pub(super) fn rows(&self, offset: u64, retained: Vec<Row>) {
        let mut inner = self.inner.lock();
        if !retained.is_empty() {
            inner.fed.push_back((offset, Fed::Retained(retained)));
        }
        self.read(inner, offset);
    }

    /// The consumer is to know of it, in its order.
    pub(super) fn change(&self, offset: u64, change: Change, parts: bool) {
        let mut inner = self.inner.lock();
        inner.fed.push_back((offset, Fed::Change(change, parts)));
        self.read(inner, offset);
    }

    fn read(&self, mut inner: parking_lot::MutexGuard<'_, Inner>, offset: u64) {
        inner.read_to = inner.read_to.max(offset + 1);
        drop(inner);
        self.arrived.notify_one();
    }

    /// The log can't be read any further.
    pub(super) fn fault(&self, error: StorageError) {
        self.inner.lock().fault.get_or_insert(error);
        self.arrived.notify_one();
    }

    /// Waits, on the reader's thread, while too much waits for the consumer.
    pub(super) fn wait_for_room(&self, patience: Duration) -> bool {
        let mut inner = self.inner.lock();
        let full = |inner: &Inner| {
            !inner.ended && (inner.bytes >= FEED_BYTES || inner.messages >= FEED_MESSAGES)
        };
        if full(&inner) {
            self.room.wait_for(&mut inner, patience);
        }
        !full(&inner)
    }

    pub(super) fn end(&self) {
        self.inner.lock().ended = true;
        self.room.notify_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.inner.lock().ended
    }

    pub(super) fn read_to(&self) -> u64 {
        self.inner.lock().read_to
    }

    fn passed(&self, to: u64) {
        let mut inner = self.inner.lock();
        while inner.waiting.front().is_some_and(|one| one.offset < to) {
            if let Some(one) = inner.waiting.pop_front() {
                inner.waiting_bytes -= one.bytes;
            }
        }
    }

    /// Bytes and oldest age of what was read and not passed.
    pub(super) fn lag(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let age = |one: &Waiting| wall_ms().saturating_sub(one.received_at_ms);
        (inner.waiting_bytes, inner.waiting.front().map_or(0, age))
    }

    fn take(&self, incarnation: u64) -> Taken {
        let mut inner = self.inner.lock();
        let (mut items, mut changes) = (Vec::new(), Vec::new());
        let (mut bytes, mut messages, mut retained) = (0, 0, None);
        loop {
            let full = bytes >= BATCH_BYTES || messages >= BATCH_MESSAGES;
            match inner.fed.pop_front() {
                Some((offset, Fed::Item(item, count, rows))) if !full => {
                    let size = batch_of(&item).body().len();
                    (bytes, messages) = (bytes + size, messages + count);
                    (inner.bytes, inner.messages) = (inner.bytes - size, inner.messages - count);
                    items.push((at(offset), item));
                    if !rows.is_empty() {
                        // What stands behind it is routed with these in force.
                        retained = Some((at(offset), rows));
                        break;
                    }
                }
                Some((offset, Fed::Change(change, parts))) if !parts || items.is_empty() => {
                    changes.push((at(offset), change));
                }
                Some((offset, Fed::Retained(rows))) if items.is_empty() && changes.is_empty() => {
                    return Taken::Retained(at(offset), rows);
                }
                Some(later) => {
                    inner.fed.push_front(later);
                    break;
                }
                None => break,
            }
        }
        self.room.notify_one();
        // What stands behind the items and is not the consumer's goes with them.
        let end = inner.fed.front().map_or(inner.read_to, |(next, _)| *next);
        if end <= inner.told && changes.is_empty() {
            return inner.fault.clone().map_or(Taken::Nothing, Taken::Fault);
        }
        inner.told = inner.told.max(end);
        Taken::Batch(LogBatch { incarnation, changes, items, end: at(end) }, retained)
    }
}

fn at(offset: u64) -> Position {
    Position { partition: 0, offset }
}

enum Taken {
    Batch(LogBatch, Option<(Position, Vec<Row>)>),
    Retained(Position, Vec<Row>),
    Fault(StorageError),
    Nothing,
}

/// The consumer's end of the feed.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) feed: Arc<Feed>,
    pub(super) keeper: Arc<Keeper>,
    /// The log that carries rows tells them here.
    pub(super) tables: Option<Arc<Tables>>,
    pub(super) incarnation: u64,
    /// The nodes as of what was handed out.
    pub(super) members: Arc<Members>,
    /// What the last batch retains.
    pub(super) retained: Option<(Position, Vec<Row>)>,
}

impl Consumer {
    fn tell(&self, position: Position, rows: &[Row]) {
        if let Some(tables) = &self.tables {
            tables.tell_retained(position, rows);
        }
    }
}

impl LogConsumer for Consumer {
    fn next(&mut self) -> BoxFuture<'_, Result<LogBatch, StorageError>> {
        Box::pin(async move {
            loop {
                let arrived = self.feed.arrived.notified();
                match self.feed.take(self.incarnation) {
                    Taken::Batch(batch, retained) => {
                        self.retained = retained;
                        for (_, change) in &batch.changes {
                            if let Change::Nodes(members) = change {
                                self.members = Arc::clone(members);
                            }
                        }
                        return Ok(batch);
                    }
                    Taken::Retained(position, rows) => self.tell(position, &rows),
                    Taken::Fault(error) => return Err(error),
                    Taken::Nothing => arrived.await,
                }
            }
        })
    }

    fn routed(&mut self) {
        if let Some((position, rows)) = self.retained.take() {
            self.tell(position, &rows);
        }
    }

    fn passed(&mut self, position: Position) {
        self.feed.passed(position.offset);
    }

    fn commit(&mut self, position: Position, state: &mut dyn FnMut() -> Vec<u8>) {
        self.feed.passed(position.offset);
        if let Some(tables) = &self.tables {
            tables.may_write();
        }
        self.keeper.commit(position.offset, &self.members, state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Table;
    use crate::storage::contract::batch_of as sample;

    fn retained() -> Vec<Row> {
        let key = bytes::Bytes::from_static(b"t");
        vec![Row { table: Table::Retained, key, value: None }]
    }

    fn item() -> LogItem {
        LogItem::Publishes(sample("p", &["x"], None))
    }

    /// RET: what stands behind a retained row never comes in a batch with what stands before it.
    #[test]
    fn a_retained_row_parts_batches() {
        let feed = Feed::new(1);
        feed.waits(1, &sample("p", &["x"], None));
        feed.item(1, item(), Vec::new());
        feed.rows(2, retained());
        feed.item(3, item(), Vec::new());
        feed.rows(4, Vec::new());
        let Taken::Batch(first, _) = feed.take(9) else { panic!("a batch waits") };
        assert_eq!((first.items.len(), first.end.offset, first.incarnation), (1, 2, 9));
        assert!(matches!(feed.take(9), Taken::Retained(position, _) if position == at(2)));
        let Taken::Batch(second, _) = feed.take(9) else { panic!("a batch waits") };
        assert_eq!((second.items[0].0, second.end), (at(3), at(5)));
        assert!(matches!(feed.take(9), Taken::Nothing));
        assert!(feed.lag().0 > 0);
        feed.passed(4);
        assert_eq!(feed.lag(), (0, 0));
    }

    /// RET: what a message retains comes into force behind it, and before anything that follows.
    #[test]
    fn what_is_retained_ends_its_batch() {
        let feed = Feed::new(1);
        feed.item(1, item(), Vec::new());
        feed.item(2, item(), retained());
        feed.item(3, item(), Vec::new());
        let Taken::Batch(first, rows) = feed.take(9) else { panic!("a batch waits") };
        assert_eq!((first.items.len(), first.end), (2, at(3)));
        assert_eq!(rows, Some((at(2), retained())));
        let Taken::Batch(second, rows) = feed.take(9) else { panic!("a batch waits") };
        assert_eq!((second.items.len(), second.end, rows), (1, at(4), None));
    }

    /// INV-5: a full feed holds the reader until the consumer has taken something.
    #[test]
    fn a_full_feed_holds_the_reader() {
        let feed = Feed::new(1);
        let large = "x".repeat(FEED_BYTES / 2);
        for offset in 1..4 {
            feed.item(offset, LogItem::Publishes(sample("p", &[&large], None)), Vec::new());
        }
        assert!(!feed.wait_for_room(Duration::from_millis(1)));
        assert!(matches!(feed.take(1), Taken::Batch(..)));
        assert!(feed.wait_for_room(Duration::ZERO) || matches!(feed.take(1), Taken::Batch(..)));
        assert!(feed.wait_for_room(Duration::ZERO));
    }
}
