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
