//! Reading a segment from front to back: its frames, and where they end.

use std::cell::OnceCell;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::disk::{Disk, DiskFile};
use super::format::{self, BadHeader, FRAME_HEADER, FrameHeader, HEADER_BLOCK, SegmentHeader};
use super::types::FrameKind;
use crate::storage::StorageError;

/// What is read from the medium at a time.
const WINDOW: usize = 4 << 20;

/// A segment as recovery sees it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) header: SegmentHeader,
    /// Opened when it is looked into: a log may have more segments than a process may have files.
    file: OnceCell<(Arc<dyn DiskFile>, u64)>,
    disk: Arc<dyn Disk>,
}

/// Where the frames of a segment end, and why there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) at: u64,
    pub(super) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A seal: the next segment goes on.
    Sealed,
    /// The log was stopped in peace here.
    Closed,
    /// The limit the caller gave.
    Limit,
    /// No whole frame stands here.
    Broken,
}

impl Found {
    /// Reads and checks the header of the segment file at `base`.
    pub(super) fn open(disk: &Arc<dyn Disk>, base: u64) -> Result<Found, StorageError> {
        let unknown =
            SegmentHeader { base, capacity: 0, incarnation: 0, after: 0, cut: 0, synced: 0 };
        let (header, disk) = (unknown, Arc::clone(disk));
        let mut found = Found { header, file: OnceCell::new(), disk };
        let mut bytes = [0; HEADER_BLOCK as usize];
        let file = found.disk.open(&format::file_name(base));
        let got = file.and_then(|file| file.read_at(&mut bytes, 0));
        let got = got.map_err(|error| found.unavailable("cannot read", &error))?;
        found.header = SegmentHeader::of_block(&bytes[..got]).map_err(|bad| match bad {
            BadHeader::Unreadable => StorageError::Damaged(format!(
                "{} at byte 0: the segment header is broken",
                found.place()
            )),
            BadHeader::Version(version) => StorageError::Damaged(format!(
                "{}: log format version {version} is not known to this program, which knows \
                 version {}; was it written by a newer one?",
                found.place(),
                format::FORMAT_VERSION
            )),
        })?;
        if found.header.base != base {
            let other = found.header.base;
            let what = format!("the header names another base ({other}) than the file name");
            found.header.base = base;
            return Err(found.damaged(base, &what));
        }
        Ok(found)
    }

    fn place(&self) -> String {
        format!("{}/{}", self.disk.place(), format::file_name(self.header.base))
    }

    /// The open file and its length.
    fn file(&self) -> Result<&(Arc<dyn DiskFile>, u64), StorageError> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.disk.open(&format::file_name(self.header.base));
        let file = file.and_then(|file| file.bytes().map(|len| (file, len)));
        let file = file.map_err(|error| self.unavailable("cannot read", &error))?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Makes the segment last, if it was looked into: until now it may have been in the page
    /// cache only.
    pub(super) fn make_last(&self) -> Result<(), StorageError> {
        match self.file.get() {
            Some((file, _)) => file.sync().map_err(|error| self.unavailable("cannot sync", &error)),
            None => Ok(()),
        }
    }

    /// Gives back the space behind `end`.
    pub(super) fn truncate(&self, end: u64) -> Result<(), StorageError> {
        let (file, _) = self.file()?;
        file.truncate(end - self.header.base + HEADER_BLOCK)
            .map_err(|error| self.unavailable("cannot cut", &error))
    }

    /// An error that names the file and the byte of `offset`.
    pub(super) fn damaged(&self, offset: u64, what: &str) -> StorageError {
        let byte = offset.saturating_sub(self.header.base).saturating_add(HEADER_BLOCK);
        let place = self.place();
        StorageError::Damaged(format!("{place} at byte {byte} (offset {offset}): {what}"))
    }

    fn unavailable(&self, what: &str, error: &io::Error) -> StorageError {
        StorageError::Unavailable(format!("{what} {}: {error}", self.place()))
    }

