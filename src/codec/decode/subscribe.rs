//! SUBSCRIBE and UNSUBSCRIBE (MQTT 5 sections 3.8 and 3.10).

use super::Result;
use crate::codec::properties::{PropertyReader, id, twice};
use crate::codec::reader::Reader;
use crate::codec::{DecodeError, Subscribe, SubscribeFilter, Unsubscribe};
use crate::mqtt::{ProtocolVersion, QoS, SubscriptionOptions, TopicError, TopicFilter};

pub(super) fn subscribe(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Subscribe> {
    let packet_id = reader.packet_id()?;
    let mut user_properties = Vec::new();
    let mut subscription_id = None;
    if version.is_v5() {
        let mut block = PropertyReader::open(reader)?;
        while let Some(id) = block.next_id()? {
            match id {
                id::SUBSCRIPTION_ID if subscription_id.is_some() => return Err(twice()),
                id::SUBSCRIPTION_ID => subscription_id = Some(block.subscription_id()?),
                id::USER_PROPERTY => user_properties.push(block.user_property()?),
                _ => return Err(PropertyReader::misplaced()),
            }
        }
    }
    if reader.is_empty() {
        return Err(DecodeError::protocol("SUBSCRIBE without a filter (MQTT-3.8.3-2)"));
    }
    let mut filters = Vec::new();
    while !reader.is_empty() {
        let text = reader.text()?;
        let filter = topic_filter(text, version)?;
        let options = match version {
            ProtocolVersion::V5 => options(reader.u8()?, text, subscription_id)?,
            ProtocolVersion::V31 | ProtocolVersion::V311 => {
                let qos = QoS::from_bits(reader.u8()?);
                SubscriptionOptions::v3(qos.ok_or(DecodeError::malformed(
                    "requested QoS is above 2 (v3.1.1 MQTT-3.8.3-4)",
                ))?)
            }
        };
        filters.push(SubscribeFilter { filter, options });
    }
    Ok(Subscribe { packet_id, user_properties, filters })
}

/// The options byte of section 3.8.3.1.
fn options(byte: u8, filter: &str, subscription_id: Option<u32>) -> Result<SubscriptionOptions> {
    if byte & 0b1100_0000 != 0 {
        return Err(DecodeError::malformed("option bits are reserved (MQTT-3.8.3-5)"));
    }
    let options = SubscriptionOptions::from_byte(byte, subscription_id).ok_or(
        DecodeError::protocol("QoS 3 or Retain Handling 3 in SUBSCRIBE (section 3.8.3.1)"),
    )?;
    if options.no_local && filter.starts_with("$share/") {
        return Err(DecodeError::protocol("No Local on a shared subscription (MQTT-3.8.3-4)"));
    }
    Ok(options)
}

pub(super) fn unsubscribe(
    reader: &mut Reader<'_>,
    version: ProtocolVersion,
) -> Result<Unsubscribe> {
    let packet_id = reader.packet_id()?;
    let mut user_properties = Vec::new();
    if version.is_v5() {
        let mut block = PropertyReader::open(reader)?;
        while let Some(id) = block.next_id()? {
            match id {
                id::USER_PROPERTY => user_properties.push(block.user_property()?),
                _ => return Err(PropertyReader::misplaced()),
            }
        }
    }
    if reader.is_empty() {
        return Err(DecodeError::protocol("UNSUBSCRIBE without a filter (MQTT-3.10.3-2)"));
    }
    let mut filters = Vec::new();
    while !reader.is_empty() {
        filters.push(topic_filter(reader.text()?, version)?);
    }
    Ok(Unsubscribe { packet_id, user_properties, filters })
}

/// The outer error ends the connection; the inner one is answered 0x8F for this filter (SUB-07).
fn topic_filter(
    text: &str,
    version: ProtocolVersion,
) -> Result<std::result::Result<TopicFilter, TopicError>> {
    let error = match TopicFilter::new(text) {
        Ok(filter) => return Ok(Ok(filter)),
        Err(error) => error,
    };
    Err(DecodeError::malformed(match error {
        TopicError::MultiLevel | TopicError::SingleLevel if version.is_v5() => {
            return Ok(Err(error));
        }
        TopicError::MultiLevel => "'#' is misplaced in a filter (MQTT-4.7.1-2)",
        TopicError::SingleLevel => "'+' is misplaced in a filter (MQTT-4.7.1-3)",
        TopicError::Empty => "topic filter is empty (MQTT-4.7.3-1)",
        TopicError::Share => "share name or its filter is malformed (MQTT-4.8.2-1, -2)",
        TopicError::Nul | TopicError::TooLong | TopicError::Wildcard => {
            "topic filter is no filter (MQTT-4.7.3-2)"
        }
    }))
}
