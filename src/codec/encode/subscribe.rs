//! SUBSCRIBE and UNSUBSCRIBE, as test clients and tools send them.

use super::Result;
use crate::codec::frame::{MAX_REMAINING, PacketType};
use crate::codec::properties::id;
use crate::codec::writer::{
    put_block, put_packet, put_text, put_u16, put_user_properties, put_varint,
};
use crate::codec::{EncodeError, Subscribe, Unsubscribe};
use crate::mqtt::{ProtocolVersion, TopicError, TopicFilter};

pub(super) fn subscribe(
    subscribe: &Subscribe,
    version: ProtocolVersion,
    out: &mut Vec<u8>,
) -> Result<()> {
    put_packet(out, PacketType::Subscribe.first_byte(), |out| {
        put_u16(out, subscribe.packet_id.get());
        if version.is_v5() {
            let subscription_id = subscription_id(subscribe)?;
            put_block(out, |out| {
                if let Some(subscription_id) = subscription_id {
                    out.push(id::SUBSCRIPTION_ID);
                    put_varint(out, subscription_id);
                }
                put_user_properties(out, &subscribe.user_properties)
            })?;
        }
        for filter in &subscribe.filters {
            put_text(out, text(&filter.filter)?)?;
            out.push(match version {
                ProtocolVersion::V5 => filter.options.to_byte(),
                ProtocolVersion::V31 | ProtocolVersion::V311 => filter.options.qos.bits(),
            });
        }
        Ok(())
    })
}

fn subscription_id(subscribe: &Subscribe) -> Result<Option<u32>> {
    let mut ids = subscribe.filters.iter().map(|filter| filter.options.subscription_id);
    let first = ids.next().flatten();
    let in_range = first.is_none_or(|id| (1..=MAX_REMAINING).contains(&id));
    if in_range && ids.all(|id| id == first) { Ok(first) } else { Err(EncodeError::SubscriptionId) }
}

pub(super) fn unsubscribe(
    unsubscribe: &Unsubscribe,
    version: ProtocolVersion,
    out: &mut Vec<u8>,
) -> Result<()> {
    put_packet(out, PacketType::Unsubscribe.first_byte(), |out| {
        put_u16(out, unsubscribe.packet_id.get());
        if version.is_v5() {
            put_block(out, |out| put_user_properties(out, &unsubscribe.user_properties))?;
        }
        for filter in &unsubscribe.filters {
            put_text(out, text(filter)?)?;
        }
        Ok(())
    })
}

fn text(filter: &std::result::Result<TopicFilter, TopicError>) -> Result<&str> {
    filter.as_ref().map(TopicFilter::as_str).map_err(|_| EncodeError::InvalidFilter)
}
