//! The ports: the only traits in the program with more than one implementation. Each contract is
//! written here in full; `storage/contract.rs` turns every sentence into a case.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use super::moves::{Origin, Taken};
use super::queue_key::QueueKey;
use super::record::{Batch, MessageRef};
use crate::cluster::Members;
use crate::mqtt::{ClientId, Delivery, PacketId};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why storage could not do what was asked. The text is for the log, never for a client.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// The medium is away or refuses (disk full, broker down); trying again may work.
    #[error("storage is unavailable: {0}")]
    Unavailable(String),
    /// What was read is not what was written; nobody may go on as if it were.
    #[error("stored data is damaged: {0}")]
    Damaged(String),
    /// A newer owner exists (design decision 3); the caller must stop acting for this session.
    #[error("fenced: a newer owner has taken over")]
    Fenced,
}

/// A place in one partition of the log. Monotone over restarts: an offset is never used twice in
/// one incarnation, and a backend that had to cut a tail goes on above everything it cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    pub partition: u32,
    pub offset: u64,
}

/// The identity of one message: what "the same record" means after a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId {
    /// The log's incarnation: another number means another history.
    pub incarnation: u64,
    pub position: Position,
    /// Which message of the batch at that position.
    pub index: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Settles when the record survives the loss of power (embedded: fdatasync; Kafka: acks=all).
    Durable,
    /// Settles when the record has its place in the order; a crash may lose it (QoS 0).
    Relaxed,
}

/// How an append ended; every append ends exactly once, in one of these ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// As durable as was asked, at this position.
    Stored(Position),
    /// Surely not stored, now or ever: it may be refused to the client (IN-2).
    NotStored,
    /// Nobody knows yet whether it is stored: only a resend may decide (design decision 16).
    InDoubt,
}

/// Who is told how appends ended. Called from the backend's own thread: must not block, must not
/// call back into the port that calls it. One object serves many tickets, so an append allocates
/// nothing for its answer.
pub trait AppendSink: Send + Sync {
    fn settled(&self, ticket: u64, outcome: AppendOutcome);
}

/// What a consumer gets.
#[derive(Clone, Debug)]
pub enum LogItem {
    /// Messages and releases of one publisher, in its order.
    Publishes(Arc<Batch>),
    /// Copies addressed to one queue or session, made by a node itself: retained copies, and a
    /// shared subscription's copies for the member that was picked.
    Direct { to: QueueKey, incarnation: u64, batch: Arc<Batch>, deliveries: Arc<[DirectCopy]> },
}

/// How one message of a `Direct` batch is to be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectCopy {
    pub delivery: Delivery,
    pub subscription_ids: Arc<[u32]>,
    /// What a shared subscription's copy was picked from; `None`: a retained copy.
    pub origin: Option<Origin>,
    /// Where it moves from; then only the group of its origin says anything.
    pub taken: Option<Taken>,
}

#[derive(Clone, Debug)]
pub struct LogBatch {
    pub incarnation: u64,
    /// What is to be known before the items are routed, positions rising.
    pub changes: Vec<(Position, Change)>,
    /// In log order, positions rising. Empty when only rows went by: `end` says how far the
    /// consumer has come although there is nothing to route.
    pub items: Vec<(Position, LogItem)>,
    /// What `commit` is to be given when all items were dealt with.
    pub end: Position,
}

/// What stands in the log of several nodes and says which of them is to do what.
#[derive(Clone, Debug)]
pub enum Change {
    /// Who lives from here on, and how far each has come.
    Nodes(Arc<Members>),
    /// The session is that node's from here on. `moved`: it was another's, so what stands before it
    /// is never in one batch with what stands behind.
    Claimed { client: ClientId, by: Arc<str>, moved: bool },
}

/// What the previous run of a consumer left behind.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    pub position: Position,
    /// The dispatcher's own state at that position, as it encoded it; empty at the first start.
    pub state: Vec<u8>,
    /// Decisions that stand in the log behind that position, each with the place of its copy, in
    /// order: the messages that come again must not be decided again. An origin is there twice if
    /// its first append was left in doubt.
    pub decided: Vec<(Position, Origin)>,
}

