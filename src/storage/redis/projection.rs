//! Redis as a projection of one partition of `tbmq.msg.persisted`.
//!
//! What comes in: runs of copies in the partition's order. What goes out: the same runs taken into
//! queues once, by their marks; or the place to read again from, when a master changed. A copy that
//! is younger than a lost one must not be taken before it: its mark would hide the older one. So
//! every run goes only to masters of the terms that this partition knows, and a term that it does
//! not know is known from the moment at which the reading went back far enough.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::append::Refused;
use super::link::Term;
use super::queues::RedisQueues;
use super::shards::Purpose;
use crate::storage::{
    Appended, Committed, DeviceQueues, Position, QueueAppend, QueueKey, StorageError,
};

/// Places are remembered so often.
const REMEMBER_EVERY: Duration = Duration::from_secs(1);
const STATE_VERSION: u8 = 1;

/// Whether the session of this incarnation still exists.
pub type IsLive = Arc<dyn Fn(&QueueKey, u64) -> bool + Send + Sync>;

/// What became of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Projected {
    /// Taken; the answers stand in the order of the runs.
    Applied(Vec<Appended>),
    /// A master changed. The runs were not taken, or in part: read again from here, these included.
    SeekBack(Position),
}

/// Applies one partition, and knows how far back a lost master can have thrown it.
pub struct Projector {
    queues: Arc<RedisQueues>,
    is_live: IsLive,
    /// Longer than a replica can be behind.
    lag: Duration,
    /// The terms under which everything so far was applied.
    terms: Vec<Term>,
    /// Where the partition was applied up to, and when; the first one is old enough.
    history: VecDeque<(Instant, Position)>,
    applied: Position,
}

impl std::fmt::Debug for Projector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Projector").field("applied", &self.applied).finish_non_exhaustive()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct State {
    version: u8,
    horizon: u64,
    terms: Vec<[u8; 8]>,
}

impl Projector {
    /// Goes on behind a commit whose state is [`Projector::state`]. The second answer is where the
    /// reading must begin: there, or further back when a master changed meanwhile.
    pub(super) async fn open(
        queues: Arc<RedisQueues>,
        committed: &Committed,
        is_live: IsLive,
    ) -> Result<(Self, Position), StorageError> {
        let lag = queues.shards.settings.replica_lag;
        let (position, now) = (committed.position, Instant::now());
        let state = postcard::from_bytes::<State>(&committed.state).ok();
        let state = state.filter(|state| state.version == STATE_VERSION);
        let mut projector = Self {
            queues,
            is_live,
            lag,
            terms: Vec::new(),
            history: VecDeque::from([(now, position)]),
            applied: position,
        };
        let terms = projector.masters().await?;
        if let Some(state) = state {
            let horizon = Position { offset: state.horizon, ..position };
            let known = |term: &Term| state.terms.contains(&term.0);
            projector.history = VecDeque::from([(now, horizon)]);
            projector.applied = if terms.iter().all(known) { position } else { horizon };
        }
        projector.terms = terms;
        let begin = projector.applied;
        Ok((projector, begin))
    }

    /// Takes runs of one stretch of the partition, which ends below `end`.
    pub async fn apply(
        &mut self,
        runs: Vec<QueueAppend>,
        end: Position,
    ) -> Result<Projected, StorageError> {
        let appended = if runs.is_empty() {
            Ok(Vec::new())
        } else {
            self.queues.appender.append(&runs, Some(&self.terms)).await
        };
        match appended {
            Ok(answers) => {
                let answers = self.revive(runs, answers).await?;
                self.remember(end);
                Ok(Projected::Applied(answers))
            }
            Err(Refused::Term) => self.seek_back().await.map(Projected::SeekBack),
            Err(Refused::Error(error)) => Err(error),
        }
    }

    /// What to commit with the position that was applied last.
    pub fn state(&self) -> Vec<u8> {
        let terms = self.terms.iter().map(|term| term.0).collect();
        let state = State { version: STATE_VERSION, horizon: self.horizon().offset, terms };
        postcard::to_stdvec(&state).unwrap_or_default()
    }

    /// Records below it are never read again: they may be deleted when they are committed.
    pub fn horizon(&self) -> Position {
        self.history.front().map_or(self.applied, |first| first.1)
    }

    async fn seek_back(&mut self) -> Result<Position, StorageError> {
        self.terms = self.masters().await?;
        let horizon = self.horizon();
        self.history = VecDeque::from([(Instant::now(), horizon)]);
        self.applied = horizon;
        Ok(horizon)
    }

    /// The terms of all masters; an error when one is away, for nobody knows what it lacks.
    async fn masters(&self) -> Result<Vec<Term>, StorageError> {
        let shards = &self.queues.shards;
        shards.refresh().await;
        let mut terms = Vec::new();
        for shard in shards.masters() {
            terms.push(shards.link(&shard, Purpose::Append).await?.term);
        }
        Ok(terms)
    }

    fn remember(&mut self, end: Position) {
        let now = Instant::now();
        self.applied = self.applied.max(end);
        if self.history.back().is_none_or(|last| now.duration_since(last.0) >= REMEMBER_EVERY) {
            self.history.push_back((now, self.applied));
        }
        // The newest place that is old enough is the first.
        while self.history.get(1).is_some_and(|next| now.duration_since(next.0) >= self.lag) {
            self.history.pop_front();
        }
    }

    /// A queue that Redis does not have, of a session that is there, was lost with a master: it is
    /// made again. (A session that ends meanwhile takes it along.)
    async fn revive(
        &self,
        runs: Vec<QueueAppend>,
        mut answers: Vec<Appended>,
    ) -> Result<Vec<Appended>, StorageError> {
        let is_live = |run: &QueueAppend| (self.is_live)(&run.queue, run.incarnation);
        let pairs = runs.into_iter().enumerate();
        let lost: Vec<(usize, QueueAppend)> =
            pairs.filter(|(at, run)| answers[*at] == Appended::NoQueue && is_live(run)).collect();
        for (at, run) in lost {
            match self.queues.open_as(run.queue.clone(), run.incarnation, 0).await {
                Ok(_) | Err(StorageError::Fenced) => {}
                Err(error) => return Err(error),
            }
            self.queues.forget(&run.queue);
            let (queue, incarnation) = (run.queue.clone(), run.incarnation);
            let again = self.queues.appender.append(&[run], Some(&self.terms)).await;
            let again = again.map_err(Refused::into_error)?;
            answers[at] = again.first().copied().unwrap_or(Appended::NoQueue);
            if !(self.is_live)(&queue, incarnation) {
                self.queues.remove(&queue, incarnation);
            }
        }
        Ok(answers)
    }
}
