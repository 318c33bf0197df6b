//! CONNECT, as test clients and tools send it.

use super::Result;
use crate::codec::frame::PacketType;
use crate::codec::properties::id;
use crate::codec::writer::{
    put_binary, put_binary_property, put_block, put_packet, put_text, put_text_property,
    put_u8_property, put_u16, put_u16_property, put_u32_property, put_user_properties,
};
use crate::codec::{Connect, ConnectProperties, Will};
use crate::mqtt::ProtocolVersion;

pub(super) fn encode(connect: &Connect, out: &mut Vec<u8>) -> Result<()> {
    put_packet(out, PacketType::Connect.first_byte(), |out| {
        let name = match connect.version {
            ProtocolVersion::V31 => "MQIsdp",
            ProtocolVersion::V311 | ProtocolVersion::V5 => "MQTT",
        };
        put_text(out, name)?;
        out.push(connect.version.level());
        out.push(flags(connect));
        put_u16(out, connect.keep_alive_s);
        if connect.version.is_v5() {
            put_block(out, |out| put_properties(&connect.properties, out))?;
        }
        put_text(out, &connect.client_id)?;
        if let Some(will) = &connect.will {
            put_will(will, connect.version, out)?;
        }
        if let Some(username) = &connect.username {
            put_text(out, username)?;
        }
        if let Some(password) = &connect.password {
            put_binary(out, password)?;
        }
        Ok(())
    })
}

fn flags(connect: &Connect) -> u8 {
    let will = connect
        .will
        .as_ref()
        .map_or(0, |will| 0b0000_0100 | will.qos.bits() << 3 | u8::from(will.retain) << 5);
    u8::from(connect.clean_start) << 1
        | will
        | u8::from(connect.password.is_some()) << 6
        | u8::from(connect.username.is_some()) << 7
}

fn put_properties(properties: &ConnectProperties, out: &mut Vec<u8>) -> Result<()> {
    put_u32_property(out, id::SESSION_EXPIRY, properties.session_expiry_s);
    put_u16_property(out, id::RECEIVE_MAXIMUM, properties.receive_maximum);
    put_u32_property(out, id::MAXIMUM_PACKET_SIZE, properties.maximum_packet_size);
    put_u16_property(out, id::TOPIC_ALIAS_MAXIMUM, properties.topic_alias_maximum);
    let response = properties.request_response_information.map(u8::from);
    put_u8_property(out, id::REQUEST_RESPONSE_INFORMATION, response);
    let problem = properties.request_problem_information.map(u8::from);
    put_u8_property(out, id::REQUEST_PROBLEM_INFORMATION, problem);
    put_user_properties(out, &properties.user_properties)?;
    let method = properties.authentication_method.as_deref();
    put_text_property(out, id::AUTHENTICATION_METHOD, method)?;
    put_binary_property(out, id::AUTHENTICATION_DATA, properties.authentication_data.as_deref())
}

fn put_will(will: &Will, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<()> {
    if version.is_v5() {
        put_block(out, |out| {
            put_u32_property(out, id::WILL_DELAY, Some(will.delay_s).filter(|delay| *delay > 0));
            put_u32_property(out, id::MESSAGE_EXPIRY, will.expiry_s);
            out.extend_from_slice(&will.properties);
            Ok(())
        })?;
    }
    put_text(out, &will.topic)?;
    put_binary(out, &will.payload)
}
