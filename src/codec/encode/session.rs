//! DISCONNECT and AUTH.

use super::{Extras, Result};
use crate::codec::frame::PacketType;
use crate::codec::properties::id;
use crate::codec::writer::{
    put_binary_property, put_block, put_packet, put_text_property, put_u32_property,
};
use crate::codec::{Auth, Disconnect, EncodeError};
use crate::mqtt::ProtocolVersion;

/// v3.x knows only the client's DISCONNECT, without a body; that a server sends none is the
/// session's to obey (CON-13).
pub(super) fn disconnect(
    disconnect: &Disconnect,
    version: ProtocolVersion,
    extras: Extras,
    out: &mut Vec<u8>,
) -> Result<()> {
    put_packet(out, PacketType::Disconnect.first_byte(), |out| {
        if !version.is_v5() {
            return Ok(());
        }
        out.push(disconnect.reason.byte());
        put_block(out, |out| {
            put_u32_property(out, id::SESSION_EXPIRY, disconnect.session_expiry_s);
            extras.put(out, disconnect.reason_string.as_deref(), &disconnect.user_properties)?;
            put_text_property(out, id::SERVER_REFERENCE, disconnect.server_reference.as_deref())
        })
    })
}

pub(super) fn auth(
    auth: &Auth,
    version: ProtocolVersion,
    extras: Extras,
    out: &mut Vec<u8>,
) -> Result<()> {
    if !version.is_v5() {
        return Err(EncodeError::NotInVersion);
    }
    put_packet(out, PacketType::Auth.first_byte(), |out| {
        out.push(auth.reason.byte());
        put_block(out, |out| {
            let method = auth.authentication_method.as_deref();
            put_text_property(out, id::AUTHENTICATION_METHOD, method)?;
            let data = auth.authentication_data.as_deref();
            put_binary_property(out, id::AUTHENTICATION_DATA, data)?;
            extras.put(out, auth.reason_string.as_deref(), &auth.user_properties)
        })
    })
}
