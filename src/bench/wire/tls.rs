//! The TLS of one connection.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind};

/// Read from a socket at once.
const PIECE_BYTES: usize = 64 * 1024;

thread_local! {
    /// Serves whichever connection reads.
    static PIECE: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_BYTES]);
}

#[derive(Debug)]
pub(super) struct TlsSide {
    conn: ClientConnection,
    /// Encrypted bytes that a reader had no room for any more.
    raw: Vec<u8>,
    /// The broker said goodbye, or its socket ended.
    ended: bool,
}

impl TlsSide {
    pub(super) fn new(
        (config, name): &(Arc<ClientConfig>, ServerName<'static>),
    ) -> io::Result<TlsSide> {
        let conn = ClientConnection::new(Arc::clone(config), name.clone());
        let mut conn = conn.map_err(io::Error::other)?;
        // What goes in is bounded by who writes: nothing more, before it is out.
        conn.set_buffer_limit(None);
        Ok(TlsSide { conn, raw: Vec::new(), ended: false })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.conn.is_handshaking()
    }

    pub(super) fn resumed(&self) -> Option<bool> {
        self.conn.handshake_kind().map(|kind| kind == HandshakeKind::Resumed)
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.raw.is_empty()
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.conn.wants_write()
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.conn.writer().write_all(bytes)
    }

    pub(super) fn leave(&mut self) {
        self.conn.send_close_notify();
    }

    pub(super) fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while self.conn.wants_write() {
            if self.conn.write_tls(&mut socket)? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Decrypts what is here, and what the socket has, as far as there is room.
    pub(super) fn read(
        &mut self,
        socket: &TcpStream,
        room: &mut [u8],
        drained: &mut bool,
    ) -> io::Result<usize> {
        let raw = std::mem::take(&mut self.raw);
        let mut filled = self.decrypt(&raw, room)?;
        let was_open = self.is_open();
        while filled < room.len() && self.raw.is_empty() && !self.ended {
            if filled > 0 && *drained {
                break;
            }
            filled += PIECE.with_borrow_mut(|piece| {
                let read = match (&mut &*socket).read(piece) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock && filled > 0 => {
                        *drained = true;
                        return Ok(0);
                    }
                    read => read?,
                };
                *drained = read < piece.len();
                self.ended = read == 0;
                self.decrypt(&piece[..read], &mut room[filled..])
            })?;
            match self.flush(socket) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Ok(()) | Err(_) => {}
            }
            if filled == 0 && self.is_open() != was_open {
                // It is the caller's turn to speak.
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        Ok(filled)
    }

    fn decrypt(&mut self, mut raw: &[u8], room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            match self.conn.reader().read(&mut room[filled..]) {
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if raw.is_empty() || filled == room.len() {
                self.raw = raw.to_vec();
                return Ok(filled);
            }
            self.conn.read_tls(&mut raw)?;
            let state = self.conn.process_new_packets().map_err(io::Error::other)?;
            self.ended |= state.peer_has_closed();
        }
    }
}
