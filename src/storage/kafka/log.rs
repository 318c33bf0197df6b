//! `PublishLog` on one partition of a Kafka topic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::feed::{Consumer, Feed};
use super::format::{Commit, RecordKind, encode_direct, encode_retaining};
use super::keeper::Keeper;
use super::tables::Tables;
use super::watch::Watch;
use super::writer::{Content, Writer};
use crate::storage::{
    AppendSink, Batch, Committed, DirectCopy, Durability, LogConsumer, Origin, Position,
    PublishLog, QueueKey,
};

/// Everything that stands around one log; its threads hold it, too.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) incarnation: u64,
    pub(super) writer: Arc<Writer>,
    pub(super) feed: Arc<Feed>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) tables: Option<Arc<Tables>>,
    pub(super) watch: Arc<Watch>,
    /// What the consumer left behind before this start.
    pub(super) committed: Commit,
    /// Decisions that stood behind the commit at the start.
    pub(super) decided: Vec<(Position, Origin)>,
    /// Where the log ended at the start.
    pub(super) end: u64,
    pub(super) taken: AtomicBool,
}

impl Log {
    /// As far as this node knows: what it read, and what it was told of its own appends.
    pub(super) fn end(&self) -> u64 {
        let open = &self.writer.open;
        let told = open.messages.end().max(open.rows.end());
        self.end.max(told).max(self.feed.read_to())
    }
}

/// The port.
#[derive(Clone, Debug)]
pub(super) struct KafkaLog(pub(super) Arc<Log>);

impl PublishLog for KafkaLog {
    /// QoS 0 rides along with the rest: one stream has one order.
    fn append(
        &self,
        batch: Arc<Batch>,
        _durability: Durability,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        self.0.writer.append(RecordKind::Publishes, Content::Batch(batch), sink, ticket);
    }

    fn takes_retained(&self) -> bool {
        true
    }

    fn append_retaining(
        &self,
        batch: Arc<Batch>,
        retained: &[u32],
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let key = batch.publisher().client_id.as_str().into();
        let payload = encode_retaining(retained, &batch);
        let content = Content::Encoded { key, payload };
        self.0.writer.append(RecordKind::Retaining, content, sink, ticket);
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
        let (kind, payload) = encode_direct(&to, incarnation, &batch, &deliveries);
        let content = Content::Encoded { key: to.name().into(), payload };
        self.0.writer.append(kind, content, sink, ticket);
    }

    fn consumer(&self, partition: u32) -> (Committed, Box<dyn LogConsumer>) {
        assert_eq!(partition, 0, "the log has one order, in one partition");
        let taken = self.0.taken.swap(true, Ordering::AcqRel);
        assert!(!taken, "the caller opens one consumer of a partition");
        let committed = Committed {
            position: Position { partition: 0, offset: self.0.committed.position },
            state: self.0.committed.state.clone(),
            decided: self.0.decided.clone(),
        };
        let consumer = Consumer {
            feed: Arc::clone(&self.0.feed),
            keeper: Arc::clone(&self.0.keeper),
            tables: self.0.tables.clone(),
            incarnation: self.0.incarnation,
            members: Arc::new(self.0.committed.members.clone()),
            retained: None,
        };
        (committed, Box::new(consumer))
    }

    fn end(&self, _partition: u32) -> Position {
        Position { partition: 0, offset: self.0.end() }
    }

    fn lag(&self) -> (u64, u64) {
        let (bytes, age) = self.0.feed.lag();
        (bytes + self.0.writer.open.messages.unread(), age)
    }

    fn trouble(&self) -> Option<String> {
        self.0.watch.trouble()
    }
}
