//! Where a persistent client stands in its queue: which sequence goes next, and under which ids.
//! Arithmetic; the queue is read by the writer task.

use std::collections::VecDeque;

use super::pause::Pause;
use super::probe::Probe;
use crate::mqtt::PacketId;
use crate::storage::{IdRun, QueueKey, QueueState};

/// Ids reserved at a time: one durable write for so many messages.
pub(super) const ID_RUN: u16 = 1024;
/// A further run is asked for when fewer ids than this are left.
const RESERVE_BELOW: u64 = 512;

/// The cursor of one connection over its session's queue.
///
/// ```text
/// attach ─→ behind ──read──→ pulling ──page──→ behind … until next = end ─→ following
/// following ──copy with sequence next, credit, ids, writable──→ following (sent from memory)
/// following ──anything else──→ behind (the queue is read when there is room)
/// ```
#[derive(Debug)]
pub(super) struct Backlog {
    pub queue: QueueKey,
    pub incarnation: u64,
    /// The next sequence to send: everything below was sent on this connection, or is gone.
    pub next_seq: u64,
    /// The end of the queue as far as this node has heard.
    end_seq: u64,
    /// Below it a copy may have been sent on an earlier connection: DUP=1.
    dup_below: u64,
    /// Ids for sequences from `next_seq` on.
    runs: VecDeque<IdRun>,
    /// A run on its way to disk.
    reserving: Option<IdRun>,
    /// A page is being read.
    pub pulling: bool,
    /// Nothing is taken while the channel is congested, and for a while after (DEV-2, DEV-3).
    pub pause: Pause,
    pub probe: Probe,
    /// It has not been read to its end since the connection attached.
    fresh: bool,
}

impl Backlog {
    pub(super) fn new(queue: QueueKey, state: &QueueState) -> Self {
        Self {
            probe: Probe::new(queue.is_application()),
            queue,
            incarnation: state.incarnation,
            next_seq: 1,
            end_seq: state.next_seq,
            // What joins the queue from now on was never sent: after a crash the cursor stands at
            // the end of the reserved ids, and the log was dispatched again before anybody came.
            dup_below: state.sent_below.min(state.next_seq),
            runs: state.runs.iter().copied().collect(),
            reserving: None,
            pulling: false,
            pause: Pause::default(),
            fresh: true,
        }
    }

    /// The last id that an earlier connection may have used.
    pub(super) fn last_id(&self) -> Option<PacketId> {
        let run = self.runs.back()?;
        Some(id_at(run, run.first_seq + u64::from(run.count) - 1))
    }

    /// The queue reaches up to `end` now.
    pub(super) fn heard_of(&mut self, end: u64) {
        self.end_seq = self.end_seq.max(end);
    }

    /// Whether there is something to read from the queue.
    pub(super) fn is_behind(&self) -> bool {
        self.fresh || self.next_seq < self.end_seq
    }

    /// The queue was read: nothing between `next_seq` and `end` is left to send.
    pub(super) fn caught_up(&mut self, end: u64) {
        self.fresh = false;
        self.next_seq = self.next_seq.max(end);
        self.heard_of(end);
    }

    /// The queue holds nothing between the cursor and `seq`.
    pub(super) fn skip_to(&mut self, seq: u64) {
        self.fresh = false;
        self.next_seq = self.next_seq.max(seq);
        self.heard_of(seq + 1);
    }

    /// `seq` was sent or given up.
    pub(super) fn passed(&mut self, seq: u64) {
        self.next_seq = seq + 1;
    }

    pub(super) fn is_dup(&self, seq: u64) -> bool {
        seq < self.dup_below
    }

    /// The sender's cursor, as the queue keeps it.
    pub(super) fn sent_below(&self) -> u64 {
        self.next_seq.max(self.dup_below)
    }

    /// Whether reading a page can lead to something sent: an id is there for the next sequence,
    /// or the page has yet to tell which one that is.
    pub(super) fn can_send(&self) -> bool {
        let covers = |run: &IdRun| self.next_seq < run.first_seq + u64::from(run.count);
        self.fresh || self.runs.back().is_some_and(covers)
    }

    /// Whether `seq` can go straight from memory to the socket.
    pub(super) fn is_next(&self, seq: u64) -> bool {
        !self.fresh && !self.pulling && seq == self.next_seq
    }

