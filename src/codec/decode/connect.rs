//! CONNECT (MQTT 5 section 3.1): the one packet that says its own version.

use super::Result;
use crate::codec::properties::{Forwarded, PropertyReader, id};
use crate::codec::reader::Reader;
use crate::codec::{Connect, ConnectProperties, DecodeError, Will};
use crate::mqtt::{ProtocolVersion, QoS, ReasonCode};

const RESERVED: u8 = 0b0000_0001;
const CLEAN_START: u8 = 0b0000_0010;
const WILL: u8 = 0b0000_0100;
const WILL_RETAIN: u8 = 0b0010_0000;
const PASSWORD: u8 = 0b0100_0000;
const USERNAME: u8 = 0b1000_0000;
/// Will QoS and Will Retain.
const WILL_DETAILS: u8 = 0b0011_1000;

/// v3.x CONNACK return codes.
const UNACCEPTABLE_VERSION: u8 = 0x01;
const IDENTIFIER_REJECTED: u8 = 0x02;

pub(super) fn decode(body: &[u8]) -> Result<Connect> {
    let mut reader = Reader::new(body);
    let reader = &mut reader;
    let version = version(reader)?;
    let flags = reader.u8()?;
    check_flags(flags, version)?;
    let keep_alive_s = reader.u16()?;
    let properties = match version {
        ProtocolVersion::V5 => properties(reader)?,
        ProtocolVersion::V31 | ProtocolVersion::V311 => ConnectProperties::default(),
    };
    let clean_start = flags & CLEAN_START != 0;
    let client_id = reader.text()?.to_owned();
    check_client_id(&client_id, clean_start, version)?;
    let will = if flags & WILL == 0 { None } else { Some(will(reader, flags, version)?) };
    // v3.1 section 3.1: a set flag whose field is missing at the end of the packet is valid.
    let absent = |reader: &Reader<'_>| version == ProtocolVersion::V31 && reader.is_empty();
    let mut username = None;
    if flags & USERNAME != 0 && !absent(reader) {
        username = Some(reader.text()?.to_owned());
    }
    let mut password = None;
    if flags & PASSWORD != 0 && !absent(reader) {
        password = Some(reader.binary()?.to_vec());
    }
    reader.end()?;
    Ok(Connect {
        version,
        clean_start,
        keep_alive_s,
        client_id,
        will,
        username,
        password,
        properties,
    })
}

fn version(reader: &mut Reader<'_>) -> Result<ProtocolVersion> {
    let name = reader.binary()?;
    let level = reader.u8()?;
    let unsupported = DecodeError::protocol("protocol level is unknown (MQTT-3.1.2-2)")
        .with_reason(ReasonCode::UnsupportedProtocolVersion);
    match (name, level) {
        (b"MQIsdp", 3) => Ok(ProtocolVersion::V31),
        (b"MQTT", 4) => Ok(ProtocolVersion::V311),
        (b"MQTT", 5) => Ok(ProtocolVersion::V5),
        (b"MQTT", 6..) => Err(unsupported),
        (b"MQTT" | b"MQIsdp", _) => Err(unsupported.with_connack_v3(UNACCEPTABLE_VERSION)),
        _ => Err(DecodeError::protocol("protocol name is unknown (MQTT-3.1.2-1)")
            .with_reason(ReasonCode::UnsupportedProtocolVersion)),
    }
}

fn check_flags(flags: u8, version: ProtocolVersion) -> Result<()> {
    if flags & RESERVED != 0 {
        return Err(DecodeError::malformed("CONNECT flag 0 is reserved (MQTT-3.1.2-3)"));
    }
    let v31 = version == ProtocolVersion::V31;
    // v3.1 says that the two are disregarded without a Will.
    if flags & WILL == 0 && flags & WILL_DETAILS != 0 && !v31 {
        return Err(DecodeError::malformed("Will flags without a Will (MQTT-3.1.2-11, -13)"));
    }
    if flags & (USERNAME | PASSWORD) == PASSWORD && !version.is_v5() {
        return Err(DecodeError::malformed("password without user name (v3.1.1 MQTT-3.1.2-22)"));
    }
    Ok(())
}

/// An id of any length is taken in every version (CON-03); the empty one is the server's to
/// replace, where the version lets it (CON-01).
fn check_client_id(client_id: &str, clean_start: bool, version: ProtocolVersion) -> Result<()> {
    let may_be_empty = match version {
        ProtocolVersion::V31 => false,
        ProtocolVersion::V311 => clean_start,
        ProtocolVersion::V5 => true,
    };
    if !client_id.is_empty() || may_be_empty {
        return Ok(());
    }
    Err(DecodeError::protocol("client id is empty (v3.1.1 MQTT-3.1.3-8)")
        .with_reason(ReasonCode::ClientIdentifierNotValid)
        .with_connack_v3(IDENTIFIER_REJECTED))
}

fn properties(reader: &mut Reader<'_>) -> Result<ConnectProperties> {
    let mut block = PropertyReader::open(reader)?;
    let mut found = ConnectProperties::default();
    while let Some(id) = block.next_id()? {
        match id {
            id::SESSION_EXPIRY => found.session_expiry_s = Some(block.u32()?),
            id::RECEIVE_MAXIMUM => found.receive_maximum = Some(block.receive_maximum()?),
            id::MAXIMUM_PACKET_SIZE => {
                found.maximum_packet_size = Some(block.maximum_packet_size()?);
            }
            id::TOPIC_ALIAS_MAXIMUM => found.topic_alias_maximum = Some(block.u16()?),
            id::REQUEST_RESPONSE_INFORMATION => {
                found.request_response_information = Some(block.flag()?);
            }
            id::REQUEST_PROBLEM_INFORMATION => {
                found.request_problem_information = Some(block.flag()?);
            }
            id::USER_PROPERTY => found.user_properties.push(block.user_property()?),
            id::AUTHENTICATION_METHOD => found.authentication_method = Some(block.text()?),
            id::AUTHENTICATION_DATA => found.authentication_data = Some(block.binary()?),
            _ => return Err(PropertyReader::misplaced()),
        }
    }
    if found.authentication_data.is_some() && found.authentication_method.is_none() {
        return Err(DecodeError::protocol(
            "Authentication Data without a method (section 3.1.2.11.10)",
        ));
    }
    Ok(found)
}

fn will(reader: &mut Reader<'_>, flags: u8, version: ProtocolVersion) -> Result<Will> {
    let qos = QoS::from_bits(flags >> 3 & 3)
        .ok_or(DecodeError::malformed("Will QoS is 3 (MQTT-3.1.2-12)"))?;
    let (mut delay_s, mut expiry_s) = (0, None);
    let mut forwarded = Forwarded::default();
    if version.is_v5() {
        let mut block = PropertyReader::open(reader)?;
        while let Some(id) = block.next_id()? {
            if block.forward(id, &mut forwarded)? {
                continue;
            }
            match id {
                id::WILL_DELAY => delay_s = block.u32()?,
                id::MESSAGE_EXPIRY => expiry_s = Some(block.u32()?),
                _ => return Err(PropertyReader::misplaced()),
            }
        }
    }
    let topic = reader.topic()?;
    if topic.is_empty() {
        return Err(DecodeError::malformed("Will topic is empty (MQTT-4.7.3-1)"));
    }
    Ok(Will {
        topic: topic.to_owned(),
        payload: reader.binary()?.to_vec(),
        qos,
        retain: flags & WILL_RETAIN != 0,
        delay_s,
        expiry_s,
        properties: forwarded.finish().into_owned(),
    })
}
