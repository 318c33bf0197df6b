//! The device queues.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::world::{Record, World};
use crate::storage::{
    AppendOutcome, AppendSink, Appended, BoxFuture, DeviceQueues, Durability, IdRun, Page,
    QueueAppend, QueueKey, QueueState, StorageError,
};

#[derive(Debug)]
pub(super) struct MemoryQueues {
    pub(super) world: Arc<World>,
}

/// Tells one waiting future, or nobody.
struct Told(Mutex<Option<oneshot::Sender<AppendOutcome>>>);

impl AppendSink for Told {
    fn settled(&self, _ticket: u64, outcome: AppendOutcome) {
        if let Some(waiting) = self.0.lock().take() {
            // The caller may have stopped waiting; the queue is open all the same.
            waiting.send(outcome).ok();
        }
    }
}

fn away(what: &str) -> StorageError {
    StorageError::Unavailable(what.into())
}

impl MemoryQueues {
    fn attach(&self, key: &QueueKey, incarnation: u64) -> Option<QueueState> {
        let mut state = self.world.state.lock();
        let queue = state.queue(key, incarnation).filter(|queue| !queue.closing)?;
        Some(queue.attach())
    }

    async fn open_queue(
        &self,
        key: QueueKey,
        incarnation: u64,
    ) -> Result<QueueState, StorageError> {
        if let Some(state) = self.attach(&key, incarnation) {
            return Ok(state);
        }
        let (tell, told) = oneshot::channel();
        let sink = Arc::new(Told(Mutex::new(Some(tell))));
        let record = Record::Open(key.clone(), incarnation);
        self.world.submit(record, Durability::Durable, sink, 0);
        match told.await {
            Ok(AppendOutcome::Stored(_)) => {
                self.attach(&key, incarnation).ok_or(StorageError::Fenced)
            }
            Ok(AppendOutcome::NotStored | AppendOutcome::InDoubt) | Err(_) => {
                Err(away("the queue could not be opened"))
            }
        }
    }

    fn alive(&self) -> Result<(), StorageError> {
        match self.world.state.lock().dead {
            true => Err(away("the backend has ended")),
            false => Ok(()),
        }
    }
}

impl DeviceQueues for MemoryQueues {
    fn open(
        &self,
        queue: &QueueKey,
        incarnation: u64,
    ) -> BoxFuture<'_, Result<QueueState, StorageError>> {
        let queue = queue.clone();
        Box::pin(async move {
            self.alive()?;
            self.open_queue(queue, incarnation).await
        })
    }

    fn append(
        &self,
        appends: Vec<QueueAppend>,
    ) -> BoxFuture<'_, Result<Vec<Appended>, StorageError>> {
        Box::pin(async move {
            self.alive()?;
            let mut state = self.world.state.lock();
            let (limit, ttl_ms) = (state.limit, state.ttl_ms);
            let mut answers = Vec::with_capacity(appends.len());
            for QueueAppend { queue, incarnation, mut entries } in appends {
                for entry in &mut entries {
                    let received = entry.message.batch().received_at_ms();
                    let default = Some(received.saturating_add(ttl_ms));
                    entry.expires_at_ms = entry.expires_at_ms.or(default);
                }
                let limit = if queue.is_application() { u64::MAX } else { limit };
                let found = state.queue(&queue, incarnation);
                answers.push(match found {
                    Some(queue) => queue.append(entries, limit),
                    None => Appended::NoQueue,
                });
            }
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
        let queue = queue.clone();
        Box::pin(async move {
            self.alive()?;
            let mut state = self.world.state.lock();
            let queue = state.queue(&queue, incarnation).ok_or(StorageError::Fenced)?;
            Ok(queue.page(after, max_messages, max_bytes))
        })
    }

    fn ack(&self, queue: &QueueKey, incarnation: u64, seqs: &[u64], sent_below: u64) {
        if let Some(queue) = self.world.state.lock().queue(queue, incarnation) {
            queue.ack(seqs, sent_below);
        }
    }

    fn take_out(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        seqs: &[u64],
    ) -> BoxFuture<'_, Result<(), StorageError>> {
        if let Some(queue) = self.world.state.lock().queue(queue, incarnation) {
            queue.take_out(seqs);
        }
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
        let record = Record::Received(queue.clone(), incarnation, seqs.to_vec());
        self.world.submit(record, Durability::Durable, sink, ticket);
    }

    fn reserve_ids(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        run: IdRun,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let record = Record::Run(queue.clone(), incarnation, run);
        self.world.submit(record, Durability::Durable, sink, ticket);
    }

    fn remove(&self, queue: &QueueKey, incarnation: u64) {
        if let Some(found) = self.world.state.lock().queue(queue, incarnation) {
            found.closing = true;
        }
        let record = Record::Remove(queue.clone(), incarnation);
        let nobody = Arc::new(Told(Mutex::new(None)));
        self.world.submit(record, Durability::Durable, nobody, 0);
    }

    fn depth(&self, queue: &QueueKey) -> u64 {
        self.world.state.lock().queues.get(queue).map_or(0, |queue| queue.depth())
    }
}
