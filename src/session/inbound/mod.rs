//! What happens to a PUBLISH before anyone else sees it: resolve → admit → persist → acknowledge.
//! Exactly one of: acknowledged after it is durable, refused with a reason, connection ended.

mod ack_window;
mod charge;
mod open_ids;

use std::sync::Arc;

pub(super) use ack_window::AckWindow;
use ack_window::{Load, Open};
pub use charge::{Gate, Ruling};
pub(super) use open_ids::{Exchanges, OpenId};

use super::conn::{Conn, End};
use super::context::Context;
use crate::codec::{AckKind, DecodeError, Publish};
use crate::delivery::AckOut;
use crate::limits;
use crate::mqtt::{PacketId, QoS, ReasonCode, topic_str};
use crate::routing::RetainedTable;
use crate::storage::{
    AppendSink, BatchBuilder, Charge, Durability, Kind, MessageRef, MessageView, Publisher, Row,
    retained_row,
};
use crate::telemetry::{self, Direction, DropReason, clock, metrics};

const ALIAS_OUT_OF_RANGE: DecodeError =
    DecodeError::protocol("topic alias above the announced maximum (MQTT-3.3.2-9)")
        .with_reason(ReasonCode::TopicAliasInvalid);
const ALIAS_UNKNOWN: DecodeError =
    DecodeError::protocol("topic alias was not introduced (MQTT-3.3.2-7)");
const RECEIVE_MAXIMUM: DecodeError =
    DecodeError::protocol("more in flight than our Receive Maximum (MQTT-3.3.4-9)")
        .with_reason(ReasonCode::ReceiveMaximumExceeded);
const REFUSED_V3: DecodeError =
    DecodeError::protocol("a refused PUBLISH, for which v3.x has no answer")
        .with_reason(ReasonCode::TopicNameInvalid);

const LIMITED_V3: DecodeError =
    DecodeError::protocol("more messages than a limit allows, for which v3.x has no answer")
        .with_reason(ReasonCode::QuotaExceeded);

/// One connection's way in. Owned by its session task.
pub(super) struct Inbound {
    context: Arc<Context>,
    publisher: Arc<Publisher>,
    window: Arc<AckWindow>,
    is_v5: bool,
    /// What the client introduced on this connection (PRP-05).
    aliases: Vec<Option<Box<str>>>,
    /// The read at hand; nothing is kept of it while the connection is idle.
    hand: Option<Box<Hand>>,
    /// What was open at the last look.
    open: Open,
    gate: Gate,
}

/// What became of a PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Into the batch, or answered.
    Yes,
    /// Not yet: the quota has to be asked, by [`Inbound::settle_charge`], and the packet comes
    /// again.
    Later,
}

/// What one read has brought so far.
#[derive(Debug, Default)]
struct Hand {
    batch: Option<BatchBuilder>,
    acks: Vec<AckOut>,
    durable: bool,
    retained: Vec<usize>,
    /// QoS 2 ids as the batch leaves them, the newest last; in force when it is in the log's
    /// hands, so that a batch which never gets there answers for nothing.
    staged: Vec<(PacketId, OpenId)>,
    /// QoS 0 messages of the batch: their loss is nobody's to make good.
    unacknowledged: u64,
    /// QoS 1 and 2 messages: each takes a place in our Receive Maximum.
    exchanges: usize,
    /// What the quota was charged for the batch.
    charge: Charge,
}

impl Inbound {
    pub(super) fn new(
        context: Arc<Context>,
        publisher: Arc<Publisher>,
        window: Arc<AckWindow>,
        is_v5: bool,
    ) -> Self {
        let resumed = publisher.incarnation != publisher.epoch;
        let resends = if resumed { context.config.receive_maximum } else { 0 };
        let gate = Gate::new(&context.limits, &publisher.client_id, resends);
        let (aliases, hand, open) = (Vec::new(), None, Open::default());
        Self { context, publisher, window, is_v5, aliases, hand, open, gate }
    }

    pub(super) fn window(&self) -> &Arc<AckWindow> {
        &self.window
    }

    /// Whether reading has to pause: the read-ahead is used up (IN-4).
    pub(super) fn is_full(&mut self) -> bool {
        self.look();
        self.batch_fills_read_ahead()
    }

    /// Takes note of what is not in the log yet; until the next look it can only become less.
    pub(super) fn look(&mut self) {
        self.open = self.window.open();
    }

    /// The same as [`Self::is_full`] by the last look: asked once a packet, without a lock.
    pub(super) fn batch_fills_read_ahead(&self) -> bool {
        let Open { messages, bytes, .. } = self.open;
        let (now, now_bytes) = self.batch().map_or((0, 0), |b| (b.len(), b.bytes()));
        let config = &self.context.config;
        messages + now >= config.read_ahead_messages || bytes + now_bytes >= config.read_ahead_bytes
    }

