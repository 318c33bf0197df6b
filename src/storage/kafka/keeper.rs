//! What is written behind a log, by a thread of its own: the consumer's commit with its state, then
//! the rows that it covers; and the deletion of what nobody needs any more.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::time::Instant;

use super::admin::Admin;
use super::feed::Feed;
use super::format::{Commit, Mark, RecordKind, encode_state, encode_value};
use super::scribe::{Line, Scribe};
use super::tables::Tables;
use super::watch::Watch;
use super::{KafkaSettings, position};
use crate::cluster::Members;
use crate::storage::{Peers, Row, StorageError};
use crate::telemetry::fail_point;

/// A state above this size is not asked for at every commit.
const CHEAP_STATE: usize = 4096;
const STATE_EVERY: Duration = Duration::from_millis(200);
/// Rows in one write.
const ROWS_AT_ONCE: usize = 4096;
const LOOK_EVERY: Duration = Duration::from_secs(1);
const PING: Duration = Duration::from_secs(2);
/// How often to see how far the reader has come.
const TICK: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Wanted {
    commit: Option<Commit>,
    state_len: usize,
    asked: Option<Instant>,
    kicked: bool,
}

pub(super) struct Keeper {
    pub(super) settings: Arc<KafkaSettings>,
    pub(super) admin: Admin,
    /// The log that is kept, in Kafka's name.
    pub(super) topic: String,
    pub(super) state_topic: String,
    /// The key of this consumer's commit.
    pub(super) key: String,
    pub(super) run: u64,
    pub(super) feed: Arc<Feed>,
    pub(super) tables: Option<Arc<Tables>>,
    pub(super) watch: Arc<Watch>,
    pub(super) peers: Arc<Peers>,
    wanted: Mutex<Wanted>,
    kick: Condvar,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// What the thread itself remembers.
struct Thread {
    scribe: Scribe,
    /// The one of rows, while this node is to write them.
    rows: Option<Scribe>,
    /// The newest commit that is durable.
    durable: Commit,
    /// What was not needed any more, and since when.
    needless: VecDeque<(Instant, u64)>,
    looked: Instant,
    /// Whose commits stand in the state's topic.
    others: BTreeSet<String>,
    troubled: Option<String>,
}

/// The parts of a keeper that its maker knows.
pub(super) struct Parts {
    pub(super) settings: Arc<KafkaSettings>,
    pub(super) admin: Admin,
    pub(super) topic: String,
    pub(super) state_topic: String,
    pub(super) key: String,
    pub(super) run: u64,
    pub(super) feed: Arc<Feed>,
    pub(super) tables: Option<Arc<Tables>>,
    pub(super) watch: Arc<Watch>,
    pub(super) peers: Arc<Peers>,
}

impl Keeper {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { settings, admin, topic, state_topic, key, run, feed, tables, watch, peers } =
            parts;
        let (wanted, kick) = (Mutex::default(), Condvar::new());
        Self {
            settings,
            admin,
            topic,
            state_topic,
            key,
            run,
            feed,
            tables,
            watch,
            peers,
            wanted,
            kick,
        }
    }

    /// The consumer has dealt with everything below `position`.
    pub(super) fn commit(
        &self,
        position: u64,
        members: &Members,
        state: &mut dyn FnMut() -> Vec<u8>,
    ) {
        let mut wanted = self.wanted.lock();
        let due = wanted.asked.is_none_or(|asked| asked.elapsed() >= STATE_EVERY);
        if wanted.state_len > CHEAP_STATE && !due {
            return;
        }
        drop(wanted);
        let state = state();
        wanted = self.wanted.lock();
        wanted.state_len = state.len();
        wanted.asked = Some(Instant::now());
        let members = members.clone();
        wanted.commit = Some(Commit { position, tables: 0, members, state });
        wanted.kicked = true;
        drop(wanted);
        self.kick.notify_one();
    }

    pub(super) fn wake(&self) {
        self.wanted.lock().kicked = true;
        self.kick.notify_one();
    }

    /// Writes behind until `ended`; an `orderly` end leaves nothing unwritten.
    pub(super) fn run(&self, from: Commit, ended: &dyn Fn() -> bool, orderly: &dyn Fn() -> bool) {
        let scribe = Scribe::new(self.settings.scribe(), Arc::clone(&self.watch));
        let (looked, needless) = (Instant::now(), VecDeque::new());
        let mut thread = Thread {
            scribe,
            rows: None,
            durable: from,
            needless,
            looked,
            others: BTreeSet::new(),
            troubled: None,
        };
        while !ended() {
            self.pass(&mut thread, ended);
            self.look(&mut thread);
            let mut wanted = self.wanted.lock();
            if !wanted.kicked {
                self.kick.wait_for(&mut wanted, LOOK_EVERY);
            }
            wanted.kicked = false;
            drop(wanted);
            if !ended() {
                // So many commits become one.
                std::thread::sleep(self.settings.commit_every);
            }
        }
        if orderly() {
            let until = Instant::now() + self.settings.config.command_timeout;
            let late = || Instant::now() > until;
            // The second one says that the rows of the first are where they belong.
            self.pass(&mut thread, &late);
            let same = thread.durable.clone();
            self.wanted.lock().commit.get_or_insert(same);
            self.pass(&mut thread, &late);
        }
    }