    /// The id under which `seq` goes out, if it is reserved. Sequences rise from call to call.
    pub(super) fn id_of(&mut self, seq: u64) -> Option<PacketId> {
        while let Some(run) = self.runs.front() {
            if seq < run.first_seq {
                return None;
            }
            if seq < run.first_seq + u64::from(run.count) {
                return Some(id_at(run, seq));
            }
            self.runs.pop_front();
        }
        None
    }

    /// Whether a further run of ids should be reserved now, and from which sequence on.
    pub(super) fn wants_ids(&self) -> Option<u64> {
        // Before the first page nobody knows which sequence is the first to go; a client that was
        // never sent anything reserves nothing.
        let idle = self.runs.is_empty() && self.next_seq >= self.end_seq;
        if self.reserving.is_some() || self.fresh && self.next_seq == 1 || idle {
            return None;
        }
        let end = self.reserved_end();
        (end < self.next_seq + RESERVE_BELOW).then_some(end)
    }

    fn reserved_end(&self) -> u64 {
        let end = self.runs.back().map_or(0, |run| run.first_seq + u64::from(run.count));
        end.max(self.next_seq)
    }

    /// How many reserved ids were not used yet.
    pub(super) fn reserved_left(&self) -> u64 {
        self.reserved_end() - self.next_seq
    }

    pub(super) fn reserve(&mut self, run: IdRun) {
        self.reserving = Some(run);
    }

    /// The run that was under way is durable.
    pub(super) fn reserved(&mut self) {
        self.runs.extend(self.reserving.take());
    }
}

fn id_at(run: &IdRun, seq: u64) -> PacketId {
    let steps = (seq - run.first_seq) % u64::from(u16::MAX);
    let zero_based = (u64::from(run.first_id.get()) - 1 + steps) % u64::from(u16::MAX);
    PacketId::new(zero_based as u16 + 1).unwrap_or(PacketId::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::ClientId;

    fn run(first_seq: u64, first_id: u16, count: u16) -> IdRun {
        IdRun { first_seq, first_id: PacketId::new(first_id).expect("not 0"), count }
    }

    fn backlog(runs: Vec<IdRun>, next_seq: u64, sent_below: u64) -> Backlog {
        let queue = QueueKey::Client(ClientId::new("c"));
        Backlog::new(queue, &QueueState { incarnation: 1, next_seq, sent_below, runs })
    }

    /// FLO-05: an id wraps from 65 535 to 1 inside a run.
    #[test]
    fn ids_wrap_inside_a_run() {
        let mut backlog = backlog(vec![run(10, 65_534, 4)], 14, 12);
        let ids: Vec<_> = (10..15).map(|seq| backlog.id_of(seq).map(PacketId::get)).collect();
        assert_eq!(ids, [Some(65_534), Some(65_535), Some(1), Some(2), None]);
    }

    /// FLO-10: DUP only below the cursor of the connection before.
    #[test]
    fn dup_is_set_below_the_old_cursor_only() {
        let backlog = backlog(vec![], 14, 12);
        assert!(backlog.is_dup(11) && !backlog.is_dup(12));
    }

    /// MQTT-3.3.1-1: after a crash all reserved ids may have been used, but what is queued only
    /// now was not sent under them.
    #[test]
    fn what_joins_the_queue_after_a_crash_is_no_resend() {
        let backlog = backlog(vec![run(1, 1, 1024)], 14, 1025);
        assert!(backlog.is_dup(13) && !backlog.is_dup(14));
    }

    /// ORD-01: nothing goes out from memory before the queue was read to its end.
    #[test]
    fn live_copies_wait_behind_the_queue() {
        let mut backlog = backlog(vec![run(1, 1, 100)], 1, 1);
        assert!(!backlog.is_next(1) && backlog.is_behind());
        backlog.caught_up(1);
        assert!(backlog.is_next(1) && !backlog.is_next(2));
        backlog.heard_of(3);
        assert!(backlog.is_behind());
    }

    #[test]
    fn ids_are_reserved_ahead() {
        let mut backlog = backlog(vec![], 5, 1);
        assert_eq!(backlog.wants_ids(), None, "the first page tells where to begin");
        backlog.skip_to(3);
        assert_eq!(backlog.wants_ids(), Some(3));
        backlog.reserve(run(3, 1, 1024));
        assert_eq!(backlog.wants_ids(), None);
        backlog.reserved();
        assert_eq!(backlog.wants_ids(), None);
        backlog.caught_up(600);
        assert_eq!(backlog.wants_ids(), Some(1027));
    }
}