    /// RM-3. What the last look said is an upper bound, so only beyond it a new look is needed.
    fn exceeds_receive_maximum(&mut self) -> bool {
        let maximum = usize::from(self.context.config.receive_maximum);
        let now = self.hand().exchanges;
        if self.open.exchanges + now <= maximum {
            return false;
        }
        self.look();
        self.open.exchanges + now > maximum
    }

    fn hand(&mut self) -> &mut Hand {
        self.hand.get_or_insert_default()
    }

    fn batch(&self) -> Option<&BatchBuilder> {
        self.hand.as_ref()?.batch.as_ref()
    }

    /// Whether the batch at hand has to be handed on before it takes more.
    pub(super) fn batch_is_full(&self) -> bool {
        self.batch().is_some_and(|batch| {
            batch.bytes() >= limits::BATCH_BYTES || batch.len() >= limits::BATCH_MESSAGES
        })
    }

    /// Takes one PUBLISH into the batch, or answers it.
    pub(super) fn publish(&mut self, publish: &Publish<'_>) -> Result<Taken, DecodeError> {
        let resolved = self.resolve(publish)?;
        let topic = resolved.as_deref().unwrap_or(publish.topic);
        let known = match publish.packet_id {
            Some(id) if publish.qos == QoS::ExactlyOnce => self.open_id(id),
            Some(_) | None => None,
        };
        if let Some(id) = publish.packet_id {
            let stored = matches!(known, Some(OpenId::Received | OpenId::Releasing));
            // A retained value is set again: a QoS 1 resend before this repeat may just have set
            // an older one.
            if stored && !publish.retain {
                // A repeat before PUBREL: answered before limits and quota (QOS-01).
                let (kind, reason) = (AckKind::Pubrec, ReasonCode::Success);
                self.hand().acks.push(AckOut { kind, id, reason });
                return Ok(Taken::Yes);
            }
            self.hand().exchanges += usize::from(known.is_none());
            if self.is_v5 && self.exceeds_receive_maximum() {
                return Err(RECEIVE_MAXIMUM);
            }
        }
        if self.is_denied(topic) {
            return self.refuse(topic, publish, ReasonCode::NotAuthorized);
        }
        if self.is_no_topic(topic) {
            return self.refuse(topic, publish, ReasonCode::TopicNameInvalid);
        }
        let charge = match self.judge(topic, publish, known.is_some()) {
            Ruling::Admitted(charge) => charge,
            Ruling::Refused => return self.limited(topic, publish),
            Ruling::Wait => {
                let counted = publish.packet_id.is_some() && known.is_none();
                self.hand().exchanges -= usize::from(counted);
                return Ok(Taken::Later);
            }
        };
        if self.is_over_retained_cap(topic, publish) {
            self.give_back(charge);
            return self.refuse(topic, publish, ReasonCode::QuotaExceeded);
        }
        self.hand().charge = self.hand().charge.and(charge);
        self.admit(topic, publish, known.is_some());
        Ok(Taken::Yes)
    }

    fn judge(&mut self, topic: &str, publish: &Publish<'_>, begun: bool) -> Ruling {
        let (context, publisher) = (&self.context, &self.publisher.client_id);
        let subscriptions = &context.subscriptions;
        self.gate.judge(&context.limits, subscriptions, publisher, (topic, publish), begun)
    }

    /// Asks the quota for the packet that has to come again; at most as long as its bucket may
    /// take, and the keep-alive clock stands still (IN-5). Cancel safe: yes.
    pub(super) async fn settle_charge(&mut self, conn: &Conn) -> Result<(), End> {
        conn.set_held(true);
        let end = tokio::select! {
            biased;
            end = conn.ended() => Some(end),
            () = self.gate.settle(&self.context.limits) => None,
        };
        conn.set_held(false);
        end.map_or(Ok(()), Err)
    }

    fn give_back(&self, charge: Charge) {
        if let Some(quota) = &self.context.limits.throughput {
            quota.give_back(charge);
        }
    }

    /// The topic that an alias stands for; `None`: the packet carries it itself.
    fn resolve(&mut self, publish: &Publish<'_>) -> Result<Option<Box<str>>, DecodeError> {
        let Some(alias) = publish.topic_alias else { return Ok(None) };
        if alias > self.context.config.topic_alias_max {
            return Err(ALIAS_OUT_OF_RANGE);
        }
        let place = usize::from(alias) - 1;
        if !publish.topic.is_empty() {
            self.aliases.resize(self.aliases.len().max(place + 1), None);
            self.aliases[place] = Some(publish.topic.into());
            return Ok(None);
        }
        let known = self.aliases.get(place).cloned().flatten();
        known.map(Some).ok_or(ALIAS_UNKNOWN)
    }