    /// Hands every whole frame below `limit` to `visit` and says where that ended.
    pub(super) fn walk(
        &self,
        limit: u64,
        visit: &mut dyn FnMut(u64, u64, FrameKind, Bytes, Bytes) -> Result<(), StorageError>,
    ) -> Result<Stop, StorageError> {
        let mut window = Window::new(self);
        let mut offset = self.header.base;
        while offset < limit {
            let broken = Stop { at: offset, why: Why::Broken };
            let bytes = window.get(offset, FRAME_HEADER)?;
            let Some(header) = FrameHeader::decode(bytes, offset, self.header.incarnation) else {
                return Ok(broken);
            };
            match header.kind {
                format::KIND_SEAL => return Ok(Stop { at: offset, why: Why::Sealed }),
                format::KIND_CLOSE => return Ok(Stop { at: offset, why: Why::Closed }),
                _ => {}
            }
            let Some(kind) = FrameKind::from_u8(header.kind) else {
                let what = format!("frame kind {} is not known to this program", header.kind);
                return Err(self.damaged(offset, &what));
            };
            let (head_len, body_len) = (header.head_len as usize, header.body_len as usize);
            let bytes = window.get(offset + FRAME_HEADER as u64, head_len + body_len)?;
            if bytes.len() < head_len + body_len || crc32c::crc32c(bytes) != header.data_crc {
                return Ok(broken);
            }
            let (head, body) = bytes.split_at(head_len);
            let end = offset + header.frame_len();
            visit(offset, end, kind, Bytes::copy_from_slice(head), Bytes::copy_from_slice(body))?;
            offset = end;
        }
        Ok(Stop { at: offset, why: Why::Limit })
    }

    /// The greatest "the log is durable up to here" that anything at or behind `from` says.
    pub(super) fn claims_from(&self, from: u64) -> Result<u64, StorageError> {
        let mut window = Window::new(self);
        let mut claim = 0;
        let mut offset = from.max(self.header.base).next_multiple_of(8);
        loop {
            let bytes = window.get_some(offset, FRAME_HEADER)?;
            if bytes.len() < FRAME_HEADER {
                return Ok(claim);
            }
            let places = (bytes.len() - FRAME_HEADER) / 8 + 1;
            for place in 0..places {
                let at = offset + place as u64 * 8;
                let header = FrameHeader::decode(&bytes[place * 8..], at, self.header.incarnation);
                claim = header.map_or(claim, |header| claim.max(header.synced));
            }
            offset += places as u64 * 8;
        }
    }
}

/// A view of a segment file that moves forward.
struct Window<'a> {
    found: &'a Found,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(found: &'a Found) -> Self {
        Self { found, start: 0, bytes: Vec::new() }
    }

    /// `len` bytes from `offset` on; fewer only at the end of the file.
    fn get(&mut self, offset: u64, len: usize) -> Result<&[u8], StorageError> {
        let some = self.get_some(offset, len)?;
        Ok(&some[..some.len().min(len)])
    }

    /// At least `len` bytes from `offset` on; fewer only at the end of the file.
    fn get_some(&mut self, offset: u64, len: usize) -> Result<&[u8], StorageError> {
        let have_to = self.start + self.bytes.len() as u64;
        if offset < self.start || offset + len as u64 > have_to {
            let at = offset - self.found.header.base + HEADER_BLOCK;
            let (file, file_len) = self.found.file()?;
            let left = file_len.saturating_sub(at);
            // A broken length must not make us ask for more memory than there is file.
            self.bytes.resize((len.max(WINDOW) as u64).min(left) as usize, 0);
            self.start = offset;
            let read = file.read_at(&mut self.bytes, at);
            let got = read.map_err(|error| self.found.unavailable("cannot read", &error))?;
            self.bytes.truncate(got);
        }
        Ok(&self.bytes[(offset - self.start).min(self.bytes.len() as u64) as usize..])
    }
}
