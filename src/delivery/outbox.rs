//! The handle that others hold: offer copies, control packets, acknowledge.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::backlog::{Backlog, ID_RUN};
use super::channel::{Channel, Sent, count_unsent};
use super::out_buffer::OutBuffer;
use super::packet_ids::{InFlight, Stage};
use super::{Config, Outgoing, Settings};
use crate::codec::{self, AckKind, EncodeLimits, MAX_PACKET_SIZE, Packet};
use crate::mqtt::{PacketId, ReasonCode};
use crate::storage::{
    AppendOutcome, AppendSink, DeviceQueues, IdRun, Page, QueueEntry, QueueKey, QueueState,
    QueuedMessage, StorageError,
};

/// One page of a queue: what is read for one client at a time.
const PAGE_MESSAGES: usize = 128;
const PAGE_BYTES: usize = 256 * 1024;
/// The ticket of an id reservation; tickets of PUBREC records count up from the next number.
const RESERVE_TICKET: u64 = 0;

/// An acknowledgement to the client, in its publishers' order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckOut {
    pub kind: AckKind,
    pub id: PacketId,
    pub reason: ReasonCode,
}

/// An acknowledgement from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAck {
    pub kind: AckKind,
    pub id: PacketId,
    pub reason: ReasonCode,
}

/// The write side of one connection. All methods return at once; one short lock each.
pub struct Outbox {
    channel: Mutex<Channel>,
    config: Arc<Config>,
    queues: Arc<dyn DeviceQueues>,
    /// Wakes the writer task: bytes to write, a page to read, or the end.
    pub(super) writer: Notify,
    /// Wakes whoever waits for room: retained cursors, a reader held by the control lane.
    room: Notify,
    /// PUBRECs whose record is on its way to disk, oldest first.
    receiving: Mutex<Receiving>,
    this: Weak<Outbox>,
}

