//! The queue's side of an outbox: copies straight from memory if they are exactly next, else pages
//! of the queue when there is room; and packet ids, reserved ahead (design decisions 4 and 8).

use std::sync::Arc;

use tokio::time::Instant;

use super::answers::{RESERVE_TICKET, release};
use super::channel::{Channel, Reservation, Sent};
use super::out_buffer::{Gone, OutBuffer};
use super::packet_ids::{InFlight, Stage};
use super::{Outbox, Outgoing};
use crate::mqtt::{QoS, ReasonCode};
use crate::storage::{DeviceQueues, Page, QueueEntry, QueueKey, QueuedMessage, StorageError};
use crate::telemetry::{clock, metrics};

/// One page of a queue: what is read for one client at a time.
const PAGE_MESSAGES: usize = 128;
const PAGE_BYTES: usize = 256 * 1024;

/// What the writer task should do next.
pub(super) enum Work {
    Write(OutBuffer),
    /// Read the client's queue above this sequence.
    Pull {
        queue: QueueKey,
        incarnation: u64,
        after: u64,
        messages: usize,
    },
    /// Everything left; the connection is to be shut.
    Shut,
    /// Nothing, until woken or at this instant.
    Wait(Option<Instant>),
    /// Nothing: the task ends, and another one is started when there is something.
    Rest,
}

impl Outbox {
    /// Offers a run that was just stored in the session's queue under `first_seq`, …: what is
    /// exactly next, and has credit, leaves from memory; the rest is read from the queue later.
    /// Copies that a retained cursor put there are not `live`.
    pub fn offer_queued(
        &self,
        incarnation: u64,
        first_seq: u64,
        entries: &[QueueEntry],
        live: bool,
    ) {
        let mut channel = self.channel.lock();
        for (seq, entry) in (first_seq..).zip(entries) {
            let takes = channel.takes_queued();
            if live {
                channel.note_live(&outgoing(entry));
            }
            let Some(backlog) = channel.backlog.as_deref_mut() else { return };
            if backlog.incarnation != incarnation {
                return;
            }
            backlog.heard_of(seq + 1);
            if !takes || !backlog.is_next(seq) {
                continue;
            }
            let Some(id) = backlog.id_of(seq) else { continue };
            backlog.passed(seq);
            match channel.send(&outgoing(entry), Some(id), false) {
                Sent::Yes => channel.book(id, seq, entry.delivery),
                unsent => {
                    channel.count_unsent(unsent, &outgoing(entry));
                    self.give_up(&channel, seq);
                }
            }
        }
        let reservation = channel.reserve_ids();
        self.leave(channel);
        self.reserve(reservation);
    }

    /// The session's queue reaches up to `end`, by somebody else's doing.
    pub fn heard_of(&self, incarnation: u64, end: u64) {
        let mut channel = self.channel.lock();
        if let Some(backlog) = channel.backlog.as_deref_mut()
            && backlog.incarnation == incarnation
        {
            backlog.heard_of(end);
        }
        // Without an id nothing is read.
        let reservation = channel.reserve_ids();
        self.leave(channel);
        self.reserve(reservation);
    }

    /// A queued message that will never be sent: it leaves the queue as if acknowledged.
    fn give_up(&self, channel: &Channel, seq: u64) {
        if let Some(backlog) = &channel.backlog {
            let sent_below = backlog.sent_below();
            self.queues.ack(&backlog.queue, backlog.incarnation, &[seq], sent_below);
        }
    }

    /// Makes a run of ids durable. Not under the channel's lock: storage that has ended tells the
    /// outcome at once, and that takes the lock.
    pub(super) fn reserve(&self, reservation: Option<Reservation>) {
        let Some(Reservation { queue, incarnation, run }) = reservation else { return };
        let Some(this) = self.this.upgrade() else { return };
        self.queues.reserve_ids(&queue, incarnation, run, this, RESERVE_TICKET);
    }

    // === the writer's side ===

