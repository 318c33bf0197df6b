//! TLS for a door of another room: the handshake is made by whoever first reads or writes, so that
//! nobody waits for it in between, and what bounds reading bounds it, too.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use super::{Certificates, Current, texts};
use crate::listener::TlsConfig;

/// Certificates of one door, as their files are now.
#[derive(Clone, Debug)]
pub struct Encryption(Arc<Current>);

impl Encryption {
    /// Reads the files of settings below `below`, which join those that are read again when they
    /// change. Blocks on the disk.
    pub fn load(
        below: &'static str,
        config: &TlsConfig,
        certificates: &Certificates,
    ) -> Result<Self, String> {
        let current = Current::load(below, config).map(Arc::new);
        let current = current.map_err(|faults| texts(&faults))?;
        certificates.add(&current);
        Ok(Self(current))
    }

    /// A connection that will be encrypted.
    pub fn over(&self, stream: TcpStream) -> Encrypted {
        let accept = TlsAcceptor::from(self.0.get().config).accept(stream);
        Encrypted(State::Handshake(Box::new(accept)))
    }
}

/// An encrypted connection, or one that is about to be.
pub struct Encrypted(State);

enum State {
    Handshake(Box<Accept<TcpStream>>),
    Open(Box<TlsStream<TcpStream>>),
    Failed,
}

impl std::fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encrypted")
    }
}

impl Encrypted {
    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut TlsStream<TcpStream>>>> {
        if let State::Handshake(accept) = &mut self.0 {
            self.0 = match ready!(Pin::new(&mut **accept).poll(cx)) {
                Ok(stream) => State::Open(Box::new(stream)),
                Err(error) => {
                    self.0 = State::Failed;
                    return Poll::Ready(Err(error));
                }
            };
        }
        Poll::Ready(match &mut self.0 {
            State::Open(stream) => Ok(Pin::new(&mut **stream)),
            State::Handshake(_) | State::Failed => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            State::Open(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            State::Handshake(_) | State::Failed => Poll::Ready(Ok(())),
        }
    }
}
