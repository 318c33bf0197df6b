//! Opening: lock the folder, load what the checkpoint covers, replay the log above it, start the
//! threads.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::applier::{Machine, replay};
use super::bucket::LocalBucket;
use super::checkpoint::{Checkpointer, Kick, Progress};
use super::extents::{Bounds, millis};
use super::feed::Feed;
use super::fjall_state::FjallState;
use super::format::{read_direct_frame, read_key};
use super::projection::{Changes, MemoryProjection, Projection, Space};
use super::publish::{Decided, PublishPort};
use super::queue_port::{PAGE_READS, QueuePort};
use super::queues::Queues;
use super::records::{CHECKPOINT_KEY, Checkpoint, read_queue};
use super::tables::{TablePort, Tables};
use super::wal::{Disk, Driver, FolderLock, FrameKind, RealDisk, Wal};
use super::{Blocking, Embedded, EmbeddedSettings, Runner, Stores};
use crate::storage::{Position, StorageError};
use crate::telemetry::task;

/// A pause between checkpoints is at least so many times as long as the last one took: with many
/// busy queues a pass costs processor time, and a longer replay after a crash costs nobody.
const PAUSE_SHARE: u32 = 9;

/// What was read and replayed, before anything runs.
struct Recovered {
    wal: Wal,
    tables: Arc<Tables>,
    queues: Arc<Queues>,
    checkpoint: Checkpoint,
    decided: Decided,
}

impl Embedded {
    /// Opens the folder, making it if it is missing. A second process is refused.
    pub fn open(path: &Path, config: EmbeddedSettings) -> Result<(Self, Stores), StorageError> {
        let lock = FolderLock::take(path)?;
        let state = FjallState::open(&path.join("state"), config.cache_bytes)?;
        let disk = RealDisk::open(&path.join("log"))?;
        let (embedded, stores) = build(disk, Arc::new(state), config, Driver::Thread)?;
        *embedded.lock.lock() = Some(lock);
        Ok((embedded, stores))
    }

    /// The same over a simulated medium, run by tasks of the current runtime.
    pub fn simulated(
        disk: Arc<dyn Disk>,
        projection: Arc<MemoryProjection>,
        config: EmbeddedSettings,
    ) -> Result<(Self, Stores), StorageError> {
        build(disk, projection, config, Driver::Task)
    }
}

pub(super) fn build(
    disk: Arc<dyn Disk>,
    projection: Arc<dyn Projection>,
    config: EmbeddedSettings,
    driver: Driver,
) -> Result<(Embedded, Stores), StorageError> {
    let recovered = recover(disk, &*projection, &config)?;
    let Recovered { wal, tables, queues, checkpoint, decided } = recovered;
    let end = wal.end();
    // Nothing stands below the first segment: a log without a commit begins there.
    let committed = checkpoint.committed.max(wal.first());
    let state = checkpoint.state.clone();
    let feed = Arc::new(Feed::new(config.feed(), wal.incarnation(), committed, state, end));
    let (synced, synced_to) = (Instant::now(), checkpoint.applied);
    let progress = Progress { last: checkpoint, synced, synced_to, unsynced: false };
    let checkpointer = Arc::new(Checkpointer {
        projection,
        tables,
        queues,
        feed,
        wal: wal.clone(),
        applied: Arc::new(AtomicU64::new(end)),
        kick: Arc::new(Kick::new(config.hot_bytes)),
        trouble: Arc::new(Mutex::new(None)),
        sync_every: config.sync_every,
        retain_bytes: config.retain_bytes,
        progress: Mutex::new(progress),
    });
    let stores = stores(&checkpointer, driver, &config, decided);
    wal.start(Box::new(machine(&checkpointer)), driver);
    let runner = run(Arc::clone(&checkpointer), config.checkpoint_every, driver)?;
    let embedded =
        Embedded { checkpointer, runner: Mutex::new(Some(runner)), lock: Mutex::new(None) };
    Ok((embedded, stores))
}

/// What the log's thread works on.
fn machine(parts: &Checkpointer) -> Machine {
    Machine {
        tables: Arc::clone(&parts.tables),
        queues: Arc::clone(&parts.queues),
        feed: Arc::clone(&parts.feed),
        applied: Arc::clone(&parts.applied),
        fresh: Vec::new(),
        kick: Arc::clone(&parts.kick),
    }
}

