//! A start: topics, what was pinned and committed, rows that are only in the log, and the threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rdkafka::topic_partition_list::Offset;

use super::admin::{Admin, Policy, Wanted};
use super::feed::{Feed, batch_of};
use super::format::{
    Commit, Mark, PINNED, Pinned, RecordKind, TABLES, damaged, decode_rows, decode_state,
    encode_state, log_item, retained_rows,
};
use super::keeper::{self, Keeper, commit_key, commit_prefix};
use super::log::Log;
use super::pulse::{Pulse, say};
use super::reader::{Reader, offset_of};
use super::scribe::{Line, Scribe};
use super::tables::Tables;
use super::watch::Watch;
use super::writer::Writer;
use super::{Kafka, KafkaSettings, RUNNING, STOPPING, position, read};
use crate::cluster::{Members, Word};
use crate::storage::{DirectCopy, LogItem, Origin, Peers, Position, StorageError};
use crate::telemetry::clock::wall_ms;

/// What earlier runs left in the state's topic.
#[derive(Default)]
struct Left {
    pinned: Option<Pinned>,
    /// By node.
    commits: BTreeMap<String, Commit>,
}

impl Left {
    /// Where a start begins: with whoever has come least far, of those that count, everything below
    /// is done by everybody. What was written behind stays so.
    fn begin(&self) -> Commit {
        let newest = self.commits.values().max_by_key(|commit| commit.position);
        let Some(newest) = newest else {
            return Commit { position: 1, tables: 1, ..Commit::default() };
        };
        let counts = |(node, _): &(&String, &Commit)| newest.members.knows(node);
        let counted = self.commits.iter().filter(counts).map(|(_, commit)| commit);
        let oldest = counted.min_by_key(|commit| commit.position).unwrap_or(newest);
        let tables = self.commits.values().map(|commit| commit.tables).max();
        Commit { tables: tables.unwrap_or(1), ..oldest.clone() }
    }
}

/// What every step of a start needs.
struct Start {
    settings: Arc<KafkaSettings>,
    watch: Arc<Watch>,
    admin: Admin,
    /// Partitions of each topic.
    partitions: BTreeMap<String, u32>,
    /// This run of the program.
    run: u64,
    log_topic: String,
    state_topic: String,
    /// What the start writes; then the pulse has it.
    scribe: Mutex<Scribe>,
}

pub(super) fn open(settings: KafkaSettings) -> Result<Kafka, StorageError> {
    let (settings, watch) = (Arc::new(settings), Arc::<Watch>::default());
    let admin = Admin::new(&settings, Arc::clone(&watch))?;
    let topics = &settings.config.topics;
    let mut wanted = vec![
        Wanted { topic: &topics.log, policy: Policy::Log },
        Wanted { topic: &topics.state, policy: Policy::State },
    ];
    let tables = TABLES.map(|table| Wanted { topic: settings.table(table), policy: Policy::Table });
    wanted.extend(tables);
    let partitions = admin.ensure(&settings, &wanted)?;
    let (log_topic, state_topic) = (settings.name(&topics.log), settings.name(&topics.state));
    let run = random();
    let scribe = Mutex::new(Scribe::new(settings.scribe(), Arc::clone(&watch)));
    let start = Start {
        settings: Arc::clone(&settings),
        watch,
        admin,
        partitions,
        run,
        log_topic,
        state_topic,
        scribe,
    };
    start.open()
}

/// A number that no other run has: the hasher's keys come from the system.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u64(wall_ms());
    hasher.finish()
}

/// What a start finds behind the commit.
struct Tail {
    /// Where that look ended.
    known_to: u64,
    decided: Vec<(Position, Origin)>,
    /// The nodes as of there.
    members: Members,
}

impl Start {
    fn open(self) -> Result<Kafka, StorageError> {
        let left = self.state()?;
        let committed = left.begin();
        let ours = left.commits.get(&self.settings.node).map_or(0, |commit| commit.position);
        let pinned = self.pin(left.pinned)?;
        let (low, high) = self.admin.watermarks(&self.log_topic)?;
        let (low, end) = (position(low).offset, position(high).offset);
        let needed = committed.position.min(committed.tables);
        if needed < low || committed.position.max(committed.tables) > end {
            let text = format!(
                "topic {} holds {low} to {end}, but {needed} to {} are needed: it was made anew, \
                 or records were deleted from it by somebody else",
                self.log_topic,
                committed.position.max(committed.tables),
            );
            return Err(StorageError::Damaged(text));
        }
        self.join(&committed)?;
        let settings = &self.settings;
        let writer = Arc::new(Writer::new(
            settings.log_producer(),
            self.log_topic.clone(),
            self.run,
            settings.max_record_bytes,
            Arc::clone(&self.watch),
        )?);
        let tables = Arc::new(Tables::new(
            Arc::clone(settings),
            self.partitions.clone(),
            Arc::clone(&self.watch),
            Arc::clone(&writer),
            committed.position,
        ));
        let tail = self.tail(&tables, &committed, end)?;
        self.start((pinned.incarnation, ours), writer, tables, committed, tail)
    }

