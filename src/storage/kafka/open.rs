//! A start: topics, what was pinned and committed, rows that are only in the log, and the threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::topic_partition_list::Offset;
use tokio::time::Instant;

use super::admin::{Admin, Policy, Wanted};
use super::feed::Feed;
use super::format::{
    ALIVE, Alive, Commit, Mark, PINNED, Pinned, RecordKind, TABLES, damaged, decode_rows,
    decode_state, encode_state, log_item,
};
use super::keeper::{self, Keeper};
use super::log::Log;
use super::reader::{Reader, offset_of};
use super::scribe::{Line, Scribe};
use super::tables::Tables;
use super::watch::Watch;
use super::writer::Writer;
use super::{Kafka, KafkaSettings, RUNNING, STOPPING, position, read};
use crate::storage::{LogItem, Origin, Position, StorageError};
use crate::telemetry::clock::wall_ms;

/// A node that is silent for so long is dead.
const LISTEN: Duration = Duration::from_secs(6);
const LISTEN_AGAIN: Duration = Duration::from_millis(300);

/// What earlier runs left in the state's topic.
#[derive(Default)]
struct Left {
    pinned: Option<Pinned>,
    committed: Option<Commit>,
    alive: Option<Alive>,
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
    let start = Start {
        settings: Arc::clone(&settings),
        watch,
        admin,
        partitions,
        run,
        log_topic,
        state_topic,
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
}

impl Start {
    fn commit_key(&self) -> String {
        format!("commit/{}/{}/0", self.settings.reader, self.settings.config.topics.log.name)
    }

    fn open(self) -> Result<Kafka, StorageError> {
        let Left { pinned, committed, alive } = self.state()?;
        self.alone(alive)?;
        let pinned = self.pin(pinned)?;
        let committed = committed.unwrap_or(Commit { position: 1, tables: 1, state: Vec::new() });
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
        let settings = &self.settings;
        let writer = Arc::new(Writer::new(
            settings.producer(&settings.config.topics.log),
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
        self.start(pinned.incarnation, writer, tables, committed, tail)
    }

    /// One node at a time, so far: two would take each other's commits for their own. A node that
    /// was killed and comes back under its name need not wait for itself.
    fn alone(&self, alive: Option<Alive>) -> Result<(), StorageError> {
        let other = |alive: &Alive| alive.node != self.settings.node;
        let Some(before) = alive.filter(other) else { return Ok(()) };
        let until = Instant::now() + LISTEN;
        while Instant::now() < until {
            std::thread::sleep(LISTEN_AGAIN);
            match self.state()?.alive {
                Some(now) if now == before => {}
                Some(now) => {
                    return Err(StorageError::Unavailable(format!(
                        "node {} runs on this Kafka under the same prefix: this version has one \
                         node",
                        now.node
                    )));
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn state(&self) -> Result<Left, StorageError> {
        let mut left = Left::default();
        let key = self.commit_key();
        let config = self.settings.consumer(&self.settings.config.topics.state);
        let partitions = self.partitions.get(&self.state_topic).copied().unwrap_or(1);
        let patience = self.settings.config.command_timeout;
        let (topic, from) = (&self.state_topic, Offset::Beginning);
        read::to_the_end(&config, &self.watch, topic, partitions, from, patience, &mut |found| {
            if found.mark.kind != RecordKind::State {
                return Ok(());
            }
            if found.key == ALIVE.as_bytes() {
                left.alive = found.payload.map(decode_state).transpose()?;
            } else if let Some(payload) = found.payload {
                // The first one counts, whoever wrote a second.
                if found.key == PINNED.as_bytes() && left.pinned.is_none() {
                    left.pinned = Some(decode_state(payload)?);
                } else if found.key == key.as_bytes() {
                    left.committed = Some(decode_state(payload)?);
                }
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
        let mut scribe = Scribe::new(self.settings.scribe(), Arc::clone(&self.watch));
        let until = Instant::now() + self.settings.config.command_timeout;
        scribe.write(std::iter::once(line), &|| Instant::now() > until)?;
        // Of two nodes that start at once, the first record is everybody's.
        self.state()?.pinned.ok_or_else(|| damaged("the record of the first start is not there"))
    }

    /// What stands in the log behind the commit, or behind the place up to which the tables' topics
    /// are whole: rows, and decisions about messages that come again.
    fn tail(&self, tables: &Tables, committed: &Commit, end: u64) -> Result<Tail, StorageError> {
        let mut tail = Tail { known_to: end, decided: Vec::new() };
        let from = committed.position.min(committed.tables);
        if from >= end {
            return Ok(tail);
        }
        let config = self.settings.consumer(&self.settings.config.topics.log);
        let (from, patience) = (offset_of(from), self.settings.config.command_timeout);
        read::to_the_end(&config, &self.watch, &self.log_topic, 1, from, patience, &mut |found| {
            let (at, payload) = (position(found.offset), found.payload.unwrap_or_default());
            tail.known_to = tail.known_to.max(at.offset + 1);
            match found.mark.kind {
                RecordKind::Rows if at.offset >= committed.tables => {
                    tables.found(at.offset, decode_rows(payload)?);
                }
                RecordKind::Direct if at.offset >= committed.position => {
                    let LogItem::Direct { deliveries, .. } = log_item(RecordKind::Direct, payload)?
                    else {
                        return Ok(());
                    };
                    let origins = deliveries.iter().filter_map(|copy| copy.origin);
                    let open = origins.filter(|one| one.position.offset >= committed.position);
                    tail.decided.extend(open.map(|origin| (at, origin)));
                }
                RecordKind::Rows
                | RecordKind::Direct
                | RecordKind::Publishes
                | RecordKind::Relaxed
                | RecordKind::TableRow
                | RecordKind::State => {}
            }
            Ok(())
        })?;
        Ok(tail)
    }

    fn start(
        self,
        incarnation: u64,
        writer: Arc<Writer>,
        tables: Arc<Tables>,
        committed: Commit,
        tail: Tail,
    ) -> Result<Kafka, StorageError> {
        let key = self.commit_key();
        let (settings, watch) = (self.settings, self.watch);
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
        }));
        let log = Arc::new(Log {
            incarnation,
            writer: Arc::clone(&writer),
            feed,
            keeper: Arc::clone(&keeper),
            tables: Some(tables),
            watch,
            committed: committed.clone(),
            decided: tail.decided,
            end: tail.known_to,
            taken: AtomicBool::new(false),
        });
        let phase = Arc::new(AtomicU8::new(RUNNING));
        let kafka = Kafka { log, phase, threads: Mutex::default(), settings };
        let phase = || Arc::clone(&kafka.phase);
        let (served, read_on, kept) = (phase(), phase(), phase());
        let (said, heard) = std::sync::mpsc::sync_channel(1);
        let patience = kafka.settings.config.command_timeout;
        let threads = [
            thread("kafka writer", move || writer.serve(&|| is_over(&served)))?,
            thread("kafka reader", move || reader.run(&|| is_over(&read_on)))?,
            thread("kafka keeper", move || {
                let orderly = || kept.load(Ordering::Acquire) == STOPPING;
                keeper.run(committed, &said, &|| is_over(&kept), &orderly);
            })?,
        ];
        kafka.threads.lock().extend(threads);
        // Whoever comes from now on can know of this node.
        heard.recv_timeout(patience).map_err(|_late| {
            StorageError::Unavailable("Kafka does not take that this node lives".into())
        })?;
        Ok(kafka)
    }
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
