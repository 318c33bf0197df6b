//! Properties (MQTT 5 section 2.2.2): reading them one by one, with the rules that hold for each.
//!
//! Which packet allows which property is said by the `match` of that packet's decoder; what is
//! not in it is [`PropertyReader::misplaced`].

use std::borrow::Cow;
use std::ops::Range;

use super::reader::Reader;
use super::{DecodeError, UserProperty};

type Result<T> = std::result::Result<T, DecodeError>;

/// Property identifiers (section 2.2.2.2).
pub(super) mod id {
    pub(in crate::codec) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(in crate::codec) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(in crate::codec) const CONTENT_TYPE: u8 = 0x03;
    pub(in crate::codec) const RESPONSE_TOPIC: u8 = 0x08;
    pub(in crate::codec) const CORRELATION_DATA: u8 = 0x09;
    pub(in crate::codec) const SUBSCRIPTION_ID: u8 = 0x0B;
    pub(in crate::codec) const SESSION_EXPIRY: u8 = 0x11;
    pub(in crate::codec) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(in crate::codec) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(in crate::codec) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(in crate::codec) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(in crate::codec) const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub(in crate::codec) const WILL_DELAY: u8 = 0x18;
    pub(in crate::codec) const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub(in crate::codec) const RESPONSE_INFORMATION: u8 = 0x1A;
    pub(in crate::codec) const SERVER_REFERENCE: u8 = 0x1C;
    pub(in crate::codec) const REASON_STRING: u8 = 0x1F;
    pub(in crate::codec) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(in crate::codec) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(in crate::codec) const TOPIC_ALIAS: u8 = 0x23;
    pub(in crate::codec) const MAXIMUM_QOS: u8 = 0x24;
    pub(in crate::codec) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(in crate::codec) const USER_PROPERTY: u8 = 0x26;
    pub(in crate::codec) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub(in crate::codec) const WILDCARD_SUBSCRIPTION_AVAILABLE: u8 = 0x28;
    pub(in crate::codec) const SUBSCRIPTION_IDS_AVAILABLE: u8 = 0x29;
    pub(in crate::codec) const SHARED_SUBSCRIPTION_AVAILABLE: u8 = 0x2A;
}

/// Walks over one block of properties: [`Self::next_id`], then the reader of that property's type.
#[derive(Debug)]
pub(super) struct PropertyReader<'a> {
    block: &'a [u8],
    reader: Reader<'a>,
    /// One bit an identifier, for the once-only rule.
    seen: u64,
}

impl<'a> PropertyReader<'a> {
    /// Takes the block, its length included, from `reader`.
    #[inline]
    pub(super) fn open(reader: &mut Reader<'a>) -> Result<Self> {
        let len = reader.varint()?;
        let block = reader.take(len as usize)?;
        Ok(Self { block, reader: Reader::new(block), seen: 0 })
    }

