//! One run of frames on its way to a file: small things gathered, large bodies left where they
//! are, everything written with as few calls as possible.

use std::io::{self, IoSlice};
use std::ops::Range;

use bytes::Bytes;

use super::disk::DiskFile;
use super::format::{FRAME_HEADER, FrameHeader, padded};
use super::types::Frame;

/// Bodies up to this size are copied next to their header: an entry in the vector costs the
/// kernel about as much.
const COPY_MAX: usize = 4096;
/// The kernel's limit for one call.
const PARTS_MAX: usize = 1024;
/// What one call writes at most, so that no call holds the file for long.
const CALL_BYTES_MAX: usize = 4 << 20;
/// What is kept of the gathering buffer between runs.
const KEEP_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Staging {
    gathered: Vec<u8>,
    parts: Vec<Part>,
    bytes: u64,
}

#[derive(Debug)]
enum Part {
    Gathered(Range<usize>),
    Body(Bytes),
}

/// A write that failed, and whether anything may have reached the file.
#[derive(Debug)]
pub(super) struct WriteFailed {
    pub(super) touched: bool,
    pub(super) error: io::Error,
}

impl Staging {
    pub(super) fn clear(&mut self) {
        self.gathered.clear();
        self.gathered.shrink_to(KEEP_BYTES);
        self.parts.clear();
        self.bytes = 0;
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a frame that will stand at `offset`.
    pub(super) fn push(&mut self, header: &FrameHeader, frame: &Frame, offset: u64, log: u64) {
        self.gather(&header.encode(offset, log));
        self.gather(&frame.head);
        if frame.body.len() <= COPY_MAX {
            self.gather(&frame.body);
        } else {
            self.parts.push(Part::Body(frame.body.clone()));
        }
        let data_len = FRAME_HEADER + frame.head.len() + frame.body.len();
        self.gather(&[0; 8][..padded(data_len) - data_len]);
        self.bytes += header.frame_len();
    }

    /// Adds a frame without data.
    pub(super) fn push_mark(&mut self, header: &FrameHeader, offset: u64, log: u64) {
        self.gather(&header.encode(offset, log));
        self.bytes += header.frame_len();
    }

    fn gather(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let from = self.gathered.len();
        self.gathered.extend_from_slice(bytes);
        let to = self.gathered.len();
        match self.parts.last_mut() {
            Some(Part::Gathered(range)) => range.end = to,
            Some(Part::Body(_)) | None => self.parts.push(Part::Gathered(from..to)),
        }
    }

    /// Writes everything at byte `at` of `file`.
    pub(super) fn write(&self, file: &dyn DiskFile, at: u64) -> Result<(), WriteFailed> {
        let mut done = 0;
        let mut touched = false;
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(self.parts.len().min(PARTS_MAX));
        let mut parts = self.parts.iter();
        let mut left: &[u8] = &[];
        loop {
            slices.clear();
            let mut bytes = 0;
            while slices.len() < PARTS_MAX && bytes < CALL_BYTES_MAX {
                if left.is_empty() {
                    left = match parts.next() {
                        Some(Part::Gathered(range)) => &self.gathered[range.clone()],
                        Some(Part::Body(body)) => body,
                        None => break,
                    };
                }
                let (now, later) = left.split_at(left.len().min(CALL_BYTES_MAX - bytes));
                slices.push(IoSlice::new(now));
                bytes += now.len();
                left = later;
            }
            if slices.is_empty() {
                return Ok(());
            }
            write_all(file, &mut slices, at + done, &mut touched)
                .map_err(|error| WriteFailed { touched, error })?;
            done += bytes as u64;
        }
    }
}

fn write_all(
    file: &dyn DiskFile,
    mut slices: &mut [IoSlice<'_>],
    mut at: u64,
    touched: &mut bool,
) -> io::Result<()> {
    while !slices.is_empty() {
        match file.write_at(slices, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                *touched = true;
                at += count as u64;
                IoSlice::advance_slices(&mut slices, count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
