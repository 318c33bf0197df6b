//! One connection: its socket, and what is left over between two turns of the event loop.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Protocol, Socket, Type};

use super::plan::Role;
use super::publisher::Publisher;
use super::subscriber::Subscriber;

/// Unsent acknowledgements at which a connection stops reading until they are sent.
const UNSENT_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Closed,
    Connecting,
    AwaitConnack,
    AwaitSuback,
    Ready,
    /// DISCONNECT is sent (churn); the broker's close is due.
    Leaving,
}

#[derive(Debug)]
pub(super) enum Part {
    Publisher(Box<Publisher>),
    Subscriber(Box<Subscriber>),
    Bare,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inflow {
    Nothing,
    /// So many bytes of the buffer are filled, with what was left over before them.
    Bytes(usize),
    End,
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) role: Role,
    pub(super) part: Part,
    pub(super) stage: Stage,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) ended: bool,
    /// Whether it waits in the run queue.
    pub(super) queued: bool,
    pub(super) opened_ns: u64,
    pub(super) last_write_ns: u64,
    /// Silence after which a PINGREQ goes out; 0 is never.
    pub(super) ping_after_ns: u64,
    socket: Option<TcpStream>,
    partial: Vec<u8>,
    unsent: Vec<u8>,
    unsent_at: usize,
}

impl Conn {
    pub(super) fn new(role: Role, part: Part) -> Conn {
        Conn {
            role,
            part,
            stage: Stage::Closed,
            readable: false,
            writable: false,
            ended: false,
            queued: false,
            opened_ns: 0,
            last_write_ns: 0,
            ping_after_ns: 0,
            socket: None,
            partial: Vec::new(),
            unsent: Vec::new(),
            unsent_at: 0,
        }
    }

    /// Begins to connect; the socket is writable when it stands.
    pub(super) fn open(&mut self, target: SocketAddr, now_ns: u64) -> io::Result<&TcpStream> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&target.into()) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        self.close();
        self.stage = Stage::Connecting;
        (self.opened_ns, self.last_write_ns) = (now_ns, now_ns);
        Ok(self.socket.insert(socket.into()))
    }

    /// Whether the TCP connection failed, once it is writable.
    pub(super) fn connect_error(&self) -> Option<io::Error> {
        self.socket.as_ref().and_then(|socket| socket.take_error().unwrap_or_else(Some))
    }

    pub(super) fn close(&mut self) {
        self.socket = None;
        self.stage = Stage::Closed;
        (self.readable, self.writable, self.ended) = (false, false, false);
        self.partial.clear();
        self.unsent.clear();
        self.unsent_at = 0;
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn choked(&self) -> bool {
        self.unsent.len() - self.unsent_at > UNSENT_MAX
    }

    /// Whether another turn would move something without a new event.
    pub(super) fn can_go_on(&self) -> bool {
        let readable = self.readable && !self.choked();
        self.stage != Stage::Closed && (readable || (self.writable && self.has_unsent()))
    }

    /// One read, if there may be something. The edge is taken as used up when the buffer was
    /// not filled, which saves the read that would say so.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Inflow> {
        let Some(mut socket) = self.socket.as_ref() else { return Ok(Inflow::Nothing) };
        if !self.readable || self.choked() {
            return Ok(Inflow::Nothing);
        }
        let kept = self.partial.len();
        let room = &mut buffer[kept..];
        let wanted = room.len();
        match socket.read(room) {
            Ok(0) => Ok(Inflow::End),
            Ok(count) => {
                self.readable = count == wanted || self.ended;
                buffer[..kept].copy_from_slice(&self.partial);
                self.partial.clear();
                Ok(Inflow::Bytes(kept + count))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(Inflow::Nothing)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Inflow::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Keeps the head of a packet whose rest has not come.
    pub(super) fn keep(&mut self, rest: &[u8]) {
        self.partial.extend_from_slice(rest);
    }

    /// Writes what is unsent, then `bytes`; what the socket does not take is kept.
    pub(super) fn write(&mut self, bytes: &[u8], now_ns: u64) -> io::Result<()> {
        if self.unsent.is_empty() {
            let taken = self.push(bytes, now_ns)?;
            self.unsent.extend_from_slice(&bytes[taken..]);
            return Ok(());
        }
        self.unsent.extend_from_slice(bytes);
        let unsent = std::mem::take(&mut self.unsent);
        let pushed = self.push(&unsent[self.unsent_at..], now_ns);
        self.unsent = unsent;
        self.unsent_at += pushed?;
        if self.unsent_at == self.unsent.len() {
            self.unsent.clear();
            self.unsent_at = 0;
        } else if self.unsent_at >= UNSENT_MAX {
            self.unsent.drain(..self.unsent_at);
            self.unsent_at = 0;
        }
        Ok(())
    }

    fn push(&mut self, bytes: &[u8], now_ns: u64) -> io::Result<usize> {
        let Some(mut socket) = self.socket.as_ref() else { return Ok(bytes.len()) };
        if !self.writable || bytes.is_empty() {
            return Ok(0);
        }
        match socket.write(bytes) {
            Ok(count) => {
                self.writable = count == bytes.len();
                self.last_write_ns = now_ns;
                Ok(count)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.writable = false;
                Ok(0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }
}
