//! One publisher: its window, its place in the schedule, and its frames. No socket, no clock.

use std::collections::VecDeque;

use super::frame::{
    Frame, Malformed, PUBACK, PUBCOMP, PUBREC, PUBREL, Stamp, Template, append_ack,
};
use super::schedule::Schedule;
use super::tally::{Latencies, Tally, Timeline};

/// Bytes of PUBLISH frames encoded before they are written.
const CHUNK_BYTES: usize = 64 * 1024;
/// For this long after the window the last scheduled messages may still leave. What a window
/// or a socket held back for longer is reported as not sent.
const GRACE_NS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// PUBLISH sent at this time; PUBACK or PUBREC is due.
    Published(u64),
    /// PUBREL sent; PUBCOMP is due. The time is the PUBLISH's.
    Released(u64),
}

/// Where a publisher stands when it stops filling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Nothing to send before an ack, the schedule or the end.
    Idle,
    /// The chunk is full, there is more.
    More,
}

/// What the publishers of a run have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) timeline: Timeline,
    /// `None`: as fast as it goes.
    pub(super) schedule: Option<Schedule>,
    pub(super) publishers: u32,
}

#[derive(Debug)]
pub(super) struct Publisher {
    number: u32,
    run_tag: u32,
    template: Template,
    sent: u64,
    /// Messages that the schedule asked for so far.
    pub(super) due: u64,
    /// By packet id; index 0 stays unused. Empty at QoS 0.
    slots: Vec<Slot>,
    free: VecDeque<u16>,
}

impl Publisher {
    pub(super) fn new(number: u32, run_tag: u32, template: Template) -> Publisher {
        let (slots, free) = (Vec::new(), VecDeque::new());
        Publisher { number, run_tag, template, sent: 0, due: 0, slots, free }
    }

    /// Sets the number of messages in flight; until then it sends at QoS 0.
    pub(super) fn open_window(&mut self, window: u16) {
        self.slots = vec![Slot::Free; usize::from(window) + 1];
        self.free = (1..=window).collect();
    }

    /// Encodes what may be sent now, at most one chunk.
    pub(super) fn fill(
        &mut self,
        pace: &Pace,
        now_ns: u64,
        out: &mut Vec<u8>,
        tally: &mut Tally,
    ) -> Fill {
        let end_ns = pace.timeline.window_to_ns;
        let stop_ns = if pace.schedule.is_some() { end_ns + GRACE_NS } else { end_ns };
        if now_ns >= stop_ns {
            return Fill::Idle;
        }
        let before = self.sent;
        let mut fill = Fill::Idle;
        loop {
            let sent_ns = match &pace.schedule {
                None => now_ns,
                Some(_) if self.sent >= self.due => break,
                Some(schedule) => {
                    let place = u64::from(self.number);
                    schedule.due_ns(self.sent * u64::from(pace.publishers) + place)
                }
            };
            if !out.is_empty() && out.len() + self.template.len() > CHUNK_BYTES {
                fill = Fill::More;
                break;
            }
            let packet_id = if self.slots.is_empty() {
                None
            } else {
                let Some(id) = self.free.pop_front() else { break };
                self.slots[usize::from(id)] = Slot::Published(sent_ns);
                Some(id)
            };
            let (run_tag, publisher) = (self.run_tag, self.number);
            let stamp = Stamp { run_tag, publisher, sequence: self.sent, sent_ns };
            self.template.append(out, packet_id, stamp);
            self.sent += 1;
        }
        let sent = self.sent - before;
        tally.sent += sent;
        if pace.timeline.in_window(now_ns) {
            tally.sent_window += sent;
        }
        fill
    }

