//! Calls of sessions on their way to one master, in order, as many in one pipeline as wait.
//!
//! What comes in: calls, from any thread, at once. What goes out: pipelines, one at a time; what is
//! called meanwhile goes with the next. A call that must not get lost (an acknowledgement, a mark,
//! a removal) stays until a master took it, however long that is; all of them are safe to send
//! twice. One that somebody waits for is given up at its deadline. The queue of calls is bounded by
//! who calls: acknowledgements by what is in flight, the others by who waits for them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, Pipeline, ServerErrorKind, Value};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::key::{Names, Part};
use super::known::Known;
use super::link::{Link, Term, unavailable};
use super::script::Script;
use super::shards::{Purpose, Shard, Shards};
use crate::storage::{AppendOutcome, AppendSink, IdRun, Position, StorageError};
use crate::telemetry::{DropReason, metrics};

/// Calls of one pipeline.
const CALLS: usize = 256;
/// Between two tries while a master is away.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_AT_MOST: Duration = Duration::from_millis(1000);
/// One wait for a replica; a longer one is asked for again.
const WAIT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Call {
    pub(super) names: Arc<Names>,
    pub(super) incarnation: u64,
    pub(super) epoch: u64,
    pub(super) what: What,
}

/// What an acknowledgement says of the sender's cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// More may have been sent meanwhile.
    More,
    /// Nothing above it was sent.
    Last,
    /// Nothing: the entries are in another queue.
    None,
}

pub(super) enum What {
    Open {
        rolled_back: bool,
        tell: Tell,
    },
    Read {
        after: u64,
        messages: usize,
        bytes: usize,
        tell: Tell,
    },
    Ack {
        seqs: Vec<u64>,
        sent_below: u64,
        word: Word,
    },
    Received {
        seqs: Vec<u64>,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    },
    Reserve {
        run: IdRun,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    },
    Remove,
    /// Nothing is done; it is told when everything called before it was.
    Barrier {
        tell: Tell,
    },
}

impl std::fmt::Debug for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            What::Open { .. } => "Open",
            What::Read { .. } => "Read",
            What::Ack { .. } => "Ack",
            What::Received { .. } => "Received",
            What::Reserve { .. } => "Reserve",
            What::Remove => "Remove",
            What::Barrier { .. } => "Barrier",
        })
    }
}

/// Who waits for an answer, and until when.
#[derive(Debug)]
pub(super) struct Tell {
    pub(super) to: oneshot::Sender<Result<Value, StorageError>>,
    pub(super) until: Instant,
}

impl Tell {
    fn tell(self, answer: Result<Value, StorageError>) {
        // Whoever asked may be gone.
        self.to.send(answer).ok();
    }
}

#[derive(Debug)]
pub(super) struct Lane {
    purpose: Purpose,
    waiting: Mutex<Waiting>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    calls: VecDeque<Call>,
    /// The number of calls that were ever taken from the front.
    taken: u64,
    /// The last call of each queue, if it is an acknowledgement: the next one joins it.
    acks: HashMap<u128, u64>,
}

impl Waiting {
    fn push(&mut self, call: Call) {
        let tag = call.names.tag;
        if let What::Ack { .. } = call.what {
            let at = self.acks.get(&tag).and_then(|number| number.checked_sub(self.taken));
            let last = at.and_then(|at| self.calls.get_mut(at as usize));
            if last.is_some_and(|last| last.join(&call)) {
                return;
            }
            self.acks.insert(tag, self.taken + self.calls.len() as u64);
        } else {
            self.acks.remove(&tag);
        }
        self.calls.push_back(call);
    }

    fn take(&mut self, most: usize) -> Vec<Call> {
        let count = self.calls.len().min(most);
        self.taken += count as u64;
        if count == self.calls.len() {
            self.acks.clear();
        }
        self.calls.drain(..count).collect()
    }

    /// Puts back what was taken and not done.
    fn back(&mut self, calls: Vec<Call>) {
        self.acks.clear();
        for call in calls.into_iter().rev() {
            self.calls.push_front(call);
        }
    }
}

