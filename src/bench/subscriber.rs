//! One subscriber: checks each stream that reaches it and answers what must be answered. No
//! socket, no clock.

use super::frame::{Frame, Malformed, PUBACK, PUBCOMP, PUBREC, append_ack};
use super::plan::Version;
use super::sequence::{Stream, Verdict};
use super::tally::{Latencies, Tally, Timeline};

const PACKET_IDS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Subscriber {
    run_tag: u32,
    version: Version,
    first_source: u32,
    streams: Vec<Stream>,
    /// QoS 2 packet ids between PUBREC and PUBREL, a bit each; made at the first QoS 2 message.
    unreleased: Vec<u64>,
}

impl Subscriber {
    pub(super) fn new(run_tag: u32, version: Version, sources: (u32, u32)) -> Subscriber {
        let streams = (0..sources.1).map(|_| Stream::default()).collect();
        let unreleased = Vec::new();
        Subscriber { run_tag, version, first_source: sources.0, streams, unreleased }
    }

    /// Takes a PUBLISH; the acknowledgement goes to `out`.
    #[inline]
    pub(super) fn published(
        &mut self,
        frame: &Frame<'_>,
        now_ns: u64,
        timeline: &Timeline,
        out: &mut Vec<u8>,
        (tally, latencies): (&mut Tally, &mut Latencies),
    ) -> Result<(), Malformed> {
        let arrival = frame.publish(self.version)?;
        let mut pending = false;
        match arrival.qos {
            0 => {}
            1 => append_ack(out, PUBACK, arrival.packet_id),
            _ => {
                pending = self.hold(arrival.packet_id);
                append_ack(out, PUBREC, arrival.packet_id);
            }
        }
        let stamp = arrival.stamp().filter(|stamp| stamp.run_tag == self.run_tag);
        let stream = stamp.and_then(|stamp| {
            let index = stamp.publisher.checked_sub(self.first_source)?;
            Some((stamp, self.streams.get_mut(index as usize)?))
        });
        let Some((stamp, stream)) = stream else {
            tally.foreign += 1;
            return Ok(());
        };
        let allowed = arrival.dup && (arrival.qos == 1 || pending);
        match stream.observe(stamp.sequence) {
            Verdict::Repeat if allowed => {
                tally.redelivered += 1;
                return Ok(());
            }
            Verdict::Repeat => {
                tally.duplicates += 1;
                return Ok(());
            }
            Verdict::Late => tally.order_faults += 1,
            Verdict::InOrder => {}
        }
        tally.received += 1;
        if timeline.in_window(now_ns) {
            tally.received_window += 1;
            tally.received_window_bytes += frame.whole.len() as u64;
        }
        if timeline.in_window(stamp.sent_ns) {
            latencies.delivery.saturating_record(now_ns.saturating_sub(stamp.sent_ns));
        }
        Ok(())
    }

    /// Takes a PUBREL, which is always answered.
    pub(super) fn released(
        &mut self,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let id = frame.packet_id()?;
        if let Some(word) = self.unreleased.get_mut(usize::from(id / 64)) {
            *word &= !(1 << (id % 64));
        }
        append_ack(out, PUBCOMP, id);
        Ok(())
    }

    /// Marks a QoS 2 id; whether it was marked already.
    fn hold(&mut self, id: u16) -> bool {
        if self.unreleased.is_empty() {
            self.unreleased = vec![0; PACKET_IDS / 64];
        }
        let word = &mut self.unreleased[usize::from(id / 64)];
        let bit = 1 << (id % 64);
        let held = *word & bit != 0;
        *word |= bit;
        held
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Stamp, Template};
    use super::*;

    const TIMELINE: Timeline =
        Timeline { start_ns: 0, window_from_ns: 1_000, window_to_ns: 9_000_000 };

    struct Bench {
        subscriber: Subscriber,
        tally: Tally,
        latencies: Latencies,
    }

    impl Bench {
        /// Receives from publishers 3 and 4 of run 5.
        fn new() -> Bench {
            let subscriber = Subscriber::new(5, Version::V4, (3, 2));
            Bench { subscriber, tally: Tally::default(), latencies: Latencies::new() }
        }

