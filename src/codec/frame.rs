//! The fixed header (MQTT 5 section 2.1): what kind of packet, how long, and may it come at all.
//!
//! Judged on as few bytes as possible, so that a wrong or over-long packet is refused before its
//! body is buffered (PRP-04, CON-07).

use super::DecodeError;
use crate::mqtt::{ProtocolVersion, ReasonCode};

/// The largest packet that MQTT can express: five bytes of fixed header and the largest Remaining
/// Length.
pub const MAX_PACKET_SIZE: u32 = 5 + MAX_REMAINING;

/// The largest Variable Byte Integer (section 1.5.5).
pub(super) const MAX_REMAINING: u32 = 268_435_455;

/// Who sent a frame. A broker reads from clients; tests and tools also read from servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Client,
    Server,
}

/// What the fixed header says about the size of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLength {
    /// Bytes of the fixed header, 2 to 5.
    pub header: usize,
    /// Bytes of the whole packet, the fixed header included.
    pub total: usize,
}

/// The packet types, by the upper four bits of the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PacketType {
    Connect = 1,
    Connack = 2,
    Publish = 3,
    Puback = 4,
    Pubrec = 5,
    Pubrel = 6,
    Pubcomp = 7,
    Subscribe = 8,
    Suback = 9,
    Unsubscribe = 10,
    Unsuback = 11,
    Pingreq = 12,
    Pingresp = 13,
    Disconnect = 14,
    Auth = 15,
}

/// How long the packet is that begins at `buf[0]`, once its fixed header is there; `None` when
/// more bytes are needed to tell. The packet itself is whole when `buf` holds `total` bytes.
///
/// Looks at no more than five bytes however often it is called, so tiny writes can't make
/// decoding quadratic. `version` is `None` until a CONNECT has been decoded. Refuses as soon as
/// the bytes prove the fault: on the first byte a first packet that is no CONNECT (CON-07), a
/// second CONNECT (CON-08), a packet that this peer never sends (PAR-03) and reserved bits; on
/// the length what is malformed (PAR-01) or above `max_packet_size` bytes (0x95).
#[inline]
pub fn frame_length(
    buf: &[u8],
    version: Option<ProtocolVersion>,
    from: Peer,
    max_packet_size: u32,
) -> Result<Option<FrameLength>, DecodeError> {
    let Some((&first, length)) = buf.split_first() else { return Ok(None) };
    check_first_byte(first, version, from)?;
    let mut remaining = 0u32;
    let mut at_least = 0u32;
    for (index, &byte) in length.iter().take(4).enumerate() {
        remaining |= u32::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            if byte == 0 && index > 0 {
                return Err(DecodeError::malformed("Remaining Length is over-long (MQTT-1.5.5-1)"));
            }
            let header = index + 2;
            let total = header + remaining as usize;
            if total > max_packet_size as usize {
                return Err(too_large());
            }
            return Ok(Some(FrameLength { header, total }));
        }
        if index == 3 {
            return Err(DecodeError::malformed("Remaining Length has five bytes (MQTT-1.5.5-1)"));
        }
        // One more byte of length follows, and it can't be zero.
        at_least = 128 << (7 * index);
    }
    if at_least > max_packet_size { Err(too_large()) } else { Ok(None) }
}

fn too_large() -> DecodeError {
    DecodeError::protocol("packet is above the Maximum Packet Size (MQTT 5 section 3.1.2.11.4)")
        .with_reason(ReasonCode::PacketTooLarge)
}

#[inline]
fn check_first_byte(
    first: u8,
    version: Option<ProtocolVersion>,
    from: Peer,
) -> Result<(), DecodeError> {
    let flags = first & 0x0f;
    // First, since most packets are one; either peer sends it once the version is agreed.
    if first >> 4 == PacketType::Publish as u8 && version.is_some() {
        return check_publish_flags(flags);
    }
    check_other_first_byte(first, version, from)
}

#[inline]
fn check_publish_flags(flags: u8) -> Result<(), DecodeError> {
    let qos = flags >> 1 & 3;
    if qos == 3 {
        return Err(DecodeError::malformed("PUBLISH with QoS 3 (MQTT-3.3.1-4)"));
    }
    if flags & 0b1000 != 0 && qos == 0 {
        return Err(DecodeError::malformed("DUP on a QoS 0 PUBLISH (MQTT-3.3.1-2)"));
    }
    Ok(())
}

