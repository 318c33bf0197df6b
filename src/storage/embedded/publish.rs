//! The `PublishLog`: batches become frames, and one consumer gets them back in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Blocking;
use super::consumer::Consumer;
use super::feed::Feed;
use super::format::direct_frame;
use super::tables::Tables;
use super::wal::{Frame, FrameKind, Live, Wal};
use crate::storage::ports::DirectCopy;
use crate::storage::{
    AppendSink, Batch, Committed, Durability, LogConsumer, LogItem, Origin, Position, PublishLog,
    QueueKey,
};

/// Decisions of shared subscriptions, each with the place of its copy.
pub(super) type Decided = Vec<(Position, Origin)>;

#[derive(Debug)]
pub(super) struct PublishPort {
    pub(super) wal: Wal,
    pub(super) feed: Arc<Feed>,
    pub(super) tables: Arc<Tables>,
    pub(super) blocking: Blocking,
    pub(super) applied: Arc<AtomicU64>,
    /// Found by recovery, until the consumer is opened.
    pub(super) decided: Mutex<Decided>,
    /// Why checkpoints fail, when they do.
    pub(super) trouble: Arc<Mutex<Option<String>>>,
}

impl PublishLog for PublishPort {
    fn append(
        &self,
        batch: Arc<Batch>,
        durability: Durability,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let body = batch.body().clone();
        let live = Some(Live::Batch(batch));
        let frame = Frame { kind: FrameKind::Publishes, head: Bytes::new(), body, live };
        self.wal.submit(frame, durability, sink, ticket);
    }

    fn append_direct(
        &self,
        to: QueueKey,
        incarnation: u64,
        batch: Arc<Batch>,
        deliveries: Arc<[DirectCopy]>,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let head = direct_frame(&to, incarnation, &deliveries);
        let body = batch.body().clone();
        let live = Some(Live::Direct(LogItem::Direct { to, incarnation, batch, deliveries }));
        let frame = Frame { kind: FrameKind::Direct, head, body, live };
        self.wal.submit(frame, Durability::Durable, sink, ticket);
    }

    fn consumer(&self, partition: u32) -> (Committed, Box<dyn LogConsumer>) {
        assert_eq!(partition, 0, "embedded storage has one partition");
        let opened = self.feed.open();
        let (offset, state) = opened.expect("the caller opens one consumer of a partition");
        let state_len = state.len();
        let decided = std::mem::take(&mut *self.decided.lock());
        let decided =
            decided.into_iter().filter(|(_, origin)| origin.position.offset >= offset).collect();
        let committed = Committed { position: Position { partition, offset }, state, decided };
        let consumer = Consumer {
            feed: Arc::clone(&self.feed),
            wal: self.wal.clone(),
            tables: Arc::clone(&self.tables),
            blocking: self.blocking,
            state_len,
            asked: Instant::now(),
        };
        (committed, Box::new(consumer))
    }

    fn end(&self, partition: u32) -> Position {
        Position { partition, offset: self.wal.end() }
    }

    fn lag(&self) -> (u64, u64) {
        self.feed.lag(self.applied.load(Ordering::Acquire))
    }

    fn trouble(&self) -> Option<String> {
        self.wal.trouble().or_else(|| self.trouble.lock().clone())
    }
}
