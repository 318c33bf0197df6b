//! The embedded profile: everything of one node in one folder, no service needed.
//!
//! What comes in: the calls of all ports, and a folder. What goes out: the ports. Everything
//! durable goes through one log (`wal`) in one order; the projection (fjall) is written behind by
//! checkpoints, and what it lacks after a crash is replayed from the log. Called by `broker`,
//! which opens and stops it. Never: a decision about who gets a message.

mod applier;
mod bucket;
mod checkpoint;
mod cold;
mod consumer;
mod extents;
mod feed;
mod fjall_state;
mod format;
mod projection;
mod publish;
mod queue;
mod queue_port;
mod queues;
mod ranges;
mod records;
mod retention;
mod settings;
mod start;
mod tables;
#[cfg(test)]
mod tests;
mod torn_journal;
pub mod wal;

use std::sync::Arc;

use parking_lot::Mutex;

use self::checkpoint::Checkpointer;
use self::wal::FolderLock;
use super::{ChangeLog, DeviceQueues, Peers, PublishLog, StorageError, TokenBucket};

pub use bucket::{LocalBucket, Window};
pub use projection::MemoryProjection;
pub use settings::EmbeddedSettings;

/// The ports of one node, whatever stands behind them.
#[derive(Clone)]
pub struct Stores {
    pub log: Arc<dyn PublishLog>,
    pub tables: Arc<dyn ChangeLog>,
    pub queues: Arc<dyn DeviceQueues>,
    /// PUBLISH packets of the cluster (QUO-1).
    pub bucket: Arc<dyn TokenBucket>,
    /// Copies into durable queues (DEV-7).
    pub device_bucket: Arc<dyn TokenBucket>,
    /// The other nodes; `None`: there are no others, ever.
    pub peers: Option<Arc<Peers>>,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stores")
    }
}

/// Whether calls that block on the medium may be made on the caller's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocking {
    /// Production: on Tokio's blocking threads.
    Pool,
    /// Simulation: the medium is memory, and the order of events must be the same every time.
    Inline,
}

async fn run_blocking<T: Send + 'static>(
    blocking: Blocking,
    work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, StorageError> {
    match blocking {
        Blocking::Inline => work(),
        Blocking::Pool => tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
            Err(StorageError::Unavailable(format!("a read of storage did not end: {error}")))
        }),
    }
}

/// Who writes checkpoints.
#[derive(Debug)]
enum Runner {
    Thread(std::thread::JoinHandle<()>),
    Task(tokio::task::JoinHandle<()>),
}

/// The running storage of one node. Dropping it without [`Embedded::stop`] leaves what the
/// checkpoint has not covered to the log, as a crash does.
#[derive(Debug)]
pub struct Embedded {
    checkpointer: Arc<Checkpointer>,
    runner: Mutex<Option<Runner>>,
    lock: Mutex<Option<FolderLock>>,
}

impl Embedded {
    /// An orderly end: settles what was appended, writes a last checkpoint, lets go of the folder.
    /// Blocks on the medium.
    pub fn stop(&self) -> Result<(), StorageError> {
        let Some(runner) = self.runner.lock().take() else { return Ok(()) };
        self.checkpointer.wal.stop();
        end_runner(&self.checkpointer, runner);
        let last = self.checkpointer.pass(true);
        self.let_go();
        last
    }

    /// Writes a checkpoint now. Blocks on the medium.
    pub fn checkpoint(&self) -> Result<(), StorageError> {
        self.checkpointer.pass(false)
    }

    fn let_go(&self) {
        self.checkpointer.projection.close();
        self.lock.lock().take();
    }
}

fn end_runner(checkpointer: &Checkpointer, runner: Runner) {
    checkpointer.kick.end();
    match runner {
        // A panicked thread has said so itself.
        Runner::Thread(thread) => drop(thread.join()),
        Runner::Task(task) => task.abort(),
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(runner) = self.runner.lock().take() {
            end_runner(&self.checkpointer, runner);
            self.checkpointer.wal.stop();
            self.let_go();
        }
    }
}
