//! What callers of the log hand in and get told: frames, the applier, settings.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::storage::{Batch, LogItem, Row};

/// What a frame holds. The number stands on disk; an unknown one is refused as damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    Publishes = 1,
    Direct = 2,
    Rows = 3,
    Received = 4,
    IdRun = 5,
    QueueOpen = 6,
    QueueRemove = 7,
}

impl FrameKind {
    /// The kind with this number, if there is one.
    pub fn from_u8(number: u8) -> Option<Self> {
        match number {
            1 => Some(FrameKind::Publishes),
            2 => Some(FrameKind::Direct),
            3 => Some(FrameKind::Rows),
            4 => Some(FrameKind::Received),
            5 => Some(FrameKind::IdRun),
            6 => Some(FrameKind::QueueOpen),
            7 => Some(FrameKind::QueueRemove),
            0 | 8..=u8::MAX => None,
        }
    }
}

/// One record of the log.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: FrameKind,
    /// Small and specific to the kind; encoded by the caller.
    pub head: Bytes,
    /// May be large; it is not copied again before the write.
    pub body: Bytes,
    /// Travels along in memory only; a replay does not have it.
    pub live: Option<Live>,
}

/// What rides along so that nobody parses back what was just encoded.
#[derive(Clone, Debug)]
pub enum Live {
    Batch(Arc<Batch>),
    /// A direct frame as the consumer will get it.
    Direct(LogItem),
    Rows(Arc<[Row]>),
}

/// The state machine above the log.
///
/// Called by the driver only, in offset order, when the frame is as durable as was asked and
/// before its sink settles. Must not block and must not wait for a sink.
pub trait Applier: Send {
    fn apply(&mut self, offset: u64, frame: &Frame);

    /// All frames below `end` were applied; their sinks settle next.
    fn group_end(&mut self, end: u64);

    /// All sinks of the frames below `end` were told.
    fn group_settled(&mut self, _end: u64) {}
}

/// When the log asks the medium to make writes last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// One fdatasync for every group that holds a durable frame.
    #[default]
    Always,
    /// Never. **Unsafe**: durable frames settle when the operating system has them, so a loss of
    /// power loses what was acknowledged (a crash of the program alone does not). For laptops and
    /// load tests.
    Never,
}

#[derive(Clone, Debug)]
pub struct WalConfig {
    /// Size of a segment file. A frame that is larger gets a segment of its own size.
    pub segment_bytes: u64,
    pub sync: SyncMode,
    /// Incarnation of a log that is made anew; `None` draws one at random. An existing log keeps
    /// its own.
    pub incarnation: Option<u64>,
    /// How long to wait after trouble before the medium is tried again.
    pub retry_after: Duration,
}

impl Default for WalConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            sync: SyncMode::Always,
            incarnation: None,
            retry_after: Duration::from_secs(1),
        }
    }
}

/// Who runs the writer's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Production: a named thread of the operating system.
    Thread,
    /// Simulation: a task on the current Tokio runtime; the same code.
    Task,
}

/// One segment: the offset of its first frame and the offset behind its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    pub base: u64,
    pub end: u64,
}
