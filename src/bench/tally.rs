//! What a thread counts for itself, and the part of it that the others may watch.

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;

/// Latencies from 1 us to 10 minutes, to three digits.
const LATENCY_NS_MIN: u64 = 1_000;
const LATENCY_NS_MAX: u64 = 600_000_000_000;

pub(super) fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, 3)
        .expect("the bounds are constants that the histogram takes")
}

/// The moments of a run, in ns of the run's clock. All zero until the run begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timeline {
    pub(super) start_ns: u64,
    pub(super) window_from_ns: u64,
    pub(super) window_to_ns: u64,
}

impl Timeline {
    #[inline]
    pub(super) fn in_window(&self, at_ns: u64) -> bool {
        (self.window_from_ns..self.window_to_ns).contains(&at_ns)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one thread, or the sum over threads.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub(super) struct Tally { $($(#[$doc])* pub(super) $name: u64,)* }

        /// A copy of a thread's counts, made after each turn of its loop.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(super) struct Board { $($name: AtomicU64,)* }

        impl Board {
            pub(super) fn show(&self, tally: &Tally) {
                $(self.$name.store(tally.$name, Ordering::Relaxed);)*
            }

            pub(super) fn add_to(&self, sum: &mut Tally) {
                $(sum.$name += self.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Connections whose handshake, and subscription if any, is done.
    ready,
    /// Connections that could not be made.
    failed,
    /// Connections that the other side ended during the run.
    closed,
    /// Messages sent, since the start.
    sent,
    /// Messages sent in the measured window.
    sent_window,
    /// Messages that were due by the schedule.
    due,
    /// PUBACK (QoS 1) or PUBCOMP (QoS 2) received.
    acked,
    acked_window,
    /// PUBACK or PUBREC with a reason of 0x80 or more: nobody should receive these.
    refused,
    /// First sight of a message by a subscriber.
    received,
    received_window,
    received_window_bytes,
    /// Seen again with DUP, which QoS 1 allows, and QoS 2 until PUBREL.
    redelivered,
    /// Seen again where it must not be.
    duplicates,
    /// Seen for the first time after a later one of the same publisher.
    order_faults,
    /// Not one of this run's messages.
    foreign,
    /// TLS handshakes from the first stone on.
    tls_full,
    /// TLS handshakes that resumed a session.
    tls_resumed,
    /// Connect cycles (churn) completed in the measured window.
    cycles_window,
    /// Lowest QoS granted to a subscription, as 2 - QoS, so that 0 is the best.
    downgrade,
}

impl Tally {
    pub(super) fn sum(boards: &[Board]) -> Tally {
        let mut sum = Tally::default();
        for board in boards {
            board.add_to(&mut sum);
        }
        sum
    }
}

/// What a thread hands back at its end.
#[derive(Debug)]
pub(super) struct Latencies {
    /// Send time to receipt, of messages sent in the window.
    pub(super) delivery: Histogram<u64>,
    /// Send time to PUBACK or PUBCOMP, of messages sent in the window.
    pub(super) ack: Histogram<u64>,
    /// Connect to CONNACK.
    pub(super) connect: Histogram<u64>,
}

impl Latencies {
    pub(super) fn new() -> Latencies {
        Latencies {
            delivery: latency_histogram(),
            ack: latency_histogram(),
            connect: latency_histogram(),
        }
    }

    pub(super) fn add(&mut self, other: &Latencies) {
        let pairs = [
            (&mut self.delivery, &other.delivery),
            (&mut self.ack, &other.ack),
            (&mut self.connect, &other.connect),
        ];
        for (mine, theirs) in pairs {
            mine.add(theirs).expect("all latency histograms have the same bounds");
        }
    }
}