    /// Tells the others, and this run's own reader, that it is here, and what it can route.
    fn join(&self, committed: &Commit) -> Result<(), StorageError> {
        let word = Word::Joined { node: self.settings.node.clone(), commit: committed.position };
        let until = tokio::time::Instant::now() + self.settings.config.command_timeout;
        let late = || tokio::time::Instant::now() > until;
        say(&mut self.scribe.lock(), &self.log_topic, self.run, &word, &late)
    }

    fn state(&self) -> Result<Left, StorageError> {
        let mut left = Left::default();
        let commits = commit_prefix(&self.settings);
        let config = self.settings.consumer(&self.settings.config.topics.state);
        let partitions = self.partitions.get(&self.state_topic).copied().unwrap_or(1);
        let patience = self.settings.config.command_timeout;
        let (topic, from) = (&self.state_topic, Offset::Beginning);
        read::to_the_end(&config, &self.watch, topic, partitions, from, patience, &mut |found| {
            if found.mark.kind != RecordKind::State {
                return Ok(());
            }
            let key = String::from_utf8_lossy(found.key);
            if let Some(node) = key.strip_prefix(&commits) {
                match found.payload {
                    Some(payload) => drop(left.commits.insert(node.into(), decode_state(payload)?)),
                    None => drop(left.commits.remove(node)),
                }
            } else if found.key == PINNED.as_bytes() && left.pinned.is_none() {
                // The first one counts, whoever wrote a second.
                left.pinned = found.payload.map(decode_state).transpose()?;
            }
            Ok(())
        })?;
        Ok(left)
    }

    /// Design decision 1: partition counts are those of the first start, or the start ends here.
    fn pin(&self, pinned: Option<Pinned>) -> Result<Pinned, StorageError> {
        if let Some(pinned) = pinned {
            for (topic, was) in &pinned.partitions {
                let is = self.partitions.get(topic).copied().unwrap_or(0);
                if is != *was {
                    let text = format!(
                        "topic {topic} had {was} partitions at the first start and has {is} now: \
                         keys would be looked for where they are not. Give it {was} again, or \
                         move to a new prefix"
                    );
                    return Err(StorageError::Damaged(text));
                }
            }
            return Ok(pinned);
        }
        let ours = |topic: &&String| topic.starts_with(&self.settings.config.prefix);
        let known: Vec<String> = TABLES
            .iter()
            .map(|table| self.settings.name(self.settings.table(*table)))
            .chain([self.log_topic.clone(), self.state_topic.clone()])
            .collect();
        let counted = known.iter().filter(ours).filter_map(|topic| {
            self.partitions.get(topic).map(|partitions| (topic.clone(), *partitions))
        });
        let pinned = Pinned { incarnation: random() | 1, partitions: counted.collect() };
        let payload = encode_state(&pinned);
        let mark = Mark { kind: RecordKind::State, writer: self.run, number: 0 };
        let line = Line {
            topic: &self.state_topic,
            partition: 0,
            key: PINNED.as_bytes(),
            payload: Some(&payload),
            mark,
        };
        let until = tokio::time::Instant::now() + self.settings.config.command_timeout;
        self.scribe.lock().write(std::iter::once(line), &|| tokio::time::Instant::now() > until)?;
        // Of two nodes that start at once, the first record is everybody's.
        self.state()?.pinned.ok_or_else(|| damaged("the record of the first start is not there"))
    }

    /// What stands in the log behind the commit, or behind the place up to which the tables' topics
    /// are whole: rows, and decisions about messages that come again.
    fn tail(&self, tables: &Tables, committed: &Commit, end: u64) -> Result<Tail, StorageError> {
        let members = committed.members.clone();
        let mut tail = Tail { known_to: end, decided: Vec::new(), members };
        let from = committed.position.min(committed.tables);
        let config = self.settings.consumer(&self.settings.config.topics.log);
        let (from, patience) = (offset_of(from), self.settings.config.command_timeout);
        read::to_the_end(&config, &self.watch, &self.log_topic, 1, from, patience, &mut |found| {
            let (at, payload) = (position(found.offset), found.payload.unwrap_or_default());
            tail.known_to = tail.known_to.max(at.offset + 1);
            let routed = at.offset >= committed.position;
            // Below the commit nobody knows any more who lived where.
            let counts = !routed || tail.members.admits(found.mark.writer);
            match found.mark.kind {
                RecordKind::Word if routed => {
                    tail.members.take(at.offset, found.mark.writer, &decode_state(payload)?);
                }
                RecordKind::Rows if counts && at.offset >= committed.tables => {
                    tables.found(at.offset, decode_rows(payload)?);
                }
                RecordKind::Retaining if at.offset >= committed.tables => {
                    let item = log_item(RecordKind::Retaining, payload)?;
                    tables.found(at.offset, retained_rows(payload, batch_of(&item))?);
                }
                RecordKind::Direct | RecordKind::Moved if routed && counts => {
                    let LogItem::Direct { deliveries, .. } = log_item(found.mark.kind, payload)?
                    else {
                        return Ok(());
                    };
                    let origins = deliveries.iter().filter_map(DirectCopy::decision);
                    let open = origins.filter(|one| one.position.offset >= committed.position);
                    tail.decided.extend(open.map(|origin| (at, origin)));
                }
                RecordKind::Rows
                | RecordKind::Direct
                | RecordKind::Moved
                | RecordKind::Publishes
                | RecordKind::Retaining
                | RecordKind::Relaxed
                | RecordKind::TableRow
                | RecordKind::Word
                | RecordKind::State => {}
            }
            Ok(())
        })?;
        Ok(tail)
    }