    /// The commits of nodes that are gone, and whose work is done, would only hold the next start
    /// back.
    fn forget_the_gone(&self, thread: &mut Thread) {
        let members = self.peers.members();
        let known: BTreeSet<String> = members.names().map(str::to_owned).collect();
        for gone in thread.others.difference(&known).filter(|_| self.peers.is_keeper()) {
            let key = commit_key(&self.settings, gone);
            let line = Line {
                topic: &self.state_topic,
                partition: 0,
                key: key.as_bytes(),
                payload: None,
                mark: Mark { kind: RecordKind::State, writer: self.run, number: 0 },
            };
            let until = Instant::now() + self.settings.config.command_timeout;
            let said = thread.scribe.write(std::iter::once(line), &|| Instant::now() > until);
            if let Err(error) = said {
                tracing::debug!(%error, "a commit that nobody needs stays");
            }
        }
        thread.others = known;
    }

    fn pass(&self, thread: &mut Thread, given_up: &dyn Fn() -> bool) {
        let commit = self.wanted.lock().commit.take();
        let done = commit.map_or(Ok(()), |commit| self.write_commit(thread, commit, given_up));
        let done = done.and_then(|()| self.write_rows(thread, given_up));
        match done {
            Ok(()) => thread.troubled = None,
            Err(error) => {
                let text = error.to_string();
                if thread.troubled.as_ref() != Some(&text) && !given_up() {
                    tracing::warn!(topic = self.topic, "written behind later: {text}");
                    thread.troubled = Some(text);
                }
                self.wanted.lock().kicked = true;
            }
        }
    }

    /// A commit may say that rows are in their topics only when they are.
    fn write_commit(
        &self,
        thread: &mut Thread,
        mut commit: Commit,
        given_up: &dyn Fn() -> bool,
    ) -> Result<(), StorageError> {
        commit.tables = self.tables_to();
        if self.peers.is_fenced() {
            return Ok(());
        }
        let mark = Mark { kind: RecordKind::State, writer: self.run, number: commit.position };
        let payload = encode_state(&commit);
        let line = Line {
            topic: &self.state_topic,
            partition: 0,
            key: self.key.as_bytes(),
            payload: Some(&payload),
            mark,
        };
        let written = thread.scribe.write(std::iter::once(line), given_up);
        if written.is_err() {
            // A newer one may be there by now.
            self.wanted.lock().commit.get_or_insert(commit);
            return written;
        }
        fail_point::pass("commit.written");
        if let Some(tables) = &self.tables {
            *tables.committed.lock() = commit.position;
        }
        self.peers.is_durable(commit.position, commit.tables);
        thread.durable = commit;
        Ok(())
    }

    /// Below it every row stands in its table's topic.
    fn tables_to(&self) -> u64 {
        // First the reader's place: what it reads meanwhile is above.
        let read_to = self.feed.read_to();
        let Some(tables) = &self.tables else { return read_to };
        let behind = tables.behind.lock();
        let first = |rows: &VecDeque<(u64, Row)>| rows.front().map_or(u64::MAX, |row| row.0);
        first(&behind.plain).min(first(&behind.routed)).min(read_to)
    }

    fn write_rows(
        &self,
        thread: &mut Thread,
        given_up: &dyn Fn() -> bool,
    ) -> Result<(), StorageError> {
        let Some(tables) = self.tables.as_ref().filter(|tables| tables.writes()) else {
            return Ok(());
        };
        if !self.enter(thread, given_up)? {
            // Its successor writes what it had not written.
            thread.rows = None;
            let members = self.peers.members();
            let keeper = members.keeper().and_then(|keeper| members.get(keeper));
            tables.written_by_another(keeper.map_or(0, |keeper| keeper.tables));
            return Ok(());
        }
        let Some(scribe) = &mut thread.rows else { return Ok(()) };
        let members = self.peers.members();
        // Whoever starts next begins where the last of us is: it needs what was in force there.
        let others = members.needed_but(self.peers.node()).unwrap_or(u64::MAX);
        loop {
            let _moving = tables.moving.lock();
            let durable = thread.durable.position.min(others);
            let behind = tables.behind.lock();
            let plain: Vec<_> = behind.plain.iter().take(ROWS_AT_ONCE).cloned().collect();
            let passed = behind.routed.iter().take_while(|(position, _)| *position < durable);
            let routed: Vec<_> = passed.take(ROWS_AT_ONCE).cloned().collect();
            drop(behind);
            if plain.is_empty() && routed.is_empty() {
                return Ok(());
            }
            let rows: Vec<Written> =
                plain.iter().chain(&routed).map(|row| Written::of(tables, row)).collect();
            scribe.write(rows.iter().map(|row| row.line(self.run)), given_up)?;
            let mut behind = tables.behind.lock();
            behind.plain.drain(..plain.len());
            behind.routed.drain(..routed.len());
        }
    }

