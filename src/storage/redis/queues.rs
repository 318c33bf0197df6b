//! The `DeviceQueues` port on Redis.

use std::sync::Arc;

use redis::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::append::{Appender, Refused};
use super::entry::Decoder;
use super::key::Names;
use super::known::{Exact, Held};
use super::lane::{Call, Tell, What, Word};
use super::link::unavailable;
use super::shards::Shards;
use crate::mqtt::PacketId;
use crate::storage::{
    AppendSink, Appended, BoxFuture, DeviceQueues, IdRun, Page, QueueAppend, QueueKey, QueueState,
    QueuedMessage, StorageError,
};
use crate::telemetry::DropReason;

#[derive(Debug)]
pub(super) struct RedisQueues {
    pub(super) shards: Arc<Shards>,
    pub(super) appender: Appender,
}

fn damaged() -> StorageError {
    StorageError::Damaged("Redis answers a script with something else than it gives".into())
}

impl RedisQueues {
    fn names(&self, queue: &QueueKey) -> Arc<Names> {
        Arc::new(Names::of(&self.shards.settings.prefix, queue))
    }

    fn push(&self, call: Call) {
        let shard = self.shards.of_slot(call.names.slot);
        let durable = matches!(call.what, What::Received { .. } | What::Reserve { .. });
        let lane = if durable { &shard.durable } else { &shard.session };
        lane.push(call);
    }

    async fn ask(
        &self,
        names: Arc<Names>,
        incarnation: u64,
        epoch: u64,
        what: impl FnOnce(Tell) -> What,
    ) -> Result<Value, StorageError> {
        let (to, answer) = oneshot::channel();
        let until = Instant::now() + self.shards.settings.read_timeout;
        self.push(Call { names, incarnation, epoch, what: what(Tell { to, until }) });
        answer.await.unwrap_or_else(|_| Err(unavailable("the Redis backend has ended")))
    }

    /// Opens a queue for the connection that holds `epoch`; 0 does not fence.
    pub(super) async fn open_as(
        &self,
        queue: QueueKey,
        incarnation: u64,
        epoch: u64,
    ) -> Result<QueueState, StorageError> {
        let names = self.names(&queue);
        let tag = names.tag;
        let rolled_back = self.shards.standing.rolled_back();
        let open = |tell| What::Open { rolled_back, tell };
        let value = self.ask(Arc::clone(&names), incarnation, epoch, open).await?;
        let Value::Array(fields) = value else { return Err(damaged()) };
        let number = |at: usize| match fields.get(at) {
            Some(Value::Int(number)) => Ok(*number as u64),
            Some(_) | None => Err(damaged()),
        };
        if number(0)? == 0 {
            return Err(StorageError::Fenced);
        }
        names.dropped(DropReason::SessionEnded, number(1)?);
        names.dropped(DropReason::QueueLimitExceeded, number(2)?);
        let Some(Value::BulkString(runs)) = fields.get(7) else { return Err(damaged()) };
        let state = QueueState {
            incarnation,
            next_seq: number(3)?,
            sent_below: number(4)?,
            runs: parse_runs(runs)?,
        };
        let exact = (number(6)? == 1).then(|| {
            let sent_below = state.sent_below;
            Exact { queue, incarnation, sent_below }
        });
        self.shards.known.opened(tag, Held { depth: number(5)?, epoch, exact });
        Ok(state)
    }

    /// The queue was opened for somebody else.
    pub(super) fn forget(&self, queue: &QueueKey) {
        self.shards.known.closed(self.names(queue).tag);
    }

    async fn page(
        &self,
        names: Arc<Names>,
        incarnation: u64,
        after: u64,
        messages: usize,
        bytes: usize,
    ) -> Result<Page, StorageError> {
        let tag = names.tag;
        let epoch = self.shards.known.epoch(tag);
        // Lua counts in doubles; nobody has a page of so many bytes.
        let (messages, bytes) = (messages.max(1), bytes.min(1 << 48));
        let read = |tell| What::Read { after, messages, bytes, tell };
        let value = self.ask(Arc::clone(&names), incarnation, epoch, read).await?;
        let fields = match value {
            Value::Array(fields) => fields,
            Value::Int(0) => return Err(StorageError::Fenced),
            _ => return Err(damaged()),
        };
        let mut fields = fields.into_iter();
        let mut number = || match fields.next() {
            Some(Value::Int(number)) => Ok(number as u64),
            Some(_) | None => Err(damaged()),
        };
        let (next_seq, depth, lost, parked) = (number()?, number()?, number()?, number()?);
        names.dropped(DropReason::QueueLimitExceeded, lost);
        self.shards.known.read(tag, depth);
        let messages = parse_page(&mut fields, parked)?;
        Ok(Page { messages, next_seq })
    }
}