/// The publish log: every inbound PUBLISH enters it before it is routed (IN-1).
///
/// * Appends of one publisher are stored, settled and consumed in the order in which `append` was
///   called for it. `append` returns at once and never blocks: the caller bounds what it has open.
/// * `Durable` appends settle only when the record survives a crash. `Relaxed` ones settle when
///   they have their place. A consumer sees a batch only after it has settled as `Stored`.
/// * After a crash every `Durable` record that settled as `Stored` is there; others may be.
/// * A record stays until every consumer has committed past it and no queue points to it (IN-8).
/// * When the medium fails: records surely not written settle as `NotStored`; written but not
///   known to be safe, as `InDoubt`. A failed sync is never tried again over the same bytes as if
///   nothing had happened. New appends go on being answered; recovery needs no restart.
pub trait PublishLog: Send + Sync {
    fn append(
        &self,
        batch: Arc<Batch>,
        durability: Durability,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    );

    /// Whether [`Self::append_retaining`] is there; else a retained message and its row are two
    /// records, and whoever appends them keeps others from coming between.
    fn takes_retained(&self) -> bool {
        false
    }

    /// As `append`, durable; and those messages set, or without a payload delete, what is retained
    /// for their topics, at the same place of the log: what stands below it gets them live, what
    /// stands above finds them retained, and nobody both. Panics where nothing takes it.
    fn append_retaining(
        &self,
        _batch: Arc<Batch>,
        _retained: &[u32],
        _sink: Arc<dyn AppendSink>,
        _ticket: u64,
    ) {
        unreachable!("the caller asks `takes_retained`")
    }

    /// Appends copies for one queue, made by this node: the only other way into a queue.
    fn append_direct(
        &self,
        to: QueueKey,
        incarnation: u64,
        batch: Arc<Batch>,
        deliveries: Arc<[DirectCopy]>,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    );

    /// Opens the consumer; one for each partition this node holds. Starts behind what was last
    /// committed. A second consumer of a partition is a mistake of the caller (panics).
    fn consumer(&self, partition: u32) -> (Committed, Box<dyn LogConsumer>);

    /// Where the next record of the partition will stand; everything settled so far is below.
    fn end(&self, partition: u32) -> Position;

    /// Bytes and oldest age (milliseconds) of what waits for dispatch: IN-8's hold condition.
    fn lag(&self) -> (u64, u64);

    /// `None` when healthy, else one sentence for health and log.
    fn trouble(&self) -> Option<String>;
}

pub trait LogConsumer: Send {
    /// Waits for the next batch, whose `end` is above that of the one before. To ask for it says
    /// that the one before was dealt with. When the consumer has caught up, `end` reaches the
    /// log's end, whatever stands there. Cancel safe: yes.
    fn next(&mut self) -> BoxFuture<'_, Result<LogBatch, StorageError>>;

    /// The items of the last batch were routed; said before anybody is told so. What they retain
    /// comes into force here.
    fn routed(&mut self) {}

    /// Everything up to `position` was dealt with. The backend asks for `state` only when it is
    /// about to make the commit durable, and keeps both together: after a crash either an older
    /// pair or this one is found, never a mixture.
    fn commit(&mut self, position: Position, state: &mut dyn FnMut() -> Vec<u8>);

    /// Everything up to `position` was dispatched, but is not to be committed yet: it no longer
    /// counts as lag.
    fn passed(&mut self, _position: Position) {}
}

/// The replicated tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    Sessions = 1,
    Subscriptions = 2,
    Retained = 3,
    Credentials = 4,
    Blocked = 5,
    Settings = 6,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub table: Table,
    pub key: Bytes,
    /// `None` deletes: a real tombstone.
    pub value: Option<Bytes>,
}

/// A table's reader inside the program. `apply` runs on the backend's thread, in position order,
/// after the row is as durable as asked and before the put settles: whoever saw a put settle finds
/// it applied. (Retained rows are applied when the dispatcher has passed them: a reader of that
/// table waits for the dispatcher, not for the put.)
pub trait Follower: Send + Sync {
    fn apply(&self, position: Position, row: &Row);

    /// What is in force under a key, and where it was put: asked of the follower of a table whose
    /// resolver remembers, so that nobody else has to.
    fn recall(&self, _key: &[u8]) -> Option<(u64, Bytes)> {
        None
    }
}

/// A row as it is in force.
#[derive(Clone, Debug)]
pub struct InForce {
    pub row: Row,
    /// It is a claim: of which node, and whether the session was another's.
    pub claimed: Option<(Arc<str>, bool)>,
}

