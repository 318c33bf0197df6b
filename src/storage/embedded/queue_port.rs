//! The `DeviceQueues` port over `Queues`, the log and the projection.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::checkpoint::Kick;
use super::cold::{ColdPage, read_cold};
use super::format::{queue_frame, received_frame, run_frame};
use super::projection::Projection;
use super::queues::{Plan, Queues};
use super::wal::{Frame, FrameKind, Wal};
use super::{Blocking, run_blocking};
use crate::storage::once;
use crate::storage::{
    AppendOutcome, AppendSink, Appended, BoxFuture, DeviceQueues, Durability, IdRun, Page,
    QueueAppend, QueueKey, QueueState, QueuedMessage, StorageError,
};

/// Pages read from the medium at once; further clients wait in turn. Each takes a thread, and about
/// two pages of memory.
pub(super) const PAGE_READS: usize = 4;

#[derive(Debug)]
pub(super) struct QueuePort {
    pub(super) queues: Arc<Queues>,
    pub(super) wal: Wal,
    pub(super) projection: Arc<dyn Projection>,
    pub(super) blocking: Blocking,
    pub(super) kick: Arc<Kick>,
    /// Pages that are read from the medium at once ([`PAGE_READS`]).
    pub(super) reads: Semaphore,
}

/// For frames whose end nobody waits for.
struct Nobody;

impl AppendSink for Nobody {
    fn settled(&self, _ticket: u64, _outcome: AppendOutcome) {}
}

impl QueuePort {
    fn submit(&self, kind: FrameKind, head: Bytes, sink: Arc<dyn AppendSink>, ticket: u64) {
        let frame = Frame { kind, head, body: Bytes::new(), live: None };
        self.wal.submit(frame, Durability::Durable, sink, ticket);
    }

    async fn open_queue(
        &self,
        key: QueueKey,
        incarnation: u64,
    ) -> Result<QueueState, StorageError> {
        if let Some(state) = self.queues.attach(&key, incarnation) {
            return Ok(state);
        }
        let (sink, mut told) = once();
        self.submit(FrameKind::QueueOpen, queue_frame(&key, incarnation), sink, 0);
        match told.outcome().await {
            AppendOutcome::Stored(_) => {
                self.queues.attach(&key, incarnation).ok_or(StorageError::Fenced)
            }
            AppendOutcome::NotStored | AppendOutcome::InDoubt => {
                Err(StorageError::Unavailable("the queue could not be opened".into()))
            }
        }
    }

    async fn page(
        &self,
        key: QueueKey,
        incarnation: u64,
        after: u64,
        max_messages: usize,
        max_bytes: usize,
    ) -> Result<Page, StorageError> {
        loop {
            let plan =
                self.queues.plan(&key, incarnation, after, max_messages.max(1), max_bytes)?;
            let (number, seqs, next_seq) = match plan {
                Plan::Hot(messages, next_seq) => return Ok(Page { messages, next_seq }),
                Plan::Cold { number, seqs, next_seq } => (number, seqs, next_seq),
            };
            // Never closed.
            let _turn = self.reads.acquire().await;
            let (wal, projection) = (self.wal.clone(), Arc::clone(&self.projection));
            let (queues, key) = (Arc::clone(&self.queues), key.clone());
            let messages = run_blocking(self.blocking, move || {
                let page = ColdPage { number, seqs: &seqs, max_bytes };
                let found = read_cold(&wal, &*projection, page)?;
                still_owed(&queues, &key, number, &seqs, found)
            })
            .await?;
            // All of them may have been trimmed meanwhile; an empty page would say that nothing
            // follows, although entries in memory do.
            if !messages.is_empty() {
                return Ok(Page { messages, next_seq });
            }
        }
    }
}

/// What was found, without what was acknowledged or trimmed meanwhile. A hole is damage.
fn still_owed(
    queues: &Queues,
    key: &QueueKey,
    number: u64,
    seqs: &[u64],
    found: Vec<QueuedMessage>,
) -> Result<Vec<QueuedMessage>, StorageError> {
    let Some(last) = found.last().map(|message| message.seq).or(seqs.last().copied()) else {
        return Ok(found);
    };
    let owed = queues.still_owed(key, number, seqs).ok_or(StorageError::Fenced)?;
    let mut found = found.into_iter().peekable();
    let mut page = Vec::new();
    for (seq, received) in owed.into_iter().take_while(|(seq, _)| *seq <= last) {
        while found.next_if(|message| message.seq < seq).is_some() {}
        let Some(mut message) = found.next_if(|message| message.seq == seq) else {
            let text = format!("queue of {key}: entry {seq} is missing");
            return Err(StorageError::Damaged(text));
        };
        message.received = received;
        page.push(message);
    }
    Ok(page)
}

impl DeviceQueues for QueuePort {
    fn open(
        &self,
        queue: &QueueKey,
        incarnation: u64,
    ) -> BoxFuture<'_, Result<QueueState, StorageError>> {
        Box::pin(self.open_queue(queue.clone(), incarnation))
    }

    fn append(
        &self,
        appends: Vec<QueueAppend>,
    ) -> BoxFuture<'_, Result<Vec<Appended>, StorageError>> {
        Box::pin(async move {
            let answers = appends.into_iter().map(|append| self.queues.append(append)).collect();
            self.kick.after_append(&self.queues).await;
            Ok(answers)
        })
    }

    fn read(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        after: u64,
        max_messages: usize,
        max_bytes: usize,
    ) -> BoxFuture<'_, Result<Page, StorageError>> {
        Box::pin(self.page(queue.clone(), incarnation, after, max_messages, max_bytes))
    }

    fn ack(&self, queue: &QueueKey, incarnation: u64, seqs: &[u64], sent_below: u64) {
        self.queues.ack(queue, incarnation, seqs, sent_below);
    }

    fn take_out(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        seqs: &[u64],
    ) -> BoxFuture<'_, Result<(), StorageError>> {
        self.queues.take_out(queue, incarnation, seqs);
        Box::pin(async { Ok(()) })
    }

    fn received(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        seqs: &[u64],
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let head = received_frame(queue, incarnation, seqs);
        self.submit(FrameKind::Received, head, sink, ticket);
    }

    fn reserve_ids(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        run: IdRun,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        self.submit(FrameKind::IdRun, run_frame(queue, incarnation, &run), sink, ticket);
    }

    fn remove(&self, queue: &QueueKey, incarnation: u64) {
        self.queues.closing(queue, incarnation);
        let head = queue_frame(queue, incarnation);
        self.submit(FrameKind::QueueRemove, head, Arc::new(Nobody), 0);
    }

    fn depth(&self, queue: &QueueKey) -> u64 {
        self.queues.depth(queue)
    }
}
