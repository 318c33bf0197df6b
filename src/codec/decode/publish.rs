//! PUBLISH (MQTT 5 section 3.3), the hot one: every field is a slice of the frame.

use std::borrow::Cow;

use super::Result;
use crate::codec::properties::{Forwarded, PropertyReader, id};
use crate::codec::reader::Reader;
use crate::codec::{DecodeError, Peer, Publish};
use crate::mqtt::{ProtocolVersion, QoS, ReasonCode};

#[inline]
pub(super) fn decode(
    first: u8,
    body: &[u8],
    version: ProtocolVersion,
    from: Peer,
) -> Result<Publish<'_>> {
    let qos = QoS::from_bits(first >> 1 & 3)
        .ok_or(DecodeError::malformed("PUBLISH with QoS 3 (MQTT-3.3.1-4)"))?;
    let mut reader = Reader::new(body);
    let topic = reader.topic()?;
    let packet_id = if qos.is_acknowledged() { Some(reader.packet_id()?) } else { None };
    let mut publish = Publish {
        dup: first & 0b1000 != 0,
        qos,
        retain: first & 1 != 0,
        topic,
        packet_id,
        topic_alias: None,
        expiry_s: None,
        subscription_ids: Vec::new(),
        properties: Cow::Borrowed(&[]),
        payload: &[],
    };
    if version.is_v5() {
        read_properties(&mut publish, &mut reader, from)?;
        if topic.is_empty() && publish.topic_alias.is_none() {
            return Err(DecodeError::protocol("neither topic nor alias (section 3.3.2.3.4)"));
        }
    } else if topic.is_empty() {
        return Err(DecodeError::malformed("topic name is empty (MQTT-4.7.3-1)"));
    }
    publish.payload = reader.rest();
    Ok(publish)
}

fn read_properties<'a>(
    publish: &mut Publish<'a>,
    reader: &mut Reader<'a>,
    from: Peer,
) -> Result<()> {
    let mut properties = PropertyReader::open(reader)?;
    let mut forwarded = Forwarded::default();
    while let Some(id) = properties.next_id()? {
        if properties.forward(id, &mut forwarded)? {
            continue;
        }
        match id {
            id::MESSAGE_EXPIRY => publish.expiry_s = Some(properties.u32()?),
            id::TOPIC_ALIAS => match properties.u16()? {
                0 => {
                    return Err(DecodeError::protocol("Topic Alias is 0 (MQTT-3.3.2-8)")
                        .with_reason(ReasonCode::TopicAliasInvalid));
                }
                alias => publish.topic_alias = Some(alias),
            },
            id::SUBSCRIPTION_ID => {
                if from == Peer::Client {
                    return Err(DecodeError::protocol(
                        "a client sends no Subscription Identifier (MQTT-3.3.4-6)",
                    ));
                }
                publish.subscription_ids.push(properties.subscription_id()?);
            }
            _ => return Err(PropertyReader::misplaced()),
        }
    }
    publish.properties = forwarded.finish();
    Ok(())
}
