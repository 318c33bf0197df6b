//! The logs of APPLICATION clients and groups: a topic for each session, and for each group, in
//! front of all other queues.
//!
//! What comes in: calls of `DeviceQueues`. What goes out: those for other queues to their store; of
//! an APPLICATION session, its messages to `tbmq.msg.app.<client id>.<incarnation>`, of a group to
//! `tbmq.msg.app.shared.<filter>.<incarnation>`; pages of them to whoever has it open, and where it
//! stands to Redis (`redis::Places`). Called by way of the port. Never: a message kept in memory
//! beyond a page; a topic that two sessions share.
//!
//! A topic belongs to one session: so it can be deleted with it, however late, and nobody finds
//! anything of an earlier one. Several nodes may append to it, one after another: each appends all
//! that follows some message that is in it, in order, so that readers can pass over what is there
//! twice (`place`). Nothing is given to a connection from memory: it is told how far the log goes,
//! and reads it.

mod append;
mod log;
mod orphans;
mod place;
mod producer;
mod record;
mod stream;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use self::log::{AppLog, Writing, blocking};
pub use self::orphans::{AppTopics, Owned};
use self::place::Place;
use self::producer::AppProducer;
use self::stream::Pool;
use super::KafkaSettings;
use super::admin::{Admin, Policy};
use super::watch::Watch;
use crate::storage::redis::{Claim, Places};
use crate::storage::{
    AppendOutcome, AppendSink, Appended, BoxFuture, DeviceQueues, IdRun, Page, QueueAppend,
    QueueKey, QueueState, StorageError, TopicConfig,
};
use crate::telemetry::{Direction, DropReason, dropped_of, task};

/// How long a connection waits for what the one before it has said.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);

/// The running logs of one node. Dropping it without [`Applications::stop`] is a crash.
#[derive(Debug)]
pub struct Applications {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Inner {
    settings: KafkaSettings,
    admin: Admin,
    producer: AppProducer,
    writing: Writing,
    others: Arc<dyn DeviceQueues>,
    /// Bounded by the persistent APPLICATION sessions and the groups whose copies this node has in
    /// hand.
    logs: Mutex<HashMap<QueueKey, Arc<AppLog>, ahash::RandomState>>,
    ended: Arc<AtomicBool>,
}

impl std::fmt::Debug for dyn DeviceQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeviceQueues")
    }
}

impl Applications {
    /// Puts the logs in front of the other queues. Blocks; inside a Tokio runtime.
    pub fn open(
        settings: KafkaSettings,
        places: Places,
        others: Arc<dyn DeviceQueues>,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, StorageError> {
        let watch = Arc::<Watch>::default();
        let topic = &settings.config.topics.application;
        let (producer, consumer) = (settings.producer(topic), settings.applications(topic));
        let pool = Arc::new(Pool::new(&consumer, &watch)?);
        let inner = Arc::new(Inner {
            admin: Admin::new(&settings, Arc::clone(&watch))?,
            producer: AppProducer::new(producer, Arc::clone(&watch))?,
            writing: Writing { places, pool: Arc::clone(&pool), runtime },
            others,
            logs: Mutex::default(),
            ended: Arc::default(),
            settings,
        });
        let mut threads = Vec::new();
        let start = |name: String, run: Box<dyn FnOnce() + Send>| {
            let fault = |error| StorageError::Unavailable(format!("no thread starts: {error}"));
            std::thread::Builder::new().name(name).spawn(run).map_err(fault)
        };
        let of = Arc::clone(&inner);
        threads.push(start(
            "app writer".into(),
            Box::new(move || of.producer.serve(&|| of.ended.load(Ordering::Acquire))),
        )?);
        for which in 0..pool.clients() {
            let (pool, watch, ended) =
                (Arc::clone(&pool), Arc::clone(&watch), Arc::clone(&inner.ended));
            threads.push(start(
                format!("app reader {which}"),
                Box::new(move || pool.serve(which, &watch, &|| ended.load(Ordering::Acquire))),
            )?);
        }
        Ok(Self { inner, threads: Mutex::new(threads) })
    }

    /// What lag tools see: the topics of APPLICATION sessions, and up to which offset Kafka's group
    /// has each. Blocks.
    pub fn group(settings: &KafkaSettings) -> Result<Vec<(String, u64)>, StorageError> {
        let topic = &settings.config.topics.application;
        let pool = Pool::new(&settings.applications(topic), &Arc::default())?;
        pool.group(&format!("{}.", settings.name(topic)))
    }

    /// What there is, for whoever clears up behind sessions.
    pub fn topics(&self) -> AppTopics {
        AppTopics(Arc::clone(&self.inner))
    }

    pub fn queues(&self) -> Arc<dyn DeviceQueues> {
        Arc::new(Port(Arc::clone(&self.inner)))
    }

    /// An orderly end: where clients stand is written down, if that takes no longer than this.
    pub async fn stop(self, patience: Duration) -> Result<(), StorageError> {
        let logs: Vec<Arc<AppLog>> = self.inner.logs.lock().values().cloned().collect();
        let all = async {
            for log in &logs {
                log.flushed().await;
            }
        };
        let late = tokio::time::timeout(patience, all).await.is_err();
        blocking(move || {
            self.end();
            Ok(())
        })
        .await?;
        if late {
            let text = "where APPLICATION clients stand was not written down before the end";
            return Err(StorageError::Unavailable(text.into()));
        }
        Ok(())
    }

    fn end(&self) {
        self.inner.ended.store(true, Ordering::Release);
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has said so itself.
            drop(thread.join());
        }
    }
}

