//! The writer: takes groups of submissions, makes each as durable as asked, applies it and
//! settles it. Knows no thread and no task; `driver` calls it.
//!
//! ```text
//! writing ──no room──▶ next segment ──▶ writing
//!    │                     └─none to be had─▶ full: what fits goes on, the rest is NotStored,
//!    │                                        tried again every `retry_after` ──▶ writing
//!    └─write or sync failed─▶ broken: nothing more goes into this segment; the next one says
//!                             where it was cut, and is written to when that lasts ──▶ writing
//! ```

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::disk::{Disk, DiskFile};
use super::format::{self, FRAME_HEADER, FrameHeader, HEADER_BLOCK, SegmentHeader};
use super::prepare::{self, Made, Next};
use super::segments::Segments;
use super::staging::{Staging, WriteFailed};
use super::types::{Applier, Frame, SyncMode, WalConfig};
use crate::storage::{AppendOutcome, AppendSink, Durability, Position};
use crate::telemetry::metrics;

/// What one write and one sync carry at most; what waits beyond it goes into the next run.
const RUN_BYTES_MAX: u64 = 8 << 20;
/// Room kept free at the end of a segment for the frame that seals it.
const SEAL: u64 = FRAME_HEADER as u64;

/// A frame on its way, with the duty to tell its sink.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) frame: Frame,
    pub(super) durability: Durability,
    pub(super) data_crc: u32,
    pub(super) reply: Reply,
}

impl Submission {
    /// Bytes in memory and, nearly, on disk.
    pub(super) fn bytes(&self) -> u64 {
        (FRAME_HEADER + self.frame.head.len() + self.frame.body.len()) as u64
    }

    fn header(&self, synced: u64) -> FrameHeader {
        FrameHeader {
            data_crc: self.data_crc,
            synced,
            head_len: self.frame.head.len() as u32,
            body_len: self.frame.body.len() as u32,
            kind: self.frame.kind as u8,
        }
    }
}

/// Settles its ticket exactly once: with an outcome, or, when it is dropped, with what is true
/// at that time. So no path, a panic included, forgets a submission.
pub(super) struct Reply {
    sink: Option<Arc<dyn AppendSink>>,
    ticket: u64,
    /// What a drop means.
    unsettled: AppendOutcome,
}

impl Reply {
    pub(super) fn new(sink: Arc<dyn AppendSink>, ticket: u64) -> Self {
        Self { sink: Some(sink), ticket, unsettled: AppendOutcome::NotStored }
    }

    fn settle(&mut self, outcome: AppendOutcome) {
        if let Some(sink) = self.sink.take() {
            sink.settled(self.ticket, outcome);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.settle(self.unsettled);
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({}, settled: {})", self.ticket, self.sink.is_none())
    }
}

#[derive(Debug)]
struct Active {
    header: SegmentHeader,
    file: Arc<dyn DiskFile>,
    /// Where the next frame goes.
    at: u64,
    /// Set when a write or a sync failed: the segment counts only below this.
    cut: Option<u64>,
}

pub(super) struct Writer {
    disk: Arc<dyn Disk>,
    config: WalConfig,
    segments: Arc<Segments>,
    trouble: Arc<Mutex<Option<String>>>,
    active: Active,
    next: Next,
    /// Everything below is known to last; stays 0 when syncing is off.
    synced: u64,
    /// While there is trouble: not before this.
    retry_at: Option<Instant>,
    staging: Staging,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("active", &self.active).finish_non_exhaustive()
    }
}

