//! AUTH (MQTT 5 section 3.15). Who may send which code when is the session's to judge.

use super::Result;
use crate::codec::properties::{PropertyReader, id};
use crate::codec::reader::Reader;
use crate::codec::{Auth, DecodeError};
use crate::mqtt::ReasonCode;

pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Auth> {
    let mut auth = Auth {
        reason: ReasonCode::Success,
        authentication_method: None,
        authentication_data: None,
        reason_string: None,
        user_properties: Vec::new(),
    };
    // Reason code and properties are left out together, when it is 0x00 and there are none.
    if reader.is_empty() {
        return Ok(auth);
    }
    let allowed = |code: &ReasonCode| {
        matches!(
            code,
            ReasonCode::Success | ReasonCode::ContinueAuthentication | ReasonCode::ReAuthenticate
        )
    };
    auth.reason = ReasonCode::from_byte(reader.u8()?)
        .filter(allowed)
        .ok_or(DecodeError::malformed("reason code is not for AUTH (MQTT-3.15.2-1)"))?;
    let mut block = PropertyReader::open(reader)?;
    while let Some(id) = block.next_id()? {
        match id {
            id::AUTHENTICATION_METHOD => auth.authentication_method = Some(block.text()?),
            id::AUTHENTICATION_DATA => auth.authentication_data = Some(block.binary()?),
            id::REASON_STRING => auth.reason_string = Some(block.text()?),
            id::USER_PROPERTY => auth.user_properties.push(block.user_property()?),
            _ => return Err(PropertyReader::misplaced()),
        }
    }
    reader.end()?;
    let needs_method = auth.reason != ReasonCode::Success || auth.authentication_data.is_some();
    if needs_method && auth.authentication_method.is_none() {
        return Err(DecodeError::protocol("AUTH without a method (section 3.15.2.2.2)"));
    }
    Ok(auth)
}