impl Drop for Applications {
    fn drop(&mut self) {
        self.end();
    }
}

impl Inner {
    fn topic(&self, queue: &QueueKey, incarnation: u64) -> TopicConfig {
        let topics = &self.settings.config.topics;
        let (base, name) = match queue {
            QueueKey::Shared(filter) => (&topics.application_shared, telling(filter)),
            QueueKey::Application(_) | QueueKey::Client(_) | QueueKey::Group(_) => {
                (&topics.application, safe(queue.name()))
            }
        };
        let name = format!("{}.{name}.{incarnation}", base.name);
        TopicConfig { name, ..base.clone() }
    }

    fn known(&self, queue: &QueueKey, incarnation: u64) -> Option<Arc<AppLog>> {
        let logs = self.logs.lock();
        logs.get(queue).filter(|log| log.incarnation == incarnation).cloned()
    }

    fn made(&self, queue: &QueueKey, incarnation: u64) -> Option<Arc<AppLog>> {
        let topic = self.settings.name(&self.topic(queue, incarnation));
        let fresh = || Arc::new(AppLog::new(queue.clone(), incarnation, topic));
        let mut logs = self.logs.lock();
        match logs.get(queue) {
            Some(log) if log.incarnation == incarnation => Some(Arc::clone(log)),
            // The session is over.
            Some(log) if log.incarnation > incarnation => None,
            Some(_) | None => {
                let log = fresh();
                logs.insert(queue.clone(), Arc::clone(&log));
                Some(log)
            }
        }
    }

    /// Opens the log for the connection that holds `epoch`.
    async fn open_as(
        self: &Arc<Self>,
        queue: QueueKey,
        incarnation: u64,
        epoch: u64,
    ) -> Result<QueueState, StorageError> {
        let log = self.made(&queue, incarnation).ok_or(StorageError::Fenced)?;
        let old = Arc::clone(&log);
        blocking(move || {
            old.set_stream(None);
            Ok(())
        })
        .await?;
        if tokio::time::timeout(FLUSH_WITHIN, log.flushed()).await.is_err() {
            let text = "where the client stood is not written down yet";
            return Err(StorageError::Unavailable(text.into()));
        }
        let claim = Claim { queue: queue.clone(), incarnation, epoch };
        let held = self.writing.places.claim(&claim).await?;
        let place = held.as_deref().map(Place::decode).transpose()?;
        let (all, of, is_new) = (Arc::clone(self), Arc::clone(&log), held.is_none());
        let bounds = blocking(move || {
            if is_new {
                let topic = all.topic(&of.queue, incarnation);
                all.admin.make(&all.settings, &topic, Policy::Application)?;
            }
            all.writing.pool.bounds(&of.topic)
        })
        .await?;
        let mut place = place.unwrap_or_else(Place::new);
        place.done_below(bounds.committed.min(bounds.end));
        log.removed(place.lost_below(bounds.low));
        log.heard_of(bounds.end);
        let from = place.floor();
        *log.place.lock() = place;
        log.epoch.store(epoch, Ordering::Release);
        log.begin().await;
        let (pool, of) = (Arc::clone(&self.writing.pool), Arc::clone(&log));
        blocking(move || {
            of.set_stream(Some(pool.read(&of.topic, from)?));
            Ok(())
        })
        .await?;
        let state = log.place.lock().state(incarnation, log.end());
        Ok(state)
    }

