//! All ports in memory, with faults on demand: what the simulation runs on, and the plain second
//! reading of the contracts.
//!
//! What comes in: the calls of all ports, [`Faults`], and [`Memory::crash`]. What goes out: what
//! `ports` permits, the unpleasant parts included: late answers, refusals, doubt, a lost tail, a
//! queue and a commit that roll back together. Called by tests and the simulation. Deterministic:
//! one task settles everything, time is Tokio's, and the dice are seeded. Never: a thread, a file.

mod log;
mod queue;
mod queues;
mod tables;
mod world;

use std::sync::Arc;
use std::time::Duration;

use self::log::MemoryLog;
use self::queues::MemoryQueues;
use self::tables::MemoryTables;
use self::world::World;
use super::Stores;
use super::embedded::{LocalBucket, Window};
use crate::telemetry::task;

/// What goes wrong, and how often. The default is that nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Appends settle up to this much later, in order.
    pub delay: Duration,
    /// Of a thousand appends, how many are refused: `NotStored`.
    pub not_stored: u32,
    /// Of a thousand appends, how many end `InDoubt`; dice decide whether they are stored.
    pub in_doubt: u32,
    /// Every batch of messages is refused; rows are taken.
    pub no_messages: bool,
    /// A crash may fall back behind the newest checkpoint, and loses what was not durable.
    pub rollback: bool,
}

#[derive(Clone, Debug)]
pub struct MemoryConfig {
    pub seed: u64,
    /// DEV-5.
    pub queue_limit: u64,
    /// DEV-6.
    pub queue_ttl: Duration,
    /// The windows of the token bucket; none means no limit.
    pub bucket: Vec<Window>,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        let queue_ttl = Duration::from_secs(604_800);
        Self { seed: 1, queue_limit: 10_000, queue_ttl, bucket: Vec::new() }
    }
}

/// The running backend; must be made inside a Tokio runtime. Dropping it ends it without a word
/// to whoever waits, as a crash does.
#[derive(Debug)]
pub struct Memory {
    world: Arc<World>,
    config: MemoryConfig,
    settler: tokio::task::JoinHandle<()>,
}

impl Memory {
    pub fn new(config: MemoryConfig) -> Self {
        let world = World::new(&config);
        Self::start(Arc::new(world), config)
    }

    fn start(world: Arc<World>, config: MemoryConfig) -> Self {
        let settler = task::spawn("memory storage", world::settle(Arc::clone(&world)));
        Self { world, config, settler }
    }

    pub fn stores(&self) -> Stores {
        let world = || Arc::clone(&self.world);
        Stores {
            log: Arc::new(MemoryLog { world: world() }),
            tables: Arc::new(MemoryTables { world: world() }),
            queues: Arc::new(MemoryQueues { world: world() }),
            bucket: Arc::new(LocalBucket::new(&self.config.bucket)),
            device_bucket: Arc::new(LocalBucket::new(&[])),
            peers: None,
        }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.world.state.lock().faults = faults;
    }

    /// What a loss of power leaves. The ports of before answer nothing any more.
    #[must_use]
    pub fn crash(self) -> Self {
        let survivor = self.world.state.lock().crash();
        self.again(survivor)
    }

    /// An orderly end and a new start: what waits is settled, nothing is lost.
    #[must_use]
    pub fn restart(self) -> Self {
        world::settle_now(&self.world);
        let survivor = self.world.state.lock().restart();
        self.again(survivor)
    }

    fn again(&self, survivor: world::State) -> Self {
        Self::start(Arc::new(World::from(survivor)), self.config.clone())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.settler.abort();
        self.world.end();
    }
}

#[cfg(test)]
mod tests;
