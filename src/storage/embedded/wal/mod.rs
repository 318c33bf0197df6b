//! The write-ahead log of the embedded profile.
//!
//! What comes in: frames, from any thread, each with a sink. What goes out: every frame at one
//! offset of one order, as durable as was asked, applied, and its sink settled exactly once.
//! Called by the rest of `storage::embedded` only. Never: knowledge of what a frame means.

mod disk;
mod driver;
mod format;
mod lock;
mod prepare;
mod read_on;
mod real_disk;
mod recover;
mod scan;
mod segments;
mod sim_disk;
mod staging;
mod types;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use self::driver::{Engine, Queue};
use self::segments::Segments;
use self::writer::{Reply, Submission, Writer};
use crate::storage::{AppendSink, Durability, StorageError};
use crate::telemetry::task;

pub use disk::{Disk, DiskFile};
pub use lock::FolderLock;
pub use real_disk::RealDisk;
pub use sim_disk::{SimDisk, SimOp};
pub use types::{Applier, Driver, Frame, FrameKind, Live, SegmentInfo, SyncMode, WalConfig};

/// Takes each frame that recovery finds, in order: offset, kind, head, body.
pub type Replay<'a> = &'a mut dyn FnMut(u64, FrameKind, Bytes, Bytes) -> Result<(), StorageError>;

/// Takes a frame that was read back (offset, kind, head, body), or refuses it with `false`.
pub type Visit<'a> = &'a mut dyn FnMut(u64, FrameKind, &Bytes, Bytes) -> Result<bool, StorageError>;

/// The log; clones are handles to the same one. When the last handle goes, the log stops.
#[derive(Clone, Debug)]
pub struct Wal {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Arc<Queue>,
    segments: Arc<Segments>,
    trouble: Arc<Mutex<Option<String>>>,
    retry_after: Duration,
    /// Until `start`.
    writer: Mutex<Option<Writer>>,
    /// `Driver::Thread`, until it is stopped.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// `Driver::Task`, until it is stopped.
    engine: Arc<Mutex<Option<Engine>>>,
}

// === impl Wal ===

impl Wal {
    /// Recovers the log. Whole frames from `replay_from` on go to `replay`, in order; 0 means
    /// from the beginning (offset 0 is never a frame's). A torn tail is cut. Damage in the
    /// middle, a missing segment, an unknown version or kind is `StorageError::Damaged` with file
    /// and offset. Blocks; what was replayed is durable when this returns.
    pub fn open(
        disk: Arc<dyn Disk>,
        config: WalConfig,
        replay_from: u64,
        replay: Replay<'_>,
    ) -> Result<Wal, StorageError> {
        let recovered = recover::recover(&disk, &config, replay_from, replay)?;
        let trouble = Arc::new(Mutex::new(None));
        let segments = recovered.segments;
        let retry_after = config.retry_after;
        let (shared, told) = (Arc::clone(&segments), Arc::clone(&trouble));
        let writer = Writer::new(disk, config, shared, told, recovered.made);
        let inner = Inner {
            queue: Arc::default(),
            segments,
            trouble,
            retry_after,
            writer: Mutex::new(Some(writer)),
            thread: Mutex::new(None),
            engine: Arc::default(),
        };
        Ok(Wal { inner: Arc::new(inner) })
    }

    /// Starts the driver. What was submitted before has waited for it. The driver owns the
    /// applier: one that holds a `Wal` keeps the log from stopping by itself, so that `stop` must
    /// be called. A second start is a mistake of the caller and panics.
    pub fn start(&self, applier: Box<dyn Applier>, driver: Driver) {
        let inner = &self.inner;
        let writer = inner.writer.lock().take();
        let mut writer = writer.expect("a log is started once");
        if driver == Driver::Thread {
            writer.make_ahead();
        }
        let engine = Engine::new(writer, applier, Arc::clone(&inner.queue), inner.retry_after);
        match driver {
            Driver::Thread => {
                let trouble = Arc::clone(&inner.trouble);
                let builder = std::thread::Builder::new().name("sluice-log".into());
                let spawned = builder.spawn(move || engine.run(&trouble));
                let thread = spawned.expect("a process that starts can start one thread");
                *inner.thread.lock() = Some(thread);
            }
            Driver::Task => {
                *inner.engine.lock() = Some(engine);
                let (slot, queue) = (Arc::clone(&inner.engine), Arc::clone(&inner.queue));
                let run = driver::run_as_task(slot, queue, Arc::clone(&inner.trouble));
                // The task ends by itself when the log stops.
                drop(task::spawn("log", run));
            }
        }
    }

