//! Bytes read from one socket and not decoded yet. An idle connection holds none: the large
//! buffers belong to the thread, and go from one connection to the next.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use crate::limits::READ_CHUNK_BYTES;

/// Buffers kept per thread; further ones are freed.
const POOLED: usize = 4;
/// A partial frame of up to this many bytes waits in a buffer of its own size.
const SMALL: usize = 2048;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn take() -> Vec<u8> {
    let pooled = POOL.with_borrow_mut(Vec::pop);
    pooled.unwrap_or_else(|| vec![0; READ_CHUNK_BYTES])
}

fn give(buffer: Vec<u8>) {
    if buffer.len() == READ_CHUNK_BYTES {
        POOL.with_borrow_mut(|pool| {
            if pool.len() < POOLED {
                pool.push(buffer);
            }
        });
    }
}

/// The undecoded bytes are `bytes[start..end]`. Grows to the frame at hand at most, whose length
/// was checked against the packet limit before.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    /// What is there to decode.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// `len` bytes were decoded.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        debug_assert!(self.start <= self.end, "no more is consumed than was read");
    }

    /// Reads once; 0 at the end of the stream. `frame` is the length of the frame at hand, if it
    /// is known. Cancel safe: yes.
    pub(super) async fn fill(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        frame: usize,
    ) -> io::Result<usize> {
        poll_fn(|cx| self.poll_fill(cx, io, frame)).await
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut (impl AsyncRead + Unpin),
        frame: usize,
    ) -> Poll<io::Result<usize>> {
        self.make_room(frame);
        let mut buf = ReadBuf::new(&mut self.bytes[self.end..]);
        match Pin::new(io).poll_read(cx, &mut buf) {
            Poll::Ready(result) => {
                let read = buf.filled().len();
                self.end += read;
                Poll::Ready(result.map(|()| read))
            }
            Poll::Pending => {
                self.settle();
                Poll::Pending
            }
        }
    }

    fn make_room(&mut self, frame: usize) {
        let held = self.end - self.start;
        // As much of the frame as may come at once, doubling, so that a length alone costs nothing.
        let wanted = frame.min((held * 2).max(READ_CHUNK_BYTES)).max(READ_CHUNK_BYTES);
        if self.bytes.len() < wanted {
            let mut larger = if wanted == READ_CHUNK_BYTES { take() } else { vec![0; wanted] };
            larger[..held].copy_from_slice(&self.bytes[self.start..self.end]);
            give(std::mem::replace(&mut self.bytes, larger));
            (self.start, self.end) = (0, held);
        } else if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
        }
    }

    /// Nothing to read now: gives the large buffer back if little or nothing is held in it.
    pub(super) fn settle(&mut self) {
        let held = self.end - self.start;
        if held > SMALL || self.bytes.is_empty() {
            return;
        }
        let small = self.bytes[self.start..self.end].to_vec();
        give(std::mem::replace(&mut self.bytes, small));
        (self.start, self.end) = (0, held);
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// PAR-05, PRP-04: bytes come out as they went in, and an idle buffer holds no memory.
    #[tokio::test]
    async fn bytes_survive_small_and_large_reads() {
        let (mut near, mut far) = tokio::io::duplex(300_000);
        let mut buffer = ReadBuffer::default();
        let sent: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
        near.write_all(&sent).await.expect("room");
        let mut got = Vec::new();
        while got.len() < sent.len() {
            buffer.fill(&mut far, sent.len()).await.expect("reads");
            // Leave odd rests behind.
            let taken = buffer.unread().len().min(70_001);
            got.extend_from_slice(&buffer.unread()[..taken]);
            buffer.consume(taken);
        }
        assert_eq!(got, sent);
        let idle =
            tokio::time::timeout(std::time::Duration::from_millis(10), buffer.fill(&mut far, 0));
        assert!(idle.await.is_err(), "nothing more is there");
        assert_eq!(buffer.bytes.len(), 0);
    }
}
