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