impl Call {
    /// Takes a later acknowledgement of the same session in.
    fn join(&mut self, later: &Call) -> bool {
        let same = (self.incarnation, self.epoch) == (later.incarnation, later.epoch)
            && self.names.identity == later.names.identity;
        match (&mut self.what, &later.what) {
            (
                What::Ack { seqs, sent_below, word },
                What::Ack { seqs: more, sent_below: below, word: last },
            ) if same && (*word == Word::None) == (*last == Word::None) => {
                seqs.extend_from_slice(more);
                *sent_below = (*sent_below).max(*below);
                *word = *last;
                true
            }
            _ => false,
        }
    }

    fn until(&self) -> Option<Instant> {
        match &self.what {
            What::Open { tell, .. } | What::Read { tell, .. } | What::Barrier { tell } => {
                Some(tell.until)
            }
            What::Ack { .. } | What::Received { .. } | What::Reserve { .. } | What::Remove => None,
        }
    }

    fn fail(self, error: StorageError) {
        match self.what {
            What::Open { tell, .. } | What::Read { tell, .. } | What::Barrier { tell } => {
                tell.tell(Err(error));
            }
            What::Received { sink, ticket, .. } | What::Reserve { sink, ticket, .. } => {
                tracing::error!(%error, "a mark could not be written to Redis");
                sink.settled(ticket, AppendOutcome::InDoubt);
            }
            What::Ack { .. } | What::Remove => {
                tracing::error!(%error, "Redis refused what a queue was told");
            }
        }
    }

    fn encode(&mut self, term: Term) -> Cmd {
        let script = match self.what {
            What::Open { .. } => Script::Open,
            What::Read { .. } => Script::Read,
            What::Ack { .. } => Script::Ack,
            What::Received { .. } => Script::Received,
            What::Reserve { .. } => Script::Reserve,
            What::Remove => Script::Remove,
            What::Barrier { .. } => return redis::cmd("PING"),
        };
        let names = &self.names;
        let mut cmd = call_of(script, names);
        cmd.arg(&names.identity).arg(&self.incarnation.to_le_bytes());
        let epoch = self.epoch.to_be_bytes();
        match &mut self.what {
            What::Open { rolled_back, .. } => {
                cmd.arg(&epoch).arg(&term.0).arg(names.long_id.as_deref().unwrap_or_default());
                cmd.arg(u8::from(*rolled_back));
            }
            What::Read { after, messages, bytes, .. } => {
                cmd.arg(&epoch).arg(*after).arg(*messages).arg(*bytes);
            }
            What::Ack { seqs, sent_below, word } => {
                seqs.sort_unstable();
                seqs.dedup();
                cmd.arg(&epoch).arg(*sent_below);
                match word {
                    Word::More => cmd.arg(&Term::default().0),
                    Word::Last => cmd.arg(&term.0),
                    Word::None => cmd.arg(""),
                };
                cmd.arg(packed(seqs));
            }
            What::Received { seqs, .. } => {
                cmd.arg(&epoch).arg(packed(seqs));
            }
            What::Reserve { run, .. } => {
                let mut packed = packed(&[run.first_seq]);
                packed.extend_from_slice(&run.first_id.get().to_le_bytes());
                packed.extend_from_slice(&run.count.to_le_bytes());
                cmd.arg(&epoch).arg(packed);
            }
            What::Remove | What::Barrier { .. } => {}
        }
        cmd
    }

    fn done(self, value: Value, known: &Known) {
        match self.what {
            What::Open { tell, .. } | What::Read { tell, .. } | What::Barrier { tell } => {
                tell.tell(Ok(value));
            }
            What::Received { sink, ticket, .. } | What::Reserve { sink, ticket, .. } => {
                sink.settled(ticket, AppendOutcome::Stored(Position::default()));
            }
            What::Ack { .. } => {
                if let Value::Int(depth @ 0..) = value {
                    known.depth_is(self.names.tag, depth as u64);
                }
            }
            What::Remove => {
                if let Value::Int(lost @ 1..) = value {
                    self.names.dropped(DropReason::SessionEnded, lost as u64);
                }
            }
        }
    }
}