#[derive(Default)]
struct Receiving {
    next_ticket: u64,
    waiting: VecDeque<(u64, Vec<PacketId>)>,
}

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
    Wait,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl Outbox {
    pub fn new(
        settings: Settings,
        config: Arc<Config>,
        queues: Arc<dyn DeviceQueues>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            channel: Mutex::new(Channel::new(settings, &config)),
            config,
            queues,
            writer: Notify::new(),
            room: Notify::new(),
            receiving: Mutex::new(Receiving { next_ticket: 1, waiting: VecDeque::new() }),
            this: Weak::clone(this),
        })
    }

    pub fn settings(&self) -> Settings {
        self.channel.lock().settings().clone()
    }

    /// Attaches the session's queue: from here on, QoS 1 and 2 messages come from it, in order.
    pub fn attach_queue(&self, queue: QueueKey, state: &QueueState) {
        let mut channel = self.channel.lock();
        let backlog = Backlog::new(queue, state);
        if let Some(id) = backlog.last_id() {
            channel.ids.continue_after(id);
        }
        channel.backlog = Some(Box::new(backlog));
        drop(channel);
        self.writer.notify_one();
    }

    /// Offers copies that come from no queue: one lock, one wake-up.
    pub fn offer<'a>(&self, copies: impl Iterator<Item = Outgoing<'a>>) {
        let mut channel = self.channel.lock();
        for copy in copies {
            channel.offer(&copy, &self.config);
        }
        let wake = !channel.out.is_empty();
        drop(channel);
        if wake {
            self.writer.notify_one();
        }
    }

    /// Offers a run that was just stored in the session's queue under `first_seq`, …: what is
    /// exactly next, and has credit, leaves from memory; the rest is read from the queue later.
    pub fn offer_queued(&self, incarnation: u64, first_seq: u64, entries: &[QueueEntry]) {
        let mut channel = self.channel.lock();
        for (seq, entry) in (first_seq..).zip(entries) {
            let writable = channel.has_room();
            channel.note_live(&outgoing(entry));
            let Some(backlog) = channel.backlog.as_deref_mut() else { return };
            if backlog.incarnation != incarnation {
                return;
            }
            backlog.heard_of(seq + 1);
            if !writable || !backlog.is_next(seq) {
                continue;
            }
            let Some(id) = backlog.id_of(seq) else { continue };
            backlog.passed(seq);
            match channel.send(&outgoing(entry), Some(id), false) {
                Sent::Yes => channel.book(id, seq, entry.delivery),
                unsent => {
                    count_unsent(unsent);
                    self.give_up(&channel, seq);
                }
            }
        }
        self.settle_ids(&mut channel);
        let wake = !channel.out.is_empty() || wants_page(&channel);
        drop(channel);
        if wake {
            self.writer.notify_one();
        }
    }

    /// A queued message that will never be sent: it leaves the queue as if acknowledged.
    fn give_up(&self, channel: &Channel, seq: u64) {
        if let Some(backlog) = &channel.backlog {
            let sent_below = backlog.sent_below();
            self.queues.ack(&backlog.queue, backlog.incarnation, &[seq], sent_below);
        }
    }

    /// Reserves further ids when they run short.
    fn settle_ids(&self, channel: &mut Channel) {
        let Some(backlog) = channel.backlog.as_deref_mut() else { return };
        let Some(first_seq) = backlog.wants_ids() else { return };
        // A run must not meet ids that are reserved already: near exhaustion, wait for acks.
        let taken = backlog.reserved_left() as usize + channel.ids.len();
        if taken + usize::from(ID_RUN) > usize::from(u16::MAX) && backlog.reserved_left() > 0 {
            return;
        }
        let Some((first_id, count)) = channel.ids.allocate_run(ID_RUN) else { return };
        let run = IdRun { first_seq, first_id, count };
        backlog.reserve(run);
        let Some(this) = self.this.upgrade() else { return };
        self.queues.reserve_ids(&backlog.queue, backlog.incarnation, run, this, RESERVE_TICKET);
    }

    /// Acknowledgements to this client as a publisher, under one lock.
    pub fn acks(&self, acks: &[AckOut]) {
        let mut channel = self.channel.lock();
        if channel.closing {
            return;
        }
        let version = channel.settings().version;
        channel.control(|out| {
            for ack in acks {
                codec::encode_ack(ack.kind, ack.id, ack.reason, version, out);
            }
        });
        drop(channel);
        self.writer.notify_one();
    }

    /// A control packet. Over the client's Maximum Packet Size, its Reason String and User
    /// Properties go first (MQTT-3.2.2-19, PRP-03).
    pub fn control(&self, packet: &Packet<'_>) {
        let mut channel = self.channel.lock();
        if channel.closing {
            return;
        }
        Self::encode_control(&mut channel, packet);
        drop(channel);
        self.writer.notify_one();
    }

    fn encode_control(channel: &mut Channel, packet: &Packet<'_>) {
        let settings = channel.settings();
        let version = settings.version;
        let limits = EncodeLimits {
            maximum_packet_size: settings.maximum_packet_size.unwrap_or(MAX_PACKET_SIZE),
            problem_information: settings.problem_information,
        };
        let encoded = channel.control(|out| codec::encode_within(packet, version, limits, out));
        if encoded.is_err() {
            // MQTT-3.1.2-24: what can't be made small enough is not sent; the client would wait
            // for it for ever, so the connection ends.
            channel.close();
        }
    }

    /// What the client acknowledged, in the order in which it was read, under one lock.
    pub fn acknowledge(&self, acks: &[ClientAck]) {
        let mut done: Vec<u64> = Vec::new();
        let mut received: Vec<(PacketId, u64)> = Vec::new();
        let mut channel = self.channel.lock();
        if channel.closing {
            return;
        }
        for ack in acks {
            Self::acknowledge_one(&mut channel, *ack, &mut done, &mut received);
        }
        channel.send_delayed(&self.config);
        self.settle_ids(&mut channel);
        let wake = !channel.out.is_empty() || wants_page(&channel);
        let queue = channel
            .backlog
            .as_deref()
            .map(|backlog| (backlog.queue.clone(), backlog.incarnation, backlog.sent_below()));
        let room = channel.has_room();
        drop(channel);
        if let Some((queue, incarnation, sent_below)) = queue {
            if !done.is_empty() {
                self.queues.ack(&queue, incarnation, &done, sent_below);
            }
            if !received.is_empty() {
                self.record_received(&queue, incarnation, &received);
            }
        }
        if wake {
            self.writer.notify_one();
        }
        if room {
            self.room.notify_waiters();
        }
    }

    fn acknowledge_one(
        channel: &mut Channel,
        ack: ClientAck,
        done: &mut Vec<u64>,
        received: &mut Vec<(PacketId, u64)>,
    ) {
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
            _ => {}
        }
    }

    fn finish(channel: &mut Channel, id: PacketId, done: &mut Vec<u64>) {
        let Some(entry) = channel.ids.remove(id) else { return };
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
        let ticket = receiving.next_ticket;
        receiving.next_ticket += 1;
        receiving.waiting.push_back((ticket, ids));
        drop(receiving);
        self.queues.received(queue, incarnation, &seqs, this, ticket);
    }

    // === retained cursors ===

    /// A retained cursor is open: until it closes, topics that go out live are remembered.
    pub fn open_cursor(&self) {
        self.channel.lock().open_cursor();
    }

    pub fn close_cursor(&self) {
        self.channel.lock().close_cursor();
    }

    /// Sends a retained copy unless a newer value went out live; `false` when there is no room
    /// and the cursor has to wait for [`Self::ready`].
    pub fn offer_retained(&self, copy: &Outgoing<'_>) -> bool {
        let mut channel = self.channel.lock();
        if channel.closing || channel.went_live(copy.batch.view(copy.index).topic) {
            return true;
        }
        let acknowledged = copy.delivery.qos.is_acknowledged();
        if !channel.marks.is_writable() || acknowledged && !channel.has_room() {
            return false;
        }
        if acknowledged {
            channel.offer(copy, &self.config);
        } else {
            count_unsent(channel.send(copy, None, false));
        }
        drop(channel);
        self.writer.notify_one();
        true
    }

    /// Whether `topic` went out live since a cursor was opened.
    pub fn went_live(&self, topic: &str) -> bool {
        self.channel.lock().went_live(topic)
    }

    /// Waits until there may be room for a copy (with credit, if it is to be acknowledged), or the
    /// channel closes. Cancel safe: yes.
    pub async fn ready(&self, acknowledged: bool) {
        loop {
            let woken = self.room.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            {
                let channel = self.channel.lock();
                let room = channel.marks.is_writable() && (!acknowledged || channel.has_room());
                if channel.closing || room {
                    return;
                }
            }
            woken.await;
        }
    }

    /// Waits until at most `bytes` are buffered: what holds a reader whose answers nobody takes
    /// (OUT-4). Cancel safe: yes.
    pub async fn drained_to(&self, bytes: usize) {
        loop {
            let woken = self.room.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            {
                let channel = self.channel.lock();
                if channel.closing || channel.marks.buffered() <= bytes {
                    return;
                }
            }
            woken.await;
        }
    }

    pub fn buffered(&self) -> usize {
        self.channel.lock().marks.buffered()
    }

    pub fn is_writable(&self) -> bool {
        let channel = self.channel.lock();
        !channel.closing && channel.marks.is_writable()
    }

    /// QoS 1 and 2 messages sent and not acknowledged.
    pub fn in_flight(&self) -> u16 {
        self.channel.lock().credit.in_flight()
    }

    // === the end ===

    /// Ends the write side: `last` is sent behind what is buffered, nothing else is taken.
    pub fn close(&self, last: Option<&Packet<'_>>) {
        let mut channel = self.channel.lock();
        if !channel.closing {
            if let Some(last) = last {
                Self::encode_control(&mut channel, last);
            }
            if let Some(backlog) = channel.backlog.take() {
                let sent_below = backlog.sent_below();
                self.queues.ack(&backlog.queue, backlog.incarnation, &[], sent_below);
            }
            channel.close();
        }
        drop(channel);
        self.writer.notify_one();
        self.room.notify_waiters();
    }

    pub fn is_closing(&self) -> bool {
        self.channel.lock().closing
    }

    // === the writer's side ===

    pub(super) fn work(&self) -> Work {
        let mut channel = self.channel.lock();
        if !channel.out.is_empty() {
            return Work::Write(std::mem::take(&mut channel.out));
        }
        if channel.closing {
            return Work::Shut;
        }
        if !wants_page(&channel) {
            return Work::Wait;
        }
        let messages = PAGE_MESSAGES.min(usize::from(channel.credit.left()).max(1));
        let Some(backlog) = channel.backlog.as_deref_mut() else { return Work::Wait };
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

    /// `bytes` left for the kernel.
    pub(super) fn left(&self, bytes: usize) {
        let mut channel = self.channel.lock();
        let low = channel.left(bytes);
        let drained = channel.marks.buffered() == 0;
        drop(channel);
        if low || drained {
            self.room.notify_waiters();
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
                tracing::warn!(queue = %backlog.queue, %error, "queue can't be read");
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
        self.settle_ids(&mut channel);
    }

    /// `false` when it has to wait: no credit, no room, or no id yet.
    fn send_queued(&self, channel: &mut Channel, message: &QueuedMessage) -> bool {
        let has_room = channel.has_room();
        let Some(backlog) = channel.backlog.as_deref_mut() else { return false };
        backlog.skip_to(message.seq);
        let dup = backlog.is_dup(message.seq);
        if !message.received && !has_room {
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
        };
        let over = message.expires_at_ms.is_some_and(|at| at <= crate::telemetry::clock::wall_ms());
        // An exchange that has begun goes on, whatever its expiry (QOS-08).
        let sent = if over && !dup { Sent::Expired } else { channel.send(&copy, Some(id), dup) };
        match sent {
            Sent::Yes => channel.book(id, message.seq, message.delivery),
            unsent => {
                count_unsent(unsent);
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
    }
}

fn release(channel: &mut Channel, id: PacketId, reason: ReasonCode) {
    let version = channel.settings().version;
    channel.control(|out| codec::encode_ack(AckKind::Pubrel, id, reason, version, out));
}

/// Whether the queue should be read now.
fn wants_page(channel: &Channel) -> bool {
    let Some(backlog) = channel.backlog.as_deref() else { return false };
    !channel.closing
        && backlog.is_behind()
        && !backlog.pulling
        && channel.has_room()
        && backlog.can_send()
}

impl AppendSink for Outbox {
    fn settled(&self, ticket: u64, outcome: AppendOutcome) {
        if !matches!(outcome, AppendOutcome::Stored(_)) {
            // The disk refuses: this session can't go on, the next connection will find out.
            return self.close(None);
        }
        let mut channel = self.channel.lock();
        if channel.closing {
            // An earlier one may have failed: what it was to record must not be released.
            return;
        }
        if ticket == RESERVE_TICKET {
            if let Some(backlog) = channel.backlog.as_deref_mut() {
                backlog.reserved();
            }
        } else {
            let mut receiving = self.receiving.lock();
            while receiving.waiting.front().is_some_and(|(waiting, _)| *waiting <= ticket) {
                let Some((_, ids)) = receiving.waiting.pop_front() else { break };
                for id in ids {
                    if channel.ids.get(id).is_some_and(|e| e.stage == Stage::Recording) {
                        channel.ids.set_stage(id, Stage::Pubcomp);
                        release(&mut channel, id, ReasonCode::Success);
                    }
                }
            }
        }
        drop(channel);
        self.writer.notify_one();
    }
}
