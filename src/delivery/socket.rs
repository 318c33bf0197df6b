//! A socket that takes bytes at once, or says that it is full: what lets an outbox spare the
//! writer task, and its wake-up, for what fits.

use std::io::{self, IoSlice};

use tokio::net::tcp::OwnedWriteHalf;

use super::channel::Channel;
use crate::telemetry::metrics;

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

impl Channel {
    /// Writes what the socket takes at once. What is left, a socket that is full or has failed
    /// included, is the writer's. `true`: whoever waits for room is to be woken.
    pub(super) fn write_now(&mut self) -> bool {
        if self.out.is_empty() || self.writing || self.closing {
            return false;
        }
        let Some(socket) = self.socket.take() else { return false };
        let mut room = false;
        while !self.out.is_empty() {
            let (slices, count) = self.out.slices();
            let Ok(written @ 1..) = socket.try_write(&slices[..count]) else { break };
            let (client, bytes) = (&self.settings().client_id, written);
            tracing::trace!(stop = 11, %client, bytes, "writing at once");
            self.out.advance(written);
            metrics::SENT_BYTES.add(written as u64);
            room |= self.left(written) || self.marks.buffered() == 0;
        }
        self.socket = Some(socket);
        if self.out.is_empty() {
            metrics::DELIVERY.observe(self.out.age());
            std::mem::take(&mut self.out).recycle();
        }
        room
    }
}
