//! What the cases are written with: a sink that can be waited for, batches with telling payloads,
//! and a harness that plays the dispatcher.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Backend, Factory, Options};
use crate::mqtt::{ClientId, Delivery, PacketId, QoS};
use crate::storage::{
    AppendOutcome, AppendSink, Appended, Batch, BatchBuilder, Committed, Durability, Follower,
    IdRun, Kind, LogBatch, LogConsumer, LogItem, MessageRef, MessageView, Page, Position,
    Publisher, QueueAppend, QueueEntry, QueueKey, Row, SourceId, Stores, Table,
};

/// Nothing in a case takes long; what does is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// Ends a case that is stuck with the name of what it waited for.
pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what} did not come"),
    }
}

/// Collects outcomes in the order in which they were told.
#[derive(Debug, Default)]
pub struct Inbox {
    told: Mutex<Vec<(u64, AppendOutcome)>>,
    more: Notify,
}

impl AppendSink for Inbox {
    fn settled(&self, ticket: u64, outcome: AppendOutcome) {
        self.told.lock().push((ticket, outcome));
        self.more.notify_waiters();
    }
}

impl Inbox {
    pub fn told(&self) -> Vec<(u64, AppendOutcome)> {
        self.told.lock().clone()
    }

    pub async fn outcome(&self, ticket: u64) -> AppendOutcome {
        let wait = async {
            loop {
                let more = self.more.notified();
                let told = self.told().into_iter().find(|told| told.0 == ticket);
                if let Some((_, outcome)) = told {
                    return outcome;
                }
                more.await;
            }
        };
        soon("an append's outcome", wait).await
    }

    /// The position of an append that must succeed.
    pub async fn stored(&self, ticket: u64) -> Position {
        match self.outcome(ticket).await {
            AppendOutcome::Stored(position) => position,
            other => panic!("ticket {ticket} ended as {other:?}"),
        }
    }
}

/// A follower that remembers what it was told.
#[derive(Debug, Default)]
pub struct Seen {
    rows: Mutex<Vec<(Position, Row)>>,
}

impl Follower for Seen {
    fn apply(&self, position: Position, row: &Row) {
        self.rows.lock().push((position, row.clone()));
    }
}

impl Seen {
    pub fn rows(&self) -> Vec<(Position, Row)> {
        self.rows.lock().clone()
    }

    pub fn newest(&self, key: &str) -> Option<(Position, Row)> {
        self.rows().into_iter().rev().find(|(_, row)| row.key == key.as_bytes())
    }
}

pub fn client(name: &str) -> QueueKey {
    QueueKey::Client(ClientId::new(name))
}

/// One message a text, QoS 1; `expiry_s` is the publisher's.
pub fn batch_of(publisher: &str, texts: &[&str], expiry_s: Option<u32>) -> Arc<Batch> {
    let client_id = ClientId::new(publisher);
    let publisher = Arc::new(Publisher { client_id, incarnation: 3, epoch: 4 });
    let mut builder = BatchBuilder::new(publisher, 1_000_000);
    for text in texts {
        builder.push(&MessageView {
            kind: Kind::Publish,
            qos: QoS::AtLeastOnce,
            retain: false,
            packet_id: PacketId::new(1),
            expiry_s,
            topic: "contract/t",
            properties: &[],
            payload: text.as_bytes(),
        });
    }
    builder.finish()
}

/// The payload of a message as text.
pub fn text(message: &MessageRef) -> String {
    String::from_utf8_lossy(message.view().payload).into_owned()
}

pub(super) const QOS1: Delivery = Delivery { qos: QoS::AtLeastOnce, retain: false };

/// The identity and the message of everything in a batch.
pub(super) fn messages(batch: &LogBatch) -> Vec<(SourceId, MessageRef)> {
    let mut all = Vec::new();
    for (position, item) in &batch.items {
        let (LogItem::Publishes(batch_of_item) | LogItem::Direct { batch: batch_of_item, .. }) =
            item;
        for index in 0..batch_of_item.len() {
            let incarnation = batch.incarnation;
            let source = SourceId { incarnation, position: *position, index: index as u32 };
            all.push((source, MessageRef::new(Arc::clone(batch_of_item), index)));
        }
    }
    all
}

