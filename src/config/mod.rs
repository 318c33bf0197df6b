//! Room 7: the configuration file and the environment → each room's `Config`.

/// Everything an operator decides, by room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub service: ServiceConfig,
    pub listener: crate::listener::Config,
    pub session: crate::session::Config,
    pub routing: crate::routing::Config,
    pub delivery: crate::delivery::Config,
    pub storage: crate::storage::Config,
    pub admin: crate::admin::Config,
    pub telemetry: crate::telemetry::Config,
}

/// The process as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// This node's name, never empty.
    pub id: std::sync::Arc<str>,
    /// Threads of the runtime; `None`: one per processor.
    pub worker_threads: Option<usize>,
    /// How long a stop waits for sessions to end before it cuts them.
    pub drain_timeout: std::time::Duration,
}