    fn start(
        self,
        (incarnation, ours): (u64, u64),
        writer: Arc<Writer>,
        tables: Arc<Tables>,
        committed: Commit,
        tail: Tail,
    ) -> Result<Kafka, StorageError> {
        let (settings, watch) = (self.settings, self.watch);
        let key = commit_key(&settings, &settings.node);
        let peers = Arc::new(peers(&settings, self.run, tail.members, ours));
        peers.is_durable(committed.position, committed.tables);
        let config = settings.consumer(&settings.config.topics.log);
        let from = offset_of(committed.position);
        let consumer = read::consumer(&config, &watch, &self.log_topic, 1, from)?;
        let feed = Arc::new(Feed::new(committed.position));
        let reader = Reader {
            consumer,
            topic: self.log_topic.clone(),
            feed: Arc::clone(&feed),
            writer: Arc::clone(&writer),
            tables: Some(Arc::clone(&tables)),
            watch: Arc::clone(&watch),
            known_to: tail.known_to,
            peers: Arc::clone(&peers),
            members: Mutex::new(committed.members.clone()),
        };
        let pulse = Pulse {
            topic: self.log_topic.clone(),
            settings: Arc::clone(&settings),
            scribe: self.scribe,
            peers: Arc::clone(&peers),
        };
        let keeper = Arc::new(Keeper::new(keeper::Parts {
            settings: Arc::clone(&settings),
            admin: self.admin,
            topic: self.log_topic,
            state_topic: self.state_topic,
            key,
            run: self.run,
            feed: Arc::clone(&feed),
            tables: Some(Arc::clone(&tables)),
            watch: Arc::clone(&watch),
            peers: Arc::clone(&peers),
        }));
        let log = Arc::new(Log {
            incarnation,
            writer: Arc::clone(&writer),
            feed,
            keeper,
            tables: Some(tables),
            watch,
            committed: committed.clone(),
            decided: tail.decided,
            end: tail.known_to,
            taken: AtomicBool::new(false),
        });
        let (phase, threads) = (Arc::new(AtomicU8::new(RUNNING)), Mutex::default());
        let kafka = Kafka { log, phase, threads, settings, peers, pulse: Arc::new(pulse) };
        launch(&kafka, reader, committed)?;
        Ok(kafka)
    }
}

/// Starts its threads.
fn launch(kafka: &Kafka, reader: Reader, committed: Commit) -> Result<(), StorageError> {
    let phase = || Arc::clone(&kafka.phase);
    let (served, read_on, kept, beaten) = (phase(), phase(), phase(), phase());
    let (writer, keeper) = (Arc::clone(&kafka.log.writer), Arc::clone(&kafka.log.keeper));
    let (pulse, pacer) = (Arc::clone(&kafka.pulse), Arc::clone(&writer));
    let threads = [
        thread("kafka rounds", move || pacer.pace())?,
        thread("kafka writer", move || writer.serve(&|| is_over(&served)))?,
        thread("kafka pulse", move || pulse.run(&|| is_over(&beaten)))?,
        thread("kafka reader", move || reader.run(&|| is_over(&read_on)))?,
        thread("kafka keeper", move || {
            let orderly = || kept.load(Ordering::Acquire) == STOPPING;
            keeper.run(committed, &|| is_over(&kept), &orderly);
        })?,
    ];
    kafka.threads.lock().extend(threads);
    Ok(())
}

fn peers(settings: &KafkaSettings, run: u64, members: Members, ours: u64) -> Peers {
    let dead_after_ms = settings.dead_after.as_millis() as u64;
    Peers::new(&settings.node, run, members, dead_after_ms).with_decided_below(ours)
}

fn is_over(phase: &AtomicU8) -> bool {
    phase.load(Ordering::Acquire) != RUNNING
}

fn thread(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, StorageError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| StorageError::Unavailable(format!("no thread for the {name}: {error}")))
}
