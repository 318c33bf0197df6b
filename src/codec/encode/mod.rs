//! [`Packet`] → bytes, for either direction. What a version can't carry is left out.

mod ack;
mod connack;
mod connect;
mod publish;
mod session;
mod subscribe;

pub use ack::encode_ack;
pub use connack::connack_v3_code;
pub use publish::{EncodedHead, PublishHead, patch_dup, patch_packet_id};

use super::frame::{MAX_PACKET_SIZE, PacketType};
use super::writer::{put_packet, put_text_property, put_user_properties};
use super::{EncodeError, Packet, UserProperty, properties::id};
use crate::mqtt::ProtocolVersion;

type Result<T> = std::result::Result<T, EncodeError>;

/// What a receiver lets a packet be, beside its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeLimits {
    /// The receiver's Maximum Packet Size; [`MAX_PACKET_SIZE`] when it named none.
    pub maximum_packet_size: u32,
    /// Request Problem Information: without it Reason String and User Properties go only into
    /// PUBLISH, CONNACK and DISCONNECT (MQTT-3.1.2-29).
    pub problem_information: bool,
}

impl Default for EncodeLimits {
    fn default() -> Self {
        Self { maximum_packet_size: MAX_PACKET_SIZE, problem_information: true }
    }
}

/// How much of what merely explains a packet is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extras {
    All,
    ReasonString,
    None,
}

impl Extras {
    fn put(
        self,
        out: &mut Vec<u8>,
        reason_string: Option<&str>,
        user_properties: &[UserProperty],
    ) -> Result<()> {
        match self {
            Extras::All => {
                put_text_property(out, id::REASON_STRING, reason_string)?;
                put_user_properties(out, user_properties)
            }
            Extras::ReasonString => put_text_property(out, id::REASON_STRING, reason_string),
            Extras::None => Ok(()),
        }
    }
}

/// Appends `packet` as it goes on the wire in `version`; all or nothing.
///
/// A CONNECT is written in its own version. The PUBACK family takes its short forms; DISCONNECT
/// and CONNACK of v5 always carry a property length, since some clients misread the short one.
pub fn encode(packet: &Packet<'_>, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<()> {
    encode_with(packet, version, Extras::All, out)
}

/// As [`encode`], within what the receiver allows: User Properties, then the Reason String are
/// left out of a reply that would be too large (PRP-03), and both where the receiver asked for no
/// problem information (PRP-10). A packet that is still too large is an error: the caller closes
/// the connection (MQTT-3.1.2-24), or drops a PUBLISH (MQTT-3.1.2-25).
pub fn encode_within(
    packet: &Packet<'_>,
    version: ProtocolVersion,
    limits: EncodeLimits,
    out: &mut Vec<u8>,
) -> Result<()> {
    let start = out.len();
    let limit = limits.maximum_packet_size;
    let tries: &[Extras] = match packet {
        Packet::Connack(_) | Packet::Disconnect(_) => {
            &[Extras::All, Extras::ReasonString, Extras::None]
        }
        Packet::Ack(..) | Packet::Suback(_) | Packet::Unsuback(_) | Packet::Auth(_) => {
            match limits.problem_information {
                true => &[Extras::All, Extras::ReasonString, Extras::None],
                false => &[Extras::None],
            }
        }
        // Their User Properties are the message's or the request's own.
        Packet::Connect(_)
        | Packet::Publish(_)
        | Packet::Subscribe(_)
        | Packet::Unsubscribe(_)
        | Packet::Pingreq
        | Packet::Pingresp => &[Extras::All],
    };
    for extras in tries {
        encode_with(packet, version, *extras, out)?;
        if out.len() - start <= limit as usize {
            return Ok(());
        }
        out.truncate(start);
    }
    Err(EncodeError::TooLarge { limit })
}

fn encode_with(
    packet: &Packet<'_>,
    version: ProtocolVersion,
    extras: Extras,
    out: &mut Vec<u8>,
) -> Result<()> {
    match packet {
        Packet::Connect(connect) => connect::encode(connect, out),
        Packet::Connack(connack) => connack::encode(connack, version, extras, out),
        Packet::Publish(publish) => {
            PublishHead::of(publish, version).encode(out)?;
            out.extend_from_slice(publish.payload);
            Ok(())
        }
        Packet::Ack(kind, ack) => ack::encode(*kind, ack, version, extras, out),
        Packet::Subscribe(subscribe) => subscribe::subscribe(subscribe, version, out),
        Packet::Suback(suback) => ack::suback(suback, version, extras, out),
        Packet::Unsubscribe(unsubscribe) => subscribe::unsubscribe(unsubscribe, version, out),
        Packet::Unsuback(unsuback) => ack::unsuback(unsuback, version, extras, out),
        Packet::Pingreq => put_packet(out, PacketType::Pingreq.first_byte(), |_| Ok(())),
        Packet::Pingresp => put_packet(out, PacketType::Pingresp.first_byte(), |_| Ok(())),
        Packet::Disconnect(disconnect) => session::disconnect(disconnect, version, extras, out),
        Packet::Auth(auth) => session::auth(auth, version, extras, out),
    }
}
