//! What happens to a PUBLISH before anyone else sees it: resolve → admit → persist → acknowledge.
//! Exactly one of: acknowledged after it is durable, refused with a reason, connection ended.

mod ack_window;
mod open_ids;

use std::sync::Arc;

pub(super) use ack_window::AckWindow;
use ack_window::Load;
pub(super) use open_ids::{OpenId, OpenIds};

use super::context::Context;
use crate::codec::{AckKind, DecodeError, Publish};
use crate::delivery::AckOut;
use crate::limits;
use crate::mqtt::{PacketId, QoS, ReasonCode, topic_str};
use crate::routing::RetainedTable;
use crate::storage::{
    AppendSink, BatchBuilder, Durability, Kind, MessageRef, MessageView, Publisher,
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

/// One connection's way in. Owned by its session task.
pub(super) struct Inbound {
    context: Arc<Context>,
    publisher: Arc<Publisher>,
    window: Arc<AckWindow>,
    is_v5: bool,
    /// What the client introduced on this connection (PRP-05).
    aliases: Vec<Option<Box<str>>>,
    /// The batch of the read at hand.
    batch: Option<BatchBuilder>,
    acks: Vec<AckOut>,
    durable: bool,
    retained: Vec<usize>,
}

impl Inbound {
    pub(super) fn new(
        context: Arc<Context>,
        publisher: Arc<Publisher>,
        window: Arc<AckWindow>,
        is_v5: bool,
    ) -> Self {
        let (aliases, batch, acks, retained) = (Vec::new(), None, Vec::new(), Vec::new());
        Self { context, publisher, window, is_v5, aliases, batch, acks, durable: false, retained }
    }

    pub(super) fn window(&self) -> &Arc<AckWindow> {
        &self.window
    }

    /// Whether reading has to pause: the read-ahead is used up (IN-4).
    pub(super) fn is_full(&self) -> bool {
        let (messages, bytes) = self.window.open();
        let (now, now_bytes) = self.batch.as_ref().map_or((0, 0), |b| (b.len(), b.bytes()));
        let config = &self.context.config;
        messages + now >= config.read_ahead_messages || bytes + now_bytes >= config.read_ahead_bytes
    }

    /// Whether the batch at hand has to be handed on before it takes more.
    pub(super) fn batch_is_full(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| {
            batch.bytes() >= limits::BATCH_BYTES || batch.len() >= limits::BATCH_MESSAGES
        })
    }

    /// Takes one PUBLISH into the batch, or answers it.
    pub(super) fn publish(&mut self, publish: &Publish<'_>) -> Result<(), DecodeError> {
        let resolved = self.resolve(publish)?;
        let topic = resolved.as_deref().unwrap_or(publish.topic);
        if let Some(id) = publish.packet_id {
            if publish.qos == QoS::ExactlyOnce && self.window.open_ids().lock().get(id).is_some() {
                // A repeat before PUBREL: answered before limits and quota (QOS-01).
                self.acks.push(AckOut { kind: AckKind::Pubrec, id, reason: ReasonCode::Success });
                return Ok(());
            }
            let maximum = usize::from(self.context.config.receive_maximum);
            if !self.window.begin_exchange(maximum) && self.is_v5 {
                return Err(RECEIVE_MAXIMUM);
            }
        }
        if let Some(reason) = self.refusal(topic, publish) {
            return self.refuse(publish, reason);
        }
        self.admit(topic, publish);
        Ok(())
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

    /// Why this node does not take the message; `None`: it does.
    fn refusal(&self, topic: &str, publish: &Publish<'_>) -> Option<ReasonCode> {
        // MQTT 5 section 4.7.2: a server should keep clients from using `$` topics.
        let levels = self.context.config.max_topic_segments.map_or(usize::MAX, usize::from);
        let deep = levels != usize::MAX && topic.split('/').count() > levels;
        if topic.starts_with('$') || deep || topic_str(topic).is_err() {
            return Some(ReasonCode::TopicNameInvalid);
        }
        let retains = publish.retain && !publish.payload.is_empty();
        let bytes = publish.payload.len() + publish.properties.len();
        if retains && !self.context.retained.admit(topic, bytes) {
            return Some(ReasonCode::QuotaExceeded);
        }
        None
    }

    fn refuse(&mut self, publish: &Publish<'_>, reason: ReasonCode) -> Result<(), DecodeError> {
        telemetry::dropped(
            match reason {
                ReasonCode::QuotaExceeded => DropReason::QuotaExceeded,
                _ => DropReason::DeliveryFailed,
            },
            Direction::Inbound,
            1,
        );
        let Some(id) = publish.packet_id else { return Ok(()) };
        if !self.is_v5 {
            return Err(REFUSED_V3);
        }
        let kind = ack_of(publish.qos);
        self.acks.push(AckOut { kind, id, reason });
        Ok(())
    }

    fn admit(&mut self, topic: &str, publish: &Publish<'_>) {
        let batch = self.batch.get_or_insert_with(|| {
            BatchBuilder::new(Arc::clone(&self.publisher), clock::wall_ms())
        });
        if publish.retain {
            self.retained.push(batch.len());
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
        self.durable |= publish.qos.is_acknowledged();
        if let Some(id) = publish.packet_id {
            if publish.qos == QoS::ExactlyOnce {
                self.window.open_ids().lock().set(id, OpenId::Received);
            }
            let (kind, reason) = (ack_of(publish.qos), ReasonCode::Success);
            self.acks.push(AckOut { kind, id, reason });
        }
    }

    /// PUBREL: the end of the exchange is a record, too (design decision 9).
    pub(super) fn release(&mut self, id: PacketId) {
        let open = self.window.open_ids().lock().get(id);
        let reason = match open {
            None if self.is_v5 => ReasonCode::PacketIdentifierNotFound,
            None | Some(_) => ReasonCode::Success,
        };
        if open == Some(OpenId::Received) {
            self.window.open_ids().lock().set(id, OpenId::Releasing);
            let batch = self.batch.get_or_insert_with(|| {
                BatchBuilder::new(Arc::clone(&self.publisher), clock::wall_ms())
            });
            batch.push_release(id);
            self.durable = true;
        }
        self.acks.push(AckOut { kind: AckKind::Pubcomp, id, reason });
    }

    /// Hands the batch of this read to the log, if the node's budget has room for it at once.
    pub(super) fn try_flush(&mut self) -> bool {
        let bytes = self.batch.as_ref().map_or(0, BatchBuilder::bytes);
        let taken = self.batch.is_none() || self.context.budget.try_take(bytes);
        if taken {
            self.append();
        }
        taken
    }

    /// The same, waiting for the budget. Cancel safe: yes; what was not handed on stays, for a
    /// later call or for [`Self::give_up`].
    pub(super) async fn flush(&mut self) {
        if !self.try_flush() {
            let bytes = self.batch.as_ref().map_or(0, BatchBuilder::bytes);
            self.context.budget.take(bytes).await;
            self.append();
        }
    }

    /// Appends the batch, whose bytes were taken from the budget.
    fn append(&mut self) {
        let acks = std::mem::take(&mut self.acks);
        match self.batch.take() {
            Some(batch) => self.hand_on(batch, acks),
            // They need no append, and leave behind those that do.
            None if !acks.is_empty() => drop(self.window.enter(Load { acks, ..Load::default() })),
            None => {}
        }
    }

    fn hand_on(&mut self, batch: BatchBuilder, acks: Vec<AckOut>) {
        let (bytes, messages, batch) = (batch.bytes(), batch.len(), batch.finish());
        let refer = |index| MessageRef::new(Arc::clone(&batch), index);
        let retained: Vec<_> = self.retained.drain(..).map(refer).collect();
        let rows: Vec<_> = retained.iter().map(RetainedTable::row).collect();
        let waits = 1 + u8::from(!rows.is_empty());
        metrics::PUBLISHED_TOTAL.add(messages as u64);
        let ticket = self.window.enter(Load { acks, messages, bytes, waits, retained });
        let sink: Arc<dyn AppendSink> = Arc::clone(&self.window) as _;
        let durable = std::mem::take(&mut self.durable) || !rows.is_empty();
        let durability = if durable { Durability::Durable } else { Durability::Relaxed };
        let context = &self.context;
        if rows.is_empty() {
            return context.log.append(batch, durability, sink, ticket);
        }
        context.retained.together(|| {
            context.log.append(batch, durability, Arc::clone(&sink), ticket);
            context.tables.put(rows, Durability::Durable, sink, ticket);
        });
    }

    /// The connection has ended while its last batch waited for the budget: it is as if that had
    /// not been read. A QoS 2 id must not stay behind, or the resend would be taken for a repeat.
    pub(super) fn give_up(&mut self) {
        let Some(batch) = self.batch.take() else { return };
        let batch = batch.finish();
        let mut lost = 0;
        for index in (0..batch.len()).rev() {
            let view = batch.view(index);
            let mut open_ids = self.window.open_ids().lock();
            match (view.kind, view.packet_id) {
                (Kind::Release, Some(id)) => open_ids.set(id, OpenId::Received),
                (_, Some(id)) if view.qos == QoS::ExactlyOnce => open_ids.remove(id),
                (_, Some(_)) => {}
                (_, None) => lost += 1,
            }
        }
        for index in self.retained.drain(..) {
            abandon(&self.context.retained, &batch.view(index));
        }
        telemetry::dropped(DropReason::SessionEnded, Direction::Inbound, lost);
    }
}

/// A deletion was never awaited.
fn abandon(table: &RetainedTable, message: &MessageView<'_>) {
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
