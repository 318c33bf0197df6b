//! Reading many frames in order, for a consumer that lags: large reads, no cache.

use std::sync::Arc;

use bytes::Bytes;

use super::Visit;
use super::disk::DiskFile;
use super::format::{self, FRAME_HEADER, FrameHeader, HEADER_BLOCK};
use super::segments::Segments;
use super::types::FrameKind;
use crate::storage::StorageError;

/// What is read from the medium at a time.
const CHUNK: u64 = 1 << 20;

/// Some bytes of one segment, from one frame's offset on.
struct Chunk {
    base: u64,
    end: u64,
    file: Arc<dyn DiskFile>,
    start: u64,
    bytes: Bytes,
}

/// What stands at an offset.
enum Found {
    Frame {
        kind: FrameKind,
        head: Bytes,
        body: Bytes,
        next: u64,
    },
    /// The segment's frames end here.
    End,
}

impl Segments {
    pub(super) fn scan(&self, from: u64, to: u64, visit: Visit<'_>) -> Result<u64, StorageError> {
        let (mut at, mut chunk) = (from, None);
        while at < to {
            let inside = chunk.take().filter(|chunk: &Chunk| (chunk.base..chunk.end).contains(&at));
            let Some(mut current) = inside.or(self.chunk_at(at)?) else { return Ok(to) };
            at = at.max(current.base);
            if at >= to {
                return Ok(to);
            }
            match self.frame(&mut current, at)? {
                Found::End => at = current.end,
                Found::Frame { kind, head, body, next } => {
                    if !visit(at, kind, &head, body)? {
                        return Ok(at);
                    }
                    at = next;
                }
            }
            chunk = Some(current);
        }
        Ok(to.max(at))
    }

    /// The segment that holds `offset`, or the first one above it.
    fn chunk_at(&self, offset: u64) -> Result<Option<Chunk>, StorageError> {
        let infos = self.infos();
        let Some(info) = infos.iter().find(|info| offset.max(info.base) < info.end) else {
            return Ok(None);
        };
        let (base, end, file) = self.file_at(offset.max(info.base))?;
        Ok(Some(Chunk { base, end, file, start: base, bytes: Bytes::new() }))
    }

    fn frame(&self, chunk: &mut Chunk, at: u64) -> Result<Found, StorageError> {
        let bytes = self.bytes(chunk, at, FRAME_HEADER as u64)?;
        let base = chunk.base;
        let damaged = |what: &str| {
            let (place, byte) = (self.file_place(base), at - base + HEADER_BLOCK);
            StorageError::Damaged(format!("{place} at byte {byte} (offset {at}): {what}"))
        };
        let header = FrameHeader::decode(&bytes, at, self.incarnation());
        let header = header.ok_or_else(|| damaged("no frame starts here"))?;
        if matches!(header.kind, format::KIND_SEAL | format::KIND_CLOSE) {
            return Ok(Found::End);
        }
        let kind = FrameKind::from_u8(header.kind)
            .ok_or_else(|| damaged(&format!("frame kind {} is not known", header.kind)))?;
        let data_len = header.head_len as usize + header.body_len as usize;
        let bytes = self.bytes(chunk, at, (FRAME_HEADER + data_len) as u64)?;
        let Some(data) = bytes.get(FRAME_HEADER..FRAME_HEADER + data_len) else {
            return Err(damaged("the file ends inside a frame"));
        };
        if crc32c::crc32c(data) != header.data_crc {
            return Err(damaged("the frame's checksum is wrong"));
        }
        // Copied: a message that stays in memory must not keep the whole chunk there.
        let data = Bytes::copy_from_slice(data);
        let head = data.slice(..header.head_len as usize);
        let body = data.slice(header.head_len as usize..);
        Ok(Found::Frame { kind, head, body, next: at + header.frame_len() })
    }

    /// The bytes from `at` on: at least `len`, unless the segment ends before.
    fn bytes(&self, chunk: &mut Chunk, at: u64, len: u64) -> Result<Bytes, StorageError> {
        let have = chunk.start + chunk.bytes.len() as u64;
        if at < chunk.start || at + len > have {
            let want = len.max(CHUNK).min(chunk.end.saturating_sub(at)) as usize;
            let mut buffer = vec![0; want];
            let read = chunk.file.read_at(&mut buffer, at - chunk.base + HEADER_BLOCK);
            buffer.truncate(read.map_err(|error| self.no_read(chunk.base, &error))?);
            (chunk.start, chunk.bytes) = (at, buffer.into());
        }
        Ok(chunk.bytes.slice((at - chunk.start) as usize..))
    }
}