    fn forget(&self, queue: &QueueKey, incarnation: u64) -> Option<Arc<AppLog>> {
        let log = self.known(queue, incarnation)?;
        self.logs.lock().remove(queue);
        Some(log)
    }

    /// The session has ended: its place and its topic go, and what was owed is counted (DEV-8).
    async fn remove(self: Arc<Self>, queue: QueueKey, incarnation: u64) {
        let known = match self.to_append(&queue, incarnation).await {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%queue, %error, "what an ended session was owed is not known");
                None
            }
        };
        let Some(log) = self.forget(&queue, incarnation).or(known) else { return };
        let lost = log.depth();
        dropped_of(DropReason::SessionEnded, Direction::Outbound, queue.name(), "", lost);
        let claim = Claim { queue: queue.clone(), incarnation, epoch: u64::MAX };
        let place = self.writing.places.remove(&claim).await;
        let topic = blocking(move || {
            log.set_stream(None);
            self.admin.remove(&log.topic)
        })
        .await;
        if let Err(error) = place.and(topic) {
            tracing::warn!(%queue, %error, "the log of an ended session stays");
        }
    }
}

/// TBMQ's rule: what is more than letters and digits is hashed.
fn safe(id: &str) -> String {
    // A topic's name has at most 249 characters.
    let plain = !id.is_empty() && id.len() <= 128;
    if plain && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    digest(id, 32)
}

/// A group's filter has a `$` and slashes, so it is never safe: something to know it by, and what
/// tells it from all others. No client's name has a dash.
fn telling(filter: &str) -> String {
    let known = filter.strip_prefix("$share/").unwrap_or(filter).chars().take(64);
    let known = known.map(|one| if one.is_ascii_alphanumeric() { one } else { '-' });
    format!("{}-{}", known.collect::<String>(), digest(filter, 16))
}

