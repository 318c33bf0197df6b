//! Runs of new entries on their way into queues: one script call a queue and batch, one pipeline a
//! master.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};

use super::entry::encode;
use super::key::Names;
use super::lane::{Verdict, call_of, judge};
use super::link::{Link, Term, unavailable};
use super::script::Script;
use super::settings::RedisKind;
use super::shards::{Purpose, Shard, Shards};
use crate::storage::{Appended, QueueAppend, StorageError};
use crate::telemetry::DropReason;

/// Queues of one pipeline: what a master works through in about 10 ms.
const QUEUES: usize = 512;
/// How often one append is sent before its caller is told, where nothing else is configured.
const TRIES: usize = 5;
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Appender {
    shards: Arc<Shards>,
}

/// Why runs were not taken.
#[derive(Debug)]
pub(super) enum Refused {
    /// A master is of another term than those that were asked for.
    Term,
    Error(StorageError),
}

impl From<StorageError> for Refused {
    fn from(error: StorageError) -> Self {
        Refused::Error(error)
    }
}

impl Refused {
    pub(super) fn into_error(self) -> StorageError {
        match self {
            Refused::Term => unavailable("a Redis master changed; the log is read again first"),
            Refused::Error(error) => error,
        }
    }
}

struct Run {
    names: Names,
    at: usize,
}

impl Appender {
    pub(super) fn new(shards: Arc<Shards>) -> Self {
        Self { shards }
    }

    /// Appends to whoever is master. With `terms`, only to masters of these terms: a copy that
    /// reached another one could hide that older copies are missing there.
    pub(super) async fn append(
        &self,
        appends: &[QueueAppend],
        terms: Option<&[Term]>,
    ) -> Result<Vec<Appended>, Refused> {
        let prefix = &self.shards.settings.prefix;
        let named = appends.iter().enumerate();
        let mut left: Vec<Run> =
            named.map(|(at, append)| Run { names: Names::of(prefix, &append.queue), at }).collect();
        let mut answers = vec![Appended::NoQueue; appends.len()];
        let tries = match self.shards.settings.kind {
            RedisKind::Standalone(_) | RedisKind::Sentinel { .. } => TRIES,
            RedisKind::Cluster { max_redirects, .. } => max_redirects + 1,
        };
        for tried in 0..tries {
            if tried > 0 {
                tokio::time::sleep(AGAIN).await;
                self.shards.refresh().await;
            }
            let mut shards: Vec<(Arc<Shard>, Vec<Run>)> = Vec::new();
            for run in left.drain(..) {
                let shard = self.shards.of_slot(run.names.slot);
                match shards.iter_mut().find(|known| Arc::ptr_eq(&known.0, &shard)) {
                    Some(known) => known.1.push(run),
                    None => shards.push((shard, vec![run])),
                }
            }
            for (shard, mut runs) in shards {
                while !runs.is_empty() {
                    let rest = runs.split_off(runs.len().min(QUEUES));
                    let again = self.send(&shard, runs, appends, terms, &mut answers).await?;
                    left.extend(again);
                    runs = rest;
                }
            }
            if left.is_empty() {
                return Ok(answers);
            }
        }
        Err(unavailable("the masters of Redis Cluster change").into())
    }

    async fn send(
        &self,
        shard: &Arc<Shard>,
        runs: Vec<Run>,
        appends: &[QueueAppend],
        terms: Option<&[Term]>,
        answers: &mut [Appended],
    ) -> Result<Vec<Run>, Refused> {
        let link = self.shards.link(shard, Purpose::Append).await?;
        if terms.is_some_and(|terms| !terms.contains(&link.term)) {
            return Err(Refused::Term);
        }
        let mut pipe = Pipeline::with_capacity(runs.len());
        for run in &runs {
            pipe.add_command(self.command(&run.names, &appends[run.at]));
        }
        let values = match link.run(pipe.ignore_errors(), runs.len()).await {
            Ok(values) => values,
            Err(error) => {
                shard.give_up(Purpose::Append, &link);
                return Err(error.into());
            }
        };
        Ok(self.sort_out(shard, &link, runs, values, answers).await?)
    }

    fn command(&self, names: &Names, append: &QueueAppend) -> Cmd {
        let settings = &self.shards.settings;
        let ttl_ms = u64::try_from(settings.queue_ttl.as_millis()).unwrap_or(u64::MAX);
        let mut cmd = call_of(Script::Append, names);
        cmd.arg(&names.identity).arg(&append.incarnation.to_le_bytes()).arg(settings.queue_limit);
        let mut source = Vec::with_capacity(12);
        let mut places = Vec::with_capacity(12 * append.entries.len());
        if let Some(first) = append.entries.first() {
            source.extend_from_slice(&first.source.incarnation.to_le_bytes());
            source.extend_from_slice(&first.source.position.partition.to_le_bytes());
        }
        for entry in &append.entries {
            places.extend_from_slice(&entry.source.position.offset.to_le_bytes());
            places.extend_from_slice(&entry.source.index.to_le_bytes());
        }
        cmd.arg(source).arg(places);
        for entry in &append.entries {
            let received_at_ms = entry.message.batch().received_at_ms();
            let default = received_at_ms.saturating_add(ttl_ms);
            cmd.arg(encode(entry, entry.expires_at_ms.unwrap_or(default)));
        }
        cmd
    }

    /// Notes what was taken; gives back what must be sent to another master, or again.
    async fn sort_out(
        &self,
        shard: &Arc<Shard>,
        link: &Arc<Link>,
        runs: Vec<Run>,
        values: Vec<Value>,
        answers: &mut [Appended],
    ) -> Result<Vec<Run>, StorageError> {
        let (mut again, mut reload) = (Vec::new(), false);
        for (run, value) in runs.into_iter().zip(values) {
            match judge(value) {
                Verdict::Done(value) => answers[run.at] = self.taken(&run.names, value)?,
                Verdict::Reload => {
                    reload = true;
                    again.push(run);
                }
                Verdict::Elsewhere => again.push(run),
                Verdict::Later(text, other) => {
                    if other {
                        shard.give_up(Purpose::Append, link);
                    }
                    return Err(unavailable(format!("Redis says {text}")));
                }
                Verdict::Never(error) => return Err(error),
            }
        }
        if reload {
            link.load_scripts().await?;
        }
        Ok(again)
    }

    fn taken(&self, names: &Names, value: Value) -> Result<Appended, StorageError> {
        let fields = match value {
            Value::Int(0) => return Ok(Appended::NoQueue),
            Value::Array(fields) => fields,
            _ => return Err(StorageError::Damaged("Redis answers an append oddly".into())),
        };
        let [Value::Int(first), Value::Int(skipped), Value::Int(depth), Value::Int(lost)] =
            fields[..]
        else {
            return Err(StorageError::Damaged("Redis answers an append oddly".into()));
        };
        names.dropped(DropReason::QueueLimitExceeded, lost as u64);
        self.shards.known.depth_is(names.tag, depth as u64);
        Ok(Appended::Taken { first_seq: first as u64, skipped: skipped as usize })
    }
}
