//! Reads from a socket in large pieces for a reader that asks for small ones: rustls takes 4 KiB
//! at a time. The large buffers belong to the thread; an idle connection holds none.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::limits::READ_CHUNK_BYTES;

/// Buffers kept per thread; further ones are freed.
const POOLED: usize = 4;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn take() -> Vec<u8> {
    POOL.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; READ_CHUNK_BYTES])
}

fn give(buffer: Vec<u8>) {
    POOL.with_borrow_mut(|pool| {
        if pool.len() < POOLED && buffer.len() == READ_CHUNK_BYTES {
            pool.push(buffer);
        }
    });
}

#[derive(Debug)]
pub(super) struct Chunked<S> {
    io: S,
    /// `bytes[start..end]` was read and is not taken yet.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl<S> Chunked<S> {
    pub(super) fn new(io: S) -> Self {
        Self { io, bytes: Vec::new(), start: 0, end: 0 }
    }

    /// Whether there is something to take without a look at the socket.
    pub(super) fn has_bytes(&self) -> bool {
        self.start < self.end
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Chunked<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.has_bytes() {
            let mut bytes = take();
            let mut piece = ReadBuf::new(&mut bytes);
            let polled = Pin::new(&mut this.io).poll_read(cx, &mut piece);
            let read = piece.filled().len();
            if read == 0 || polled.is_pending() {
                give(bytes);
                return polled;
            }
            ready!(polled)?;
            (this.bytes, this.start, this.end) = (bytes, 0, read);
        }
        let taken = buf.remaining().min(this.end - this.start);
        buf.put_slice(&this.bytes[this.start..this.start + taken]);
        this.start += taken;
        if !this.has_bytes() {
            give(std::mem::take(&mut this.bytes));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Chunked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
