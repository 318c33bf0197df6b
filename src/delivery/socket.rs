//! A socket that takes bytes at once, or says that it is full: what lets an outbox spare the
//! writer task, and its wake-up, for what fits.

use std::io::{self, IoSlice};

use tokio::net::tcp::OwnedWriteHalf;

/// The write side of a connection, beside its writer task. Never blocks.
pub trait Socket: Send + Sync {
    /// One vectored write of what fits; `WouldBlock` when nothing does.
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Socket for OwnedWriteHalf {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // `send` costs a tenth less than `writev` (docs/performance.md).
        if let [one] = slices { self.try_write(one) } else { self.try_write_vectored(slices) }
    }
}
