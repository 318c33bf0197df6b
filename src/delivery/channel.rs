//! The write side of one connection as a value: what waits for the socket, and what may.
//! Everything here runs under the outbox's lock, without waiting.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::alias::{Aliased, Aliases};
use super::backlog::{Backlog, ID_RUN};
use super::credit::Credit;
use super::lent::{GroupCopy, Left, Lent, keep};
use super::out_buffer::{OutBuffer, SHARE_FROM_BYTES};
use super::packet_ids::{InFlight, PacketIds, Stage};
use super::replay_guard::ReplayGuard;
use super::socket::Hand;
use super::tally::Tally;
use super::watermark::{Crossing, Watermark};
use super::{Config, Outgoing, Settings, Toll};
use crate::codec::{AckKind, PublishHead};
use crate::mqtt::{Delivery, PacketId, QoS};
use crate::storage::{IdRun, MessageRef, QueueKey};
use crate::telemetry::{Counted, DropReason, Losses, clock, metrics};

/// One connection's write side.
///
/// ```text
///            over high                    under low
/// flowing ───────────────→ non-writable ─────────────→ flowing
/// flowing ──credit gone──→ QoS > 0 waits (delayed, or in its queue) ──ack──→ flowing
/// non-writable, with a queue ──under low──→ paused (see `Pause`) ──in flight 0──→ flowing
/// any ──close──→ closing: nothing more is taken, what is buffered leaves ──→ closed
/// ```
pub(super) struct Channel {
    settings: Settings,
    pub(super) out: OutBuffer,
    pub(super) marks: Watermark,
    non_writable: Option<Counted>,
    pub(super) credit: Credit,
    pub(super) ids: PacketIds,
    aliases: Option<Box<Aliases>>,
    #[expect(clippy::box_collection, reason = "hardly any connection has one")]
    delayed: Option<Box<VecDeque<Delayed>>>,
    pub(super) backlog: Option<Box<Backlog>>,
    /// Topics that went out live while a retained cursor is open.
    pub(super) replay_guard: Option<Box<ReplayGuard>>,
    /// Copies of shared groups that are not acknowledged, where no queue has them.
    pub(super) lent: Lent,
    pub(super) closing: bool,
    /// For writing without the writer task, which has to leave the socket alone meanwhile: this
    /// happens under the outbox's lock, and not while the writer has a buffer in hand.
    pub(super) hand: Option<Hand>,
    pub(super) writing: bool,
    /// There is no writer task; [`Self::hand`] starts one when there is work for it.
    pub(super) resting: bool,
    /// The writer task has ended, and with it the write side.
    pub(super) gone: bool,
    /// Somebody waits for a change; whoever makes one takes this and wakes them.
    pub(super) awaited: bool,
    tally: Tally,
    losses: Losses,
}

/// A QoS 1 or 2 message of a session without a queue, waiting for credit (RM-2).
#[derive(Debug)]
struct Delayed {
    message: MessageRef,
    delivery: Delivery,
    subscription_ids: Arc<[u32]>,
    since_ms: u64,
    bytes: usize,
    share: Option<GroupCopy>,
}

/// A run of ids that is to be made durable.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) queue: QueueKey,
    pub(super) incarnation: u64,
    pub(super) run: IdRun,
}

/// What became of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    TooLarge,
    Expired,
    Denied,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { settings, out, marks, credit, ids, backlog, closing, writing, .. } = self;
        f.debug_struct("Channel")
            .field("client", &settings.client_id)
            .field("out", &out.len())
            .field("marks", marks)
            .field("credit", credit)
            .field("ids", ids)
            .field("backlog", backlog)
            .field("closing", closing)
            .field("writing", writing)
            .finish_non_exhaustive()
    }
}

