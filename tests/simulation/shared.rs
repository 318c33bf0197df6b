//! The write side of a simulated connection in two hands, as a TCP stream's is: the writer task's,
//! and that of whoever writes what fits at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use sluice::delivery::Socket;
use tokio::io::{AsyncWrite, WriteHalf};

use crate::power::Link;

type Half = WriteHalf<Link>;

pub(crate) struct Shared(Arc<Hand>);

struct Hand(Mutex<Half>);

impl Shared {
    pub(crate) fn new(half: Half) -> Self {
        Self(Arc::new(Hand(Mutex::new(half))))
    }

    pub(crate) fn socket(&self) -> Arc<dyn Socket> {
        Arc::clone(&self.0) as Arc<dyn Socket>
    }
}

impl Socket for Hand {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(&mut *self.0.lock()).poll_write_vectored(&mut cx, slices) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl AsyncWrite for Shared {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.0.lock()).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.0.lock()).poll_write_vectored(cx, slices)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.0.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.0.lock()).poll_shutdown(cx)
    }
}
