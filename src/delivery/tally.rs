//! One connection's share in the metrics, told once a batch instead of once a message.

use crate::mqtt::QoS;
use crate::telemetry::metrics;

/// What was told so far, and what is still to be told. Levels go back when it is dropped, so none
/// outlives its connection.
#[derive(Debug, Default)]
pub(super) struct Tally {
    sent: [u32; 3],
    in_flight: u32,
    delayed: u32,
}

impl Tally {
    /// A PUBLISH was put into the buffer.
    pub(super) fn sent(&mut self, qos: QoS) {
        self.sent[qos as usize] += 1;
    }

    /// Tells what changed.
    pub(super) fn tell(&mut self, in_flight: usize, delayed: usize) {
        let counters =
            [&metrics::DELIVERED_QOS0, &metrics::DELIVERED_QOS1, &metrics::DELIVERED_QOS2];
        for (sent, counter) in self.sent.iter_mut().zip(counters) {
            if *sent > 0 {
                counter.add(u64::from(std::mem::take(sent)));
            }
        }
        let levels = [
            (&mut self.in_flight, in_flight, &metrics::INFLIGHT),
            (&mut self.delayed, delayed, &metrics::DELAYED),
        ];
        for (told, now, level) in levels {
            let before = std::mem::replace(told, now as u32);
            if *told != before {
                level.add(i64::from(*told) - i64::from(before));
            }
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.tell(0, 0);
    }
}