/// A call of a script with the keys of a queue.
pub(super) fn call_of(script: Script, names: &Names) -> Cmd {
    let parts: &[Part] = match (script, &names.long_id) {
        (Script::Open | Script::Remove, Some(_)) => {
            &[Part::Meta, Part::List, Part::Parked, Part::Id]
        }
        (Script::Open | Script::Remove, None) => &[Part::Meta, Part::List, Part::Parked],
        (Script::Append | Script::Read | Script::Ack | Script::Received, _) => {
            &[Part::Meta, Part::List, Part::Parked]
        }
        (Script::Reserve, _) => &[Part::Meta, Part::List, Part::Parked],
        (Script::Bucket | Script::Place, _) => &[],
    };
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(script.sha()).arg(parts.len());
    for part in parts {
        cmd.arg(names.key(*part));
    }
    cmd
}

fn packed(seqs: &[u64]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(6 * seqs.len() + 4);
    for seq in seqs {
        packed.extend_from_slice(&seq.to_le_bytes()[..6]);
    }
    packed
}

/// What is to be done about one answer.
#[derive(Debug)]
pub(super) enum Verdict {
    Done(Value),
    /// The scripts are gone from the server.
    Reload,
    /// The slot is elsewhere.
    Elsewhere,
    /// Not now; `true`: not by this server.
    Later(String, bool),
    Never(StorageError),
}

pub(super) fn judge(value: Value) -> Verdict {
    let Value::ServerError(error) = value else { return Verdict::Done(value) };
    let text = error.to_string();
    match error.kind() {
        Some(ServerErrorKind::NoScript) => Verdict::Reload,
        Some(ServerErrorKind::Moved | ServerErrorKind::Ask) => Verdict::Elsewhere,
        Some(
            ServerErrorKind::BusyLoading | ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown,
        ) => Verdict::Later(text, true),
        Some(ServerErrorKind::ClusterDown | ServerErrorKind::TryAgain) => {
            Verdict::Later(text, false)
        }
        // Refused by a script, or a fault of one.
        _ if text.contains("user_script") => Verdict::Never(StorageError::Damaged(text)),
        // Out of memory, a disk that is full, too few replicas: the operator mends it.
        _ => Verdict::Later(text, false),
    }
}

impl Lane {
    pub(super) fn new(purpose: Purpose) -> Self {
        Self { purpose, waiting: Mutex::default(), wake: Notify::new() }
    }

    pub(super) fn push(&self, call: Call) {
        self.waiting.lock().push(call);
        self.wake.notify_one();
    }
}

/// Runs one lane of a shard for as long as the backend lives.
pub(super) async fn drive(shards: Arc<Shards>, shard: Arc<Shard>, purpose: Purpose) {
    let known = Arc::clone(&shards.known);
    let lane = || if purpose == Purpose::Durable { &shard.durable } else { &shard.session };
    let mut pause = AGAIN;
    loop {
        let calls = lane().waiting.lock().take(CALLS);
        if calls.is_empty() {
            lane().wake.notified().await;
            continue;
        }
        match send(&shards, &shard, lane(), calls, &known).await {
            Ok(()) => pause = AGAIN,
            Err(error) => {
                tracing::debug!(%error, "Redis does not take calls");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(AGAIN_AT_MOST);
                give_up_late(lane(), &error);
            }
        }
    }
}

fn give_up_late(lane: &Lane, error: &StorageError) {
    let now = Instant::now();
    let late = |call: &Call| call.until().is_some_and(|until| until <= now);
    let mut waiting = lane.waiting.lock();
    if waiting.calls.iter().any(late) {
        let calls = waiting.take(usize::MAX);
        let (gone, kept): (Vec<Call>, Vec<Call>) = calls.into_iter().partition(late);
        kept.into_iter().for_each(|call| waiting.push(call));
        drop(waiting);
        gone.into_iter().for_each(|call| call.fail(error.clone()));
    }
}

