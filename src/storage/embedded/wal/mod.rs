//! The write-ahead log of the embedded profile.
//!
//! What comes in: frames, from any thread, each with a sink. What goes out: every frame at one
//! offset of one order, as durable as was asked, applied, and its sink settled exactly once.
//! Called by the rest of `storage::embedded` only. Never: knowledge of what a frame means.

mod disk;
mod types;

use std::sync::Arc;

use bytes::Bytes;

use crate::storage::{AppendSink, Durability, StorageError};

pub use disk::{Disk, DiskFile};
pub use types::{Applier, Driver, Frame, FrameKind, Live, SegmentInfo, SyncMode, WalConfig};

/// Takes each frame that recovery finds, in order: offset, kind, head, body.
pub type Replay<'a> = &'a mut dyn FnMut(u64, FrameKind, Bytes, Bytes) -> Result<(), StorageError>;

/// The log; clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Wal {
    inner: Arc<()>,
}

#[allow(unused_variables, reason = "skeleton")]
impl Wal {
    /// Recovers the log. Whole frames from `replay_from` on go to `replay`, in order. A torn tail
    /// is cut; damage in the middle is `StorageError::Damaged`. 0 means "from the beginning".
    /// Offset 0 is never a frame's.
    pub fn open(
        disk: Arc<dyn Disk>,
        config: WalConfig,
        replay_from: u64,
        replay: Replay<'_>,
    ) -> Result<Wal, StorageError> {
        todo!()
    }

    /// Starts the driver; once. What was submitted before waits for it.
    pub fn start(&self, applier: Box<dyn Applier>, driver: Driver) {
        todo!()
    }

    /// Never blocks; queues under one short lock; wakes the driver only if it sleeps.
    pub fn submit(
        &self,
        frame: Frame,
        durability: Durability,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        todo!()
    }

    /// Reads a frame back, from whichever segment holds it. Blocks on the medium.
    pub fn read(&self, offset: u64) -> Result<(FrameKind, Bytes, Bytes), StorageError> {
        todo!()
    }

    /// Everything settled so far is below.
    pub fn end(&self) -> u64 {
        todo!()
    }

    /// Base of the oldest segment.
    pub fn first(&self) -> u64 {
        todo!()
    }

    /// The log's incarnation: drawn when it was made, the same until it is deleted.
    pub fn incarnation(&self) -> u64 {
        todo!()
    }

    /// Oldest first; the last one is being written.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        todo!()
    }

    /// Removes segments that lie wholly below `offset`; never the one being written.
    pub fn remove_before(&self, offset: u64) -> Result<(), StorageError> {
        todo!()
    }

    /// Bytes submitted and not yet settled.
    pub fn pending_bytes(&self) -> u64 {
        todo!()
    }

    /// `None` when healthy, else one sentence for health and log.
    pub fn trouble(&self) -> Option<String> {
        todo!()
    }

    /// Writes and settles what waits, then ends the driver. Later submissions settle as
    /// `NotStored`, in `submit` itself.
    pub fn stop(&self) {
        todo!()
    }
}

/// The real file layer: a folder of this machine, which it makes if it is missing and locks.
#[derive(Debug)]
pub struct RealDisk {}

#[allow(unused_variables, reason = "skeleton")]
impl RealDisk {
    pub fn open(folder: &std::path::Path) -> Result<Arc<dyn Disk>, StorageError> {
        todo!()
    }
}

/// An advisory lock on a folder (file `LOCK`), held until it is dropped.
#[derive(Debug)]
pub struct FolderLock {}

#[allow(unused_variables, reason = "skeleton")]
impl FolderLock {
    /// Makes the folder if it is missing. Another holder is an error that names the folder.
    pub fn take(folder: &std::path::Path) -> Result<FolderLock, StorageError> {
        todo!()
    }
}