    /// Whether this node is the one that writes rows. To believe it is not enough: one that stood
    /// still may have a successor that it has not read of yet. So it first fences whoever wrote
    /// before, and then reads to where the log ended by then: who comes later fences this node.
    fn enter(
        &self,
        thread: &mut Thread,
        given_up: &dyn Fn() -> bool,
    ) -> Result<bool, StorageError> {
        let is_to_write = || self.peers.is_keeper() && !self.peers.is_fenced();
        if !is_to_write() {
            return Ok(false);
        }
        let scribe = thread.rows.get_or_insert_with(|| {
            Scribe::new(self.settings.row_scribe(), Arc::clone(&self.watch))
        });
        if !scribe.enter()? {
            return Ok(true);
        }
        let ends = || given_up() || self.feed.has_ended();
        let known = match self.admin.watermarks(&self.topic) {
            Ok((_, high)) => Ok(self.has_read(position(high).offset, &ends)),
            Err(error) => Err(error),
        };
        if !matches!(known, Ok(true)) {
            // To be asked again by the next one; at this node's own end, by another node's.
            thread.rows = None;
        }
        known.map(|known| known && is_to_write())
    }

    /// Waits until the log was read to `end`; `false`: `ends` came first.
    fn has_read(&self, end: u64, ends: &dyn Fn() -> bool) -> bool {
        while self.feed.read_to() < end {
            if ends() {
                return false;
            }
            std::thread::sleep(TICK);
        }
        true
    }

    /// Deletes what was not needed for a while, and asks a silent Kafka whether it is there.
    fn look(&self, thread: &mut Thread) {
        if thread.looked.elapsed() < LOOK_EVERY {
            return;
        }
        thread.looked = Instant::now();
        self.forget_the_gone(thread);
        if self.watch.is_in_trouble() && self.admin.ping(&self.topic, PING) {
            self.watch.is_well();
        }
        let needless = match self.tables {
            Some(_) => thread.durable.position.min(thread.durable.tables),
            None => thread.durable.position,
        };
        let others = self.peers.members().needed_but(self.peers.node());
        let needless = needless.min(others.unwrap_or(u64::MAX));
        if thread.needless.back().is_none_or(|newest| newest.1 < needless) {
            thread.needless.push_back((Instant::now(), needless));
        }
        let keep = self.settings.keep_log;
        let mut below = None;
        while thread.needless.front().is_some_and(|oldest| oldest.0.elapsed() >= keep) {
            below = thread.needless.pop_front().map(|oldest| oldest.1);
        }
        if let Some(below) = below.filter(|below| *below > 1 && self.peers.is_keeper())
            && let Err(error) = self.admin.delete_below(&self.topic, below - 1)
        {
            tracing::info!(topic = self.topic, %error, "trying again later");
        }
    }
}

/// The key of a node's commit.
pub(super) fn commit_key(settings: &KafkaSettings, node: &str) -> String {
    format!("{}{node}", commit_prefix(settings))
}

/// What the commits of all nodes begin with.
pub(super) fn commit_prefix(settings: &KafkaSettings) -> String {
    format!("commit/{}/{}/0/", settings.reader, settings.config.topics.log.name)
}

/// A row on its way into its table's topic.
struct Written {
    topic: String,
    partition: u32,
    key: bytes::Bytes,
    payload: Option<Vec<u8>>,
    position: u64,
}

impl Written {
    fn of(tables: &Tables, (position, row): &(u64, Row)) -> Self {
        let (topic, partitions) = tables.place(row.table);
        Self {
            topic,
            // A stable hash of our own: the same key always has the same partition.
            partition: crc32c::crc32c(&row.key) % partitions.max(1),
            key: row.key.clone(),
            payload: row.value.as_deref().map(encode_value),
            position: *position,
        }
    }

    fn line(&self, run: u64) -> Line<'_> {
        Line {
            topic: &self.topic,
            partition: self.partition,
            key: &self.key,
            payload: self.payload.as_deref(),
            mark: Mark { kind: RecordKind::TableRow, writer: run, number: self.position },
        }
    }
}
