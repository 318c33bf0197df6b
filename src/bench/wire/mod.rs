//! One connection's bytes, whatever carries them: MQTT's go in and come out.
//!
//! In and out: bytes of MQTT, and a socket, which may block or not. Called by a connection of the
//! event loop, and by what removes sessions after a run. Never: a look into a packet.

mod tls;
mod ws;

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;

use super::carrier::Carrier;
use tls::TlsSide;
use ws::WsSide;

#[derive(Debug)]
pub(super) struct Wire {
    socket: TcpStream,
    /// Boxed: a run over bare TCP pays for nothing of it.
    layers: Option<Box<Layers>>,
    /// The last look at the socket took all that was there.
    drained: bool,
}

#[derive(Debug)]
struct Layers {
    tls: Option<TlsSide>,
    ws: Option<WsSide>,
    /// What a socket without TLS did not take, from `out_at` on.
    out: Vec<u8>,
    out_at: usize,
}

impl Wire {
    /// Over a socket that may still connect; nothing is sent before [`Wire::begin`].
    pub(super) fn new(socket: TcpStream, carrier: &Carrier) -> io::Result<Wire> {
        let tls = carrier.tls.as_ref().map(TlsSide::new).transpose()?;
        let ws = carrier.upgrade.as_deref().map(WsSide::new);
        let layered = tls.is_some() || ws.is_some();
        let layers = layered.then(|| Box::new(Layers { tls, ws, out: Vec::new(), out_at: 0 }));
        Ok(Wire { socket, layers, drained: false })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Says what comes before MQTT; the socket stands.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        let Some(layers) = &mut self.layers else { return Ok(()) };
        if let Some(request) = layers.ws.as_mut().map(WsSide::request) {
            layers.put(&request)?;
        }
        later(layers.flush(&self.socket))
    }

    /// Whether MQTT's bytes may go.
    pub(super) fn is_open(&self) -> bool {
        self.layers.as_ref().is_none_or(|layers| {
            layers.tls.as_ref().is_none_or(TlsSide::is_open)
                && layers.ws.as_ref().is_none_or(WsSide::is_open)
        })
    }

    /// Of the TLS handshake, once it is done: whether it resumed a session.
    pub(super) fn resumed(&self) -> Option<bool> {
        self.layers.as_ref()?.tls.as_ref()?.resumed()
    }

    /// Whether the next read may bring something without a new event.
    pub(super) fn may_have_more(&self) -> bool {
        !self.drained || self.layers.as_ref().is_some_and(|layers| layers.has_unread())
    }

    /// What a write did not get out.
    pub(super) fn has_unsent(&self) -> bool {
        self.layers.as_ref().is_some_and(|layers| layers.has_unsent())
    }

    /// Bytes of MQTT; 0 is the end. `WouldBlock`: nothing of MQTT came, also from a socket that
    /// blocks.
    pub(super) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(layers) = &mut self.layers else {
                let read = (&self.socket).read(room)?;
                self.drained = read < room.len();
                return Ok(read);
            };
            let raw = match &mut layers.tls {
                Some(tls) => tls.read(&self.socket, room, &mut self.drained)?,
                None => {
                    let read = (&self.socket).read(room)?;
                    self.drained = read < room.len();
                    read
                }
            };
            let Some(ws) = &mut layers.ws else { return Ok(raw) };
            if raw == 0 {
                return Ok(0);
            }
            let payload = ws.decode(&mut room[..raw])?;
            let answers = ws.answers();
            if !answers.is_empty() {
                layers.put(&answers)?;
                later(layers.flush(&self.socket))?;
            }
            if payload > 0 {
                return Ok(payload);
            }
            if !self.may_have_more() {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Takes all of `bytes`, and gets out what the socket takes; over bare TCP it takes only that.
    /// `WouldBlock`: earlier ones are not out yet.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(layers) = &mut self.layers else { return (&self.socket).write(bytes) };
        layers.flush(&self.socket)?;
        match (&layers.tls, &layers.ws) {
            (None, Some(_)) => layers.frame_out(&self.socket, bytes)?,
            (Some(_), Some(_)) => {
                let (head, length) = ws::head(bytes.len());
                layers.put(&head[..length])?;
                layers.put(bytes)?;
            }
            (_, None) => layers.put(bytes)?,
        }
        later(layers.flush(&self.socket))?;
        Ok(bytes.len())
    }

    /// Says goodbye in the words of the layers; the other side's end is due.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        let Some(layers) = &mut self.layers else { return Ok(()) };
        if layers.ws.is_some() {
            layers.put(&ws::CLOSE)?;
        }
        if let Some(tls) = &mut layers.tls {
            tls.leave();
        }
        later(layers.flush(&self.socket))
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.layers {
            Some(layers) => layers.flush(&self.socket),
            None => Ok(()),
        }
    }
}

/// What waits for the socket goes with a later turn.
fn later(flushed: io::Result<()>) -> io::Result<()> {
    match flushed {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        flushed => flushed,
    }
}

impl Layers {
    fn has_unread(&self) -> bool {
        self.tls.as_ref().is_some_and(TlsSide::has_unread)
    }

    fn has_unsent(&self) -> bool {
        !self.out.is_empty() || self.tls.as_ref().is_some_and(TlsSide::has_unsent)
    }

    /// Bytes for the layer below WebSocket.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => tls.put(bytes),
            None => {
                self.out.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// A frame straight to a bare socket; what it does not take waits.
    fn frame_out(&mut self, mut socket: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        let (head, length) = ws::head(bytes.len());
        let head = &head[..length];
        let slices = [IoSlice::new(head), IoSlice::new(bytes)];
        let written = match socket.write_vectored(&slices) {
            Ok(written) => written,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        self.out.extend_from_slice(&head[written.min(length)..]);
        self.out.extend_from_slice(&bytes[written.saturating_sub(length)..]);
        Ok(())
    }

    fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            return tls.flush(socket);
        }
        while self.out_at < self.out.len() {
            match socket.write(&self.out[self.out_at..])? {
                0 => return Err(ErrorKind::WriteZero.into()),
                written => self.out_at += written,
            }
        }
        self.out.clear();
        self.out_at = 0;
        Ok(())
    }
}
