//! TLS: what a listener shows and asks for, made from files, and made anew when they change.
//!
//! Handshakes take turns: as many are computed at once as there are threads, so that a flood of
//! them never stands before a connected client's work.

mod chunked;
mod files;
mod identity;
mod lazy;
mod own;
mod path;
mod reload;

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use rustls::HandshakeKind;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use chunked::Chunked;
pub(super) use files::Served;
pub use files::TlsFault;
use files::load;
pub use lazy::{Encrypted, Encryption};
pub use own::to_own_door;
pub use reload::Certificates;
pub(super) use reload::{Current, watch};

use crate::session::TlsPeer;
use crate::telemetry::Turned;

/// An encrypted connection.
#[derive(Debug)]
pub(super) struct Tls(TlsStream<Chunked<TcpStream>>);

/// What is wrong with the files and lists of a TLS listener; all of it.
pub fn faults(config: &super::TlsConfig) -> Vec<TlsFault> {
    load(config).err().unwrap_or_default()
}

pub(super) fn texts(faults: &[TlsFault]) -> String {
    let texts = faults.iter().map(|TlsFault { setting, text }| format!("{setting}: {text}"));
    texts.collect::<Vec<String>>().join("; ")
}

/// Carries a handshake through, its computing in turn with others. Tells also whether it resumed
/// an earlier one.
pub(super) async fn accept(
    stream: TcpStream,
    served: Served,
    turns: &Semaphore,
) -> io::Result<(Tls, TlsPeer, bool)> {
    let accept = pin!(TlsAcceptor::from(served.config).accept(Chunked::new(stream)));
    let stream = in_turn(accept, turns).await?;
    let session = stream.get_ref().1;
    let chain = session.peer_certificates().unwrap_or_default();
    let peer = TlsPeer {
        server_name: session.server_name().map(Box::from),
        chain: served.anchors.path(chain),
    };
    let resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
    Ok((Tls(stream), peer, resumed))
}

impl AsyncRead for Tls {
    /// Takes as many records as are here and fit: one read of the socket may have brought several.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = &mut self.get_mut().0;
        let before = buf.filled().len();
        loop {
            let had = buf.filled().len();
            let polled = Pin::new(&mut *stream).poll_read(cx, buf);
            let (got, some) = (buf.filled().len() > had, buf.filled().len() > before);
            if some && !got {
                // An end or a fault shows again at the next read.
                return Poll::Ready(Ok(()));
            }
            if !got || buf.remaining() == 0 || !stream.get_ref().0.has_bytes() {
                return polled;
            }
        }
    }
}

impl AsyncWrite for Tls {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Polls `future` only with a turn in hand, which it gives back while it waits.
async fn in_turn<F: Future + Unpin>(mut future: F, turns: &Semaphore) -> F::Output {
    loop {
        let turn = turns.acquire().await;
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await;
        drop(turn);
        if let Poll::Ready(output) = polled {
            return output;
        }
        // The poll has left this task's waker where it waits.
        let mut waited = false;
        poll_fn(|_| {
            let was_woken = std::mem::replace(&mut waited, true);
            if was_woken { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Under which cause a failed handshake counts.
pub(super) fn cause(error: &io::Error) -> Turned {
    use rustls::Error;
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(_) | Error::NoCertificatesPresented) => Turned::Certificate,
        Some(_) => Turned::Tls,
        None => Turned::Closed,
    }
}

#[cfg(test)]
mod tests;