    /// The next property's identifier, or `None` at the end of the block. Anything but a User
    /// Property may stand there once; the Subscription Identifier is counted by who reads it.
    #[inline]
    pub(super) fn next_id(&mut self) -> Result<Option<u8>> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let id = self.reader.u8()?;
        if id >= 64 {
            return Err(Self::misplaced());
        }
        let bit = 1u64 << id;
        if self.seen & bit != 0 && id != id::USER_PROPERTY && id != id::SUBSCRIPTION_ID {
            return Err(twice());
        }
        self.seen |= bit;
        Ok(Some(id))
    }

    /// How many bytes of the block are read.
    #[inline]
    fn at(&self) -> usize {
        self.block.len() - self.reader.len()
    }

    /// What a packet's decoder answers to an identifier that it does not list.
    pub(super) fn misplaced() -> DecodeError {
        DecodeError::malformed("property is unknown or not for this packet (section 2.2.2.2)")
    }

    pub(super) fn flag(&mut self) -> Result<bool> {
        match self.reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::protocol("property is neither 0 nor 1")),
        }
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.reader.u16()
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.reader.u32()
    }

    /// Receive Maximum (sections 3.1.2.11.3 and 3.2.2.3.3).
    pub(super) fn receive_maximum(&mut self) -> Result<u16> {
        match self.reader.u16()? {
            0 => Err(DecodeError::protocol("Receive Maximum is 0 (section 3.1.2.11.3)")),
            value => Ok(value),
        }
    }

    /// Maximum Packet Size (sections 3.1.2.11.4 and 3.2.2.3.6).
    pub(super) fn maximum_packet_size(&mut self) -> Result<u32> {
        match self.reader.u32()? {
            0 => Err(DecodeError::protocol("Maximum Packet Size is 0 (section 3.1.2.11.4)")),
            value => Ok(value),
        }
    }

    pub(super) fn subscription_id(&mut self) -> Result<u32> {
        match self.reader.varint()? {
            0 => Err(DecodeError::protocol("Subscription Identifier is 0 (section 3.8.2.1.2)")),
            value => Ok(value),
        }
    }

    pub(super) fn text(&mut self) -> Result<String> {
        self.reader.text().map(str::to_owned)
    }

    pub(super) fn binary(&mut self) -> Result<Vec<u8>> {
        self.reader.binary().map(<[u8]>::to_vec)
    }

    pub(super) fn user_property(&mut self) -> Result<UserProperty> {
        Ok((self.text()?, self.text()?))
    }

    /// Checks and skips the value of a property that is forwarded as it is, and tells `forwarded`
    /// where it stands; `false` when `id` is none of them. PUBLISH and Will (sections 3.3.2.3 and
    /// 3.1.3.2).
    #[inline]
    pub(super) fn forward(&mut self, id: u8, forwarded: &mut Forwarded<'a>) -> Result<bool> {
        let start = self.at() - 1;
        match id {
            id::PAYLOAD_FORMAT => {
                self.flag()?;
            }
            id::CONTENT_TYPE => self.reader.skip_text()?,
            id::RESPONSE_TOPIC => self.skip_response_topic()?,
            id::CORRELATION_DATA => {
                self.reader.binary()?;
            }
            id::USER_PROPERTY => {
                self.reader.skip_text()?;
                self.reader.skip_text()?;
            }
            _ => return Ok(false),
        }
        forwarded.take(self.block, start..self.at());
        Ok(true)
    }

    fn skip_response_topic(&mut self) -> Result<()> {
        let text = self.reader.text()?;
        if text.is_empty() || text.bytes().any(|byte| byte == b'+' || byte == b'#') {
            return Err(DecodeError::protocol("Response Topic is no topic name (MQTT-3.3.2-14)"));
        }
        Ok(())
    }
}

pub(super) fn twice() -> DecodeError {
    DecodeError::protocol("property stands there more than once (section 2.2.2.2)")
}

/// The properties that are forwarded: a slice of the wire's block as long as they stand together.
#[derive(Debug, Default)]
pub(super) struct Forwarded<'a> {
    together: &'a [u8],
    /// Where `together` ends in the block.
    end: usize,
    scattered: Option<Vec<u8>>,
}

impl<'a> Forwarded<'a> {
    #[inline]
    fn take(&mut self, block: &'a [u8], next: Range<usize>) {
        if let Some(scattered) = &mut self.scattered {
            scattered.extend_from_slice(&block[next]);
        } else if self.together.is_empty() || self.end == next.start {
            let start = self.end - self.together.len();
            let start = if self.together.is_empty() { next.start } else { start };
            self.together = &block[start..next.end];
            self.end = next.end;
        } else {
            // No more than the rest of the block can still come.
            let mut scattered = Vec::with_capacity(self.together.len() + block.len() - next.start);
            scattered.extend_from_slice(self.together);
            scattered.extend_from_slice(&block[next]);
            self.scattered = Some(scattered);
        }
    }

    pub(super) fn finish(self) -> Cow<'a, [u8]> {
        match self.scattered {
            Some(scattered) => Cow::Owned(scattered),
            None => Cow::Borrowed(self.together),
        }
    }
}