async fn send(
    shards: &Arc<Shards>,
    shard: &Arc<Shard>,
    lane: &Lane,
    mut calls: Vec<Call>,
    known: &Known,
) -> Result<(), StorageError> {
    let purpose = lane.purpose;
    let link = match shards.link(shard, purpose).await {
        Ok(link) => link,
        Err(error) => {
            elsewhere(shards, shard, purpose, lane, calls).await;
            return Err(error);
        }
    };
    let mut pipe = Pipeline::with_capacity(calls.len());
    for call in &mut calls {
        pipe.add_command(call.encode(link.term));
    }
    let answers = link.run(pipe.ignore_errors(), calls.len()).await;
    let answers = match (answers, purpose) {
        (Ok(answers), Purpose::Durable) => replicated(&link).await.map(|()| answers),
        (answers, _) => answers,
    };
    let answers = match answers {
        Ok(answers) => answers,
        Err(error) => {
            // What was executed nevertheless is executed again: that changes nothing.
            shard.give_up(purpose, &link);
            elsewhere(shards, shard, purpose, lane, calls).await;
            return Err(error);
        }
    };
    sort_out(shards, shard, lane, &link, calls.into_iter().zip(answers), known).await
}

async fn sort_out(
    shards: &Arc<Shards>,
    shard: &Arc<Shard>,
    lane: &Lane,
    link: &Arc<Link>,
    answered: impl Iterator<Item = (Call, Value)>,
    known: &Known,
) -> Result<(), StorageError> {
    let (mut again, mut moved, mut reload, mut error) = (Vec::new(), false, false, None);
    for (call, value) in answered {
        match judge(value) {
            Verdict::Done(value) => call.done(value, known),
            Verdict::Never(error) => call.fail(error),
            Verdict::Reload => {
                reload = true;
                again.push(call);
            }
            Verdict::Elsewhere => {
                moved = true;
                again.push(call);
            }
            Verdict::Later(text, other) => {
                if other {
                    shard.give_up(lane.purpose, link);
                }
                error = Some(unavailable(format!("Redis says {text}")));
                again.push(call);
            }
        }
    }
    if reload {
        link.load_scripts().await?;
    }
    match moved {
        true => elsewhere(shards, shard, lane.purpose, lane, again).await,
        false if !again.is_empty() => lane.waiting.lock().back(again),
        false => {}
    }
    error.map_or(Ok(()), Err)
}

/// Looks where the slots are now, and sends calls there: to the front, for they are the older ones.
async fn elsewhere(
    shards: &Arc<Shards>,
    shard: &Arc<Shard>,
    purpose: Purpose,
    lane: &Lane,
    calls: Vec<Call>,
) {
    shards.refresh().await;
    lane.waiting.lock().back(calls);
    let (mut ours, mut theirs): (Vec<Call>, Vec<Call>) = Default::default();
    for call in lane.waiting.lock().take(usize::MAX) {
        let to = shards.of_slot(call.names.slot);
        if Arc::ptr_eq(&to, shard) { ours.push(call) } else { theirs.push(call) }
    }
    lane.waiting.lock().back(ours);
    for call in theirs.into_iter().rev() {
        let to = shards.of_slot(call.names.slot);
        let lane = if purpose == Purpose::Durable { &to.durable } else { &to.session };
        lane.waiting.lock().back(vec![call]);
        lane.wake.notify_one();
    }
}

async fn replicated(link: &Link) -> Result<(), StorageError> {
    loop {
        if link.replicated(WAIT).await? {
            return Ok(());
        }
        metrics::REDIS_REPLICA_LATE.inc();
        // The replica may be gone for good, which only the master knows.
        if !link.role().await?.master {
            return Err(unavailable("Redis is not a master any more"));
        }
    }
}
