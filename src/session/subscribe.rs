//! SUBSCRIBE and UNSUBSCRIBE: rows that are in force before they are answered (decision 12).

use std::collections::VecDeque;
use std::sync::Arc;

use super::conn::Conn;
use super::context::Context;
use super::groups;
use super::retained_replay::{Owed, Wanted};
use crate::codec::{
    DecodeError, Packet, Suback, Subscribe, SubscribeFilter, Unsuback, Unsubscribe,
};
use crate::delivery::Slot;
use crate::limits::FILTERS_PER_PACKET;
use crate::mqtt::{ClientId, ProtocolVersion, QoS, ReasonCode, RetainHandling, TopicFilter};
use crate::routing::SubscriptionRow;
use crate::storage::once;
use crate::storage::{AppendOutcome, Durability, Row, Table};
use crate::telemetry::metrics;

const TOO_MANY_FILTERS: DecodeError =
    DecodeError::protocol("more filters in one packet than this server takes")
        .with_reason(ReasonCode::QuotaExceeded);

/// SHR-14
const NO_SHARES: DecodeError = DecodeError::protocol("shared subscriptions are switched off")
    .with_reason(ReasonCode::SharedSubscriptionsNotSupported);

/// The session's side of both packets.
pub(super) struct Subscriber<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) conn: &'a Arc<Conn>,
    pub(super) version: ProtocolVersion,
    pub(super) incarnation: u64,
    pub(super) persistent: bool,
}