fn check_other_first_byte(
    first: u8,
    version: Option<ProtocolVersion>,
    from: Peer,
) -> Result<(), DecodeError> {
    let flags = first & 0x0f;
    let Some(kind) = PacketType::of(first) else {
        return Err(match version {
            None => DecodeError::protocol("first packet is no CONNECT (MQTT-3.1.0-1)"),
            Some(_) => DecodeError::malformed("packet type 0 is reserved (MQTT 5 section 2.1.2)"),
        });
    };
    check_sender(kind, version, from)?;
    let good = match kind {
        PacketType::Publish => return check_publish_flags(flags),
        // In v3.1 these three carry a QoS of 1 and may be marked as resent.
        PacketType::Pubrel | PacketType::Subscribe | PacketType::Unsubscribe => {
            flags == 0b0010 || (flags == 0b1010 && version == Some(ProtocolVersion::V31))
        }
        PacketType::Connect
        | PacketType::Connack
        | PacketType::Puback
        | PacketType::Pubrec
        | PacketType::Pubcomp
        | PacketType::Suback
        | PacketType::Unsuback
        | PacketType::Pingreq
        | PacketType::Pingresp
        | PacketType::Disconnect
        | PacketType::Auth => flags == 0,
    };
    if good {
        Ok(())
    } else {
        Err(DecodeError::malformed("fixed header flags are reserved (MQTT-2.1.3-1)"))
    }
}

fn check_sender(
    kind: PacketType,
    version: Option<ProtocolVersion>,
    from: Peer,
) -> Result<(), DecodeError> {
    let Some(version) = version else {
        if kind == PacketType::Connect && from == Peer::Client {
            return Ok(());
        }
        return Err(DecodeError::protocol("first packet is no CONNECT (MQTT-3.1.0-1)"));
    };
    let by_client = || match from {
        Peer::Client => Ok(()),
        Peer::Server => Err(DecodeError::protocol("a server never sends this packet")),
    };
    let by_server = || match from {
        Peer::Server => Ok(()),
        Peer::Client => Err(DecodeError::protocol("a client never sends this packet")),
    };
    match kind {
        PacketType::Publish
        | PacketType::Puback
        | PacketType::Pubrec
        | PacketType::Pubrel
        | PacketType::Pubcomp => Ok(()),
        PacketType::Connect => {
            by_client()?;
            Err(DecodeError::protocol("a second CONNECT (MQTT-3.1.0-2)"))
        }
        PacketType::Subscribe | PacketType::Unsubscribe | PacketType::Pingreq => by_client(),
        PacketType::Connack | PacketType::Suback | PacketType::Unsuback | PacketType::Pingresp => {
            by_server()
        }
        PacketType::Disconnect if version.is_v5() => Ok(()),
        PacketType::Disconnect => by_client(),
        PacketType::Auth if version.is_v5() => Ok(()),
        PacketType::Auth => {
            Err(DecodeError::malformed("packet type 15 is reserved (v3.1.1 section 2.2.1)"))
        }
    }
}

/// The protocol level that a CONNECT names, as far as its bytes are there: 5 or more is answered
/// in the form of v5, everything else in that of v3.x. For a CONNECT that was refused.
pub fn connect_level(buf: &[u8]) -> Option<u8> {
    let (&first, rest) = buf.split_first()?;
    if PacketType::of(first) != Some(PacketType::Connect) {
        return None;
    }
    let length = rest.iter().take(4).position(|byte| byte & 0x80 == 0)? + 1;
    let name_len = rest.get(length..length + 2)?;
    let name_len = usize::from(u16::from_be_bytes([name_len[0], name_len[1]]));
    rest.get(length + 2 + name_len).copied()
}

impl PacketType {
    #[inline]
    pub(super) fn of(first: u8) -> Option<Self> {
        Some(match first >> 4 {
            1 => PacketType::Connect,
            2 => PacketType::Connack,
            3 => PacketType::Publish,
            4 => PacketType::Puback,
            5 => PacketType::Pubrec,
            6 => PacketType::Pubrel,
            7 => PacketType::Pubcomp,
            8 => PacketType::Subscribe,
            9 => PacketType::Suback,
            10 => PacketType::Unsubscribe,
            11 => PacketType::Unsuback,
            12 => PacketType::Pingreq,
            13 => PacketType::Pingresp,
            14 => PacketType::Disconnect,
            15 => PacketType::Auth,
            _ => return None,
        })
    }

    /// The first byte of such a packet; `flags` are those that section 2.1.3 asks for.
    pub(super) fn first_byte(self) -> u8 {
        let flags = match self {
            PacketType::Pubrel | PacketType::Subscribe | PacketType::Unsubscribe => 0b0010,
            PacketType::Connect
            | PacketType::Connack
            | PacketType::Publish
            | PacketType::Puback
            | PacketType::Pubrec
            | PacketType::Pubcomp
            | PacketType::Suback
            | PacketType::Unsuback
            | PacketType::Pingreq
            | PacketType::Pingresp
            | PacketType::Disconnect
            | PacketType::Auth => 0,
        };
        (self as u8) << 4 | flags
    }
}
