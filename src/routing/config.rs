//! What an operator decides about routing: retained messages, shared groups, durable queues.

use std::time::Duration;

use super::Policy;
use crate::limits::RateWindows;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Passes over writable members only (SHR-1, the older document's form).
    pub shared_skip_non_writable: bool,
    /// An APPLICATION member that is not writable is out of its groups until it is (SHR-4).
    pub shared_app_leave: bool,
    /// Of groups whose entity says nothing else.
    pub shared_policy: Policy,
    /// How often expired retained messages are looked for.
    pub retained_expiry_period: Duration,
    /// Retained messages; `None`: no limit. More: a new topic's is refused with 0x97.
    pub retained_max_count: Option<u64>,
    /// Bytes of retained messages; `None`: no limit. More: refused with 0x97.
    pub retained_max_bytes: Option<u64>,
    /// Copies into durable queues (DEV-7); `None`: not limited.
    pub device_persisted_rate: Option<RateWindows>,
}
