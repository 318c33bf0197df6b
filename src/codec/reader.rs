//! A cursor over the body of one frame: the data types of MQTT 5 section 1.5, borrowed.

use super::DecodeError;
use crate::mqtt::PacketId;

type Result<T> = std::result::Result<T, DecodeError>;

const CUT: DecodeError = DecodeError::malformed("a field ends beyond its packet (section 1.5)");

/// What is left to read. Never copies, never reads beyond what it was given.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.rest.len()
    }

    /// Everything that is left: the payload of a PUBLISH, the codes of a SUBACK.
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Surplus bytes make a packet malformed (CON-05).
    pub(super) fn end(&self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::malformed("bytes after the end of the packet (MQTT-4.13.1-1)"))
        }
    }

    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(CUT)?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// A Variable Byte Integer; one of five bytes or with needless bytes is malformed (PAR-01).
    #[inline]
    pub(super) fn varint(&mut self) -> Result<u32> {
        let mut value = 0;
        for index in 0..4 {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    break;
                }
                return Ok(value);
            }
        }
        Err(DecodeError::malformed("Variable Byte Integer is over-long (MQTT-1.5.5-1)"))
    }

    #[inline]
    pub(super) fn packet_id(&mut self) -> Result<PacketId> {
        let id = PacketId::new(self.u16()?);
        id.ok_or(DecodeError::malformed("Packet Identifier is 0 (MQTT-2.2.1-3)"))
    }

    #[inline]
    pub(super) fn binary(&mut self) -> Result<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// A UTF-8 string. U+0000 and what UTF-8 can't express (surrogates, over-long forms) is
    /// malformed (MQTT-1.5.4-1, -2). Other control characters and non-characters, which a sender
    /// should avoid, are let through everywhere alike; a BOM is kept (MQTT-1.5.4-3).
    #[inline]
    pub(super) fn text(&mut self) -> Result<&'a str> {
        let bytes = self.binary()?;
        let text = utf8(bytes)?;
        if bytes.contains(&0) { Err(NUL) } else { Ok(text) }
    }

    /// As [`Self::text`], for a string that is checked and passed on as bytes: plain ASCII, which
    /// nearly every one is, costs one pass of eight bytes a step.
    #[inline]
    pub(super) fn skip_text(&mut self) -> Result<()> {
        let bytes = self.binary()?;
        if is_ascii_without_nul(bytes) {
            return Ok(());
        }
        utf8(bytes)?;
        if bytes.contains(&0) { Err(NUL) } else { Ok(()) }
    }

    /// A topic name, which may be empty here: what that means depends on version and alias.
    #[inline]
    pub(super) fn topic(&mut self) -> Result<&'a str> {
        let bytes = self.binary()?;
        let text = utf8(bytes)?;
        // One pass for the three bytes that no topic name holds.
        let (mut nul, mut wildcard) = (false, false);
        for byte in bytes {
            nul |= *byte == 0;
            wildcard |= (*byte == b'+') | (*byte == b'#');
        }
        if nul {
            return Err(NUL);
        }
        if wildcard {
            return Err(DecodeError::malformed("topic name holds a wildcard (MQTT-3.3.2-2)"));
        }
        Ok(text)
    }
}

const NUL: DecodeError = DecodeError::malformed("U+0000 in a string (MQTT-1.5.4-2)");

#[inline]
fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes)
        .map_err(|_| DecodeError::malformed("string is not UTF-8 (MQTT-1.5.4-1)"))
}

/// Whether every byte is from 1 to 127.
#[inline]
fn is_ascii_without_nul(bytes: &[u8]) -> bool {
    const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
    const ONES: u64 = 0x0101_0101_0101_0101;
    let is_good = |word: u64| {
        // With its high bit set beforehand, a byte loses it to the subtraction only if it was 0.
        let no_zero = ((word | HIGH_BITS) - ONES) & HIGH_BITS == HIGH_BITS;
        word & HIGH_BITS == 0 && no_zero
    };
    let (words, tail) = bytes.as_chunks::<8>();
    words.iter().all(|word| is_good(u64::from_ne_bytes(*word)))
        && tail.iter().all(|byte| (1..128).contains(byte))
}
