//! One session's log on this node: where its client stands, who reads it, and what of that is
//! written down. Acknowledgements are written together, a few times in a second for a client that
//! never stops; what PUBREL and packet ids rest on is written at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::place::Place;
use super::stream::{Next, Pool, Stream};
use crate::storage::redis::{Claim, Places};
use crate::storage::{
    AppendOutcome, AppendSink, IdRun, Page, Position, QueueEntry, QueueKey, QueuedMessage,
    StorageError,
};
use crate::telemetry::{Direction, DropReason, dropped_of, task};

/// Acknowledgements wait so long for others.
const TOGETHER: Duration = Duration::from_millis(20);
/// Between two tries while Redis is away.
const AGAIN: Duration = Duration::from_millis(200);
/// Kafka's group is told at most so often.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long a page may take that Kafka is known to have.
const PAGE_WITHIN: Duration = Duration::from_secs(30);
/// A look at a stream whose news may have been missed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Who is told that a mark is durable.
type Waiting = (Arc<dyn AppendSink>, u64);

#[derive(Default)]
struct Writes {
    /// What is there differs from what is written.
    dirty: bool,
    waiting: Vec<Waiting>,
    /// A task is writing.
    running: bool,
    told: Option<Instant>,
}

/// What a connection has read and not passed: at most a page.
#[derive(Debug, Default)]
struct Ahead {
    messages: VecDeque<QueuedMessage>,
    /// Everything up to here was given to the connection.
    passed: u64,
    /// The next record to be read.
    next: u64,
}

pub(super) struct AppLog {
    pub(super) queue: QueueKey,
    pub(super) incarnation: u64,
    pub(super) topic: String,
    pub(super) epoch: AtomicU64,
    /// The sequence of the next record, as far as this node knows.
    end: AtomicU64,
    pub(super) place: Mutex<Place>,
    writes: Mutex<Writes>,
    /// Something is not to wait for others.
    urgent: Notify,
    /// A write is done.
    written: Notify,
    stream: Mutex<Option<Arc<Stream>>>,
    ahead: tokio::sync::Mutex<Ahead>,
}