pub(super) fn entry(source: SourceId, message: MessageRef) -> QueueEntry {
    let expires_at_ms = message.expires_at_ms();
    let subscription_ids = Arc::from([7_u32]);
    let group = None;
    QueueEntry { source, message, delivery: QOS1, subscription_ids, expires_at_ms, group }
}

/// The ports, until the backend ends: who keeps one keeps parts of the backend.
pub struct Ports(Option<(Stores, Box<dyn LogConsumer>)>);

impl std::ops::Deref for Ports {
    type Target = Stores;

    fn deref(&self) -> &Stores {
        &self.0.as_ref().expect("ports are held while a backend is open").0
    }
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ports")
    }
}

impl Ports {
    fn consumer(&mut self) -> &mut dyn LogConsumer {
        &mut *self.0.as_mut().expect("ports are held while a backend is open").1
    }
}

/// A backend, its ports and its one consumer.
pub struct Harness {
    pub backend: Box<dyn Backend>,
    pub stores: Ports,
    pub inbox: Arc<Inbox>,
    pub committed: Committed,
    tickets: u64,
    /// Where the last publish stands.
    last: Position,
    /// Up to where the consumer has got.
    pub(super) read: Position,
    answers: HashMap<QueueKey, Vec<Appended>>,
}

impl std::fmt::Debug for Harness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harness").field("read", &self.read).finish_non_exhaustive()
    }
}

impl Harness {
    pub async fn new(factory: &dyn Factory) -> Self {
        Self::with(factory, Options::default()).await
    }

    pub async fn with(factory: &dyn Factory, options: Options) -> Self {
        let backend = factory.make(options).await;
        let stores = backend.stores();
        let (committed, consumer) = stores.log.consumer(0);
        let read = committed.position;
        let (inbox, last) = (Arc::default(), Position::default());
        let (tickets, answers) = (0, HashMap::new());
        let stores = Ports(Some((stores, consumer)));
        Self { backend, stores, inbox, committed, tickets, last, read, answers }
    }

    fn reopened(&mut self) {
        let stores = self.backend.stores();
        let (committed, consumer) = stores.log.consumer(0);
        self.read = committed.position;
        self.committed = committed;
        self.stores = Ports(Some((stores, consumer)));
    }

    pub async fn crash(&mut self) {
        self.stores = Ports(None);
        self.backend.crash().await;
        self.reopened();
    }

    pub async fn restart(&mut self) {
        self.stores = Ports(None);
        self.backend.restart().await;
        self.reopened();
    }

    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub fn sink(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }

    /// Appends without waiting; the ticket.
    pub fn append(&mut self, texts: &[&str], durability: Durability) -> u64 {
        let ticket = self.ticket();
        let batch = batch_of("publisher", texts, None);
        self.stores.log.append(batch, durability, self.sink(), ticket);
        ticket
    }

    /// One durable batch.
    pub async fn publish(&mut self, texts: &[&str]) -> Position {
        let ticket = self.append(texts, Durability::Durable);
        self.last = self.inbox.stored(ticket).await;
        self.last
    }

    pub async fn put(&mut self, rows: Vec<Row>, durability: Durability) -> Position {
        let ticket = self.ticket();
        self.stores.tables.put(rows, durability, self.sink(), ticket);
        self.inbox.stored(ticket).await
    }

    pub fn load(&self, table: Table) -> HashMap<String, (Position, String)> {
        let mut found = HashMap::new();
        let mut visit = |position: Position, key: &[u8], value: &[u8]| {
            let key = String::from_utf8_lossy(key).into_owned();
            let value = String::from_utf8_lossy(value).into_owned();
            let twice = found.insert(key, (position, value));
            assert!(twice.is_none(), "load visits a key once");
        };
        self.stores.tables.load(table, &mut visit).expect("a healthy backend loads");
        found
    }

    /// The next batch, with or without items.
    pub async fn any_next(&mut self) -> LogBatch {
        let next = soon("a batch", self.stores.consumer().next()).await;
        let batch = next.expect("a healthy log reads");
        assert!(batch.end > self.read, "the end rises from batch to batch");
        self.read = batch.end;
        batch
    }