    /// Whether the client's rules keep it from this topic.
    fn is_denied(&self, topic: &str) -> bool {
        let denied = self.window.grant().is_some_and(|grant| !grant.may_publish(topic));
        if denied {
            metrics::AUTHORIZATION_PUBLISH.inc();
        }
        denied
    }

    /// Whether this node takes no message to this topic.
    fn is_no_topic(&self, topic: &str) -> bool {
        // MQTT 5 section 4.7.2: a server should keep clients from using `$` topics.
        let levels = self.context.config.max_topic_segments.map_or(usize::MAX, usize::from);
        let deep = levels != usize::MAX && topic.split('/').count() > levels;
        topic.starts_with('$') || deep || topic_str(topic).is_err()
    }

    fn is_over_retained_cap(&self, topic: &str, publish: &Publish<'_>) -> bool {
        let retains = publish.retain && !publish.payload.is_empty();
        let bytes = publish.payload.len() + publish.properties.len();
        retains && !self.context.retained.admit(topic, bytes)
    }

    /// LIM-2, QUO-5: beyond a limit. A v5 client is told, if there is a word for it; v3.x has none,
    /// and its connection ends.
    fn limited(&mut self, topic: &str, publish: &Publish<'_>) -> Result<Taken, DecodeError> {
        self.lost(DropReason::RateLimits, topic, 1);
        if !self.is_v5 {
            return Err(LIMITED_V3);
        }
        if let Some(id) = publish.packet_id {
            let (kind, reason) = (ack_of(publish.qos), ReasonCode::QuotaExceeded);
            self.hand().acks.push(AckOut { kind, id, reason });
        }
        Ok(Taken::Yes)
    }

    fn lost(&self, reason: DropReason, topic: &str, n: u64) {
        let client = self.publisher.client_id.as_str();
        telemetry::dropped_of(reason, Direction::Inbound, client, topic, n);
    }

    fn refuse(
        &mut self,
        topic: &str,
        publish: &Publish<'_>,
        reason: ReasonCode,
    ) -> Result<Taken, DecodeError> {
        let why = match reason {
            ReasonCode::QuotaExceeded => DropReason::QuotaExceeded,
            ReasonCode::NotAuthorized => DropReason::NotAuthorized,
            _ => DropReason::DeliveryFailed,
        };
        self.lost(why, topic, 1);
        let Some(id) = publish.packet_id else { return Ok(Taken::Yes) };
        if !self.is_v5 {
            return Err(REFUSED_V3);
        }
        let kind = ack_of(publish.qos);
        self.hand().acks.push(AckOut { kind, id, reason });
        Ok(Taken::Yes)
    }

    fn admit(&mut self, topic: &str, publish: &Publish<'_>, repeated: bool) {
        let hand = self.hand.get_or_insert_default();
        let batch = hand.batch.get_or_insert_with(|| {
            BatchBuilder::new(Arc::clone(&self.publisher), clock::wall_ms())
        });
        if publish.retain {
            hand.retained.push(batch.len());
        }
        batch.push(&MessageView {
            kind: Kind::Publish,
            qos: publish.qos,
            retain: publish.retain,
            packet_id: publish.packet_id,
            expiry_s: publish.expiry_s,
            topic,
            properties: &publish.properties,
            payload: publish.payload,
        });
        let client = &self.publisher.client_id;
        tracing::trace!(stop = 4, %client, topic, qos = publish.qos.bits(), "admitted");
        let Some(id) = publish.packet_id else {
            hand.unacknowledged += 1;
            return;
        };
        hand.durable = true;
        if publish.qos == QoS::ExactlyOnce {
            let open = if repeated { OpenId::Repeated } else { OpenId::Received };
            hand.staged.push((id, open));
        }
        let (kind, reason) = (ack_of(publish.qos), ReasonCode::Success);
        hand.acks.push(AckOut { kind, id, reason });
    }

    fn open_id(&self, id: PacketId) -> Option<OpenId> {
        let staged = self.hand.as_ref().map_or(&[][..], |hand| &hand.staged);
        let newest = staged.iter().rev().find(|(staged, _)| *staged == id);
        newest.map(|(_, open)| *open).or_else(|| self.window.open_ids().lock().get(id))
    }

    /// PUBREL: the end of the exchange is a record, too (design decision 9).
    pub(super) fn release(&mut self, id: PacketId) {
        let open = self.open_id(id);
        let reason = match open {
            None if self.is_v5 => ReasonCode::PacketIdentifierNotFound,
            None | Some(_) => ReasonCode::Success,
        };
        let hand = self.hand.get_or_insert_default();
        if matches!(open, Some(OpenId::Received | OpenId::InDoubt | OpenId::Repeated)) {
            hand.staged.push((id, OpenId::Releasing));
            let batch = hand.batch.get_or_insert_with(|| {
                BatchBuilder::new(Arc::clone(&self.publisher), clock::wall_ms())
            });
            batch.push_release(id);
            hand.durable = true;
        }
        hand.acks.push(AckOut { kind: AckKind::Pubcomp, id, reason });
    }

