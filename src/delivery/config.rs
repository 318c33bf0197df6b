//! What an operator decides about the way out to a client.

use std::time::Duration;

use crate::limits::RateWindows;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Queued bytes over which a connection is not writable (OUT-1).
    pub write_buffer_high_bytes: usize,
    /// Queued bytes under which it is writable again; not above the high mark.
    pub write_buffer_low_bytes: usize,
    /// Receive Maximum of v3 clients, which can't state one (RM-1).
    pub v3_receive_maximum: u16,
    /// QoS 1 and 2 messages that wait for credit in memory (RM-2). Full: counted as `Inflight
    /// window exceeded`. 0: none waits.
    pub delayed_messages: usize,
    /// How long one may wait for credit (RM-2). Longer: counted as `Inflight window exceeded`.
    pub delayed_ttl: Duration,
    /// Aliases we give to a client that allows some; 0: none (MEM-07).
    pub topic_alias_max: u16,
    /// Topics shorter than this get no alias.
    pub topic_alias_min_bytes: usize,
    /// QoS 0 messages to one subscriber (OUT-5); `None`: not limited.
    pub outgoing_rate: Option<RateWindows>,
}