impl Writer {
    /// Goes on in `made`, which is new and empty.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        config: WalConfig,
        segments: Arc<Segments>,
        trouble: Arc<Mutex<Option<String>>>,
        made: Made,
    ) -> Self {
        let synced = if config.sync == SyncMode::Always { made.header.base } else { 0 };
        segments.push_active(made.header.base, Arc::clone(&made.file));
        let active =
            Active { at: made.header.base, header: made.header, file: made.file, cut: None };
        let next = Next::new(Arc::clone(&disk), Arc::clone(&segments));
        let staging = Staging::default();
        let retry_at = None;
        Self { disk, config, segments, trouble, active, next, synced, retry_at, staging }
    }

    /// From now on the next segment is made by a helper thread while this one is written.
    pub(super) fn make_ahead(&mut self) {
        self.next.make_ahead();
        self.next.request(self.next_header());
    }

    /// Writes, syncs, applies and settles all of `group`, and leaves it empty.
    pub(super) fn run_group(&mut self, group: &mut Vec<Submission>, applier: &mut dyn Applier) {
        let mut from = 0;
        while from < group.len() {
            if self.make_room(&group[from]) {
                let to = from + self.stage_run(&group[from..]);
                self.write_run(&mut group[from..to], applier);
                from = to;
            } else {
                group[from].reply.settle(AppendOutcome::NotStored);
                from += 1;
            }
        }
        group.clear();
    }

    // === one run: frames of one segment, one write, at most one sync ===

    /// Stages as many frames as go into one run, at least one. How many there are.
    fn stage_run(&mut self, submissions: &[Submission]) -> usize {
        self.staging.clear();
        let log = self.segments.incarnation();
        let mut at = self.active.at;
        for (index, submission) in submissions.iter().enumerate() {
            let header = submission.header(self.synced);
            let len = header.frame_len();
            let fits = at + len + SEAL <= self.active.header.end_of_room();
            let few = self.staging.bytes() + len <= RUN_BYTES_MAX;
            if index > 0 && !(fits && few && describable(&submission.frame)) {
                return index;
            }
            self.staging.push(&header, &submission.frame, at, log);
            at += len;
        }
        submissions.len()
    }

    fn write_run(&mut self, run: &mut [Submission], applier: &mut dyn Applier) {
        let start = self.active.at;
        for submission in run.iter_mut() {
            submission.reply.unsettled = AppendOutcome::InDoubt;
        }
        let started = Instant::now();
        let durable = run.iter().any(|one| one.durability == Durability::Durable);
        if let Err(failed) = self.write_staged() {
            let outcome =
                if failed.touched { AppendOutcome::InDoubt } else { AppendOutcome::NotStored };
            self.break_off("write", &failed.error);
            run.iter_mut().for_each(|submission| submission.reply.settle(outcome));
            return;
        }
        let end = start + self.staging.bytes();
        if durable
            && self.config.sync == SyncMode::Always
            && let Err(error) = self.sync_to(end)
        {
            self.break_off("sync", &error);
            run.iter_mut().for_each(|submission| submission.reply.settle(AppendOutcome::InDoubt));
            return;
        }
        metrics::LOG_SYNC.observe(started.elapsed());
        metrics::LOG_APPENDED_BYTES.add(end - start);
        tracing::trace!(stop = 6, position = start, end, frames = run.len(), durable, "written");
        self.active.at = end;
        self.segments.set_end(end);
        let mut offset = start;
        for submission in run.iter() {
            applier.apply(offset, &submission.frame);
            offset += submission.header(0).frame_len();
        }
        applier.group_end(end);
        let mut offset = start;
        for submission in run.iter_mut() {
            let position = Position { partition: 0, offset };
            offset += submission.header(0).frame_len();
            submission.reply.settle(AppendOutcome::Stored(position));
        }
        applier.group_settled(end);
    }

    fn write_staged(&mut self) -> Result<(), WriteFailed> {
        let at = self.active.at - self.active.header.base + HEADER_BLOCK;
        self.staging.write(&*self.active.file, at)
    }

    /// Makes everything below `end` last.
    fn sync_to(&mut self, end: u64) -> io::Result<()> {
        self.active.file.sync()?;
        self.synced = end;
        Ok(())
    }

    // === moving on ===

    /// Whether the frame may be written now; moves on to another segment if it has to.
    fn make_room(&mut self, submission: &Submission) -> bool {
        if !describable(&submission.frame) {
            return false;
        }
        let need = submission.header(0).frame_len() + SEAL;
        let room = self.active.header.end_of_room() - self.active.at;
        if self.active.cut.is_none() && need <= room {
            return true;
        }
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        self.try_move_on(need)
    }

    fn try_move_on(&mut self, need: u64) -> bool {
        match self.move_on(need) {
            Ok(()) => {
                self.healed();
                true
            }
            Err(error) => {
                self.in_trouble("cannot go on in a new segment", &error);
                false
            }
        }
    }

    fn next_header(&self) -> SegmentHeader {
        SegmentHeader {
            base: self.active.header.end_of_room(),
            capacity: self.config.segment_bytes,
            incarnation: self.active.header.incarnation,
            after: self.active.header.base,
            cut: 0,
            synced: 0,
        }
    }

    /// Leaves this segment for the next one, which gets room for `need` bytes.
    fn move_on(&mut self, need: u64) -> io::Result<()> {
        let mut made = self.next.take(self.next_header())?;
        if self.active.cut.is_none()
            && let Err(error) = self.seal(format::KIND_SEAL)
        {
            self.break_off("seal", &error);
        }
        match self.adapt(&mut made, need) {
            Ok(()) => {}
            // The header is what it was: the segment can wait for another try.
            Err((error, Untouched::Yes)) => {
                self.next.put_back(made);
                return Err(error);
            }
            // Thrown away; the next try makes it again.
            Err((error, Untouched::No)) => return Err(error),
        }
        self.segments.push_active(made.header.base, Arc::clone(&made.file));
        self.active =
            Active { at: made.header.base, header: made.header, file: made.file, cut: None };
        if self.config.sync == SyncMode::Always {
            self.synced = self.active.at;
        }
        self.next.request(self.next_header());
        Ok(())
    }

    /// Writes the header anew if the frame to come is larger than the segment, or if it has to
    /// say where its predecessor was cut. That also proves that the medium takes writes again.
    fn adapt(&self, made: &mut Made, need: u64) -> Result<(), (io::Error, Untouched)> {
        let cut = self.active.cut.unwrap_or(0);
        if cut == 0 && need <= made.header.capacity {
            return Ok(());
        }
        let capacity = made.header.capacity.max(need);
        made.file.grow(HEADER_BLOCK + capacity).map_err(|error| (error, Untouched::Yes))?;
        let header = SegmentHeader { capacity, cut, synced: self.synced, ..made.header };
        prepare::replace_header(&*made.file, &header).map_err(|error| (error, Untouched::No))?;
        made.header = header;
        Ok(())
    }

    /// Ends the segment with a mark, and makes all of it last: so `synced` may go on counting in
    /// the next one.
    fn seal(&mut self, kind: u8) -> io::Result<()> {
        let mark = FrameHeader { data_crc: 0, synced: self.synced, head_len: 0, body_len: 0, kind };
        self.staging.clear();
        self.staging.push_mark(&mark, self.active.at, self.segments.incarnation());
        self.write_staged().map_err(|failed| failed.error)?;
        if self.config.sync == SyncMode::Always {
            self.sync_to(self.active.at)?;
        }
        Ok(())
    }

    // === trouble ===

    /// A write or sync failed: nothing more goes into this segment. What a failed sync covered is
    /// never synced again as if nothing had happened, for the kernel may have dropped it.
    fn break_off(&mut self, what: &str, error: &io::Error) {
        let always = self.config.sync == SyncMode::Always;
        if what == "write" && always && self.synced < self.active.at {
            // Relaxed frames of earlier runs are worth one try; else they go with the cut.
            if self.active.file.sync().is_ok() {
                self.synced = self.active.at;
            }
        }
        self.active.cut = Some(if always { self.synced } else { self.active.at });
        self.in_trouble(&format!("{what} failed"), error);
        // The first try with a new segment needs no waiting.
        self.retry_at = None;
    }

    fn in_trouble(&mut self, what: &str, error: &io::Error) {
        self.retry_at = Some(Instant::now() + self.config.retry_after);
        let full = error.kind() == io::ErrorKind::StorageFull;
        let why = if full { "the disk is full".to_owned() } else { error.to_string() };
        let text = format!("log in {}: {what}: {why}", self.disk.place());
        let mut trouble = self.trouble.lock();
        if trouble.as_ref() != Some(&text) {
            tracing::error!("{text}; new messages are refused until this is over");
            *trouble = Some(text);
        }
    }

    fn healed(&mut self) {
        self.retry_at = None;
        if self.trouble.lock().take().is_some() {
            tracing::info!("log in {}: writing again", self.disk.place());
        }
    }

    /// Whether `tend` is to be called in a while although nothing was submitted.
    pub(super) fn ill(&self) -> bool {
        self.retry_at.is_some() || self.active.cut.is_some()
    }

    /// While there is trouble: tries to get over it.
    pub(super) fn tend(&mut self) {
        if !self.ill() || self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        if self.active.cut.is_some() {
            self.try_move_on(0);
            return;
        }
        match self.next.take(self.next_header()) {
            Ok(made) => {
                self.next.put_back(made);
                self.healed();
            }
            Err(error) => self.in_trouble("cannot go on in a new segment", &error),
        }
    }

    /// Ends the log in peace: the next start can tell that nothing is missing.
    pub(super) fn close(&mut self) {
        if self.active.cut.is_none()
            && let Err(error) = self.seal(format::KIND_CLOSE)
        {
            self.in_trouble("cannot close", &error);
        }
        self.next.finish();
    }
}

/// Whether a header on disk is surely what it was.
enum Untouched {
    Yes,
    No,
}

/// Whether the format's 32-bit lengths can describe it.
fn describable(frame: &Frame) -> bool {
    u32::try_from(frame.head.len().max(frame.body.len())).is_ok()
}