fn parse_runs(raw: &[u8]) -> Result<Vec<IdRun>, StorageError> {
    let run = |raw: &[u8]| {
        let mut first = [0; 8];
        first[..6].copy_from_slice(&raw[..6]);
        let first_id = PacketId::new(u16::from_le_bytes([raw[6], raw[7]]));
        Ok(IdRun {
            first_seq: u64::from_le_bytes(first),
            first_id: first_id.ok_or_else(damaged)?,
            count: u16::from_le_bytes([raw[8], raw[9]]),
        })
    };
    raw.chunks_exact(10).map(run).collect()
}

fn parse_page(
    fields: &mut impl Iterator<Item = Value>,
    parked: u64,
) -> Result<Vec<QueuedMessage>, StorageError> {
    let (mut messages, mut decoder) = (Vec::new(), Decoder::default());
    for _ in 0..parked {
        let (Some(Value::Int(seq)), Some(Value::BulkString(raw))) = (fields.next(), fields.next())
        else {
            return Err(damaged());
        };
        messages.push(decoder.decode(seq as u64, &raw)?);
    }
    let Some(first) = fields.next() else { return Ok(messages) };
    let Value::Int(mut seq) = first else { return Err(damaged()) };
    for field in fields {
        let Value::BulkString(raw) = field else { return Err(damaged()) };
        if !raw.is_empty() {
            messages.push(decoder.decode(seq as u64, &raw)?);
        }
        seq += 1;
    }
    Ok(messages)
}

impl DeviceQueues for RedisQueues {
    fn open(
        &self,
        queue: &QueueKey,
        incarnation: u64,
    ) -> BoxFuture<'_, Result<QueueState, StorageError>> {
        Box::pin(self.open_as(queue.clone(), incarnation, 0))
    }

    fn open_as(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        epoch: u64,
    ) -> BoxFuture<'_, Result<QueueState, StorageError>> {
        Box::pin(Self::open_as(self, queue.clone(), incarnation, epoch))
    }

    fn append(
        &self,
        appends: Vec<QueueAppend>,
    ) -> BoxFuture<'_, Result<Vec<Appended>, StorageError>> {
        Box::pin(
            async move { self.appender.append(&appends, None).await.map_err(Refused::into_error) },
        )
    }

    fn read(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        after: u64,
        max_messages: usize,
        max_bytes: usize,
    ) -> BoxFuture<'_, Result<Page, StorageError>> {
        let names = self.names(queue);
        Box::pin(self.page(names, incarnation, after, max_messages, max_bytes))
    }

    fn ack(&self, queue: &QueueKey, incarnation: u64, seqs: &[u64], sent_below: u64) {
        let names = self.names(queue);
        let (seqs, last_word) = (seqs.to_vec(), seqs.is_empty());
        let epoch = self.shards.known.epoch(names.tag);
        self.shards.known.touched(names.tag);
        if last_word {
            self.shards.known.closed(names.tag);
        }
        let word = if last_word { Word::Last } else { Word::More };
        let what = What::Ack { seqs, sent_below, word };
        self.push(Call { names, incarnation, epoch, what });
    }

    fn take_out(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        seqs: &[u64],
    ) -> BoxFuture<'_, Result<(), StorageError>> {
        let (names, seqs) = (self.names(queue), seqs.to_vec());
        let (same, word) = (Arc::clone(&names), Word::None);
        Box::pin(async move {
            let what = What::Ack { seqs, sent_below: 0, word };
            self.push(Call { names, incarnation, epoch: 0, what });
            // In the same lane, behind it.
            self.ask(same, incarnation, 0, |tell| What::Barrier { tell }).await.map(|_| ())
        })
    }

    fn received(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        seqs: &[u64],
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let names = self.names(queue);
        let epoch = self.shards.known.epoch(names.tag);
        let what = What::Received { seqs: seqs.to_vec(), sink, ticket };
        self.push(Call { names, incarnation, epoch, what });
    }

    fn reserve_ids(
        &self,
        queue: &QueueKey,
        incarnation: u64,
        run: IdRun,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let names = self.names(queue);
        let epoch = self.shards.known.epoch(names.tag);
        self.shards.known.touched(names.tag);
        self.push(Call { names, incarnation, epoch, what: What::Reserve { run, sink, ticket } });
    }

    fn remove(&self, queue: &QueueKey, incarnation: u64) {
        let names = self.names(queue);
        self.shards.known.closed(names.tag);
        self.shards.standing.removed(&names, incarnation);
        self.push(Call { names, incarnation, epoch: 0, what: What::Remove });
    }

    fn depth(&self, queue: &QueueKey) -> u64 {
        self.shards.known.depth(self.names(queue).tag)
    }
}
