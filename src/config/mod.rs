//! Room 7: the configuration file and the environment → each room's `Config`.
//!
//! What comes in: a YAML file (or none) and a way to ask the environment. What goes out: one
//! [`Config`] made of the rooms' own, with warnings and the list of what differs from the built-in
//! values; or every fault at once. `main` calls it, once. Never: a default written a second time
//! (they stand in `config/sluice.yml`, which is built in), a fault reported alone.

mod doors;
mod fault;
mod foreign;
mod kafka;
mod load;
mod placeholder;
mod reader;
mod redis;
mod rooms;
mod security;
mod tree;

#[cfg(test)]
mod manual;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use fault::{Fault, Faults, Origin};
pub use load::{BUILT_IN, Changed, Loaded, load, process_env};
pub use placeholder::Env;

/// Everything an operator decides, by room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub service: ServiceConfig,
    pub listener: crate::listener::Config,
    pub security: crate::security::Config,
    pub session: crate::session::Config,
    pub routing: crate::routing::Config,
    pub delivery: crate::delivery::Config,
    pub storage: crate::storage::Config,
    pub admin: crate::admin::Config,
    pub telemetry: crate::telemetry::Config,
    /// The signed plan; `None`: there is none.
    pub plan_file: Option<PathBuf>,
}

/// The process as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// This node's name, never empty.
    pub id: Arc<str>,
    /// Threads of the runtime; `None`: one per processor.
    pub worker_threads: Option<usize>,
    /// At a stop, how long sessions get to finish before they are cut.
    pub drain_timeout: Duration,
}
