//! The acknowledgements: PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK (MQTT 5 sections
//! 3.4 to 3.7, 3.9 and 3.11).

use super::Result;
use crate::codec::properties::{PropertyReader, id};
use crate::codec::reader::Reader;
use crate::codec::{Ack, AckKind, AckProperties, DecodeError, Suback, Unsuback};
use crate::mqtt::{ProtocolVersion, ReasonCode};

pub(super) fn decode(
    kind: AckKind,
    reader: &mut Reader<'_>,
    version: ProtocolVersion,
) -> Result<Ack> {
    let mut ack = Ack::new(reader.packet_id()?, ReasonCode::Success);
    // The short forms of v5: no reason code is 0x00, no property length is no properties.
    if version.is_v5() && !reader.is_empty() {
        let reason = ReasonCode::from_byte(reader.u8()?).filter(|code| is_allowed(kind, *code));
        ack.reason = reason.ok_or(BAD_REASON)?;
        if !reader.is_empty() {
            ack.properties = properties(reader)?;
        }
    }
    reader.end()?;
    Ok(ack)
}

const BAD_REASON: DecodeError = DecodeError::malformed("reason code is not for this packet (2.4)");

fn is_allowed(kind: AckKind, code: ReasonCode) -> bool {
    match kind {
        AckKind::Puback | AckKind::Pubrec => matches!(
            code,
            ReasonCode::Success
                | ReasonCode::NoMatchingSubscribers
                | ReasonCode::UnspecifiedError
                | ReasonCode::ImplementationSpecificError
                | ReasonCode::NotAuthorized
                | ReasonCode::TopicNameInvalid
                | ReasonCode::PacketIdentifierInUse
                | ReasonCode::QuotaExceeded
                | ReasonCode::PayloadFormatInvalid
        ),
        AckKind::Pubrel | AckKind::Pubcomp => {
            matches!(code, ReasonCode::Success | ReasonCode::PacketIdentifierNotFound)
        }
    }
}

pub(super) fn suback(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Suback> {
    let packet_id = reader.packet_id()?;
    let properties = if version.is_v5() { properties(reader)? } else { None };
    let allowed = |code: ReasonCode| match version {
        ProtocolVersion::V5 => suback_allows(code),
        ProtocolVersion::V31 | ProtocolVersion::V311 => matches!(code.byte(), 0 | 1 | 2 | 0x80),
    };
    Ok(Suback { packet_id, codes: codes(reader, allowed)?, properties })
}

/// Section 3.9.3.
fn suback_allows(code: ReasonCode) -> bool {
    matches!(
        code,
        ReasonCode::Success
            | ReasonCode::GrantedQoS1
            | ReasonCode::GrantedQoS2
            | ReasonCode::UnspecifiedError
            | ReasonCode::ImplementationSpecificError
            | ReasonCode::NotAuthorized
            | ReasonCode::TopicFilterInvalid
            | ReasonCode::PacketIdentifierInUse
            | ReasonCode::QuotaExceeded
            | ReasonCode::SharedSubscriptionsNotSupported
            | ReasonCode::SubscriptionIdentifiersNotSupported
            | ReasonCode::WildcardSubscriptionsNotSupported
    )
}

pub(super) fn unsuback(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Unsuback> {
    let packet_id = reader.packet_id()?;
    if !version.is_v5() {
        reader.end()?;
        return Ok(Unsuback { packet_id, codes: Vec::new(), properties: None });
    }
    let properties = properties(reader)?;
    // Section 3.11.3.
    let allowed = |code: ReasonCode| {
        matches!(
            code,
            ReasonCode::Success
                | ReasonCode::NoSubscriptionExisted
                | ReasonCode::UnspecifiedError
                | ReasonCode::ImplementationSpecificError
                | ReasonCode::NotAuthorized
                | ReasonCode::TopicFilterInvalid
                | ReasonCode::PacketIdentifierInUse
        )
    };
    Ok(Unsuback { packet_id, codes: codes(reader, allowed)?, properties })
}

/// One code a filter, so at least one, to the end of the packet.
fn codes(
    reader: &mut Reader<'_>,
    is_allowed: impl Fn(ReasonCode) -> bool,
) -> Result<Vec<ReasonCode>> {
    let bytes = reader.take(reader.len())?;
    if bytes.is_empty() {
        return Err(DecodeError::malformed("no reason code (MQTT-3.9.3-1)"));
    }
    let code = |byte: &u8| ReasonCode::from_byte(*byte).filter(|code| is_allowed(*code));
    bytes.iter().map(|byte| code(byte).ok_or(BAD_REASON)).collect()
}

/// Reason String and User Properties; `None` when the block is empty.
fn properties(reader: &mut Reader<'_>) -> Result<Option<Box<AckProperties>>> {
    let mut block = PropertyReader::open(reader)?;
    let mut found: Option<Box<AckProperties>> = None;
    while let Some(id) = block.next_id()? {
        let found = found.get_or_insert_default();
        match id {
            id::REASON_STRING => found.reason_string = Some(block.text()?),
            id::USER_PROPERTY => found.user_properties.push(block.user_property()?),
            _ => return Err(PropertyReader::misplaced()),
        }
    }
    Ok(found)
}
