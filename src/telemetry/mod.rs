//! Room 0: what an operator sees. Tracing set-up, the metric catalogue, the closed list of drop
//! reasons, the clock, and named task spawn.
//!
//! What comes in: counts, spans, log lines, futures to run under a name. What goes out: log lines
//! on standard error and the text of `/actuator/prometheus`. Every room calls it. Never: knowledge
//! of another room, a label whose values come from traffic, a lock on a hot path.

pub mod clock;
mod config;
mod counted;
mod doors;
mod drop_reason;
pub mod fail_point;
pub mod ledger;
mod logging;
mod losses;
pub mod metrics;
mod stats;
pub mod task;
mod throttle;

pub use config::Config;
pub use counted::Counted;
pub use doors::{Door, Turned};
pub use drop_reason::{Direction, DropReason, dropped, dropped_so_far};
pub use ledger::dropped_of;
#[cfg(test)]
pub(crate) use ledger::{rows as dropped_rows, while_locked as while_ledger_is_locked};
pub use logging::{DEFAULT_FILTER, LoggingError, init as init_logging};
pub use losses::Losses;
pub use stats::print as print_stats;
pub use throttle::Throttle;
