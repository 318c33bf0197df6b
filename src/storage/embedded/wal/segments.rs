//! Which segments there are, and reading from them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::disk::{Disk, DiskFile};
use super::format::{self, FRAME_HEADER, FrameHeader, HEADER_BLOCK};
use super::types::{FrameKind, SegmentInfo};
use crate::storage::StorageError;

/// Files kept open for reading; beyond it the one that was not used for longest is closed.
const OPEN_FILES_MAX: usize = 16;
/// Removed segments kept to be written again: blocks that were written before need no zeros.
const SPARES_MAX: usize = 4;
/// The first read of a frame: most small frames need no second one.
const PROBE: usize = 4096;

/// The segments of the log, oldest first. Shared by the writer, which adds, and all readers.
#[derive(Debug)]
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    incarnation: u64,
    /// Size of a file that can be used again.
    file_bytes: u64,
    /// Names of such files. They are no segments any more: recovery removes them.
    spares: Mutex<Vec<String>>,
    list: Mutex<List>,
    /// Behind the last whole frame; where the last segment ends.
    end: AtomicU64,
    /// Held while files go, so that two removals never race for one file.
    removing: Mutex<()>,
}

#[derive(Debug, Default)]
struct List {
    segments: VecDeque<Segment>,
    clock: u64,
}

#[derive(Debug)]
struct Segment {
    base: u64,
    end: u64,
    file: Option<Arc<dyn DiskFile>>,
    last_used: u64,
}

