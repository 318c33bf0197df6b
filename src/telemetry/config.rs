//! What an operator decides about reports.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How often a line of totals goes to the log; `None`: never.
    pub stats_period: Option<Duration>,
    /// Whether lost messages are kept by client, topic and reason (MET-2).
    pub ledger: bool,
}