/// What becomes of a row that was put at a position, when the key has this value before it; `None`:
/// nothing, it came too late. Every node must come to the same answer.
pub type Resolve = dyn Fn(Position, Option<&[u8]>, Row) -> Option<InForce> + Send + Sync;

/// How rows of a table that several nodes write come into force.
#[derive(Clone)]
pub struct Resolver {
    pub how: Arc<Resolve>,
    /// Whether it asks for the value before.
    pub remembers: bool,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

/// Tables by key.
///
/// * `put` stores all its rows or none, in order; positions are total per key and rise over
///   restarts. `Relaxed` rows keep their place among durable ones of the same key, are applied to
///   followers without waiting for the medium, and may be forgotten by a restart.
/// * A retained message and its row stand in one record, or the row right behind the message.
/// * `load` visits the newest live row of every key with the position it was put at, everything
///   settled before the process started included. Call it, then `follow`, before the first `put`.
/// * Of subscriptions and retained messages, `load` visits those that were in force at the
///   consumer's commit. The durable rows behind it are told in order, subscriptions by `follow`,
///   retained messages as the consumer passes them: so the records that it gets again can be
///   routed as they were the first time.
/// * Rows of one `put` are applied together; rows settle in order per key.
pub trait ChangeLog: Send + Sync {
    fn put(&self, rows: Vec<Row>, durability: Durability, sink: Arc<dyn AppendSink>, ticket: u64);

    fn load(
        &self,
        table: Table,
        visit: &mut dyn FnMut(Position, &[u8], &[u8]),
    ) -> Result<(), StorageError>;

    /// Called before `load`, where several nodes write: from here on rows of the table are what the
    /// resolver makes of them.
    fn resolve_by(&self, _table: Table, _resolver: Resolver) {}

    /// At most one follower a table.
    fn follow(&self, table: Table, follower: Arc<dyn Follower>);
}

/// A message on its way into a queue.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    pub source: SourceId,
    /// The message at `source`: a backend may keep only the pointer.
    pub message: MessageRef,
    /// QoS 1 or 2 here.
    pub delivery: Delivery,
    pub subscription_ids: Arc<[u32]>,
    /// Milliseconds since the epoch after which it is not delivered any more (DEV-4, DEV-6).
    pub expires_at_ms: Option<u64>,
    /// The number of the shared group that it is a copy of.
    pub group: Option<u64>,
}

/// A run of entries for one queue, sources rising and of one partition.
#[derive(Clone, Debug)]
pub struct QueueAppend {
    pub queue: QueueKey,
    /// Entries for another incarnation of the session than the queue's are not taken.
    pub incarnation: u64,
    pub entries: Vec<QueueEntry>,
}

/// What became of a run: the first `skipped` entries were there already (a replay), the others
/// have the sequences `first_seq`, `first_seq + 1`, …
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    Taken {
        first_seq: u64,
        skipped: usize,
    },
    /// No such queue, or another incarnation: nothing was taken.
    NoQueue,
}

/// Sequences `first_seq..first_seq + count` go out with the ids from `first_id` on (65 535 is
/// followed by 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRun {
    pub first_seq: u64,
    pub first_id: PacketId,
    pub count: u16,
}

/// Where a client stands in its queue, as found when a connection attaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    pub incarnation: u64,
    /// The sequence the next entry will get. Sequences start at 1.
    pub next_seq: u64,
    /// Below it, everything was sent at least once, or may have been: a resend carries DUP=1.
    pub sent_below: u64,
    /// Runs that still cover sequences not acknowledged, in order.
    pub runs: Vec<IdRun>,
}

#[derive(Clone, Debug)]
pub struct QueuedMessage {
    pub seq: u64,
    pub message: MessageRef,
    pub delivery: Delivery,
    pub subscription_ids: Arc<[u32]>,
    pub expires_at_ms: Option<u64>,
    pub group: Option<u64>,
    /// The client has sent PUBREC for it: PUBREL is owed, the PUBLISH must not go again.
    pub received: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Not acknowledged, sequences rising, all above the asked-for one.
    pub messages: Vec<QueuedMessage>,
    /// The queue's end when the page was made: when the last message (or `after`) is one below
    /// it, the reader has caught up.
    pub next_seq: u64,
}