impl std::fmt::Debug for AppLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppLog").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl AppLog {
    pub(super) fn new(queue: QueueKey, incarnation: u64, topic: String) -> Self {
        Self {
            queue,
            incarnation,
            topic,
            epoch: AtomicU64::new(0),
            end: AtomicU64::new(1),
            place: Mutex::new(Place::new()),
            writes: Mutex::default(),
            urgent: Notify::new(),
            written: Notify::new(),
            stream: Mutex::new(None),
            ahead: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn claim(&self) -> Claim {
        let epoch = self.epoch.load(Ordering::Acquire);
        Claim { queue: self.queue.clone(), incarnation: self.incarnation, epoch }
    }

    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(super) fn heard_of(&self, end: u64) {
        self.end.fetch_max(end, Ordering::AcqRel);
    }

    pub(super) fn depth(&self) -> u64 {
        self.place.lock().depth(self.end())
    }

    // === the reader ===

    pub(super) fn stream(&self) -> Option<Arc<Stream>> {
        self.stream.lock().clone()
    }

    /// A connection's stream takes the place of the one before. Blocks.
    pub(super) fn set_stream(&self, stream: Option<Arc<Stream>>) {
        let old = std::mem::replace(&mut *self.stream.lock(), stream);
        if let Some(old) = old {
            old.close();
        }
    }

    /// From here on another connection reads.
    pub(super) async fn begin(&self) {
        let mut ahead = self.ahead.lock().await;
        let next = self.place.lock().floor();
        *ahead = Ahead { messages: VecDeque::new(), passed: next - 1, next };
    }

    /// A page of what follows `after`, for the connection whose stream this is.
    pub(super) async fn page(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        mut stream: Arc<Stream>,
        after: u64,
        most: usize,
        most_bytes: usize,
    ) -> Result<Page, StorageError> {
        let until = Instant::now() + PAGE_WITHIN;
        let mut ahead = self.ahead.lock().await;
        let after = after.max(self.place.lock().floor() - 1);
        if after < ahead.passed {
            // What was given is wanted once more.
            stream = self.again(pool, &stream, after + 1).await?;
            *ahead = Ahead { messages: VecDeque::new(), passed: after, next: after + 1 };
        }
        while ahead.messages.front().is_some_and(|message| message.seq <= after) {
            ahead.messages.pop_front();
        }
        ahead.passed = ahead.passed.max(after);
        loop {
            match self.fill(&stream, &mut ahead, most, most_bytes)? {
                Filled::Here => {}
                Filled::Closed => return Err(StorageError::Fenced),
                Filled::Removed => {
                    stream = self.skip_removed(pool, &stream, &mut ahead).await?;
                    continue;
                }
            }
            let end = self.end().max(ahead.next);
            if !ahead.messages.is_empty() || ahead.next >= end {
                let messages: Vec<QueuedMessage> =
                    ahead.messages.iter().take(most.max(1)).cloned().collect();
                // Kept until the next call says how much of it went out.
                return Ok(Page { messages, next_seq: end });
            }
            if Instant::now() > until {
                let text = format!("topic {} does not give what it has", self.topic);
                return Err(StorageError::Unavailable(text));
            }
            stream.news(LOOK_AGAIN).await;
        }
    }

    fn fill(
        &self,
        stream: &Stream,
        ahead: &mut Ahead,
        most: usize,
        most_bytes: usize,
    ) -> Result<Filled, StorageError> {
        let size = |message: &QueuedMessage| {
            let view = message.message.view();
            view.topic.len() + view.properties.len() + view.payload.len()
        };
        let mut bytes: usize = ahead.messages.iter().map(size).sum();
        while ahead.messages.len() < most && bytes < most_bytes {
            match stream.next()? {
                Next::Nothing => break,
                Next::Closed => return Ok(Filled::Closed),
                Next::Removed => return Ok(Filled::Removed),
                Next::Other(seq) => ahead.next = ahead.next.max(seq + 1),
                // Fetched before the stream was asked to begin elsewhere.
                Next::Record(seq, _) if seq < ahead.next => {}
                Next::Record(seq, found) => {
                    let (source, mut message) = *found;
                    ahead.next = seq + 1;
                    if let Some(received) = self.place.lock().read(seq, source) {
                        message.received = received;
                        bytes += size(&message);
                        ahead.messages.push_back(message);
                    }
                }
            }
        }
        Ok(Filled::Here)
    }

    /// The same connection reads from another place.
    async fn again(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        stream: &Arc<Stream>,
        from: u64,
    ) -> Result<Arc<Stream>, StorageError> {
        let (log, pool, stream) = (Arc::clone(self), Arc::clone(pool), Arc::clone(stream));
        blocking(move || {
            let fresh = pool.read(&log.topic, from)?;
            let mut current = log.stream.lock();
            let ours = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &stream));
            if ours {
                *current = Some(Arc::clone(&fresh));
            }
            drop(current);
            stream.close();
            if ours {
                return Ok(fresh);
            }
            fresh.close();
            Err(StorageError::Fenced)
        })
        .await
    }

    /// APP-3: retention was quicker than the client.
    async fn skip_removed(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        stream: &Arc<Stream>,
        ahead: &mut Ahead,
    ) -> Result<Arc<Stream>, StorageError> {
        let (topic, all) = (self.topic.clone(), Arc::clone(pool));
        let low = blocking(move || all.bounds(&topic)).await?.low.max(ahead.next);
        // What was read before is in flight, and stays so.
        self.removed(low.saturating_sub(ahead.next));
        ahead.next = low;
        self.again(pool, stream, low).await
    }

    pub(super) fn removed(&self, lost: u64) {
        let (reason, client) = (DropReason::QueueLimitExceeded, self.queue.name());
        dropped_of(reason, Direction::Outbound, client, "", lost);
    }

    /// Its topic takes nothing for now.
    pub(super) fn takes_nothing(&self) -> StorageError {
        StorageError::Unavailable(format!("topic {} does not take messages", self.topic))
    }

    /// Its topic will never take this one (IN-9).
    pub(super) fn given_up(&self, entry: &QueueEntry) {
        let (client, topic) = (self.queue.name(), entry.message.view().topic);
        let bytes = entry.message.view().payload.len();
        tracing::warn!(log = self.topic, topic, bytes, "Kafka refuses a message: it is given up");
        dropped_of(DropReason::DeliveryFailed, Direction::Outbound, client, topic, 1);
    }

    // === what is written down ===

    pub(super) fn ack(self: &Arc<Self>, by: &Writing, seqs: &[u64], sent_below: u64) {
        self.place.lock().ack(seqs, sent_below);
        self.change(by, None);
    }

    pub(super) fn received(self: &Arc<Self>, by: &Writing, seqs: &[u64], waiting: Waiting) {
        self.place.lock().received(seqs);
        self.change(by, Some(waiting));
    }

    pub(super) fn reserve(self: &Arc<Self>, by: &Writing, run: IdRun, waiting: Waiting) {
        self.place.lock().reserve(run);
        self.change(by, Some(waiting));
    }

    fn change(self: &Arc<Self>, by: &Writing, waiting: Option<Waiting>) {
        let mut writes = self.writes.lock();
        writes.dirty = true;
        if let Some(waiting) = waiting {
            writes.waiting.push(waiting);
            self.urgent.notify_one();
        }
        if !std::mem::replace(&mut writes.running, true) {
            let (log, by) = (Arc::clone(self), by.clone());
            task::spawn_on(&by.runtime.clone(), "application log", async move {
                log.write(by).await;
            });
        }
    }

    async fn write(self: Arc<Self>, by: Writing) {
        loop {
            let (waiting, value) = {
                let mut writes = self.writes.lock();
                if !std::mem::take(&mut writes.dirty) {
                    writes.running = false;
                    drop(writes);
                    return self.written.notify_waiters();
                }
                (std::mem::take(&mut writes.waiting), self.place.lock().encode())
            };
            let put = by.places.put(&self.claim(), &value, !waiting.is_empty()).await;
            let outcome = match put {
                Ok(()) => AppendOutcome::Stored(Position::default()),
                // Another connection has it, or the session is over.
                Err(StorageError::Fenced) => AppendOutcome::NotStored,
                Err(error) => {
                    tracing::debug!(topic = self.topic, %error, "a client's place is not written");
                    self.not_written(waiting);
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            waiting.into_iter().for_each(|(sink, ticket)| sink.settled(ticket, outcome));
            self.tell_group(&by);
            self.written.notify_waiters();
            if self.writes.lock().waiting.is_empty() {
                drop(tokio::time::timeout(TOGETHER, self.urgent.notified()).await);
            }
        }
    }

    fn not_written(&self, waiting: Vec<Waiting>) {
        let mut writes = self.writes.lock();
        writes.dirty = true;
        writes.waiting.splice(0..0, waiting);
    }

    fn tell_group(&self, by: &Writing) {
        let (floor, let_go) = {
            let place = self.place.lock();
            (place.floor(), place.is_let_go())
        };
        let mut writes = self.writes.lock();
        if let_go || writes.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            writes.told = Some(Instant::now());
            drop(writes);
            by.pool.commit(&self.topic, floor);
        }
    }

    /// Waits until all that was said is written. Cancel safe: yes.
    pub(super) async fn flushed(&self) {
        loop {
            let written = self.written.notified();
            tokio::pin!(written);
            written.as_mut().enable();
            if !self.writes.lock().running {
                return;
            }
            self.urgent.notify_one();
            written.await;
        }
    }
}

enum Filled {
    Here,
    Removed,
    Closed,
}

/// What writing down needs.
#[derive(Clone, Debug)]
pub(super) struct Writing {
    pub(super) places: Places,
    pub(super) pool: Arc<Pool>,
    pub(super) runtime: tokio::runtime::Handle,
}

/// Runs what waits for Kafka where waiting harms nobody.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, StorageError> {
    let ended = |error| StorageError::Unavailable(format!("a call of Kafka did not end: {error}"));
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}
