//! Making segments: the next one is made while the present one is being written, so that moving
//! on costs no more than a pointer.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::disk::{Disk, DiskFile};
use super::format::{HEADER_BLOCK, SECOND_HEADER, SegmentHeader, UNBORN, file_name};
use super::segments::Segments;

/// A segment ready to be written to: whole, durable, with its final name.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) header: SegmentHeader,
    pub(super) file: Arc<dyn DiskFile>,
}

/// Makes the segment behind `header`. A file with a segment's name always has a durable header:
/// it is made under another name and renamed.
pub(super) fn make(disk: &dyn Disk, header: SegmentHeader) -> io::Result<Made> {
    let name = file_name(header.base);
    let unborn = format!("{name}{UNBORN}");
    let file = disk.create(&unborn, HEADER_BLOCK + header.capacity);
    let made = file.and_then(|file| give_name(disk, &unborn, file, header));
    if made.is_err() {
        // Best effort: the space is wanted back, and recovery removes it in any case.
        drop(disk.remove(&unborn));
    }
    made
}

/// Makes the segment of a file that was one before. What it holds from then is no frame at its
/// new offsets.
fn make_of_spare(disk: &dyn Disk, spare: &str, header: SegmentHeader) -> io::Result<Made> {
    let made = disk.open(spare).and_then(|file| give_name(disk, spare, file, header));
    if made.is_err() {
        drop(disk.remove(spare));
    }
    made
}

fn give_name(
    disk: &dyn Disk,
    from: &str,
    file: Arc<dyn DiskFile>,
    header: SegmentHeader,
) -> io::Result<Made> {
    write_header(&*file, &header, 0)?;
    disk.rename(from, &file_name(header.base))?;
    disk.sync_dir()?;
    Ok(Made { header, file })
}

fn make_or_reuse(disk: &dyn Disk, spare: Option<&str>, header: SegmentHeader) -> io::Result<Made> {
    match spare {
        Some(spare) => make_of_spare(disk, spare, header).or_else(|_| make(disk, header)),
        None => make(disk, header),
    }
}

/// Writes a header that replaces the one that is there, and makes it last.
pub(super) fn replace_header(file: &dyn DiskFile, header: &SegmentHeader) -> io::Result<()> {
    write_header(file, header, SECOND_HEADER)
}

fn write_header(file: &dyn DiskFile, header: &SegmentHeader, place: u64) -> io::Result<()> {
    let bytes = header.encode();
    let mut at = 0;
    while at < bytes.len() {
        match file.write_at(&[IoSlice::new(&bytes[at..])], place + at as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    file.sync()
}

/// The place where the next segment waits. At most one is made ahead.
#[derive(Debug)]
pub(super) struct Next {
    disk: Arc<dyn Disk>,
    segments: Arc<Segments>,
    /// Made ahead by a helper thread (production), or when it is needed (simulation).
    ahead: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Nothing,
    Making(JoinHandle<io::Result<Made>>),
    Ready(Made),
}

impl Next {
    pub(super) fn new(disk: Arc<dyn Disk>, segments: Arc<Segments>) -> Self {
        Self { disk, segments, ahead: false, state: State::Nothing }
    }

    pub(super) fn make_ahead(&mut self) {
        self.ahead = true;
    }

    /// Begins to make the segment, if this is done ahead. A failure shows only in `take`.
    pub(super) fn request(&mut self, header: SegmentHeader) {
        if !self.ahead {
            return;
        }
        let (disk, spare) = (Arc::clone(&self.disk), self.segments.take_spare());
        let builder = std::thread::Builder::new().name("sluice-log-next".into());
        if let Ok(handle) = builder.spawn(move || make_or_reuse(&*disk, spare.as_deref(), header)) {
            self.state = State::Making(handle);
        }
    }

    /// The segment that was requested, or made now if that failed.
    pub(super) fn take(&mut self, header: SegmentHeader) -> io::Result<Made> {
        let made = match std::mem::replace(&mut self.state, State::Nothing) {
            State::Nothing => None,
            State::Making(handle) => handle.join().ok().and_then(Result::ok),
            State::Ready(made) => Some(made),
        };
        match made {
            Some(made) if made.header.base == header.base => Ok(made),
            Some(_) | None => {
                let spare = self.segments.take_spare();
                make_or_reuse(&*self.disk, spare.as_deref(), header)
            }
        }
    }

    /// Gives back what `take` gave: nothing was written into it.
    pub(super) fn put_back(&mut self, made: Made) {
        self.state = State::Ready(made);
    }

    /// Waits for the helper thread.
    pub(super) fn finish(&mut self) {
        if let State::Making(handle) = std::mem::replace(&mut self.state, State::Nothing) {
            drop(handle.join());
        }
    }
}
