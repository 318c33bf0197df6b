//! The write side of a TCP stream in two hands: the writer task's, and that of whoever writes what
//! fits at once.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::AsyncWrite;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::runtime::Handle;

use crate::delivery::{self, Outbox, Owner, Socket};
use crate::telemetry::task;

/// A handle; clones write to the same socket.
#[derive(Clone, Debug)]
pub(super) struct WriteHalf(Arc<TcpSocket>);

#[derive(Debug)]
struct TcpSocket {
    half: OwnedWriteHalf,
    /// Acknowledgements come from the log's threads, which are none of the runtime's.
    runtime: Handle,
}

impl Socket for TcpSocket {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // `send` costs a tenth less than `writev` (docs/performance.md).
        match slices {
            [one] => self.half.try_write(one),
            _ => self.half.try_write_vectored(slices),
        }
    }

    fn start_writer(self: Arc<Self>, outbox: Arc<Outbox>, owner: Weak<dyn Owner>) {
        let runtime = self.runtime.clone();
        task::spawn_on(&runtime, "writer", delivery::write(outbox, WriteHalf(self), owner));
    }
}

impl WriteHalf {
    /// To be called on the runtime that serves the connection.
    pub(super) fn new(half: OwnedWriteHalf) -> Self {
        Self(Arc::new(TcpSocket { half, runtime: Handle::current() }))
    }

    /// For who has no task to be woken.
    pub(super) fn socket(&self) -> Arc<dyn Socket> {
        Arc::clone(&self.0) as Arc<dyn Socket>
    }

    fn poll(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpSocket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.half.as_ref().poll_write_ready(cx))?;
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
        self.poll(cx, |socket| socket.half.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |socket| socket.try_write(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(self.0.half.as_ref()).shutdown(Shutdown::Write))
    }
}
