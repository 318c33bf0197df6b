//! What a listener hands over with a stream: who is at the other end, and how long it may take.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use crate::delivery::Socket;
use crate::telemetry::Door;

/// What TLS says of the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPeer {
    /// The name that it asked for.
    pub server_name: Option<Box<str>>,
    /// Its certificate chain in DER, its own first, verified up to a root that we trust. Empty:
    /// it showed none.
    pub chain: Vec<Vec<u8>>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub door: Door,
    /// Its own address, also behind a balancer that tells it; `None`: it has none (a UNIX socket).
    pub address: Option<SocketAddr>,
    /// `None`: it is not encrypted.
    pub tls: Option<Arc<TlsPeer>>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{}:{address}", self.door.text()),
            None => f.write_str(self.door.text()),
        }
    }
}

/// A connection whose transport stands.
pub struct Arrival {
    pub peer: Peer,
    /// The largest packet taken from it, announced to v5 clients.
    pub max_packet_bytes: u32,
    /// When its CONNECT has to be complete.
    pub connect_by: Instant,
    /// Where the stream has one: what fits into it at once needs no writer task.
    pub socket: Option<Arc<dyn Socket>>,
    /// Resolves when the listener needs its place before that; dropped with the CONNECT.
    pub displaced: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Arrival {
    /// A connection that no listener will call back.
    pub fn of(peer: Peer, max_packet_bytes: u32, connect_by: Instant) -> Box<Self> {
        let displaced = Box::pin(std::future::pending());
        Box::new(Self { peer, max_packet_bytes, connect_by, socket: None, displaced })
    }
}