    /// Takes a PUBACK, PUBREC or PUBCOMP; answers go to `out`.
    #[inline]
    pub(super) fn acknowledged(
        &mut self,
        frame: &Frame<'_>,
        now_ns: u64,
        timeline: &Timeline,
        out: &mut Vec<u8>,
        (tally, latencies): (&mut Tally, &mut Latencies),
    ) -> Result<(), Malformed> {
        let id = frame.packet_id()?;
        let Some(slot) = self.slots.get_mut(usize::from(id)) else { return Ok(()) };
        let (sent_ns, refused) = match (frame.kind(), *slot) {
            (PUBACK, Slot::Published(sent_ns)) => (sent_ns, frame.refuses()),
            (PUBREC, Slot::Published(sent_ns)) if frame.refuses() => (sent_ns, true),
            (PUBREC, Slot::Published(sent_ns) | Slot::Released(sent_ns)) => {
                *slot = Slot::Released(sent_ns);
                append_ack(out, PUBREL, id);
                return Ok(());
            }
            (PUBCOMP, Slot::Released(sent_ns)) => (sent_ns, false),
            _ => return Ok(()),
        };
        *slot = Slot::Free;
        self.free.push_back(id);
        if refused {
            tally.refused += 1;
            return Ok(());
        }
        tally.acked += 1;
        tally.acked_window += u64::from(timeline.in_window(now_ns));
        if timeline.in_window(sent_ns) {
            latencies.ack.saturating_record(now_ns.saturating_sub(sent_ns));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::STAMP_BYTES;
    use super::*;

    const TIMELINE: Timeline =
        Timeline { start_ns: 0, window_from_ns: 1_000, window_to_ns: 1_000_000_000 };

    struct Bench {
        publisher: Publisher,
        pace: Pace,
        out: Vec<u8>,
        tally: Tally,
        latencies: Latencies,
    }

    impl Bench {
        /// A publisher whose frames have 100 bytes.
        fn new(window: Option<u16>, schedule: Option<Schedule>) -> Bench {
            let topic_bytes = 96 - STAMP_BYTES - 2 * usize::from(window.is_some());
            let mut bytes = vec![0x30, 98, 0, topic_bytes as u8];
            bytes.resize(100, b't');
            let mut publisher =
                Publisher::new(1, 5, Template::new(bytes, topic_bytes, STAMP_BYTES));
            if let Some(window) = window {
                publisher.open_window(window);
            }
            Bench {
                publisher,
                pace: Pace { timeline: TIMELINE, schedule, publishers: 2 },
                out: Vec::new(),
                tally: Tally::default(),
                latencies: Latencies::new(),
            }
        }

        fn fill(&mut self, now_ns: u64) -> (Fill, Vec<Stamp>) {
            self.out.clear();
            let fill = self.publisher.fill(&self.pace, now_ns, &mut self.out, &mut self.tally);
            let stamp = |bytes: &[u8]| {
                let payload = &bytes[100 - STAMP_BYTES..];
                super::super::frame::Arrival { qos: 0, dup: false, packet_id: 0, payload }.stamp()
            };
            (fill, self.out.chunks(100).filter_map(stamp).collect())
        }

        fn take(&mut self, bytes: &[u8], now_ns: u64) -> Vec<u8> {
            self.out.clear();
            let frame = Frame::next(bytes).unwrap().unwrap();
            let counts = (&mut self.tally, &mut self.latencies);
            self.publisher.acknowledged(&frame, now_ns, &TIMELINE, &mut self.out, counts).unwrap();
            self.out.clone()
        }
    }

    #[test]
    fn qos_0_without_a_rate_fills_chunk_after_chunk_until_the_window_ends() {
        let mut bench = Bench::new(None, None);
        let (fill, stamps) = bench.fill(2_000);
        assert_eq!((fill, stamps.len()), (Fill::More, CHUNK_BYTES / 100));
        let (_, more) = bench.fill(3_000);
        assert_eq!((more[0].sequence, more[0].sent_ns), (stamps.len() as u64, 3_000));
        assert_eq!(bench.fill(TIMELINE.window_to_ns).1, []);
        assert_eq!(bench.tally.sent, 2 * stamps.len() as u64);
    }

    #[test]
    fn the_window_closes_and_each_puback_opens_it_by_one() {
        let mut bench = Bench::new(Some(3), None);
        assert_eq!(bench.fill(2_000).1.len(), 3);
        assert_eq!(bench.fill(2_000).1.len(), 0);
        bench.take(&[0x40, 2, 0, 2], 5_000);
        bench.take(&[0x40, 2, 0, 2], 5_000);
        assert_eq!(bench.fill(6_000).1.len(), 1, "the second PUBACK has no message");
        assert_eq!((bench.tally.acked, bench.latencies.ack.len()), (1, 1));
    }

    #[test]
    fn qos_2_keeps_the_id_until_pubcomp() {
        let mut bench = Bench::new(Some(1), None);
        bench.fill(2_000);
        assert_eq!(bench.take(&[0x50, 2, 0, 1], 3_000), [0x62, 2, 0, 1]);
        assert_eq!(bench.fill(3_000).1.len(), 0);
        assert_eq!(bench.tally.acked, 0);
        bench.take(&[0x70, 2, 0, 1], 4_000);
        assert_eq!(bench.fill(4_000).1.len(), 1);
        assert_eq!(bench.tally.acked, 1);
    }

    #[test]
    fn a_refused_message_frees_its_id_and_is_not_expected_anywhere() {
        let mut bench = Bench::new(Some(2), None);
        bench.fill(2_000);
        assert!(bench.take(&[0x40, 3, 0, 1, 0x97], 3_000).is_empty());
        assert!(bench.take(&[0x50, 3, 0, 2, 0x97], 3_000).is_empty(), "no PUBREL after that");
        assert_eq!((bench.tally.refused, bench.tally.acked), (2, 0));
        assert_eq!(bench.fill(4_000).1.len(), 2);
    }

    #[test]
    fn a_late_send_carries_the_time_of_the_schedule() {
        let mut bench = Bench::new(None, Some(Schedule::new(0, 1_000)));
        assert_eq!(bench.fill(50_000_000).1, [], "nothing is due");
        bench.publisher.due = 2;
        let sent: Vec<u64> = bench.fill(50_000_000).1.iter().map(|one| one.sent_ns).collect();
        assert_eq!(sent, [1_000_000, 3_000_000], "every second message is this publisher's");
    }

    #[test]
    fn what_was_due_may_leave_a_little_after_the_window_but_not_much() {
        let mut bench = Bench::new(None, Some(Schedule::new(0, 1_000)));
        bench.publisher.due = 1;
        assert_eq!(bench.fill(TIMELINE.window_to_ns + GRACE_NS - 1).1.len(), 1);
        bench.publisher.due = 2;
        assert_eq!(bench.fill(TIMELINE.window_to_ns + GRACE_NS).1.len(), 0);
        assert_eq!(bench.tally.sent_window, 0);
    }
}
