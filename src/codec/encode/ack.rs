//! The acknowledgements.

use super::{Extras, Result};
use crate::codec::frame::PacketType;
use crate::codec::writer::{put_block, put_packet, put_u16};
use crate::codec::{Ack, AckKind, AckProperties, Suback, Unsuback};
use crate::mqtt::{PacketId, ProtocolVersion, ReasonCode};

/// Appends an acknowledgement without properties: four bytes, or five where v5 has a reason to
/// tell. v3.x has no reasons, and drops it.
#[inline]
pub fn encode_ack(
    kind: AckKind,
    packet_id: PacketId,
    reason: ReasonCode,
    version: ProtocolVersion,
    out: &mut Vec<u8>,
) {
    let [high, low] = packet_id.get().to_be_bytes();
    let first = kind.packet_type().first_byte();
    if version.is_v5() && reason != ReasonCode::Success {
        out.extend_from_slice(&[first, 3, high, low, reason.byte()]);
    } else {
        out.extend_from_slice(&[first, 2, high, low]);
    }
}

impl AckKind {
    fn packet_type(self) -> PacketType {
        match self {
            AckKind::Puback => PacketType::Puback,
            AckKind::Pubrec => PacketType::Pubrec,
            AckKind::Pubrel => PacketType::Pubrel,
            AckKind::Pubcomp => PacketType::Pubcomp,
        }
    }
}

pub(super) fn encode(
    kind: AckKind,
    ack: &Ack,
    version: ProtocolVersion,
    extras: Extras,
    out: &mut Vec<u8>,
) -> Result<()> {
    let properties = ack.properties.as_deref().filter(|properties| {
        version.is_v5() && extras != Extras::None && !properties.are_empty_for(extras)
    });
    let Some(properties) = properties else {
        encode_ack(kind, ack.packet_id, ack.reason, version, out);
        return Ok(());
    };
    put_packet(out, kind.packet_type().first_byte(), |out| {
        put_u16(out, ack.packet_id.get());
        out.push(ack.reason.byte());
        put_properties(Some(properties), extras, out)
    })
}

impl AckProperties {
    fn are_empty_for(&self, extras: Extras) -> bool {
        let no_users = self.user_properties.is_empty() || extras != Extras::All;
        self.reason_string.is_none() && no_users
    }
}

fn put_properties(
    properties: Option<&AckProperties>,
    extras: Extras,
    out: &mut Vec<u8>,
) -> Result<()> {
    put_block(out, |out| match properties {
        Some(found) => extras.put(out, found.reason_string.as_deref(), &found.user_properties),
        None => Ok(()),
    })
}

pub(super) fn suback(
    suback: &Suback,
    version: ProtocolVersion,
    extras: Extras,
    out: &mut Vec<u8>,
) -> Result<()> {
    put_packet(out, PacketType::Suback.first_byte(), |out| {
        put_u16(out, suback.packet_id.get());
        match version {
            ProtocolVersion::V5 => {
                put_properties(suback.properties.as_deref(), extras, out)?;
                out.extend(suback.codes.iter().map(|code| code.byte()));
            }
            // v3.x knows one failure, whatever the reason.
            ProtocolVersion::V31 | ProtocolVersion::V311 => {
                let failure = ReasonCode::UnspecifiedError;
                let code = |code: &ReasonCode| if code.is_error() { failure } else { *code };
                out.extend(suback.codes.iter().map(|it| code(it).byte()));
            }
        }
        Ok(())
    })
}

pub(super) fn unsuback(
    unsuback: &Unsuback,
    version: ProtocolVersion,
    extras: Extras,
    out: &mut Vec<u8>,
) -> Result<()> {
    put_packet(out, PacketType::Unsuback.first_byte(), |out| {
        put_u16(out, unsuback.packet_id.get());
        if version.is_v5() {
            put_properties(unsuback.properties.as_deref(), extras, out)?;
            out.extend(unsuback.codes.iter().map(|code| code.byte()));
        }
        Ok(())
    })
}