/// Durable queues, one per persistent client or group. An APPLICATION client's is its log: what is
/// said of a limit holds for its retention, by size and age (APP-3).
///
/// * A source identity is taken once; one copy a queue. An append is visible to `read` when its
///   future resolves. Entries are durable no later than the consumer's commit that covers them:
///   a backend that loses the tail of a queue in a crash loses the commit above it, too, and the
///   replay fills it again (it "rolls back, and says so"). The replay must route alike: then an
///   entry comes back under its sequence, with the mark and the run that are durable for it.
/// * Over the limit the oldest entries go first, counted as `Queue limit exceeded` (DEV-5), but
///   none that is `received`; one that may be in flight counts only if it is never acknowledged.
/// * An entry without an expiry gets the configured time to live, from its time of receipt (DEV-6).
/// * `ack` forgets entries; unknown sequences are ignored. It may be lost in a crash: the entry is
///   sent again with DUP=1. `received` marks QoS 2 entries and is durable when it settles: only
///   then may PUBREL leave. An id run is durable when it settles: only then may its ids be used.
/// * All calls carry the session's incarnation; calls for another one change nothing, and `read`
///   answers `Fenced`, also when there is no such queue.
pub trait DeviceQueues: Send + Sync {
    /// Opens the queue, making or emptying it when the incarnation is another one. What is thrown
    /// away is counted as `Session ended` (DEV-8).
    fn open(
        &self,
        queue: &QueueKey,
        incarnation: u64,
    ) -> BoxFuture<'_, Result<QueueState, StorageError>>;

    /// As [`Self::open`], for the connection that holds `epoch`: where several nodes have the queue
    /// one after another, calls of earlier connections change nothing from here on.
    fn open_as(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        _epoch: u64,
    ) -> BoxFuture<'_, Result<QueueState, StorageError>> {
        self.open(queue, incarnation)
    }

    /// Appends runs for many queues; the answers stand in the same order.
    fn append(
        &self,
        appends: Vec<QueueAppend>,
    ) -> BoxFuture<'_, Result<Vec<Appended>, StorageError>>;

    /// Up to `max_messages` and about `max_bytes` (at least one message) above `after`. A page may
    /// be shorter than asked for: only its `next_seq` says whether it reaches the end.
    fn read(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        after: u64,
        max_messages: usize,
        max_bytes: usize,
    ) -> BoxFuture<'_, Result<Page, StorageError>>;

    /// Acknowledged for good: PUBACK, PUBCOMP, an error PUBREC, expired, too large to send.
    /// `sent_below` is the sender's cursor, kept for DUP. With no `seqs` it is the sender's last
    /// word as it lets go: nothing above it was sent. Without a last word, and after a crash,
    /// everything in a reserved run may have been.
    fn ack(&self, queue: &QueueKey, incarnation: u64, seqs: &[u64], sent_below: u64);

    /// Entries that are in another queue by now: they go whatever connection has the queue, and the
    /// sender's cursor stays. Durable as an append is; unknown sequences are ignored.
    fn take_out(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        seqs: &[u64],
    ) -> BoxFuture<'_, Result<(), StorageError>>;

    /// PUBREC arrived for these.
    fn received(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        seqs: &[u64],
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    );

    fn reserve_ids(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        run: IdRun,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    );

    /// The session ended: the queue and all it holds go, counted as `Session ended`; in order with
    /// every `open`, but not at once.
    fn remove(&self, queue: &QueueKey, incarnation: u64);

    /// Entries waiting in the queue, not acknowledged ones included.
    fn depth(&self, queue: &QueueKey) -> u64;
}

/// The cluster's shared budget (QUO-1): atomic and cluster-wide.
pub trait TokenBucket: Send + Sync {
    /// Takes up to `n` tokens, as many as there are.
    fn draw(&self, n: u64) -> BoxFuture<'_, Result<u64, StorageError>>;

    /// The same at once, where nobody has to be asked: a bucket in this process is never away, and
    /// what must not wait is charged exactly. `None`: only [`Self::draw`] knows.
    fn draw_now(&self, _n: u64) -> Option<u64> {
        None
    }

    /// Gives unused tokens back; never above the capacity.
    fn give_back(&self, n: u64) -> BoxFuture<'_, Result<(), StorageError>>;
}

/// A node's name: `TB_SERVICE_ID`, else the host name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub Arc<str>);