impl Subscriber<'_> {
    fn client_id(&self) -> &ClientId {
        &self.conn.client_id
    }

    fn durability(&self) -> Durability {
        // Other nodes that start later must find it, too.
        let durable = self.persistent || self.context.directory.is_some();
        if durable { Durability::Durable } else { Durability::Relaxed }
    }

    /// Stores the subscriptions, answers, and says which retained messages are owed.
    pub(super) async fn subscribe(&self, packet: Subscribe) -> Result<Option<Owed>, DecodeError> {
        if packet.filters.len() > FILTERS_PER_PACKET {
            return Err(TOO_MANY_FILTERS);
        }
        let mut filters = packet.filters.iter().filter_map(|asked| asked.filter.as_ref().ok());
        let is_v5 = self.version == ProtocolVersion::V5;
        if is_v5 && !self.context.config.shared_subscriptions && filters.any(|f| f.is_shared()) {
            return Err(NO_SHARES);
        }
        let slot = self.context.slots.ensure(self.client_id());
        let mut codes = Vec::with_capacity(packet.filters.len());
        let (mut rows, mut filters) = (Vec::new(), VecDeque::new());
        let mut room = self.room(&slot);
        for asked in &packet.filters {
            codes.push(match self.check(asked, &slot, &rows, &mut room) {
                Ok(filter) => {
                    rows.push(self.row(asked, filter, &slot));
                    filters.extend(self.retained(asked, filter, &slot));
                    granted(asked.options.qos)
                }
                Err(reason) => reason,
            });
        }
        let cursor = (!filters.is_empty()).then(|| self.conn.outbox.open_cursor());
        let mut owed = cursor.map(|cursor| Owed { filters, cursor });
        if !rows.is_empty() && !self.put(rows).await {
            owed = None;
            for code in codes.iter_mut().filter(|code| !code.is_error()) {
                *code = ReasonCode::UnspecifiedError;
            }
        }
        self.context.tell_groups(self.conn);
        let packet_id = packet.packet_id;
        if self.version != ProtocolVersion::V5 {
            codes
                .iter_mut()
                .filter(|c| c.is_error())
                .for_each(|c| *c = ReasonCode::UnspecifiedError);
        }
        self.conn.outbox.control(&Packet::Suback(Suback { packet_id, codes, properties: None }));
        Ok(owed)
    }

    /// Subscriptions that the client may still add.
    fn room(&self, slot: &Slot) -> Option<usize> {
        let max = self.context.config.max_subscriptions_per_client?;
        Some(max.saturating_sub(self.context.subscriptions.count(slot.id())))
    }

    fn check<'f>(
        &self,
        asked: &'f SubscribeFilter,
        slot: &Slot,
        rows: &[Row],
        room: &mut Option<usize>,
    ) -> Result<&'f TopicFilter, ReasonCode> {
        let filter = asked.filter.as_ref().map_err(|_| ReasonCode::TopicFilterInvalid)?;
        if self.conn.grant.as_ref().is_some_and(|grant| !grant.may_subscribe(filter.plain())) {
            metrics::AUTHORIZATION_SUBSCRIBE.inc();
            return Err(ReasonCode::NotAuthorized);
        }
        let levels = self.context.config.max_topic_segments.map_or(usize::MAX, usize::from);
        if levels != usize::MAX && filter.plain().split('/').count() > levels {
            return Err(ReasonCode::TopicFilterInvalid);
        }
        if filter.plain() == "#" && !self.context.config.allow_root_wildcard {
            return Err(ReasonCode::TopicFilterInvalid);
        }
        if filter.is_shared() {
            self.check_share(filter)?;
        }
        if let Some(room) = room
            && self.context.subscriptions.get(slot.id(), filter).is_none()
        {
            let key = SubscriptionRow::key(self.client_id(), filter);
            // A filter that is asked for twice in one packet is one subscription.
            if !rows.iter().any(|row| row.key == key) {
                *room = room.checked_sub(1).ok_or(ReasonCode::QuotaExceeded)?;
            }
        }
        Ok(filter)
    }

    /// SHR-14; and TBMQ's rule for APPLICATION clients, where it is in force (SHR-4).
    fn check_share(&self, filter: &TopicFilter) -> Result<(), ReasonCode> {
        let config = &self.context.config;
        if !config.shared_subscriptions {
            return Err(ReasonCode::SharedSubscriptionsNotSupported);
        }
        let is_open = config.app_shares_without_entity || self.conn.application.is_none();
        match is_open || self.context.subscriptions.shares().of(filter).is_some() {
            true => Ok(()),
            false => Err(ReasonCode::TopicFilterInvalid),
        }
    }

    fn row(&self, asked: &SubscribeFilter, filter: &TopicFilter, slot: &Slot) -> Row {
        // A replaced subscription goes on where it began: no message is missed (MQTT-3.8.4-4).
        let since = self.context.subscriptions.get(slot.id(), filter).map(|entry| entry.since);
        let row = SubscriptionRow { options: asked.options, incarnation: self.incarnation, since };
        Row {
            table: Table::Subscriptions,
            key: SubscriptionRow::key(self.client_id(), filter),
            value: Some(row.encode()),
        }
    }

    /// MQTT-3.3.1-9, -10, -11; never for a shared subscription (section 4.8.2).
    fn retained(
        &self,
        asked: &SubscribeFilter,
        filter: &TopicFilter,
        slot: &Slot,
    ) -> Option<Wanted> {
        let exists = || self.context.subscriptions.get(slot.id(), filter).is_some();
        let owed = !filter.is_shared()
            && match asked.options.retain_handling {
                RetainHandling::SendAtSubscribe => true,
                RetainHandling::SendIfNew => !exists(),
                RetainHandling::DoNotSend => false,
            };
        owed.then(|| Wanted { filter: filter.clone(), options: asked.options })
    }

    /// `false` when the rows could not be stored, or when nobody knows.
    async fn put(&self, rows: Vec<Row>) -> bool {
        let (sink, mut settled) = once();
        // Not between a retained publish and its row: the subscription would be too late for the
        // one, and its replay too early for the other.
        self.context.retained.apart(|| {
            self.context.tables.put(rows, self.durability(), sink, 0);
        });
        let wait = tokio::time::timeout(self.context.config.append_timeout, settled.outcome());
        matches!(wait.await, Ok(AppendOutcome::Stored(_)))
    }

    fn gone(&self, filter: &TopicFilter, key: bytes::Bytes) -> Row {
        match self.context.directory {
            Some(_) => SubscriptionRow::gone(self.client_id(), filter, self.incarnation),
            None => Row { table: Table::Subscriptions, key, value: None },
        }
    }

    /// Deletes the subscriptions and answers.
    pub(super) async fn unsubscribe(&self, packet: Unsubscribe) -> Result<(), DecodeError> {
        if packet.filters.len() > FILTERS_PER_PACKET {
            return Err(TOO_MANY_FILTERS);
        }
        let slot = self.context.slots.ensure(self.client_id());
        let mut rows: Vec<Row> = Vec::new();
        let mut codes = Vec::with_capacity(packet.filters.len());
        for filter in &packet.filters {
            codes.push(match filter {
                Err(_) => ReasonCode::TopicFilterInvalid,
                Ok(filter) if self.context.subscriptions.get(slot.id(), filter).is_none() => {
                    ReasonCode::NoSubscriptionExisted
                }
                Ok(filter) => {
                    let key = SubscriptionRow::key(self.client_id(), filter);
                    if rows.iter().any(|row| row.key == key) {
                        ReasonCode::NoSubscriptionExisted
                    } else {
                        rows.push(self.gone(filter, key));
                        ReasonCode::Success
                    }
                }
            });
        }
        if packet.filters.iter().flatten().any(TopicFilter::is_shared) && self.persistent {
            groups::left_group(self.context, self.client_id());
        }
        if !rows.is_empty() && !self.put(rows).await {
            for code in codes.iter_mut().filter(|code| **code == ReasonCode::Success) {
                *code = ReasonCode::UnspecifiedError;
            }
        }
        self.context.tell_groups(self.conn);
        let packet_id = packet.packet_id;
        self.conn.outbox.control(&Packet::Unsuback(Unsuback {
            packet_id,
            codes,
            properties: None,
        }));
        Ok(())
    }
}

fn granted(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
    }
}
