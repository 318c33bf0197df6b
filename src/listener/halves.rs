//! The write side of a TCP stream in two hands: the writer task's, and that of whoever writes what
//! fits at once.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::AsyncWrite;
use tokio::net::tcp::OwnedWriteHalf;

use crate::delivery::Socket;

/// A handle; clones write to the same socket.
#[derive(Clone, Debug)]
pub(super) struct WriteHalf(Arc<OwnedWriteHalf>);

impl WriteHalf {
    pub(super) fn new(half: OwnedWriteHalf) -> Self {
        Self(Arc::new(half))
    }

    /// For who has no task to be woken.
    pub(super) fn socket(&self) -> Arc<dyn Socket> {
        Arc::clone(&self.0) as Arc<dyn Socket>
    }

    fn poll(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&OwnedWriteHalf) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.as_ref().as_ref().poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |half| half.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |half| Socket::try_write(half, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(self.0.as_ref().as_ref()).shutdown(Shutdown::Write))
    }
}
