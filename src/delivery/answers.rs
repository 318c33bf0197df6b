//! What the client answers: acknowledgements, and the records that must be durable before PUBREL.

use std::collections::VecDeque;

use super::Outbox;
use super::channel::Channel;
use super::packet_ids::{InFlight, Stage};
use crate::codec::{self, AckKind};
use crate::mqtt::{PacketId, ReasonCode};
use crate::storage::{AppendOutcome, AppendSink, QueueKey};
use crate::telemetry::{fail_point, metrics};

/// The ticket of an id reservation; tickets of PUBREC records count up from the next number.
pub(super) const RESERVE_TICKET: u64 = 0;

/// An acknowledgement from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAck {
    pub kind: AckKind,
    pub id: PacketId,
    pub reason: ReasonCode,
}

/// PUBRECs whose record is on its way to disk, oldest first. Bounded by the ids in flight.
#[derive(Debug)]
pub(super) struct Receiving {
    next_ticket: u64,
    waiting: VecDeque<(u64, Vec<PacketId>)>,
}

impl Default for Receiving {
    fn default() -> Self {
        Self { next_ticket: RESERVE_TICKET + 1, waiting: VecDeque::new() }
    }
}

impl Outbox {
    /// What the client acknowledged, in the order in which it was read, under one lock.
    pub fn acknowledge(&self, acks: &[ClientAck]) {
        let mut done: Vec<u64> = Vec::new();
        let mut received: Vec<(PacketId, u64)> = Vec::new();
        let mut channel = self.channel.lock();
        if channel.closing {
            return;
        }
        let mut released = 0;
        for ack in acks {
            let before = done.len();
            Self::acknowledge_one(&mut channel, *ack, &mut done, &mut received);
            released += if ack.kind == AckKind::Pubcomp { done.len() - before } else { 0 };
        }
        channel.send_delayed(&self.config);
        channel.ended_exchanges();
        let reservation = channel.reserve_ids();
        let queue = channel
            .backlog
            .as_deref()
            .map(|backlog| (backlog.queue.clone(), backlog.incarnation, backlog.sent_below()));
        // A cursor that waits for room needs credit only for copies that are acknowledged.
        let awaited = channel.marks.is_writable() && std::mem::take(&mut channel.awaited);
        let client = &channel.settings().client_id;
        tracing::trace!(stop = 12, %client, acks = acks.len(), done = done.len(), "acknowledged");
        self.leave(channel);
        self.reserve(reservation);
        if let Some((queue, incarnation, sent_below)) = queue {
            if queue.is_application() {
                metrics::APP_PUBLISHED.add((done.len() + received.len() - released) as u64);
                metrics::APP_RELEASED.add(released as u64);
            }
            if !done.is_empty() {
                fail_point::pass("delivery.acknowledged");
                self.queues.ack(&queue, incarnation, &done, sent_below);
            }
            if !received.is_empty() {
                self.record_received(&queue, incarnation, &received);
            }
        }
        if awaited {
            self.room.notify_waiters();
        }
    }

    fn acknowledge_one(
        channel: &mut Channel,
        ack: ClientAck,
        done: &mut Vec<u64>,
        received: &mut Vec<(PacketId, u64)>,
    ) {
        if let Some(backlog) = channel.backlog.as_deref_mut() {
            backlog.probe.answered(ack.id, ack.kind);
        }
        let entry = channel.ids.get(ack.id);
        let stage = entry.map(|entry| entry.stage);
        let failed = ack.reason.is_error();
        match (ack.kind, stage) {
            (AckKind::Puback, Some(Stage::Puback)) | (AckKind::Pubcomp, Some(Stage::Pubcomp)) => {
                Self::finish(channel, ack.id, done);
            }
            (AckKind::Pubrec, Some(Stage::Pubrec)) if failed => {
                Self::finish(channel, ack.id, done);
            }
            (AckKind::Pubrec, Some(Stage::Pubrec)) => match entry {
                Some(InFlight { seq, .. }) if seq > 0 => {
                    channel.ids.set_stage(ack.id, Stage::Recording);
                    received.push((ack.id, seq));
                }
                _ => {
                    channel.ids.set_stage(ack.id, Stage::Pubcomp);
                    release(channel, ack.id, ReasonCode::Success);
                }
            },
            (AckKind::Pubrec, Some(Stage::Pubcomp)) if !failed => {
                release(channel, ack.id, ReasonCode::Success);
            }
            // An unknown PUBREC is answered, so that its sender can end the exchange.
            (AckKind::Pubrec, None) if !failed => {
                release(channel, ack.id, ReasonCode::PacketIdentifierNotFound);
            }
            // Anything else frees nothing and raises no credit (RM-5, FLO-02).
            _ => metrics::FLOW_UNKNOWN_ACKS.inc(),
        }
    }

    fn finish(channel: &mut Channel, id: PacketId, done: &mut Vec<u64>) {
        let Some(entry) = channel.ids.remove(id) else { return };
        channel.lent.ended(id);
        if entry.credited {
            channel.credit.give();
        }
        if entry.seq > 0 {
            done.push(entry.seq);
        }
    }

    fn record_received(&self, queue: &QueueKey, incarnation: u64, of: &[(PacketId, u64)]) {
        let Some(this) = self.this.upgrade() else { return };
        let ids = of.iter().map(|(id, _)| *id).collect();
        let seqs: Vec<u64> = of.iter().map(|(_, seq)| *seq).collect();
        let mut receiving = self.receiving.lock();
        let waiting = receiving.get_or_insert_default();
        let ticket = waiting.next_ticket;
        waiting.next_ticket += 1;
        waiting.waiting.push_back((ticket, ids));
        drop(receiving);
        self.queues.received(queue, incarnation, &seqs, this, ticket);
    }

    /// The records up to this ticket are durable: their PUBRELs leave.
    fn recorded(&self, channel: &mut Channel, ticket: u64) {
        let mut receiving = self.receiving.lock();
        let Some(receiving) = receiving.as_mut() else { return };
        while receiving.waiting.front().is_some_and(|(waiting, _)| *waiting <= ticket) {
            let Some((_, ids)) = receiving.waiting.pop_front() else { break };
            for id in ids {
                if channel.ids.get(id).is_some_and(|entry| entry.stage == Stage::Recording) {
                    channel.ids.set_stage(id, Stage::Pubcomp);
                    release(channel, id, ReasonCode::Success);
                }
            }
        }
    }
}

/// PUBREL: a control packet, whatever the credit (FLO-12).
pub(super) fn release(channel: &mut Channel, id: PacketId, reason: ReasonCode) {
    let version = channel.settings().version;
    channel.time(id, AckKind::Pubcomp);
    channel.control(|out| codec::encode_ack(AckKind::Pubrel, id, reason, version, out));
}

impl AppendSink for Outbox {
    fn settled(&self, ticket: u64, outcome: AppendOutcome) {
        if !matches!(outcome, AppendOutcome::Stored(_)) {
            // The disk refuses: this session can't go on, the next connection will find out.
            tracing::warn!(?outcome, "a queue's record could not be stored: connection closed");
            return self.close(None);
        }
        let mut channel = self.channel.lock();
        if channel.closing {
            // Behind a DISCONNECT nothing goes out; the next connection finds what was recorded.
            return;
        }
        if ticket == RESERVE_TICKET {
            if let Some(backlog) = channel.backlog.as_deref_mut() {
                backlog.reserved();
            }
        } else {
            self.recorded(&mut channel, ticket);
        }
        self.leave(channel);
    }
}
