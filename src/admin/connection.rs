//! HTTP connections: how many there may be, and how long one may do nothing.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use crate::limits;
use crate::listener::{Encrypted, Encryption};

const IDLE: Duration = Duration::from_millis(limits::ADMIN_IDLE_MS);

/// Accepts only while a permit is free; the others wait in the kernel.
pub(super) struct Bounded {
    listener: TcpListener,
    encryption: Option<Encryption>,
    permits: Arc<Semaphore>,
}

impl Bounded {
    pub(super) fn new(
        listener: TcpListener,
        encryption: Option<Encryption>,
        connections: usize,
    ) -> Bounded {
        Bounded { listener, encryption, permits: Arc::new(Semaphore::new(connections)) }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.expect("nobody closes this semaphore");
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        let stream = match &self.encryption {
            Some(encryption) => Wire::Encrypted(encryption.over(stream)),
            None => Wire::Bare(stream),
        };
        (Connection { stream, idle: Box::pin(sleep(IDLE)), _permit: permit }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, Bounded>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        Self(*stream.remote_addr())
    }
}

enum Wire {
    Bare(TcpStream),
    Encrypted(Encrypted),
}

/// Does the same with whichever it is.
macro_rules! either {
    ($self:ident, $method:ident, $($argument:expr),*) => {
        match &mut $self.stream {
            Wire::Bare(stream) => Pin::new(stream).$method($($argument),*),
            Wire::Encrypted(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

/// A stream that fails once nothing has moved for [`IDLE`], so that silent peers can't keep the
/// permits.
pub(super) struct Connection {
    stream: Wire,
    idle: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn watched<T>(
        &mut self,
        cx: &mut Context<'_>,
        moved: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE);
            return moved;
        }
        match self.idle.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = either!(self, poll_read, cx, buf);
        self.watched(cx, moved)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let moved = either!(self, poll_write, cx, bytes);
        self.watched(cx, moved)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let moved = either!(self, poll_write_vectored, cx, slices);
        self.watched(cx, moved)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Wire::Bare(stream) => stream.is_write_vectored(),
            Wire::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_flush, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_shutdown, cx)
    }
}