impl Segments {
    pub(super) fn new(disk: Arc<dyn Disk>, incarnation: u64, segment_bytes: u64) -> Self {
        Self {
            disk,
            incarnation,
            file_bytes: HEADER_BLOCK + segment_bytes,
            spares: Mutex::default(),
            list: Mutex::default(),
            end: AtomicU64::new(0),
            removing: Mutex::default(),
        }
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// A segment found by recovery, closed for writing.
    pub(super) fn push_old(&self, base: u64, end: u64) {
        let segment = Segment { base, end, file: None, last_used: 0 };
        self.list.lock().segments.push_back(segment);
    }

    /// The segment that is written from now on; the one before it ends where the log ends now.
    pub(super) fn push_active(&self, base: u64, file: Arc<dyn DiskFile>) {
        let mut list = self.list.lock();
        let end = self.end();
        if let Some(previous) = list.segments.back_mut().filter(|last| last.end == u64::MAX) {
            previous.end = end.max(previous.base);
        }
        let file = Some(file);
        list.segments.push_back(Segment { base, end: u64::MAX, file, last_used: 0 });
        list.close_unused();
    }

    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(super) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    pub(super) fn first(&self) -> u64 {
        self.list.lock().segments.front().map_or(0, |segment| segment.base)
    }

    pub(super) fn infos(&self) -> Vec<SegmentInfo> {
        let (list, end) = (self.list.lock(), self.end());
        let info = |segment: &Segment| SegmentInfo {
            base: segment.base,
            end: if segment.end == u64::MAX { end.max(segment.base) } else { segment.end },
        };
        list.segments.iter().map(info).collect()
    }

    /// A segment goes when its successor begins at or below `offset`: whoever replays from
    /// `offset` then still finds the segment it begins in.
    pub(super) fn remove_before(&self, offset: u64) -> Result<(), StorageError> {
        let _removing = self.removing.lock();
        let (mut removed, mut spares) = (0, Vec::new());
        loop {
            let base = match self.list.lock().segments.make_contiguous() {
                [oldest, next, ..] if next.base <= offset => oldest.base,
                _ => break,
            };
            match self.retire(base, spares.len()) {
                Ok(spare) => spares.extend(spare),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(self.failed("cannot remove", base, &error)),
            }
            self.list.lock().segments.pop_front();
            removed += 1;
        }
        if removed > 0 {
            self.disk.sync_dir().map_err(|error| {
                let place = self.disk.place();
                StorageError::Unavailable(format!("cannot sync folder {place}: {error}"))
            })?;
        }
        // Only now may they be written to: a crash must not bring the old names back over that.
        self.spares.lock().extend(spares);
        Ok(())
    }

    /// Makes a file no segment any more: a spare if one is wanted and its size is right. Whoever
    /// reads it still is told that no frame is there, for a frame counts only at its offset.
    fn retire(&self, base: u64, more_spares: usize) -> io::Result<Option<String>> {
        let name = format::file_name(base);
        let wanted = self.spares.lock().len() + more_spares < SPARES_MAX
            && self.disk.open(&name)?.bytes()? == self.file_bytes;
        if !wanted {
            return self.disk.remove(&name).map(|()| None);
        }
        let spare = format!("{name}{}", format::UNBORN);
        self.disk.rename(&name, &spare)?;
        Ok(Some(spare))
    }

    /// The name of a file of the right size, to be made a segment of.
    pub(super) fn take_spare(&self) -> Option<String> {
        self.spares.lock().pop()
    }

    pub(super) fn read(&self, offset: u64) -> Result<(FrameKind, Bytes, Bytes), StorageError> {
        let (base, end, file) = self.file_at(offset)?;
        let at = offset - base + HEADER_BLOCK;
        let damaged = |what: &str| {
            let (place, name) = (self.disk.place(), format::file_name(base));
            StorageError::Damaged(format!("{place}/{name} at byte {at}: {what}"))
        };
        let mut probe = [0; PROBE];
        let got = file.read_at(&mut probe, at).map_err(|error| self.no_read(base, &error))?;
        let Some(header) = FrameHeader::decode(&probe[..got], offset, self.incarnation) else {
            return Err(damaged("no frame starts here"));
        };
        let data_len = header.head_len as usize + header.body_len as usize;
        if offset + header.frame_len() > end {
            return Err(damaged("the frame reaches beyond the end of its segment"));
        }
        let mut data = Vec::with_capacity(data_len);
        data.extend_from_slice(&probe[FRAME_HEADER..got.min(FRAME_HEADER + data_len)]);
        let have = data.len();
        if have < data_len {
            data.resize(data_len, 0);
            let rest_at = at + (FRAME_HEADER + have) as u64;
            let read = file.read_at(&mut data[have..], rest_at);
            let got = read.map_err(|error| self.no_read(base, &error))?;
            if have + got < data_len {
                return Err(damaged("the file ends inside a frame"));
            }
        }
        if crc32c::crc32c(&data) != header.data_crc {
            return Err(damaged("the frame's checksum is wrong"));
        }
        let kind = FrameKind::from_u8(header.kind)
            .ok_or_else(|| damaged(&format!("frame kind {} is not known", header.kind)))?;
        let data = Bytes::from(data);
        let head = data.slice(..header.head_len as usize);
        Ok((kind, head, data.slice(header.head_len as usize..)))
    }

    pub(super) fn file_at(
        &self,
        offset: u64,
    ) -> Result<(u64, u64, Arc<dyn DiskFile>), StorageError> {
        let mut list = self.list.lock();
        let index = list.segments.partition_point(|segment| segment.base <= offset);
        let log_end = self.end();
        let found = index.checked_sub(1).map(|index| &list.segments[index]);
        let found = found.filter(|segment| offset < segment.end.min(log_end));
        let Some(&Segment { base, end, .. }) = found else {
            let text = format!("offset {offset} lies in no segment of {}", self.disk.place());
            return Err(StorageError::Damaged(text));
        };
        list.clock += 1;
        let now = list.clock;
        let segment = &mut list.segments[index - 1];
        segment.last_used = now;
        if let Some(file) = &segment.file {
            return Ok((base, end.min(log_end), Arc::clone(file)));
        }
        let opened = self.disk.open(&format::file_name(base));
        let file = opened.map_err(|error| self.no_read(base, &error))?;
        segment.file = Some(Arc::clone(&file));
        list.close_unused();
        Ok((base, end.min(log_end), file))
    }

    /// Names a segment's file in a message.
    pub(super) fn file_place(&self, base: u64) -> String {
        format!("{}/{}", self.disk.place(), format::file_name(base))
    }

    pub(super) fn no_read(&self, base: u64, error: &io::Error) -> StorageError {
        self.failed("cannot read", base, error)
    }

    fn failed(&self, what: &str, base: u64, error: &io::Error) -> StorageError {
        let (place, name) = (self.disk.place(), format::file_name(base));
        StorageError::Unavailable(format!("{what} {place}/{name}: {error}"))
    }
}

impl List {
    /// Keeps the number of open files bounded; the last segment stays open, for it is written.
    fn close_unused(&mut self) {
        let old = self.segments.len().saturating_sub(1);
        while self.segments.iter().filter(|segment| segment.file.is_some()).count() > OPEN_FILES_MAX
        {
            let open = self.segments.iter_mut().take(old).filter(|one| one.file.is_some());
            match open.min_by_key(|segment| segment.last_used) {
                Some(segment) => segment.file = None,
                None => break,
            }
        }
    }
}
