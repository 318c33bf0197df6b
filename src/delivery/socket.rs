//! A socket that takes bytes at once, or says that it is full: what lets an outbox spare the
//! writer task for what fits. There is one only while something is left to it.

use std::io::{self, IoSlice};
use std::sync::{Arc, Weak};

use super::Outbox;
use super::channel::Channel;
use crate::telemetry::metrics;

/// The write side of a connection, in the hands of whoever has something for it. Never blocks.
pub trait Socket: Send + Sync {
    /// One vectored write of what fits; `WouldBlock` when nothing does.
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Starts a task that runs [`write`](super::write) over this socket. Called from any thread.
    fn start_writer(self: Arc<Self>, outbox: Arc<Outbox>, owner: Weak<dyn Owner>);
}

/// Whose connection it is.
pub trait Owner: Send + Sync {
    /// Everything was written, and the outbox is closed.
    fn written_out(&self);
}

/// A socket without a task of its own.
pub(super) struct Hand {
    pub(super) socket: Arc<dyn Socket>,
    pub(super) owner: Weak<dyn Owner>,
}

impl Hand {
    /// Hands what is left to a task.
    pub(super) fn start_writer(&self, outbox: &Weak<Outbox>) {
        if let Some(outbox) = outbox.upgrade() {
            Arc::clone(&self.socket).start_writer(outbox, Weak::clone(&self.owner));
        }
    }
}

impl Channel {
    /// Writes what the socket takes at once. What is left, a socket that is full or has failed
    /// included, is the writer's. `true`: whoever waits for room is to be woken.
    pub(super) fn write_now(&mut self) -> bool {
        if self.out.is_empty() || self.writing || self.closing {
            return false;
        }
        let Some(hand) = self.hand.take() else { return false };
        let mut room = false;
        while !self.out.is_empty() {
            let written = if let Some(only) = self.out.only_slice() {
                hand.socket.try_write(&[IoSlice::new(only)])
            } else {
                let (slices, count) = self.out.slices();
                hand.socket.try_write(&slices[..count])
            };
            let Ok(written @ 1..) = written else { break };
            let (client, bytes) = (&self.settings().client_id, written);
            tracing::trace!(stop = 11, %client, bytes, "writing at once");
            let gone = self.out.advance(written);
            metrics::SENT_BYTES.add(gone.sent as u64);
            room |= self.left(gone.held) || self.marks.buffered() == 0;
        }
        self.hand = Some(hand);
        if self.out.is_empty() {
            self.out.observe(&metrics::DELIVERY);
            std::mem::take(&mut self.out).recycle();
        }
        room
    }
}
