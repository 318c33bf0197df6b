//! The publish log and the tables on Apache Kafka: the larger half of the cluster profile.
//!
//! What comes in: batches, direct copies, rows. What goes out: what `ports` promises of
//! `PublishLog`, `LogConsumer` and `ChangeLog`. Called by `broker`, by way of the ports; its
//! threads call sinks and followers. Never: a queue (Redis has those), a socket of a client.
//!
//! One order (docs/decisions/005): messages and rows stand in one partition of `tbmq.msg.all`, as
//! they stand in the one log of the embedded profile, and a position there is an epoch, a
//! subscription's beginning and a message's identity alike. The tables' compacted topics are a
//! projection that is written behind: a start reads them to their end, and then the log from where
//! they end. Commits, with a dispatcher's state, are records of `tbmq.sys.state`.
//!
//! ```text
//! append, put ─▶ writer ─▶ tbmq.msg.all ─▶ reader ─▶ rows ─▶ followers, keeper ─▶ topics
//!                  ▲ reports          └─▶ feed ─▶ consumer ─▶ keeper ─▶ tbmq.sys.state
//! ```

mod admin;
mod app;
mod appends;
mod feed;
mod format;
mod keeper;
mod log;
mod open;
mod pulse;
mod read;
mod reader;
mod rounds;
mod scribe;
mod settings;
mod tables;
mod watch;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

pub use app::{AppTopics, Applications, Owned};
pub use settings::KafkaSettings;

use self::log::{KafkaLog, Log};
use self::pulse::Pulse;
use self::tables::KafkaTables;
use super::{ChangeLog, Peers, Position, PublishLog, StorageError};

const RUNNING: u8 = 0;
const STOPPING: u8 = 1;
const ENDED: u8 = 2;

/// The running backend. Dropping it without [`Kafka::stop`] leaves what was not written behind to
/// the next start, as a crash does.
#[derive(Debug)]
pub struct Kafka {
    log: Arc<Log>,
    phase: Arc<AtomicU8>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    settings: Arc<KafkaSettings>,
    peers: Arc<Peers>,
    pulse: Arc<Pulse>,
}

/// A record at this offset has this position: positions begin at 1.
fn position(offset: u64) -> Position {
    Position { partition: 0, offset: offset + 1 }
}

impl Kafka {
    /// Makes what is missing, and takes up what is there. Blocks.
    pub fn open(settings: KafkaSettings) -> Result<Self, StorageError> {
        open::open(settings)
    }

    pub fn log(&self) -> Arc<dyn PublishLog> {
        Arc::new(KafkaLog(Arc::clone(&self.log)))
    }

    pub fn tables(&self) -> Arc<dyn ChangeLog> {
        let tables = self.log.tables.as_ref().expect("the log of messages carries the rows");
        Arc::new(KafkaTables(Arc::clone(tables)))
    }

    /// The nodes that share this log.
    pub fn peers(&self) -> Arc<Peers> {
        Arc::clone(&self.peers)
    }

    /// An orderly end: what was appended is settled, what is to be written behind is written.
    /// Blocks. `Err` tells that something is left to the next start.
    pub fn stop(&self) -> Result<(), StorageError> {
        let patience = self.settings.config.command_timeout;
        let drained = self.log.writer.drain(patience);
        self.end(STOPPING);
        self.pulse.leave(patience);
        if drained {
            return Ok(());
        }
        Err(StorageError::Unavailable("Kafka did not take everything before the end".into()))
    }

    fn end(&self, phase: u8) {
        self.phase.fetch_max(phase, Ordering::AcqRel);
        self.log.feed.end();
        self.log.keeper.wake();
        self.log.writer.end();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has said so itself.
            drop(thread.join());
        }
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.end(ENDED);
        self.log.writer.close();
    }
}

#[cfg(test)]
mod tests;