    /// Hands the batch of this read to the log, if the node's budget has room for it at once.
    /// Error: a newer connection has the session.
    pub(super) fn try_flush(&mut self) -> Result<bool, End> {
        let bytes = self.batch().map(BatchBuilder::bytes);
        let taken = bytes.is_none_or(|bytes| self.context.budget.try_take(bytes));
        if taken {
            self.append(bytes.unwrap_or(0))?;
        }
        Ok(taken)
    }

    /// The same, waiting for the budget. Cancel safe: yes; the batch then stays in hand.
    pub(super) async fn flush(&mut self) -> Result<(), End> {
        if !self.try_flush()? {
            let bytes = self.batch().map_or(0, BatchBuilder::bytes);
            self.context.budget.take(bytes).await;
            self.append(bytes)?;
        }
        Ok(())
    }

    /// Appends the batch, whose bytes were taken from the budget, unless a newer connection has
    /// the session.
    fn append(&mut self, bytes: usize) -> Result<(), End> {
        if self.hand.is_none() {
            return Ok(());
        }
        let window = Arc::clone(&self.window);
        let Some(_passing) = window.open_ids().pass(self.publisher.epoch) else {
            self.context.budget.give_back(bytes);
            return Err(End::TakenOver);
        };
        let Some(mut hand) = self.hand.take() else { return Ok(()) };
        match hand.batch.take() {
            Some(batch) => self.hand_over(batch, *hand, bytes),
            // They need no append, and leave behind those that do.
            None => {
                let Hand { acks, exchanges, .. } = *hand;
                window.enter(Load { acks, exchanges, ..Load::default() });
            }
        }
        Ok(())
    }

    fn hand_over(&self, batch: BatchBuilder, hand: Hand, bytes: usize) {
        let batch = batch.finish();
        let refer = |index| MessageRef::new(Arc::clone(&batch), index);
        let retained: Vec<_> = hand.retained.into_iter().map(refer).collect();
        let context = &self.context;
        let in_one = context.log.takes_retained();
        let waits = if retained.is_empty() || in_one { 1 } else { 2 };
        let messages = batch.len();
        metrics::PUBLISHED_TOTAL.add(messages as u64);
        if !hand.staged.is_empty() {
            let mut open = self.window.open_ids().lock();
            hand.staged.into_iter().for_each(|(id, state)| open.set(id, state));
        }
        let (acks, exchanges, charge) = (hand.acks, hand.exchanges, hand.charge);
        let indices: Vec<u32> = retained.iter().map(|one| one.index() as u32).collect();
        let rows: Vec<Row> = retained.iter().filter(|_| !in_one).map(retained_row).collect();
        let load = Load { acks, messages, bytes, exchanges, waits, retained, charge };
        let ticket = self.window.enter(load);
        let client = &self.publisher.client_id;
        tracing::trace!(stop = 5, %client, ticket, messages, bytes, "handed to the log");
        let sink: Arc<dyn AppendSink> = Arc::clone(&self.window) as _;
        if indices.is_empty() {
            let durability = if hand.durable { Durability::Durable } else { Durability::Relaxed };
            return context.log.append(batch, durability, sink, ticket);
        }
        if in_one {
            return context.log.append_retaining(batch, &indices, sink, ticket);
        }
        context.retained.together(|| {
            context.log.append(batch, Durability::Durable, Arc::clone(&sink), ticket);
            context.tables.put(rows, Durability::Durable, sink, ticket);
        });
    }

    /// What never got to the log: unanswered, so the client sends it again, or it was QoS 0.
    pub(super) fn abandon(&mut self) {
        let waiting = self.gate.abandon();
        let charged = self.hand.as_ref().map_or(waiting, |hand| hand.charge.and(waiting));
        self.give_back(charged);
        let Some(mut hand) = self.hand.take() else { return };
        if hand.unacknowledged > 0 {
            self.lost(DropReason::SessionEnded, "", hand.unacknowledged);
        }
        if let Some(batch) = hand.batch.take() {
            let batch = batch.finish();
            for index in hand.retained {
                unawaited(&self.context.retained, &batch.view(index));
            }
        }
    }
}

/// A retained message will not come into force; a deletion was never awaited.
fn unawaited(table: &RetainedTable, message: &MessageView<'_>) {
    if !message.payload.is_empty() {
        table.abandon(message.topic);
    }
}

fn ack_of(qos: QoS) -> AckKind {
    match qos {
        QoS::ExactlyOnce => AckKind::Pubrec,
        QoS::AtLeastOnce | QoS::AtMostOnce => AckKind::Puback,
    }
}
