//! What happened at the listeners: connections, and those that never became a session, by cause.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A kind of listener, under the name that its settings have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Door {
    #[default]
    Tcp,
    Ssl,
    Ws,
    Wss,
    Unix,
}

/// Why a connection ended before its CONNECT was complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Turned {
    /// The other side went.
    Closed,
    /// It took too long.
    Timeout,
    /// Too many were on their way in, and this one was the oldest.
    Crowded,
    /// Too many from one address.
    Address,
    /// They come too fast.
    Rate,
    /// No PROXY header, a bad one, or one from a network that is not trusted.
    Proxy,
    /// The TLS handshake failed.
    Tls,
    /// The client's certificate is missing, revoked, or nobody's that we trust.
    Certificate,
    /// The WebSocket upgrade was refused.
    WebSocket,
    /// The first packet is no CONNECT, or a bad one.
    Connect,
}

const DOORS: usize = 5;
const CAUSES: usize = 10;
static ACCEPTED: [AtomicU64; DOORS] = [const { AtomicU64::new(0) }; DOORS];
static OPEN: [AtomicI64; DOORS] = [const { AtomicI64::new(0) }; DOORS];
/// TLS handshakes: full ones, and those that resumed a session.
static SHAKEN: [[AtomicU64; 2]; DOORS] = [const { [const { AtomicU64::new(0) }; 2] }; DOORS];
static TURNED: [[AtomicU64; CAUSES]; DOORS] =
    [const { [const { AtomicU64::new(0) }; CAUSES] }; DOORS];

impl Door {
    pub const ALL: [Door; DOORS] = [Door::Tcp, Door::Ssl, Door::Ws, Door::Wss, Door::Unix];

    pub fn text(self) -> &'static str {
        match self {
            Door::Tcp => "tcp",
            Door::Ssl => "ssl",
            Door::Ws => "ws",
            Door::Wss => "wss",
            Door::Unix => "unix",
        }
    }

    /// A connection was accepted; [`Self::left`] is due when it ends.
    pub fn entered(self) {
        ACCEPTED[self as usize].fetch_add(1, Ordering::Relaxed);
        OPEN[self as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn left(self) {
        OPEN[self as usize].fetch_sub(1, Ordering::Relaxed);
    }

    /// A TLS handshake was carried through.
    pub fn shaken(self, resumed: bool) {
        SHAKEN[self as usize][usize::from(resumed)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn shaken_so_far(self, resumed: bool) -> u64 {
        SHAKEN[self as usize][usize::from(resumed)].load(Ordering::Relaxed)
    }

    /// A connection ended before its CONNECT was complete.
    pub fn turned(self, why: Turned) {
        TURNED[self as usize][why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn accepted_so_far(self) -> u64 {
        ACCEPTED[self as usize].load(Ordering::Relaxed)
    }

    pub fn open(self) -> i64 {
        OPEN[self as usize].load(Ordering::Relaxed)
    }

    pub fn turned_so_far(self, why: Turned) -> u64 {
        TURNED[self as usize][why as usize].load(Ordering::Relaxed)
    }
}

impl Turned {
    pub const ALL: [Turned; CAUSES] = [
        Turned::Closed,
        Turned::Timeout,
        Turned::Crowded,
        Turned::Address,
        Turned::Rate,
        Turned::Proxy,
        Turned::Tls,
        Turned::Certificate,
        Turned::WebSocket,
        Turned::Connect,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Turned::Closed => "closed",
            Turned::Timeout => "timeout",
            Turned::Crowded => "crowded",
            Turned::Address => "address",
            Turned::Rate => "rate",
            Turned::Proxy => "proxy",
            Turned::Tls => "tls",
            Turned::Certificate => "certificate",
            Turned::WebSocket => "websocket",
            Turned::Connect => "connect",
        }
    }
}
