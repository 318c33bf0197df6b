//! What an operator sets about the write side.

/// Settings of every connection's write side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `listener.write_buffer_high_water_mark`, bytes: above it a connection is non-writable.
    pub write_buffer_high_bytes: usize,
    /// `listener.write_buffer_low_water_mark`, bytes: below it it is writable again.
    pub write_buffer_low_bytes: usize,
    /// `mqtt.flow-control.delayed-queue-max-size`, messages.
    pub delayed_queue_max: usize,
    /// `mqtt.flow-control.ttl`, milliseconds.
    pub delayed_ttl_ms: u64,
    /// `mqtt.topic.alias-max`: the most aliases we give on one connection.
    pub topic_alias_max: u16,
    /// `mqtt.topic.min-length-for-alias-replacement`, bytes.
    pub topic_alias_bytes_min: usize,
}
