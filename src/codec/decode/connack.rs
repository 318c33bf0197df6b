//! CONNACK (MQTT 5 section 3.2), as a client reads it.

use super::Result;
use crate::codec::properties::{PropertyReader, id};
use crate::codec::reader::Reader;
use crate::codec::{Connack, ConnackProperties, DecodeError};
use crate::mqtt::{ProtocolVersion, QoS, ReasonCode};

pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Connack> {
    let flags = reader.u8()?;
    // v3.1 has no session present bit.
    if flags > 1 || (flags == 1 && version == ProtocolVersion::V31) {
        return Err(DecodeError::malformed("CONNACK flags are reserved (MQTT-3.2.2-1)"));
    }
    let session_present = flags == 1;
    let code = reader.u8()?;
    let known = match version {
        ProtocolVersion::V5 => ReasonCode::from_byte(code).is_some_and(is_allowed),
        ProtocolVersion::V31 | ProtocolVersion::V311 => code <= 5,
    };
    if !known {
        return Err(DecodeError::malformed("code is not for CONNACK (MQTT-3.2.2-8)"));
    }
    if session_present && code != 0 {
        return Err(DecodeError::protocol("session present on a refusal (MQTT-3.2.2-6)"));
    }
    let properties = match version {
        ProtocolVersion::V5 => properties(reader)?,
        ProtocolVersion::V31 | ProtocolVersion::V311 => ConnackProperties::default(),
    };
    reader.end()?;
    Ok(Connack { session_present, code, properties })
}

/// Section 3.2.2.2.
fn is_allowed(code: ReasonCode) -> bool {
    matches!(
        code,
        ReasonCode::Success
            | ReasonCode::UnspecifiedError
            | ReasonCode::MalformedPacket
            | ReasonCode::ProtocolError
            | ReasonCode::ImplementationSpecificError
            | ReasonCode::UnsupportedProtocolVersion
            | ReasonCode::ClientIdentifierNotValid
            | ReasonCode::BadUserNameOrPassword
            | ReasonCode::NotAuthorized
            | ReasonCode::ServerUnavailable
            | ReasonCode::ServerBusy
            | ReasonCode::Banned
            | ReasonCode::BadAuthenticationMethod
            | ReasonCode::TopicNameInvalid
            | ReasonCode::PacketTooLarge
            | ReasonCode::QuotaExceeded
            | ReasonCode::PayloadFormatInvalid
            | ReasonCode::RetainNotSupported
            | ReasonCode::QoSNotSupported
            | ReasonCode::UseAnotherServer
            | ReasonCode::ServerMoved
            | ReasonCode::ConnectionRateExceeded
    )
}

fn properties(reader: &mut Reader<'_>) -> Result<ConnackProperties> {
    let mut block = PropertyReader::open(reader)?;
    let mut found = ConnackProperties::default();
    while let Some(id) = block.next_id()? {
        match id {
            id::SESSION_EXPIRY => found.session_expiry_s = Some(block.u32()?),
            id::RECEIVE_MAXIMUM => found.receive_maximum = Some(block.receive_maximum()?),
            id::MAXIMUM_QOS => {
                let qos = if block.flag()? { QoS::AtLeastOnce } else { QoS::AtMostOnce };
                found.maximum_qos = Some(qos);
            }
            id::RETAIN_AVAILABLE => found.retain_available = Some(block.flag()?),
            id::MAXIMUM_PACKET_SIZE => {
                found.maximum_packet_size = Some(block.maximum_packet_size()?);
            }
            id::ASSIGNED_CLIENT_ID => found.assigned_client_id = Some(block.text()?),
            id::TOPIC_ALIAS_MAXIMUM => found.topic_alias_maximum = Some(block.u16()?),
            id::REASON_STRING => found.reason_string = Some(block.text()?),
            id::USER_PROPERTY => found.user_properties.push(block.user_property()?),
            id::WILDCARD_SUBSCRIPTION_AVAILABLE => {
                found.wildcard_subscription_available = Some(block.flag()?);
            }
            id::SUBSCRIPTION_IDS_AVAILABLE => {
                found.subscription_ids_available = Some(block.flag()?);
            }
            id::SHARED_SUBSCRIPTION_AVAILABLE => {
                found.shared_subscription_available = Some(block.flag()?);
            }
            id::SERVER_KEEP_ALIVE => found.server_keep_alive_s = Some(block.u16()?),
            id::RESPONSE_INFORMATION => found.response_information = Some(block.text()?),
            id::SERVER_REFERENCE => found.server_reference = Some(block.text()?),
            id::AUTHENTICATION_METHOD => found.authentication_method = Some(block.text()?),
            id::AUTHENTICATION_DATA => found.authentication_data = Some(block.binary()?),
            _ => return Err(PropertyReader::misplaced()),
        }
    }
    Ok(found)
}