    pub(super) fn work(&self) -> Work {
        let mut channel = self.channel.lock();
        channel.writing = !channel.out.is_empty();
        if channel.writing {
            return Work::Write(std::mem::take(&mut channel.out));
        }
        if channel.closing {
            return Work::Shut;
        }
        channel.look_at_pause();
        if !channel.wants_page() {
            let due = channel.pause_due();
            let pulling = channel.backlog.as_deref().is_some_and(|backlog| backlog.pulling);
            channel.resting = due.is_none() && !pulling && channel.hand.is_some();
            return if channel.resting { Work::Rest } else { Work::Wait(due) };
        }
        let messages = PAGE_MESSAGES.min(usize::from(channel.credit.left()).max(1));
        let Some(backlog) = channel.backlog.as_deref_mut() else { return Work::Wait(None) };
        backlog.pulling = true;
        Work::Pull {
            queue: backlog.queue.clone(),
            incarnation: backlog.incarnation,
            after: backlog.next_seq - 1,
            messages,
        }
    }

    pub(super) fn pull_bytes() -> usize {
        PAGE_BYTES
    }

    pub(super) fn queues(&self) -> Arc<dyn DeviceQueues> {
        Arc::clone(&self.queues)
    }

    /// So much left for the kernel, and is held no more.
    pub(super) fn left(&self, gone: Gone) {
        let mut channel = self.channel.lock();
        let low = channel.left(gone.held);
        let drained = channel.marks.buffered() == 0;
        metrics::SENT_BYTES.add(gone.sent as u64);
        if low || drained {
            self.wake_awaiting(channel);
        }
    }

    /// A page of the queue arrived: sends what may be sent.
    pub(super) fn page(&self, page: Result<Page, StorageError>) {
        let mut channel = self.channel.lock();
        let Some(backlog) = channel.backlog.as_deref_mut() else { return };
        backlog.pulling = false;
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                match &error {
                    // A newer connection has it: that is no fault.
                    StorageError::Fenced => tracing::debug!(queue = %backlog.queue, %error),
                    StorageError::Unavailable(_) | StorageError::Damaged(_) => {
                        tracing::warn!(queue = %backlog.queue, %error, "queue can't be read");
                    }
                }
                drop(channel);
                return self.close(None);
            }
        };
        let end = page.messages.last().map_or(page.next_seq, |last| last.seq + 1);
        let mut all_sent = true;
        for message in &page.messages {
            if !self.send_queued(&mut channel, message) {
                all_sent = false;
                break;
            }
        }
        if let Some(backlog) = channel.backlog.as_deref_mut() {
            backlog.heard_of(page.next_seq);
            if all_sent && end >= page.next_seq {
                backlog.caught_up(page.next_seq);
            }
        }
        let reservation = channel.reserve_ids();
        channel.tell();
        drop(channel);
        self.reserve(reservation);
    }

    /// `false` when it has to wait: no credit, no room, or no id yet.
    fn send_queued(&self, channel: &mut Channel, message: &QueuedMessage) -> bool {
        let takes = channel.takes_queued();
        let Some(backlog) = channel.backlog.as_deref_mut() else { return false };
        backlog.skip_to(message.seq);
        let dup = backlog.is_dup(message.seq);
        if !message.received && !takes {
            return false;
        }
        let Some(id) = backlog.id_of(message.seq) else { return false };
        backlog.passed(message.seq);
        if message.received {
            let entry = InFlight { seq: message.seq, stage: Stage::Pubcomp, credited: false };
            if channel.ids.insert(id, entry) {
                release(channel, id, ReasonCode::Success);
            }
            return true;
        }
        let copy = Outgoing {
            batch: message.message.batch(),
            index: message.message.index(),
            delivery: message.delivery,
            subscription_ids: &message.subscription_ids,
            paid: true,
            share: None,
        };
        // A QoS 2 exchange that may have begun goes on, whatever its expiry: the receiver may hold
        // its id, and would take the next message under it for a repeat (QOS-08).
        let begun = dup && message.delivery.qos == QoS::ExactlyOnce;
        let over = message.expires_at_ms.is_some_and(|at| at <= clock::wall_ms());
        let sent = if over && !begun { Sent::Expired } else { channel.send(&copy, Some(id), dup) };
        match sent {
            Sent::Yes => channel.book(id, message.seq, message.delivery),
            unsent => {
                channel.count_unsent(unsent, &copy);
                self.give_up(channel, message.seq);
            }
        }
        true
    }
}

fn outgoing(entry: &QueueEntry) -> Outgoing<'_> {
    Outgoing {
        batch: entry.message.batch(),
        index: entry.message.index(),
        delivery: entry.delivery,
        subscription_ids: &entry.subscription_ids,
        paid: true,
        share: None,
    }
}
