//! The data types of MQTT 5 section 1.5, appended to a buffer. Lengths that are known only after
//! what they measure are moved in front of it, so nothing here allocates but the buffer.

use super::frame::{MAX_PACKET_SIZE, MAX_REMAINING};
use super::{EncodeError, UserProperty, properties::id};

type Result = std::result::Result<(), EncodeError>;

pub(super) fn varint_len(value: u32) -> usize {
    match value {
        0..128 => 1,
        128..16_384 => 2,
        16_384..2_097_152 => 3,
        2_097_152.. => 4,
    }
}

/// `value` is at most 268 435 455, as every caller has checked.
#[inline]
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u32) {
    debug_assert!(value <= MAX_REMAINING);
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

pub(super) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_binary(out: &mut Vec<u8>, value: &[u8]) -> Result {
    let len = u16::try_from(value.len()).map_err(|_| EncodeError::FieldTooLong)?;
    put_u16(out, len);
    out.extend_from_slice(value);
    Ok(())
}

pub(super) fn put_text(out: &mut Vec<u8>, value: &str) -> Result {
    put_binary(out, value.as_bytes())
}

/// Writes the first byte, Remaining Length and the body that `body` appends; all or nothing.
pub(super) fn put_packet(
    out: &mut Vec<u8>,
    first: u8,
    body: impl FnOnce(&mut Vec<u8>) -> Result,
) -> Result {
    let start = out.len();
    let written = body(out).and_then(|()| {
        let body_end = out.len();
        let remaining = length(body_end - start)?;
        out.push(first);
        put_varint(out, remaining);
        let header = out.len() - body_end;
        out[start..].rotate_right(header);
        Ok(())
    });
    if written.is_err() {
        out.truncate(start);
    }
    written
}

/// Writes a property block: its length, then what `block` appends.
pub(super) fn put_block(out: &mut Vec<u8>, block: impl FnOnce(&mut Vec<u8>) -> Result) -> Result {
    let start = out.len();
    block(out)?;
    let block_end = out.len();
    put_varint(out, length(block_end - start)?);
    let prefix = out.len() - block_end;
    out[start..].rotate_right(prefix);
    Ok(())
}

pub(super) fn length(len: usize) -> std::result::Result<u32, EncodeError> {
    let len = u32::try_from(len).ok().filter(|len| *len <= MAX_REMAINING);
    len.ok_or(EncodeError::TooLarge { limit: MAX_PACKET_SIZE })
}

// === properties; an absent one writes nothing ===

pub(super) fn put_u8_property(out: &mut Vec<u8>, id: u8, value: Option<u8>) {
    if let Some(value) = value {
        out.extend_from_slice(&[id, value]);
    }
}

pub(super) fn put_u16_property(out: &mut Vec<u8>, id: u8, value: Option<u16>) {
    if let Some(value) = value {
        out.push(id);
        put_u16(out, value);
    }
}

pub(super) fn put_u32_property(out: &mut Vec<u8>, id: u8, value: Option<u32>) {
    if let Some(value) = value {
        out.push(id);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(super) fn put_binary_property(out: &mut Vec<u8>, id: u8, value: Option<&[u8]>) -> Result {
    let Some(value) = value else { return Ok(()) };
    out.push(id);
    put_binary(out, value)
}

pub(super) fn put_text_property(out: &mut Vec<u8>, id: u8, value: Option<&str>) -> Result {
    put_binary_property(out, id, value.map(str::as_bytes))
}

pub(super) fn put_user_properties(out: &mut Vec<u8>, properties: &[UserProperty]) -> Result {
    for (name, value) in properties {
        out.push(id::USER_PROPERTY);
        put_text(out, name)?;
        put_text(out, value)?;
    }
    Ok(())
}
