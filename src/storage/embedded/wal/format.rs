//! The log on disk: segment header and frame header, both versioned by the segment's header.
//!
//! ```text
//! segment file: <base, 16 hex digits>.wal = header block (4096 bytes), then frames
//! header, little endian: magic 8 · version u32 · crc u32 · base u64 · capacity u64
//!          · incarnation u64 · after u64 · cut u64 · synced u64; at byte 2048 of the block
//!          there may be a second one of the same base, which then counts instead
//! frame:   header crc u32 · data crc u32 · synced u64 · head length u32 · body length u32
//!          · kind u8 · zero 7 · head · body · zero up to a multiple of 8
//! ```
//! An offset is a byte in one endless address space: byte in file = offset - base + 4096. Both
//! crc fields are CRC-32C; the frame's header crc also covers its offset and the incarnation, so
//! that bytes of another place or another log never pass for a frame.
//!
//! `synced` is what makes a torn tail differ from damage: it says how far the log had been made
//! durable when this was written. A frame that cannot be read is damage if anything behind it
//! claims that it was durable, and a torn tail otherwise.

/// Size of the header block. A page of its own: writing frames never rewrites it.
pub(super) const HEADER_BLOCK: u64 = 4096;
/// Where the first log begins: offset 0 is never a frame's.
pub(super) const FIRST_BASE: u64 = 4096;
pub(super) const FRAME_HEADER: usize = 32;
pub(super) const SEGMENT_HEADER: usize = 64;
/// Where a header that replaces the first one goes: a write that fails half way leaves that whole.
pub(super) const SECOND_HEADER: u64 = 2048;
/// The only version there is; another one is refused.
pub(super) const FORMAT_VERSION: u32 = 1;
/// Ends a segment whose successor goes on without a gap.
pub(super) const KIND_SEAL: u8 = 254;
/// Ends a log that was stopped in peace.
pub(super) const KIND_CLOSE: u8 = 255;

const MAGIC: [u8; 8] = *b"SluicLog";
const SUFFIX: &str = ".wal";
/// Suffix of a file that is not a segment yet; recovery removes it.
pub(super) const UNBORN: &str = ".new";

pub(super) fn file_name(base: u64) -> String {
    format!("{base:016x}{SUFFIX}")
}

/// The base in a segment's file name; `None` for files that are none of ours.
pub(super) fn base_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// Frames start at multiples of 8, so that a search for them need not look at every byte.
pub(super) fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) base: u64,
    /// Offsets this segment takes up, used or not; the next base is not below `base + capacity`.
    pub(super) capacity: u64,
    pub(super) incarnation: u64,
    /// Base of the predecessor; 0 if this is the log's first segment.
    pub(super) after: u64,
    /// When not 0: the predecessor counts only below this offset, and segments between it and
    /// this one do not count at all. When 0, the predecessor ends with a seal.
    pub(super) cut: u64,
    /// How far the log was durable when this header was written.
    pub(super) synced: u64,
}

/// Why a segment header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    Unreadable,
    Version(u32),
}

impl SegmentHeader {
    pub(super) fn end_of_room(&self) -> u64 {
        self.base + self.capacity
    }

    pub(super) fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut out = [0; SEGMENT_HEADER];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        let fields =
            [self.base, self.capacity, self.incarnation, self.after, self.cut, self.synced];
        for (index, field) in fields.into_iter().enumerate() {
            out[16 + index * 8..24 + index * 8].copy_from_slice(&field.to_le_bytes());
        }
        let crc = header_crc(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header that counts in a header block.
    pub(super) fn of_block(block: &[u8]) -> Result<Self, BadHeader> {
        let first = Self::decode(block)?;
        let second = block.get(SECOND_HEADER as usize..).map(Self::decode);
        // A file that was another segment before may hold that one's second header.
        let second = second.and_then(Result::ok).filter(|second| second.base == first.base);
        Ok(second.unwrap_or(first))
    }

    fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        if bytes.len() < SEGMENT_HEADER || bytes[..8] != MAGIC {
            return Err(BadHeader::Unreadable);
        }
        let version = u32_at(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(BadHeader::Version(version));
        }
        if u32_at(bytes, 12) != header_crc(bytes) {
            return Err(BadHeader::Unreadable);
        }
        Ok(Self {
            base: u64_at(bytes, 16),
            capacity: u64_at(bytes, 24),
            incarnation: u64_at(bytes, 32),
            after: u64_at(bytes, 40),
            cut: u64_at(bytes, 48),
            synced: u64_at(bytes, 56),
        })
    }
}

fn header_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..SEGMENT_HEADER])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) data_crc: u32,
    pub(super) synced: u64,
    pub(super) head_len: u32,
    pub(super) body_len: u32,
    pub(super) kind: u8,
}

impl FrameHeader {
    /// Bytes of the whole frame, padding included.
    pub(super) fn frame_len(&self) -> u64 {
        let data = u64::from(self.head_len) + u64::from(self.body_len);
        (FRAME_HEADER as u64 + data).next_multiple_of(8)
    }

    pub(super) fn encode(&self, offset: u64, incarnation: u64) -> [u8; FRAME_HEADER] {
        let mut out = [0; FRAME_HEADER];
        out[4..8].copy_from_slice(&self.data_crc.to_le_bytes());
        out[8..16].copy_from_slice(&self.synced.to_le_bytes());
        out[16..20].copy_from_slice(&self.head_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.body_len.to_le_bytes());
        out[24] = self.kind;
        let crc = frame_header_crc(&out, offset, incarnation);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if no frame starts here.
    pub(super) fn decode(bytes: &[u8], offset: u64, incarnation: u64) -> Option<Self> {
        let bytes = bytes.get(..FRAME_HEADER)?;
        // The cheap tests first: a search tries this at every multiple of 8.
        if bytes[24] == 0 || bytes[25..FRAME_HEADER] != [0; 7] || u64_at(bytes, 8) > offset {
            return None;
        }
        if u32_at(bytes, 0) != frame_header_crc(bytes, offset, incarnation) {
            return None;
        }
        Some(Self {
            data_crc: u32_at(bytes, 4),
            synced: u64_at(bytes, 8),
            head_len: u32_at(bytes, 16),
            body_len: u32_at(bytes, 20),
            kind: bytes[24],
        })
    }
}

fn frame_header_crc(bytes: &[u8], offset: u64, incarnation: u64) -> u32 {
    let crc = crc32c::crc32c(&bytes[4..FRAME_HEADER]);
    let crc = crc32c::crc32c_append(crc, &offset.to_le_bytes());
    crc32c::crc32c_append(crc, &incarnation.to_le_bytes())
}

pub(super) fn data_crc(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), body)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}