    /// The next batch with items.
    pub async fn next(&mut self) -> LogBatch {
        loop {
            let batch = self.any_next().await;
            if !batch.items.is_empty() {
                return batch;
            }
        }
    }

    /// Whether a batch with items is there soon; for showing that none is.
    pub async fn next_within(&mut self, patience: Duration) -> Option<LogBatch> {
        tokio::time::timeout(patience, self.next()).await.ok()
    }

    pub fn commit(&mut self, state: &str) {
        let read = self.read;
        self.stores.consumer().commit(read, &mut || state.as_bytes().to_vec());
    }

    /// Everything published so far that was not read yet, as texts.
    pub async fn drain(&mut self) -> Vec<String> {
        let mut texts = Vec::new();
        while self.read <= self.last {
            let batch = self.next().await;
            texts.extend(messages(&batch).iter().map(|(_, message)| text(message)));
        }
        texts
    }

    /// Plays the dispatcher: everything not read yet goes to the queue.
    pub async fn route(&mut self, queue: &QueueKey, incarnation: u64) -> Vec<Appended> {
        let mut answers = Vec::new();
        while self.read <= self.last {
            let batch = self.next().await;
            let taken = messages(&batch).into_iter();
            let entries = taken.map(|(source, message)| entry(source, message)).collect();
            answers.push(self.enqueue(queue, incarnation, entries).await);
        }
        answers
    }

    pub async fn enqueue(
        &mut self,
        queue: &QueueKey,
        incarnation: u64,
        entries: Vec<QueueEntry>,
    ) -> Appended {
        let append = QueueAppend { queue: queue.clone(), incarnation, entries };
        let answer = soon("an append", self.stores.queues.append(vec![append])).await;
        let answer = answer.expect("a healthy backend appends")[0];
        self.answers.entry(queue.clone()).or_default().push(answer);
        answer
    }

    pub async fn open(&self, queue: &QueueKey, incarnation: u64) -> crate::storage::QueueState {
        let opened = soon("an open queue", self.stores.queues.open(queue, incarnation)).await;
        opened.expect("a healthy backend opens")
    }

    pub async fn page(&self, queue: &QueueKey, incarnation: u64, after: u64, max: usize) -> Page {
        let read = self.stores.queues.read(queue, incarnation, after, max, usize::MAX);
        soon("a page", read).await.expect("a healthy backend reads")
    }

    /// The whole queue, page by page.
    pub async fn queue(&self, queue: &QueueKey, incarnation: u64) -> Vec<(u64, String)> {
        let (mut after, mut all) = (0, Vec::new());
        loop {
            let page = self.page(queue, incarnation, after, 3).await;
            let Some(last) = page.messages.last() else { return all };
            assert!(page.messages[0].seq > after, "a page begins above the asked-for sequence");
            assert!(last.seq < page.next_seq, "a page ends below the queue's end");
            after = last.seq;
            all.extend(page.messages.iter().map(|found| (found.seq, text(&found.message))));
        }
    }

    pub async fn receive(&mut self, queue: &QueueKey, incarnation: u64, seqs: &[u64]) {
        let ticket = self.ticket();
        self.stores.queues.received(queue, incarnation, seqs, self.sink(), ticket);
        self.inbox.stored(ticket).await;
    }

    pub async fn reserve(&mut self, queue: &QueueKey, incarnation: u64, run: IdRun) {
        let ticket = self.ticket();
        self.stores.queues.reserve_ids(queue, incarnation, run, self.sink(), ticket);
        self.inbox.stored(ticket).await;
    }
}

pub(super) fn run(first_seq: u64, first_id: u16, count: u16) -> IdRun {
    let first_id = PacketId::new(first_id).expect("cases use ids above 0");
    IdRun { first_seq, first_id, count }
}

pub(super) fn row(table: Table, key: &str, value: Option<&str>) -> Row {
    let bytes = |text: &str| bytes::Bytes::copy_from_slice(text.as_bytes());
    Row { table, key: bytes(key), value: value.map(bytes) }
}
