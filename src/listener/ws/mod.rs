//! MQTT over WebSocket: the byte stream that a client's binary frames carry, and ours in frames.
//!
//! Both halves of a connection share one [`Ws`], behind the lock of `tokio::io::split`. The read
//! side answers pings itself when nobody waits to write; otherwise the write side does, between
//! two frames. A frame's payload goes on as it comes, so nothing is held here but a head.

mod frame;
mod upgrade;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::frame::{Decoder, End, code};
use super::WsConfig;
use super::networks::Networks;
use crate::limits::{WS_FRAME_BYTES, WS_FRAME_OUT_BYTES};

/// Slices of one write: a head, and what the caller brought.
const SLICES: usize = 33;

/// A frame of ours that has begun.
#[derive(Debug, Default)]
struct Out {
    head: [u8; 10],
    head_at: usize,
    head_end: usize,
    /// Payload bytes that are still to go.
    left: usize,
}

impl Out {
    fn is_between_frames(&self) -> bool {
        self.head_at == self.head_end && self.left == 0
    }
}

#[derive(Debug)]
pub(super) struct Ws<S> {
    io: S,
    decoder: Decoder,
    /// Bytes that came behind the upgrade request.
    early: Vec<u8>,
    end: Option<End>,
    out: Out,
    /// Control frames of ours, from `control_at` on.
    control: Vec<u8>,
    control_at: usize,
    close_is_sent: bool,
    /// The write side waits for the socket, so the read side must not take its place.
    writer_waits: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Ws<S> {
    /// Carries the upgrade through; tells the client's address as a trusted proxy gave it.
    pub(super) async fn accept(
        mut io: S,
        config: &WsConfig,
        trusted: &Networks,
        socket: Option<SocketAddr>,
        max_packet_bytes: usize,
    ) -> io::Result<(Self, Option<SocketAddr>)> {
        let (address, early) = upgrade::upgrade(&mut io, config, trusted, socket).await?;
        let max_frame = WS_FRAME_BYTES.max(max_packet_bytes) as u64;
        let ws = Self {
            io,
            decoder: Decoder::new(max_frame),
            early,
            end: None,
            out: Out::default(),
            control: Vec::new(),
            control_at: 0,
            close_is_sent: false,
            writer_waits: false,
        };
        Ok((ws, address))
    }

    /// Raw bytes into `buf`: those that came early, or one read.
    fn poll_raw(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let taken = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..taken]);
        self.early.drain(..taken);
        Poll::Ready(Ok(()))
    }

    /// Takes a pong up, unless one is partly gone: then the client may ask again.
    fn queue_pong(&mut self, ping: &[u8]) {
        if self.control_at == 0 && !self.close_is_sent {
            self.control = frame::pong(ping);
        }
    }

    /// Writes what is to be said between two frames.
    fn poll_control(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.control_at < self.control.len() {
            let rest = &self.control[self.control_at..];
            match ready!(Pin::new(&mut self.io).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.control_at += written,
            }
        }
        if self.control_at > 0 {
            (self.control, self.control_at) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }

    /// The read side's try to get a pong out. What does not go now goes with the next write; a
    /// socket that fails is found out there.
    fn try_control(&mut self, cx: &mut Context<'_>) {
        let idle = self.control.is_empty() || self.writer_waits || !self.out.is_between_frames();
        if !idle && self.poll_control(cx).is_ready() {
            drop(Pin::new(&mut self.io).poll_flush(cx));
        }
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.out.is_between_frames() {
                ready!(self.poll_control(cx))?;
                let length = bufs.iter().map(|buf| buf.len()).sum::<usize>();
                let length = length.min(WS_FRAME_OUT_BYTES);
                if length == 0 {
                    return Poll::Ready(Ok(0));
                }
                let (head, head_end) = frame::binary_head(length);
                self.out = Out { head, head_at: 0, head_end, left: length };
            }
            let head_left = self.out.head_end - self.out.head_at;
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = gather(&self.out, bufs, &mut slices);
            let write = Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..count]);
            let written = ready!(write)?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.head_at += written.min(head_left);
            let payload = written.saturating_sub(head_left);
            self.out.left -= payload;
            if payload > 0 {
                return Poll::Ready(Ok(payload));
            }
        }
    }

    /// The close frame: an answer to the client's, or ours.
    fn say_close(&mut self) {
        if self.close_is_sent {
            return;
        }
        self.close_is_sent = true;
        let payload = match self.end.take() {
            Some(End::Closed(payload)) => payload,
            Some(End::Fault(code)) => code.to_be_bytes().to_vec(),
            None => code::NORMAL.to_be_bytes().to_vec(),
        };
        // It is the last frame; a pong that has not begun is not missed.
        if self.control_at == 0 {
            self.control.clear();
        }
        self.control.extend(frame::close(&payload));
        self.end = Some(End::Closed(Vec::new()));
    }
}

/// The head's rest and as much of `bufs` as belongs to the frame.
fn gather<'a>(out: &'a Out, bufs: &'a [IoSlice<'_>], slices: &mut [IoSlice<'a>; SLICES]) -> usize {
    let mut count = 0;
    if out.head_at < out.head_end {
        slices[0] = IoSlice::new(&out.head[out.head_at..out.head_end]);
        count = 1;
    }
    let mut left = out.left;
    for buf in bufs {
        if left == 0 || count == SLICES {
            break;
        }
        let taken = buf.len().min(left);
        slices[count] = IoSlice::new(&buf[..taken]);
        (count, left) = (count + 1, left - taken);
    }
    count
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Ws<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match this.end {
                None => {}
                Some(End::Closed(_)) => return Poll::Ready(Ok(())),
                Some(End::Fault(_)) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            }
            this.try_control(cx);
            let before = buf.filled().len();
            ready!(this.poll_raw(cx, buf))?;
            let raw = &mut buf.filled_mut()[before..];
            if raw.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let decoded = this.decoder.decode(raw);
            buf.set_filled(before + decoded.payload);
            if let Some(ping) = decoded.ping {
                this.queue_pong(&ping);
                this.try_control(cx);
            }
            if let Some(End::Fault(code)) = decoded.end {
                tracing::debug!(code, "a WebSocket client broke a rule");
            }
            this.end = decoded.end.or(this.end.take());
            if decoded.payload > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Ws<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.poll_frame(cx, bufs);
        this.writer_waits = written.is_pending();
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        this.writer_waits = flushed.is_pending();
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.out.is_between_frames() {
            this.say_close();
            ready!(this.poll_control(cx))?;
        }
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
