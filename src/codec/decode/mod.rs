//! Bytes → [`Packet`]. One file a family of packets, which says what properties each allows.

mod ack;
mod auth;
mod connack;
mod connect;
mod disconnect;
mod publish;
mod subscribe;

use super::frame::{MAX_PACKET_SIZE, PacketType, Peer, frame_length};
use super::reader::Reader;
use super::{AckKind, DecodeError, Packet};
use crate::mqtt::ProtocolVersion;

type Result<T> = std::result::Result<T, DecodeError>;

/// Decodes one whole frame, fixed header included, as [`frame_length`] measured it.
///
/// `version` is what the CONNECT said, and `None` for the CONNECT itself. The packet borrows from
/// `frame`; a PUBLISH allocates only when the properties it forwards are scattered or a server
/// sends Subscription Identifiers.
#[inline]
pub fn decode(frame: &[u8], version: Option<ProtocolVersion>, from: Peer) -> Result<Packet<'_>> {
    let length = frame_length(frame, version, from, MAX_PACKET_SIZE)?;
    let body = match length {
        Some(length) if length.total == frame.len() => &frame[length.header..],
        Some(_) | None => return Err(DecodeError::malformed("not one whole packet")),
    };
    let first = frame[0];
    let Some(version) = version else {
        return connect::decode(body).map(|connect| Packet::Connect(Box::new(connect)));
    };
    if PacketType::of(first) == Some(PacketType::Publish) {
        return publish::decode(first, body, version, from).map(Packet::Publish);
    }
    decode_other(first, body, version, from)
}

fn decode_other<'a>(
    first: u8,
    body: &'a [u8],
    version: ProtocolVersion,
    from: Peer,
) -> Result<Packet<'a>> {
    let Some(kind) = PacketType::of(first) else {
        return Err(DecodeError::malformed("packet type 0 is reserved (section 2.1.2)"));
    };
    let mut reader = Reader::new(body);
    let reader = &mut reader;
    let ack = |kind, reader| ack::decode(kind, reader, version).map(|ack| Packet::Ack(kind, ack));
    let packet = match kind {
        PacketType::Connect => connect::decode(body).map(|c| Packet::Connect(Box::new(c)))?,
        PacketType::Publish => publish::decode(first, body, version, from).map(Packet::Publish)?,
        PacketType::Connack => {
            connack::decode(reader, version).map(|c| Packet::Connack(Box::new(c)))?
        }
        PacketType::Puback => ack(AckKind::Puback, reader)?,
        PacketType::Pubrec => ack(AckKind::Pubrec, reader)?,
        PacketType::Pubrel => ack(AckKind::Pubrel, reader)?,
        PacketType::Pubcomp => ack(AckKind::Pubcomp, reader)?,
        PacketType::Subscribe => subscribe::subscribe(reader, version).map(Packet::Subscribe)?,
        PacketType::Suback => ack::suback(reader, version).map(Packet::Suback)?,
        PacketType::Unsubscribe => {
            subscribe::unsubscribe(reader, version).map(Packet::Unsubscribe)?
        }
        PacketType::Unsuback => ack::unsuback(reader, version).map(Packet::Unsuback)?,
        PacketType::Pingreq => empty(reader, Packet::Pingreq)?,
        PacketType::Pingresp => empty(reader, Packet::Pingresp)?,
        PacketType::Disconnect => {
            disconnect::decode(reader, version, from).map(Packet::Disconnect)?
        }
        PacketType::Auth => auth::decode(reader).map(Packet::Auth)?,
    };
    Ok(packet)
}

fn empty<'a>(reader: &Reader<'a>, packet: Packet<'a>) -> Result<Packet<'a>> {
    reader.end()?;
    Ok(packet)
}