    /// Never blocks: computes the checksum here, on the caller's thread, queues under one short
    /// lock, and wakes the driver only if it sleeps. After `stop` the sink is told `NotStored`
    /// before this returns.
    pub fn submit(
        &self,
        frame: Frame,
        durability: Durability,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        let data_crc = format::data_crc(&frame.head, &frame.body);
        let reply = Reply::new(sink, ticket);
        self.inner.queue.push(Submission { frame, durability, data_crc, reply });
    }

    /// Reads a frame back, from whichever segment holds it. Blocks on the medium.
    pub fn read(&self, offset: u64) -> Result<(FrameKind, Bytes, Bytes), StorageError> {
        self.inner.segments.read(offset)
    }

    /// Reads frames in order, from the one at or behind `from` up to `to`, until `visit` refuses
    /// one. Where the next read goes on: at the refused frame, or at `to`. Blocks on the medium.
    pub fn scan(&self, from: u64, to: u64, visit: Visit<'_>) -> Result<u64, StorageError> {
        self.inner.segments.scan(from, to, visit)
    }

    /// Everything settled so far is below. Never goes back, not over a restart either.
    pub fn end(&self) -> u64 {
        self.inner.segments.end()
    }

    /// Base of the oldest segment.
    pub fn first(&self) -> u64 {
        self.inner.segments.first()
    }

    /// The log's incarnation: drawn when it was made, the same until it is deleted.
    pub fn incarnation(&self) -> u64 {
        self.inner.segments.incarnation()
    }

    /// Oldest first; the last one is being written. The end of a segment that recovery had no
    /// reason to read may be given as the end of its room.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.inner.segments.infos()
    }

    /// Removes segments, oldest first, of which nothing at or above `offset` is needed: those
    /// whose successor begins at or below it. Never the one being written. `offset` must not be
    /// above what the next `open` will replay from. Blocks on the medium.
    pub fn remove_before(&self, offset: u64) -> Result<(), StorageError> {
        self.inner.segments.remove_before(offset)
    }

    /// Bytes submitted and not yet settled. The queue has no bound of its own: what is open is
    /// bounded by how far each caller reads ahead of its acks.
    pub fn pending_bytes(&self) -> u64 {
        self.inner.queue.pending_bytes()
    }

    /// `None` when healthy, else one sentence for health and log.
    pub fn trouble(&self) -> Option<String> {
        self.inner.trouble.lock().clone()
    }

    /// Writes and settles what waits, then ends the driver; returns when that is done. The
    /// applier is dropped. Must not be called from a sink or the applier.
    pub fn stop(&self) {
        self.inner.stop();
    }
}

// === impl Inner ===

impl Inner {
    fn stop(&self) {
        self.queue.close();
        // Held to the end: a second stop returns only when the first one is done.
        let mut thread = self.thread.lock();
        let me = std::thread::current().id();
        if let Some(thread) = thread.take().filter(|one| one.thread().id() != me) {
            // A panic was reported by the thread's hook, and its submissions were settled.
            drop(thread.join());
        }
        let engine = self.engine.lock().take();
        if let Some(engine) = engine {
            engine.finish();
        }
        if let Some(mut writer) = self.writer.lock().take() {
            writer.close();
        }
        self.queue.clear();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wal").field("end", &self.segments.end()).finish_non_exhaustive()
    }
}