        fn publish(&mut self, first: u8, stamp: Stamp, now_ns: u64) -> Vec<u8> {
            let with_id = first & 0x06 != 0;
            let mut bytes = vec![first, 0, 0, 1, b't'];
            bytes.extend_from_slice(if with_id { &[0, 7] } else { &[] });
            bytes.extend_from_slice(&[0; 24]);
            bytes[1] = bytes.len() as u8 - 2;
            let template = Template::new(bytes, 1, 24);
            let (mut wire, mut out) = (Vec::new(), Vec::new());
            template.append(&mut wire, with_id.then_some(7), stamp);
            let frame = Frame::next(&wire).unwrap().unwrap();
            let counts = (&mut self.tally, &mut self.latencies);
            self.subscriber.published(&frame, now_ns, &TIMELINE, &mut out, counts).unwrap();
            out
        }

        fn release(&mut self) -> Vec<u8> {
            let (wire, mut out) = ([0x62, 2, 0, 7], Vec::new());
            let frame = Frame::next(&wire).unwrap().unwrap();
            self.subscriber.released(&frame, &mut out).unwrap();
            out
        }
    }

    fn stamp(publisher: u32, sequence: u64) -> Stamp {
        Stamp { run_tag: 5, publisher, sequence, sent_ns: 2_000 }
    }

    #[test]
    fn each_qos_gets_its_acknowledgement() {
        let mut bench = Bench::new();
        assert!(bench.publish(0x30, stamp(3, 0), 3_000).is_empty());
        assert_eq!(bench.publish(0x32, stamp(3, 1), 3_000), [0x40, 2, 0, 7]);
        assert_eq!(bench.publish(0x34, stamp(3, 2), 3_000), [0x50, 2, 0, 7]);
        assert_eq!(bench.release(), [0x70, 2, 0, 7]);
        assert_eq!((bench.tally.received, bench.latencies.delivery.len()), (3, 3));
    }

    #[test]
    fn a_repeat_at_qos_1_is_a_fault_only_without_dup() {
        let mut bench = Bench::new();
        bench.publish(0x32, stamp(3, 0), 3_000);
        bench.publish(0x3A, stamp(3, 0), 3_000);
        bench.publish(0x32, stamp(3, 0), 3_000);
        let tally = bench.tally;
        assert_eq!((tally.received, tally.redelivered, tally.duplicates), (1, 1, 1));
    }

    #[test]
    fn a_repeat_at_qos_2_is_a_fault_once_the_id_was_released() {
        let mut bench = Bench::new();
        bench.publish(0x34, stamp(3, 0), 3_000);
        bench.publish(0x3C, stamp(3, 0), 3_000);
        assert_eq!((bench.tally.redelivered, bench.tally.duplicates), (1, 0));
        bench.release();
        bench.publish(0x3C, stamp(3, 0), 3_000);
        assert_eq!((bench.tally.redelivered, bench.tally.duplicates), (1, 1));
    }

    #[test]
    fn publishers_have_their_own_order_and_strangers_are_counted_apart() {
        let mut bench = Bench::new();
        for (publisher, sequence) in [(3, 0), (4, 0), (3, 1), (3, 3), (4, 1), (3, 2)] {
            bench.publish(0x30, stamp(publisher, sequence), 3_000);
        }
        assert_eq!((bench.tally.received, bench.tally.order_faults), (6, 1));
        bench.publish(0x30, stamp(2, 0), 3_000);
        bench.publish(0x30, stamp(5, 0), 3_000);
        bench.publish(0x30, Stamp { run_tag: 6, ..stamp(3, 4) }, 3_000);
        assert_eq!((bench.tally.received, bench.tally.foreign), (6, 3));
    }

    #[test]
    fn latency_counts_by_send_time_and_rate_by_receipt() {
        let mut bench = Bench::new();
        bench.publish(0x30, Stamp { sent_ns: 500, ..stamp(3, 0) }, 2_000);
        assert_eq!((bench.tally.received_window, bench.latencies.delivery.len()), (1, 0));
        bench.publish(0x30, stamp(3, 1), 20_000_000);
        assert_eq!((bench.tally.received_window, bench.latencies.delivery.len()), (1, 1));
    }
}
