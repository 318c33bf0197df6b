//! Every lost message is counted under exactly one reason (invariant 7, MET-3).

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a message, or one copy of it, was not delivered. The label texts are MET-3's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropReason {
    NoSubscribers,
    RateLimits,
    PacketTooLarge,
    QuotaExceeded,
    InflightWindowExceeded,
    ChannelNotWritable,
    QueueLimitExceeded,
    MessageExpired,
    SessionEnded,
    DeliveryFailed,
    ProcessingGiveUp,
    InternalError,
    /// The rules of the publisher, or of the receiver, deny it.
    NotAuthorized,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    Inbound,
    Outbound,
}

const REASONS: usize = 13;
static COUNTS: [[AtomicU64; 2]; REASONS] = [const { [const { AtomicU64::new(0) }; 2] }; REASONS];

impl DropReason {
    pub const ALL: [DropReason; REASONS] = [
        DropReason::NoSubscribers,
        DropReason::RateLimits,
        DropReason::PacketTooLarge,
        DropReason::QuotaExceeded,
        DropReason::InflightWindowExceeded,
        DropReason::ChannelNotWritable,
        DropReason::QueueLimitExceeded,
        DropReason::MessageExpired,
        DropReason::SessionEnded,
        DropReason::DeliveryFailed,
        DropReason::ProcessingGiveUp,
        DropReason::InternalError,
        DropReason::NotAuthorized,
    ];

    pub fn text(self) -> &'static str {
        match self {
            DropReason::NoSubscribers => "No subscribers",
            DropReason::RateLimits => "Rate limits",
            DropReason::PacketTooLarge => "Packet too large",
            DropReason::QuotaExceeded => "Quota exceeded",
            DropReason::InflightWindowExceeded => "Inflight window exceeded",
            DropReason::ChannelNotWritable => "Channel not writable",
            DropReason::QueueLimitExceeded => "Queue limit exceeded",
            DropReason::MessageExpired => "Message expired",
            DropReason::SessionEnded => "Session ended",
            DropReason::DeliveryFailed => "Delivery failed",
            DropReason::ProcessingGiveUp => "Processing give up",
            DropReason::InternalError => "Internal error",
            DropReason::NotAuthorized => "Not authorized",
        }
    }
}

/// Counts `n` lost messages; the only way to lose one.
pub fn dropped(reason: DropReason, direction: Direction, n: u64) {
    COUNTS[reason as usize][direction as usize].fetch_add(n, Ordering::Relaxed);
}

/// The count so far, for the metrics page.
pub fn dropped_so_far(reason: DropReason, direction: Direction) -> u64 {
    COUNTS[reason as usize][direction as usize].load(Ordering::Relaxed)
}
