//! The write side of a simulated connection in two hands, as a TCP stream's is: the writer task's,
//! and that of whoever writes what fits at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use sluice::delivery::{self, Outbox, Owner, Socket};
use sluice::telemetry::task;
use tokio::io::{AsyncWrite, WriteHalf};
use tokio::runtime::Handle;

use crate::power::Link;

type Half = WriteHalf<Link>;

pub(crate) struct Shared(Arc<Hand>);

struct Hand {
    half: Mutex<Half>,
    runtime: Handle,
}

impl Shared {
    pub(crate) fn new(half: Half) -> Self {
        Self(Arc::new(Hand { half: Mutex::new(half), runtime: Handle::current() }))
    }

    pub(crate) fn socket(&self) -> Arc<dyn Socket> {
        Arc::clone(&self.0) as Arc<dyn Socket>
    }
}

impl Socket for Hand {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(&mut *self.half.lock()).poll_write_vectored(&mut cx, slices) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn start_writer(self: Arc<Self>, outbox: Arc<Outbox>, owner: Weak<dyn Owner>) {
        let runtime = self.runtime.clone();
        task::spawn_on(&runtime, "writer", delivery::write(outbox, Shared(self), owner));
    }
}

impl AsyncWrite for Shared {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.half.lock()).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.half.lock()).poll_write_vectored(cx, slices)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.half.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.half.lock()).poll_shutdown(cx)
    }
}