fn digest(text: &str, bytes: usize) -> String {
    let digest: [u8; 32] = Sha256::digest(text).into();
    digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// The port: APPLICATION sessions here, everybody else in their store.
struct Port(Arc<Inner>);

impl Port {
    /// Who is told that a mark of a log that is not open here is not written.
    fn refuse(sink: &Arc<dyn AppendSink>, ticket: u64) {
        sink.settled(ticket, AppendOutcome::NotStored);
    }
}

impl DeviceQueues for Port {
    fn open(
        &self,
        queue: &QueueKey,
        incarnation: u64,
    ) -> BoxFuture<'_, Result<QueueState, StorageError>> {
        self.open_as(queue, incarnation, 0)
    }

    fn open_as(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        epoch: u64,
    ) -> BoxFuture<'_, Result<QueueState, StorageError>> {
        match queue.is_application() {
            true => Box::pin(self.0.open_as(queue.clone(), incarnation, epoch)),
            false => self.0.others.open_as(queue, incarnation, epoch),
        }
    }

    fn append(
        &self,
        appends: Vec<QueueAppend>,
    ) -> BoxFuture<'_, Result<Vec<Appended>, StorageError>> {
        if !appends.iter().any(|append| append.queue.is_application()) {
            return self.0.others.append(appends);
        }
        Box::pin(async move {
            let order: Vec<bool> =
                appends.iter().map(|append| append.queue.is_application()).collect();
            let (ours, theirs): (Vec<_>, Vec<_>) =
                appends.into_iter().partition(|append| append.queue.is_application());
            let rest = async {
                match theirs.is_empty() {
                    true => Ok(Vec::new()),
                    false => self.0.others.append(theirs).await,
                }
            };
            let (own, others) = tokio::try_join!(self.0.append(&ours), rest)?;
            let (mut own, mut others) = (own.into_iter(), others.into_iter());
            let next = |ours: bool| if ours { own.next() } else { others.next() };
            Ok(order.into_iter().filter_map(next).collect())
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
        if !queue.is_application() {
            return self.0.others.read(queue, incarnation, after, max_messages, max_bytes);
        }
        let log = self.0.known(queue, incarnation);
        let open = log.and_then(|log| log.stream().map(|stream| (log, stream)));
        Box::pin(async move {
            let (log, stream) = open.ok_or(StorageError::Fenced)?;
            let pool = &self.0.writing.pool;
            log.page(pool, stream, after, max_messages.max(1), max_bytes.max(1)).await
        })
    }

    fn ack(&self, queue: &QueueKey, incarnation: u64, seqs: &[u64], sent_below: u64) {
        if !queue.is_application() {
            return self.0.others.ack(queue, incarnation, seqs, sent_below);
        }
        let Some(log) = self.0.known(queue, incarnation) else { return };
        log.ack(&self.0.writing, seqs, sent_below);
        if seqs.is_empty() {
            // The last word: nobody reads it until the next connection opens it.
            let stream = log.stream();
            self.0.writing.runtime.spawn_blocking(move || stream.inspect(|stream| stream.close()));
        }
    }

    fn take_out(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        seqs: &[u64],
    ) -> BoxFuture<'_, Result<(), StorageError>> {
        if !queue.is_application() {
            return self.0.others.take_out(queue, incarnation, seqs);
        }
        if let Some(log) = self.0.known(queue, incarnation) {
            log.ack(&self.0.writing, seqs, 0);
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
        if !queue.is_application() {
            return self.0.others.received(queue, incarnation, seqs, sink, ticket);
        }
        match self.0.known(queue, incarnation) {
            Some(log) => log.received(&self.0.writing, seqs, (sink, ticket)),
            None => Self::refuse(&sink, ticket),
        }
    }

    fn reserve_ids(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        run: IdRun,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        if !queue.is_application() {
            return self.0.others.reserve_ids(queue, incarnation, run, sink, ticket);
        }
        match self.0.known(queue, incarnation) {
            Some(log) => log.reserve(&self.0.writing, run, (sink, ticket)),
            None => Self::refuse(&sink, ticket),
        }
    }

    fn remove(&self, queue: &QueueKey, incarnation: u64) {
        if !queue.is_application() {
            return self.0.others.remove(queue, incarnation);
        }
        let removal = Arc::clone(&self.0).remove(queue.clone(), incarnation);
        task::spawn_on(&self.0.writing.runtime, "end of an application log", removal);
    }

    fn depth(&self, queue: &QueueKey) -> u64 {
        if !queue.is_application() {
            return self.0.others.depth(queue);
        }
        let logs = self.0.logs.lock();
        let log = logs.get(queue).cloned();
        drop(logs);
        log.map_or(0, |log| log.depth())
    }
}

#[cfg(test)]
mod tests {
    use super::{safe, telling};

    /// TOP-11, SHR-4: names of topics are safe, and differ when filters differ in anything.
    #[test]
    fn names_of_logs_are_safe_and_their_own() {
        let filters =
            ["$share/g/a/+", "$share/g/a/slw", "$share/g/a.+", "$share/g-a/+", "$share/g/ä/#"];
        let mut names: Vec<String> = filters.iter().map(|filter| telling(filter)).collect();
        assert!(names[0].starts_with("g-a---"), "{}", names[0]);
        names.push(telling(&"$share/g/x".repeat(6000)));
        names.extend(["shared", "a-b", "", "ä"].map(safe));
        let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        for (at, name) in names.iter().enumerate() {
            assert!((1..=128).contains(&name.len()) && name.bytes().all(good), "{name}");
            assert!(!names[..at].contains(name), "{name} is another one's");
        }
    }
}
