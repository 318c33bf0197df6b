//! The handle that others hold: offer copies, control packets, close. What the client answers is
//! dealt with in `answers`, what comes from its queue in `pull`.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::answers::Receiving;
use super::backlog::Backlog;
use super::channel::Channel;
use super::lock::Lock;
use super::socket::Hand;
use super::{Config, Left, Outgoing, Owner, Settings, Socket, Toll};
use crate::codec::{self, AckKind, EncodeLimits, MAX_PACKET_SIZE, Packet};
use crate::mqtt::{PacketId, ReasonCode};
use crate::storage::{DeviceQueues, QueueKey, QueueState};

/// An acknowledgement to the client, in its publishers' order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckOut {
    pub kind: AckKind,
    pub id: PacketId,
    pub reason: ReasonCode,
}

/// A retained cursor is open; dropping it closes it.
#[derive(Debug)]
pub struct OpenCursor(Arc<Outbox>);

impl Drop for OpenCursor {
    fn drop(&mut self) {
        self.0.channel.lock().close_cursor();
    }
}

/// The write side of one connection. All methods return at once; one short lock each.
pub struct Outbox {
    pub(super) channel: Lock<Channel>,
    pub(super) config: Arc<Config>,
    pub(super) queues: Arc<dyn DeviceQueues>,
    /// Wakes the writer task, if there is one: bytes to write, a page to read, or the end.
    pub(super) writer: Notify,
    /// Wakes whoever waits for room: retained cursors, a reader held by the control lane.
    pub(super) room: Notify,
    pub(super) receiving: Mutex<Option<Box<Receiving>>>,
    pub(super) this: Weak<Outbox>,
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
            channel: Lock::new(Channel::new(settings, &config)),
            config,
            queues,
            writer: Notify::new(),
            room: Notify::new(),
            receiving: Mutex::default(),
            this: Weak::clone(this),
        })
    }

    pub fn settings(&self) -> Settings {
        self.channel.lock().settings().clone()
    }

    /// Attaches the session's queue: from here on, QoS 1 and 2 messages come from it, in order.
    pub fn attach_queue(&self, queue: QueueKey, state: &QueueState) {
        let mut channel = self.channel.lock();
        if channel.closing {
            return;
        }
        let backlog = Backlog::new(queue, state);
        if let Some(id) = backlog.last_id() {
            channel.ids.continue_after(id);
        }
        channel.attach(backlog);
        self.wake(channel);
    }

    /// For a connection without a writer task: from here on, what the socket takes at once is
    /// written by whoever has it, and a task is started for the rest.
    pub fn write_by(&self, socket: Arc<dyn Socket>, owner: Weak<dyn Owner>) {
        let mut channel = self.channel.lock();
        channel.hand = Some(Hand { socket, owner });
        channel.resting = true;
        if channel.closing { self.wake(channel) } else { self.leave(channel) }
    }

    /// Gives the writer something to do; if there is none, it is started.
    fn wake(&self, mut channel: MutexGuard<'_, Channel>) {
        if std::mem::take(&mut channel.resting)
            && let Some(hand) = &channel.hand
        {
            hand.start_writer(&self.this);
            return;
        }
        drop(channel);
        self.writer.notify_one();
    }

    /// The write side has ended.
    pub(super) fn set_gone(&self) {
        let mut channel = self.channel.lock();
        channel.gone = true;
        channel.hand = None;
        self.wake_awaiting(channel);
    }

    /// Waits until the write side has ended, some time after [`Self::close`]. Cancel safe: yes.
    pub async fn gone(&self) {
        loop {
            let woken = self.room.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            {
                let mut channel = self.channel.lock();
                if channel.gone {
                    return;
                }
                channel.awaited = true;
            }
            woken.await;
        }
    }

    /// Ends what was done under one lock: writes what fits, and wakes the writer for the rest.
    pub(super) fn leave(&self, mut channel: MutexGuard<'_, Channel>) {
        let room = channel.write_now();
        // A writer with a buffer in hand looks again when that has left. To wake it for what it
        // can't write yet would cost a system call for every message to a client that is stuck. A
        // pause that has begun is ended by the writer's look at it.
        let work = channel.has_work() && !channel.writing;
        let wake = work || room && channel.pause_due().is_some();
        channel.tell();
        let awaited = room && std::mem::take(&mut channel.awaited);
        if wake {
            self.wake(channel);
        } else {
            drop(channel);
        }
        if awaited {
            self.room.notify_waiters();
        }
    }

    /// Lets those look again who wait for something that may have changed.
    pub(super) fn wake_awaiting(&self, mut channel: MutexGuard<'_, Channel>) {
        if std::mem::take(&mut channel.awaited) {
            drop(channel);
            self.room.notify_waiters();
        }
    }

    /// Offers copies that come from no queue: one lock, one write or wake-up. Hands back which of
    /// them go back to their groups: mostly none.
    pub fn offer<'a>(
        &self,
        copies: impl Iterator<Item = Outgoing<'a>>,
        toll: &mut Toll<'_>,
    ) -> Vec<usize> {
        let mut back = Vec::new();
        let mut channel = self.channel.lock();
        for (at, copy) in copies.enumerate() {
            if !channel.offer(&copy, &self.config, toll) {
                back.push(at);
            }
        }
        self.leave(channel);
        back
    }

    /// What the client has of shared groups, and will not acknowledge any more.
    pub fn give_back(&self) -> Vec<Left> {
        self.channel.lock().give_back()
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
        self.leave(channel);
    }

    /// A control packet. Over the client's Maximum Packet Size, its Reason String and User
    /// Properties go first (MQTT-3.2.2-19, PRP-03).
    pub fn control(&self, packet: &Packet<'_>) {
        let mut channel = self.channel.lock();
        if channel.closing {
            return;
        }
        let fits = Self::encode_control(&mut channel, packet);
        self.leave(channel);
        if !fits {
            // MQTT-3.1.2-24: what can't be made small enough is not sent; the client would wait
            // for it for ever, so the connection ends.
            self.close(None);
        }
    }

    /// `false` when the packet can't be made small enough for the client.
    fn encode_control(channel: &mut Channel, packet: &Packet<'_>) -> bool {
        let settings = channel.settings();
        let version = settings.version;
        let limits = EncodeLimits {
            maximum_packet_size: settings.maximum_packet_size.unwrap_or(MAX_PACKET_SIZE),
            problem_information: settings.problem_information,
        };
        channel.control(|out| codec::encode_within(packet, version, limits, out)).is_ok()
    }

    // === retained cursors ===

    /// Opens a retained cursor: while it is there, topics that go out live are remembered. To be
    /// called before the subscription is in force, or what goes out first is missed.
    pub fn open_cursor(self: &Arc<Self>) -> OpenCursor {
        self.channel.lock().open_cursor();
        OpenCursor(Arc::clone(self))
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
        channel.send_now(copy);
        self.leave(channel);
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
                let mut channel = self.channel.lock();
                let room = channel.marks.is_writable() && (!acknowledged || channel.has_room());
                if channel.closing || room {
                    return;
                }
                channel.awaited = true;
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
                let mut channel = self.channel.lock();
                if channel.closing || channel.marks.buffered() <= bytes {
                    return;
                }
                channel.awaited = true;
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

    /// How many QoS 1 and 2 messages would leave at once.
    pub fn spare(&self) -> u16 {
        let channel = self.channel.lock();
        let open = !channel.closing && channel.marks.is_writable();
        if open && channel.delayed() == 0 { channel.credit.left() } else { 0 }
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
                // One that is too large for the client is left out; the end is the same.
                let _fits = Self::encode_control(&mut channel, last);
            }
            if let Some(backlog) = channel.backlog.take() {
                let sent_below = backlog.sent_below();
                self.queues.ack(&backlog.queue, backlog.incarnation, &[], sent_below);
            }
            channel.close();
        }
        let awaited = std::mem::take(&mut channel.awaited);
        self.wake(channel);
        if awaited {
            self.room.notify_waiters();
        }
    }

    #[cfg(test)]
    pub(super) fn is_gone(&self) -> bool {
        self.channel.lock().gone
    }

    pub fn is_closing(&self) -> bool {
        self.channel.lock().closing
    }
}
