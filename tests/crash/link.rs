//! A connection to a broker that may be killed at any time: nothing here panics when it ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use crate::support::{Connect, Level, Packet, parse};

/// The connection has ended; or the broker sent what no server may, which is a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Gone,
    /// The broker says that it can't serve now, or leaves: among several nodes, come again.
    Unavailable,
    Malformed(String),
}

pub(crate) struct Link {
    stream: TcpStream,
    pub(crate) level: Level,
    read: Vec<u8>,
    /// As CONNACK said.
    pub(crate) session_present: bool,
}

impl Link {
    /// A connection that the broker has taken.
    pub(crate) fn connect(address: SocketAddrV4, connect: &Connect) -> Result<Link, End> {
        let stream = TcpStream::connect(address).map_err(|_| End::Gone)?;
        stream.set_nodelay(true).map_err(|_| End::Gone)?;
        stream.set_write_timeout(Some(Duration::from_secs(5))).map_err(|_| End::Gone)?;
        let mut link =
            Link { stream, level: connect.level, read: Vec::new(), session_present: false };
        link.send(&connect.bytes())?;
        match link.recv(Duration::from_secs(10))? {
            Some(Packet::Connack { session_present, code: 0, .. }) => {
                link.session_present = session_present;
                Ok(link)
            }
            Some(Packet::Connack { code: 3 | 0x88, .. }) => Err(End::Unavailable),
            Some(other) => Err(End::Malformed(format!("CONNECT was answered with {other:?}"))),
            None => Err(End::Gone),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.stream.write_all(bytes).map_err(|_| End::Gone)
    }

    /// The next packet, or none in this time.
    pub(crate) fn recv(&mut self, time: Duration) -> Result<Option<Packet>, End> {
        let deadline = Instant::now() + time;
        loop {
            if let Some((packet, length)) = parse(self.level, &self.read).map_err(End::Malformed)? {
                self.read.drain(..length);
                // A node that leaves, or whose storage does, says so on level 5.
                // 0x8E: a CONNECT that was given up, or refused as too late, may come to its turn
                // behind the one that followed it.
                if matches!(packet, Packet::Disconnect { code: 0x80 | 0x8B | 0x8E, .. }) {
                    return Err(End::Unavailable);
                }
                return Ok(Some(packet));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left)).map_err(|_| End::Gone)?;
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(End::Gone),
                Ok(length) => self.read.extend_from_slice(&chunk[..length]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(End::Gone),
                },
            }
        }
    }
}
