//! PUBLISH for the delivery room: the head is encoded once a version, QoS and set of options, and
//! then copied and patched per subscriber.

use crate::codec::frame::{MAX_PACKET_SIZE, MAX_REMAINING};
use crate::codec::properties::id;
use crate::codec::writer::{put_u16, put_u16_property, put_u32_property, put_varint, varint_len};
use crate::codec::{EncodeError, Publish};
use crate::mqtt::{PacketId, ProtocolVersion, QoS};

const DUP: u8 = 0b1000;
const FIRST_BYTE: u8 = 0b0011_0000;

/// What stands before the payload of a PUBLISH. v3.x leaves out what it can't carry: alias,
/// expiry, identifiers and properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishHead<'a> {
    pub version: ProtocolVersion,
    /// Never written at QoS 0 (MQTT-3.3.1-2).
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Empty only with an alias, in v5.
    pub topic: &'a str,
    /// Written when `qos` is 1 or 2; `None` then leaves 0 to be patched. Not written at QoS 0.
    pub packet_id: Option<PacketId>,
    pub alias: Option<u16>,
    /// What is left of the Message Expiry Interval.
    pub expiry_s: Option<u32>,
    /// Each from 1 to 268 435 455.
    pub subscription_ids: &'a [u32],
    /// Checked and encoded, as [`Publish::properties`].
    pub properties: &'a [u8],
    pub payload_len: usize,
}

/// Where things stand in an encoded head, counted from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedHead {
    pub len: usize,
    /// `None` at QoS 0.
    pub packet_id_at: Option<usize>,
}

struct Lengths {
    properties: usize,
    /// As Remaining Length counts it.
    remaining: usize,
    header: usize,
}

impl<'a> PublishHead<'a> {
    /// The head of `publish` for `version`.
    pub fn of(publish: &'a Publish<'_>, version: ProtocolVersion) -> Self {
        Self {
            version,
            dup: publish.dup,
            qos: publish.qos,
            retain: publish.retain,
            topic: publish.topic,
            packet_id: publish.packet_id,
            alias: publish.topic_alias,
            expiry_s: publish.expiry_s,
            subscription_ids: &publish.subscription_ids,
            properties: &publish.properties,
            payload_len: publish.payload.len(),
        }
    }

    /// Bytes of the whole packet on the wire, payload included: what a client's Maximum Packet
    /// Size is compared with (PRP-01). Encodes nothing.
    #[inline]
    pub fn wire_len(&self) -> usize {
        let lengths = self.lengths();
        lengths.header + lengths.remaining
    }

    /// Appends everything before the payload; the caller appends `payload_len` bytes.
    ///
    /// Fails, with nothing appended, only for a topic above 65 535 bytes or a packet above
    /// [`MAX_PACKET_SIZE`], neither of which a decoder lets in.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<EncodedHead, EncodeError> {
        let topic_len = u16::try_from(self.topic.len()).map_err(|_| EncodeError::FieldTooLong)?;
        if self.subscription_ids.iter().any(|id| *id == 0 || *id > MAX_REMAINING) {
            return Err(EncodeError::SubscriptionId);
        }
        let lengths = self.lengths();
        let too_large = EncodeError::TooLarge { limit: MAX_PACKET_SIZE };
        let remaining = u32::try_from(lengths.remaining).map_err(|_| too_large)?;
        // The block is a part of the packet, so it can be no longer.
        let properties = u32::try_from(lengths.properties).map_err(|_| too_large)?;
        if remaining > MAX_REMAINING {
            return Err(too_large);
        }
        let start = out.len();
        out.reserve(lengths.header + lengths.remaining - self.payload_len);
        out.push(self.first_byte());
        put_varint(out, remaining);
        put_u16(out, topic_len);
        out.extend_from_slice(self.topic.as_bytes());
        let mut packet_id_at = None;
        if self.qos.is_acknowledged() {
            packet_id_at = Some(out.len() - start);
            put_u16(out, self.packet_id.map_or(0, PacketId::get));
        }
        if self.version.is_v5() {
            put_varint(out, properties);
            put_u32_property(out, id::MESSAGE_EXPIRY, self.expiry_s);
            put_u16_property(out, id::TOPIC_ALIAS, self.alias);
            for subscription_id in self.subscription_ids {
                out.push(id::SUBSCRIPTION_ID);
                put_varint(out, *subscription_id);
            }
            out.extend_from_slice(self.properties);
        }
        Ok(EncodedHead { len: out.len() - start, packet_id_at })
    }

    fn first_byte(&self) -> u8 {
        let dup = if self.dup && self.qos.is_acknowledged() { DUP } else { 0 };
        FIRST_BYTE | dup | self.qos.bits() << 1 | u8::from(self.retain)
    }

    #[inline]
    fn lengths(&self) -> Lengths {
        let mut remaining = 2 + self.topic.len() + self.payload_len;
        if self.qos.is_acknowledged() {
            remaining += 2;
        }
        let mut properties = 0;
        if self.version.is_v5() {
            properties = self.properties.len();
            properties += if self.expiry_s.is_some() { 5 } else { 0 };
            properties += if self.alias.is_some() { 3 } else { 0 };
            for subscription_id in self.subscription_ids {
                properties += 1 + varint_len(*subscription_id);
            }
            remaining += length_of_length(properties) + properties;
        }
        Lengths { properties, remaining, header: 1 + length_of_length(remaining) }
    }
}

/// Beyond what MQTT can express a length has no encoding; four bytes stand for it, and
/// [`PublishHead::encode`] refuses it.
fn length_of_length(len: usize) -> usize {
    u32::try_from(len).map_or(4, varint_len)
}

/// Gives a copy of a frame its packet id; `at` is [`EncodedHead::packet_id_at`].
///
/// # Panics
/// When `at` does not lie within `frame`.
#[inline]
pub fn patch_packet_id(frame: &mut [u8], at: usize, packet_id: PacketId) {
    frame[at..at + 2].copy_from_slice(&packet_id.get().to_be_bytes());
}

/// Sets or clears DUP in a copy of a frame of QoS 1 or 2.
///
/// # Panics
/// When `frame` is empty.
#[inline]
pub fn patch_dup(frame: &mut [u8], dup: bool) {
    frame[0] = if dup { frame[0] | DUP } else { frame[0] & !DUP };
}