impl Channel {
    pub(super) fn new(settings: Settings, config: &Config) -> Self {
        let alias_max = settings.topic_alias_maximum.min(config.topic_alias_max);
        Self {
            out: OutBuffer::default(),
            marks: Watermark::new(config.write_buffer_high_bytes, config.write_buffer_low_bytes),
            non_writable: None,
            credit: Credit::new(settings.receive_maximum),
            ids: PacketIds::default(),
            aliases: Aliases::new(alias_max, config.topic_alias_min_bytes),
            delayed: None,
            backlog: None,
            replay_guard: None,
            lent: Lent::default(),
            closing: false,
            hand: None,
            writing: false,
            resting: false,
            gone: false,
            awaited: false,
            tally: Tally::default(),
            losses: Losses::default(),
            settings,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Attaches the session's queue: from here on, QoS 1 and 2 messages come from it.
    pub(super) fn attach(&mut self, mut backlog: Backlog) {
        if !self.marks.is_writable() {
            backlog.pause.went_high();
        }
        self.backlog = Some(Box::new(backlog));
    }

    fn queued(&mut self, bytes: usize) {
        if self.marks.queued(bytes) == Crossing::High {
            self.non_writable = Some(Counted::one(&metrics::NON_WRITABLE_CLIENTS));
            if let Some(backlog) = &mut self.backlog {
                backlog.pause.went_high();
            }
        }
    }

    /// Bytes are held no more; `true` when the channel has just become writable again.
    pub(super) fn left(&mut self, bytes: usize) -> bool {
        let low = self.marks.left(bytes) == Crossing::Low;
        if low {
            self.non_writable = None;
            if let Some(backlog) = &mut self.backlog {
                backlog.pause.went_low(self.ids.len(), Instant::now(), dice());
            }
        }
        low
    }

    // === the wait after congestion (DEV-3) ===

    /// Exchanges may have ended: with the last one a paused session goes on.
    pub(super) fn ended_exchanges(&mut self) {
        if self.ids.len() == 0
            && let Some(backlog) = &mut self.backlog
        {
            backlog.pause.drained(self.marks.is_writable());
        }
    }

    /// When to look at a paused session again.
    pub(super) fn pause_due(&self) -> Option<Instant> {
        self.backlog.as_deref()?.pause.due()
    }

    pub(super) fn look_at_pause(&mut self) {
        if self.pause_due().is_some()
            && let Some(backlog) = &mut self.backlog
        {
            let writable = self.marks.is_writable();
            backlog.pause.look(self.ids.len(), writable, Instant::now(), dice());
        }
    }

    /// Whether the next message of the queue could leave now.
    pub(super) fn takes_queued(&self) -> bool {
        self.has_room() && self.backlog.as_deref().is_some_and(|backlog| backlog.pause.is_open())
    }

    /// Whether the queue should be read now.
    pub(super) fn wants_page(&self) -> bool {
        let Some(backlog) = self.backlog.as_deref() else { return false };
        !self.closing
            && backlog.is_behind()
            && !backlog.pulling
            && self.takes_queued()
            && backlog.can_send()
    }

    /// Whether the writer has something to do.
    pub(super) fn has_work(&self) -> bool {
        !self.out.is_empty() || self.wants_page()
    }

    /// A further run of ids, when they run short.
    pub(super) fn reserve_ids(&mut self) -> Option<Reservation> {
        let backlog = self.backlog.as_deref_mut()?;
        let first_seq = backlog.wants_ids()?;
        // A run must not meet ids that are reserved already: near exhaustion, wait for acks.
        let taken = backlog.reserved_left() as usize + self.ids.len();
        if taken + usize::from(ID_RUN) > usize::from(u16::MAX) && backlog.reserved_left() > 0 {
            return None;
        }
        let (first_id, count) = self.ids.allocate_run(ID_RUN)?;
        let run = IdRun { first_seq, first_id, count };
        backlog.reserve(run);
        Some(Reservation { queue: backlog.queue.clone(), incarnation: backlog.incarnation, run })
    }

    /// Control packets pass even when the channel is full (OUT-4).
    pub(super) fn control<T>(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let (bytes, result) = self.out.push_with(encode);
        self.queued(bytes);
        result
    }

    /// A copy that comes from no queue; `false`: it goes back to its group.
    pub(super) fn offer(
        &mut self,
        copy: &Outgoing<'_>,
        config: &Config,
        toll: &mut Toll<'_>,
    ) -> bool {
        let acknowledged = copy.delivery.qos.is_acknowledged();
        let share = copy.share.filter(|_| acknowledged);
        if self.closing {
            if share.is_none() {
                self.lost(DropReason::SessionEnded, copy);
            }
            return share.is_none();
        }
        let full = self.delayed() >= config.delayed_messages && self.credit.left() == 0;
        if share.is_some_and(|share| share.waited) && (full || !self.marks.is_writable()) {
            return false;
        }
        self.note_live(copy);
        let waits = acknowledged && (self.delayed() > 0 || self.credit.left() == 0);
        if !self.marks.is_writable() {
            self.lost(DropReason::ChannelNotWritable, copy);
        } else if !toll.pays(copy) {
            self.lost(DropReason::RateLimits, copy);
        } else if waits {
            self.delay(copy, config);
        } else {
            self.send_now(copy);
        }
        true
    }

    /// A copy for which there is room, and credit if it needs one.
    pub(super) fn send_now(&mut self, copy: &Outgoing<'_>) {
        if copy.delivery.qos.is_acknowledged() {
            self.send_with_new_id(copy);
        } else {
            let sent = self.send(copy, None, false);
            self.count_unsent(sent, copy);
        }
    }

    fn send_with_new_id(&mut self, copy: &Outgoing<'_>) {
        let Some(id) = self.ids.allocate() else {
            return self.lost(DropReason::InternalError, copy);
        };
        let sent = self.send(copy, Some(id), false);
        if sent == Sent::Yes {
            self.book(id, 0, copy.delivery);
            self.lent.sent(id, copy);
        }
        self.count_unsent(sent, copy);
    }

    /// Takes the credit and enters the id: called for every QoS 1 or 2 PUBLISH that was queued.
    pub(super) fn book(&mut self, id: PacketId, seq: u64, delivery: Delivery) {
        let credited = self.credit.take();
        let stage = if delivery.qos == QoS::ExactlyOnce { Stage::Pubrec } else { Stage::Puback };
        let fresh = self.ids.insert(id, InFlight { seq, stage, credited });
        debug_assert!(fresh && credited, "id {id:?} was free and a credit was left");
        let awaited = if stage == Stage::Pubrec { AckKind::Pubrec } else { AckKind::Puback };
        self.time(id, awaited);
    }

    /// A packet went out that `awaited` answers.
    pub(super) fn time(&mut self, id: PacketId, awaited: AckKind) {
        if let Some(backlog) = self.backlog.as_deref_mut() {
            backlog.probe.sent(id, awaited);
        }
    }

    fn delay(&mut self, copy: &Outgoing<'_>, config: &Config) {
        if self.delayed() >= config.delayed_messages {
            metrics::FLOW_DROPS_OVERFLOW.inc();
            return self.lost(DropReason::InflightWindowExceeded, copy);
        }
        let message = keep(copy.batch, copy.index);
        let view = message.view();
        let bytes = view.topic.len() + view.properties.len() + view.payload.len() + 16;
        self.queued(bytes);
        let since_ms = clock::wall_ms();
        let subscription_ids = Arc::from(copy.subscription_ids);
        let delivery = copy.delivery;
        let share = copy.share;
        let delayed = Delayed { message, delivery, subscription_ids, since_ms, bytes, share };
        self.delayed.get_or_insert_default().push_back(delayed);
    }

    pub(super) fn delayed(&self) -> usize {
        self.delayed.as_ref().map_or(0, |delayed| delayed.len())
    }

    /// Sends what waited for credit, as far as there is some.
    pub(super) fn send_delayed(&mut self, config: &Config) {
        while self.credit.left() > 0 {
            let Some(next) = self.delayed.as_mut().and_then(|delayed| delayed.pop_front()) else {
                self.delayed = None;
                return;
            };
            self.left(next.bytes);
            let copy = Outgoing {
                batch: next.message.batch(),
                index: next.message.index(),
                delivery: next.delivery,
                subscription_ids: &next.subscription_ids,
                paid: true,
                share: next.share,
            };
            let waited_ms = clock::wall_ms().saturating_sub(next.since_ms);
            if u128::from(waited_ms) > config.delayed_ttl.as_millis() {
                metrics::FLOW_DROPS_TTL.inc();
                self.lost(DropReason::InflightWindowExceeded, &copy);
                continue;
            }
            self.send_with_new_id(&copy);
        }
    }

    /// Encodes one PUBLISH into the buffer. Checks rights, size and expiry, nothing else; the
    /// repeat of a QoS 2 message goes out whatever its expiry (QOS-08).
    pub(super) fn send(&mut self, copy: &Outgoing<'_>, id: Option<PacketId>, dup: bool) -> Sent {
        let view = copy.batch.view(copy.index);
        if self.settings.gate.as_ref().is_some_and(|gate| !gate.lets_pass(view.topic)) {
            return Sent::Denied;
        }
        let begun = dup && copy.delivery.qos == QoS::ExactlyOnce;
        let expiry_s = match copy.batch.expires_at_ms(copy.index) {
            None => None,
            Some(at_ms) => match at_ms.saturating_sub(clock::wall_ms()) {
                0 if !begun => return Sent::Expired,
                // MQTT-4.3.3-7: what was sent once is not expired any more. The least there is:
                // 0 would tell the client not to use it.
                left_ms => Some(u32::try_from(left_ms.div_ceil(1000).max(1)).unwrap_or(u32::MAX)),
            },
        };
        let v5 = self.settings.version.is_v5();
        let aliased = match &self.aliases {
            Some(aliases) => aliases.look_up(view.topic),
            None => Aliased::No,
        };
        let head = PublishHead {
            version: self.settings.version,
            dup,
            qos: copy.delivery.qos,
            retain: copy.delivery.retain,
            topic: if matches!(aliased, Aliased::Known(_)) { "" } else { view.topic },
            packet_id: id,
            alias: match aliased {
                Aliased::No => None,
                Aliased::First(alias) | Aliased::Known(alias) => Some(alias),
            },
            expiry_s: if v5 { expiry_s } else { None },
            subscription_ids: if v5 { copy.subscription_ids } else { &[] },
            properties: if v5 { view.properties } else { &[] },
            payload_len: view.payload.len(),
        };
        if self.settings.maximum_packet_size.is_some_and(|max| head.wire_len() > max as usize) {
            return Sent::TooLarge;
        }
        let share = view.payload.len() > SHARE_FROM_BYTES;
        let (bytes, encoded) = self.out.push_with(|out| {
            let encoded = head.encode(out).is_ok();
            if encoded && !share {
                out.extend_from_slice(view.payload);
            }
            encoded
        });
        if !encoded {
            // What a decoder let in can be encoded, unless it grew past the largest packet.
            return Sent::TooLarge;
        }
        self.queued(bytes);
        if share {
            let memory = copy.batch.payload_memory(copy.index);
            let held = self.out.push_shared(copy.batch.payload(copy.index), memory);
            self.queued(held);
        }
        if let (Aliased::First(alias), Some(aliases)) = (aliased, &mut self.aliases) {
            aliases.remember(view.topic, alias);
        }
        self.tally.sent(copy.delivery.qos);
        tracing::trace!(stop = 10, client = %self.settings.client_id, topic = view.topic,
            qos = copy.delivery.qos.bits(), id = id.map(PacketId::get), dup, "encoded");
        Sent::Yes
    }

    /// What the client has of shared groups and will not acknowledge any more, oldest first: what
    /// it was sent at QoS 1, and what it was not sent. Nothing more is taken from here on.
    pub(super) fn give_back(&mut self) -> Vec<Left> {
        self.close();
        let unsent = self.delayed.take().into_iter().flat_map(|delayed| *delayed);
        let unsent = unsent.filter_map(|one| Some((one.message, one.share?.group)));
        self.lent.take().chain(unsent).collect()
    }

    /// Nothing more is taken; what waited in memory for credit is lost with the session, but for
    /// what goes back to groups.
    pub(super) fn close(&mut self) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        let delayed = self.delayed.take().into_iter().flat_map(|delayed| *delayed);
        let (back, lost): (VecDeque<Delayed>, VecDeque<Delayed>) =
            delayed.partition(|one| one.share.is_some());
        self.delayed = (!back.is_empty()).then(|| Box::new(back));
        for one in lost {
            self.lost_on(DropReason::SessionEnded, one.message.view().topic);
        }
        self.tally.tell(0, 0);
        self.non_writable = None;
        self.replay_guard = None;
    }

    fn lost(&mut self, reason: DropReason, copy: &Outgoing<'_>) {
        self.lost_on(reason, copy.batch.view(copy.index).topic);
    }

    fn lost_on(&mut self, reason: DropReason, topic: &str) {
        self.losses.count(reason, self.settings.client_id.as_str(), topic);
    }

    pub(super) fn count_unsent(&mut self, sent: Sent, copy: &Outgoing<'_>) {
        match sent {
            Sent::Yes => {}
            Sent::TooLarge => self.lost(DropReason::PacketTooLarge, copy),
            Sent::Expired => self.lost(DropReason::MessageExpired, copy),
            Sent::Denied => {
                metrics::AUTHORIZATION_DELIVER.inc();
                self.lost(DropReason::NotAuthorized, copy);
            }
        }
    }

    /// Tells the metrics what changed: called once for all that was done under one lock.
    pub(super) fn tell(&mut self) {
        if !self.closing {
            let delayed = self.delayed();
            self.tally.tell(self.ids.len(), delayed);
        }
    }

    /// Whether the next QoS 1 or 2 message could leave now.
    pub(super) fn has_room(&self) -> bool {
        self.marks.is_writable() && self.credit.left() > 0 && self.delayed() == 0
    }
}

/// Spreads the looks at paused sessions.
fn dice() -> u64 {
    ahash::RandomState::new().hash_one(0_u8)
}
