//! One connection: its socket, and what is left over between two turns of the event loop.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Protocol, Socket, Type};

use super::carrier::Carrier;
use super::plan::Role;
use super::publisher::Publisher;
use super::subscriber::Subscriber;
use super::wire::Wire;

/// Unsent acknowledgements at which a connection stops reading until they are sent.
const UNSENT_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Closed,
    Connecting,
    /// TLS and the upgrade are under way, if the run has them.
    Shaking,
    AwaitConnack,
    AwaitSuback,
    Ready,
    /// DISCONNECT or its like is sent (churn); the broker's close is due.
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
    wire: Option<Wire>,
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
            wire: None,
            partial: Vec::new(),
            unsent: Vec::new(),
            unsent_at: 0,
        }
    }

    /// Begins to connect; the socket is writable when it stands.
    pub(super) fn open(
        &mut self,
        target: SocketAddr,
        carrier: &Carrier,
        now_ns: u64,
    ) -> io::Result<&TcpStream> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&target.into()) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        let wire = Wire::new(socket.into(), carrier)?;
        self.close();
        self.stage = Stage::Connecting;
        (self.opened_ns, self.last_write_ns) = (now_ns, now_ns);
        Ok(self.wire.insert(wire).socket())
    }

    /// Whether the TCP connection failed, once it is writable.
    pub(super) fn connect_error(&self) -> Option<io::Error> {
        let socket = self.wire.as_ref()?.socket();
        socket.take_error().unwrap_or_else(Some)
    }

    /// Says what comes before MQTT, once the socket stands.
    pub(super) fn shake(&mut self) -> io::Result<()> {
        self.stage = Stage::Shaking;
        let Some(wire) = &mut self.wire else { return Ok(()) };
        wire.begin()?;
        self.writable = !wire.has_unsent();
        Ok(())
    }

    /// Whether MQTT may begin.
    pub(super) fn is_open(&self) -> bool {
        self.wire.as_ref().is_some_and(Wire::is_open)
    }

    /// Ends it behind its handshake; the broker's close is due.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        self.stage = Stage::Leaving;
        self.wire.as_mut().map_or(Ok(()), Wire::leave)
    }

    /// Of its TLS, if any: whether it resumed a session.
    pub(super) fn resumed(&self) -> Option<bool> {
        self.wire.as_ref()?.resumed()
    }

    pub(super) fn close(&mut self) {
        self.wire = None;
        self.stage = Stage::Closed;
        (self.readable, self.writable, self.ended) = (false, false, false);
        self.partial.clear();
        self.unsent.clear();
        self.unsent_at = 0;
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.wire.as_ref().is_some_and(Wire::has_unsent)
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
        if !self.readable || self.choked() {
            return Ok(Inflow::Nothing);
        }
        let Some(wire) = &mut self.wire else { return Ok(Inflow::Nothing) };
        let kept = self.partial.len();
        let room = &mut buffer[kept..];
        match wire.read(room) {
            Ok(0) => Ok(Inflow::End),
            Ok(count) => {
                self.readable = wire.may_have_more() || self.ended;
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
        let Some(wire) = &mut self.wire else { return Ok(bytes.len()) };
        if !self.writable || (bytes.is_empty() && !wire.has_unsent()) {
            return Ok(0);
        }
        let written = if bytes.is_empty() { wire.flush().map(|()| 0) } else { wire.write(bytes) };
        match written {
            Ok(count) => {
                self.writable = count == bytes.len() && !wire.has_unsent();
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