/// The ports.
fn stores(
    parts: &Checkpointer,
    driver: Driver,
    config: &EmbeddedSettings,
    decided: Decided,
) -> Stores {
    let blocking = match driver {
        Driver::Thread => Blocking::Pool,
        Driver::Task => Blocking::Inline,
    };
    let log = PublishPort {
        wal: parts.wal.clone(),
        feed: Arc::clone(&parts.feed),
        tables: Arc::clone(&parts.tables),
        blocking,
        applied: Arc::clone(&parts.applied),
        decided: Mutex::new(decided),
        trouble: Arc::clone(&parts.trouble),
    };
    let tables = TablePort {
        tables: Arc::clone(&parts.tables),
        wal: parts.wal.clone(),
        projection: Arc::clone(&parts.projection),
        row_bytes: config.row_bytes,
    };
    let queues = QueuePort {
        queues: Arc::clone(&parts.queues),
        wal: parts.wal.clone(),
        projection: Arc::clone(&parts.projection),
        blocking,
        kick: Arc::clone(&parts.kick),
        reads: Semaphore::new(PAGE_READS),
    };
    Stores {
        log: Arc::new(log),
        tables: Arc::new(tables),
        queues: Arc::new(queues),
        bucket: Arc::new(LocalBucket::new(&config.bucket)),
        device_bucket: Arc::new(LocalBucket::new(&config.device_bucket)),
        peers: None,
    }
}

/// The checkpoint's own loop; errors are told by `trouble` and tried again by the next pass.
fn run(
    checkpointer: Arc<Checkpointer>,
    every: Duration,
    driver: Driver,
) -> Result<Runner, StorageError> {
    match driver {
        Driver::Thread => {
            let builder = std::thread::Builder::new().name("sluice-checkpoint".into());
            let work = move || {
                let mut pause = every;
                while !checkpointer.kick.stopped() {
                    checkpointer.kick.wait(pause);
                    if !checkpointer.kick.stopped() {
                        let begun = Instant::now();
                        drop(checkpointer.pass(false));
                        pause = every.max(begun.elapsed() * PAUSE_SHARE);
                    }
                }
            };
            let spawned = builder.spawn(work);
            let text = |error| StorageError::Unavailable(format!("no thread to be had: {error}"));
            spawned.map(Runner::Thread).map_err(text)
        }
        Driver::Task => Ok(Runner::Task(task::spawn("checkpoint", async move {
            while !checkpointer.kick.stopped() {
                drop(tokio::time::timeout(every, checkpointer.kick.task.notified()).await);
                drop(checkpointer.pass(false));
            }
        }))),
    }
}

fn recover(
    disk: Arc<dyn Disk>,
    projection: &dyn Projection,
    config: &EmbeddedSettings,
) -> Result<Recovered, StorageError> {
    let found = projection.get(Space::Meta, CHECKPOINT_KEY)?;
    let known = found.as_deref().map(Checkpoint::decode).transpose()?;
    let tables = Arc::new(Tables::new());
    let queues = Arc::new(Queues::new(Bounds {
        messages: config.queue_limit,
        life_ms: millis(config.queue_ttl),
        application_bytes: config.application_bytes,
        application_life_ms: config.application_life.map(millis),
        shared_bytes: config.shared_bytes,
        shared_life_ms: config.shared_life.map(millis),
    }));
    projection.scan(Space::Queues, &[], &[], &mut |key, record| {
        queues.adopt(read_key(key)?, read_queue(record)?);
        Ok(true)
    })?;
    let checkpoint = known.clone().unwrap_or_default();
    let applied = checkpoint.applied;
    let from = applied.min(checkpoint.committed);
    let mut decided = Decided::new();
    let wal = Wal::open(disk, config.wal.clone(), from, &mut |offset, kind, head, body| {
        if known.is_none() {
            // The two are tied together before the first record enters the log.
            let text = format!("the log has a record at {offset}, but there is no state folder");
            return Err(StorageError::Damaged(text));
        }
        if kind == FrameKind::Direct && offset >= checkpoint.committed {
            let (.., copies) = read_direct_frame(&head)?;
            let place = Position { partition: 0, offset };
            decided.extend(copies.iter().filter_map(|copy| Some((place, copy.decision()?))));
        }
        if offset < applied && kind != FrameKind::Rows {
            return Ok(());
        }
        // Of what is applied only what routing looks at may be missing in the projection.
        let below = offset < applied;
        replay(&tables, &queues, offset, kind, &head, &body, below)
    })?;
    tables.committed(checkpoint.committed.max(wal.first()));
    if known.as_ref().is_some_and(|known| known.log != wal.incarnation()) {
        let text = "the log and the state folder belong to different histories: one of them was \
                    deleted or replaced";
        return Err(StorageError::Damaged(text.into()));
    }
    if !checkpoint.clean {
        queues.recovered();
    }
    // From here on the state is not an orderly stop's any more; and a log is tied to its state
    // before the first record enters it.
    let log = wal.incarnation();
    let checkpoint = Checkpoint { log, clean: false, ..checkpoint };
    let mut changes = Changes::default();
    changes.put(Space::Meta, CHECKPOINT_KEY.to_vec(), checkpoint.encode());
    projection.commit(changes)?;
    projection.sync()?;
    Ok(Recovered { wal, tables, queues, checkpoint, decided })
}
