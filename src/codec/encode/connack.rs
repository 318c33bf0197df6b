//! CONNACK.

use super::{Extras, Result};
use crate::codec::frame::PacketType;
use crate::codec::properties::id;
use crate::codec::writer::{
    put_binary_property, put_block, put_packet, put_text_property, put_u8_property,
    put_u16_property, put_u32_property,
};
use crate::codec::{Connack, ConnackProperties};
use crate::mqtt::{ProtocolVersion, QoS, ReasonCode};

pub(super) fn encode(
    connack: &Connack,
    version: ProtocolVersion,
    extras: Extras,
    out: &mut Vec<u8>,
) -> Result<()> {
    put_packet(out, PacketType::Connack.first_byte(), |out| {
        // v3.1 has no session present bit.
        let session_present = connack.session_present && version != ProtocolVersion::V31;
        out.push(u8::from(session_present));
        if version.is_v5() {
            out.push(connack.code);
            return put_block(out, |out| put_properties(&connack.properties, extras, out));
        }
        // A code of v5 that came here by mistake still leaves as one that v3.x has.
        let code = match ReasonCode::from_byte(connack.code) {
            Some(reason) if connack.code > 5 => connack_v3_code(reason),
            Some(_) | None => connack.code,
        };
        out.push(code);
        Ok(())
    })
}

fn put_properties(properties: &ConnackProperties, extras: Extras, out: &mut Vec<u8>) -> Result<()> {
    put_u32_property(out, id::SESSION_EXPIRY, properties.session_expiry_s);
    put_u16_property(out, id::RECEIVE_MAXIMUM, properties.receive_maximum);
    // There is no 2 on the wire: absent means it.
    let maximum_qos = properties.maximum_qos.filter(|qos| *qos != QoS::ExactlyOnce);
    put_u8_property(out, id::MAXIMUM_QOS, maximum_qos.map(QoS::bits));
    let flag = |out: &mut Vec<u8>, id, value: Option<bool>| {
        put_u8_property(out, id, value.map(u8::from));
    };
    flag(out, id::RETAIN_AVAILABLE, properties.retain_available);
    put_u32_property(out, id::MAXIMUM_PACKET_SIZE, properties.maximum_packet_size);
    put_text_property(out, id::ASSIGNED_CLIENT_ID, properties.assigned_client_id.as_deref())?;
    put_u16_property(out, id::TOPIC_ALIAS_MAXIMUM, properties.topic_alias_maximum);
    extras.put(out, properties.reason_string.as_deref(), &properties.user_properties)?;
    flag(out, id::WILDCARD_SUBSCRIPTION_AVAILABLE, properties.wildcard_subscription_available);
    flag(out, id::SUBSCRIPTION_IDS_AVAILABLE, properties.subscription_ids_available);
    flag(out, id::SHARED_SUBSCRIPTION_AVAILABLE, properties.shared_subscription_available);
    put_u16_property(out, id::SERVER_KEEP_ALIVE, properties.server_keep_alive_s);
    put_text_property(out, id::RESPONSE_INFORMATION, properties.response_information.as_deref())?;
    put_text_property(out, id::SERVER_REFERENCE, properties.server_reference.as_deref())?;
    let method = properties.authentication_method.as_deref();
    put_text_property(out, id::AUTHENTICATION_METHOD, method)?;
    put_binary_property(out, id::AUTHENTICATION_DATA, properties.authentication_data.as_deref())
}

/// The v3.x return code that says the most of a v5 reason: 3 (server unavailable) for what v3.x
/// has no word for.
pub fn connack_v3_code(reason: ReasonCode) -> u8 {
    if !reason.is_error() {
        return 0;
    }
    // The codes of v3.1.1 section 3.2.2.3.
    if reason == ReasonCode::UnsupportedProtocolVersion {
        1
    } else if reason == ReasonCode::ClientIdentifierNotValid {
        2
    } else if matches!(
        reason,
        ReasonCode::BadUserNameOrPassword | ReasonCode::BadAuthenticationMethod
    ) {
        4
    } else if matches!(reason, ReasonCode::NotAuthorized | ReasonCode::Banned) {
        5
    } else {
        3
    }
}
