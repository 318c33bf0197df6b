//! What an operator decides about listeners.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::networks::Networks;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `None` when the listener is switched off.
    pub tcp: Option<DoorConfig>,
    pub ssl: Option<DoorConfig>,
    pub ws: Option<DoorConfig>,
    pub wss: Option<DoorConfig>,
    pub unix: Option<UnixConfig>,
    /// SO_RCVBUF, set before listen (IN-3); `None` leaves it to the system.
    pub so_receive_buffer_bytes: Option<usize>,
    /// SO_SNDBUF (OUT-1); `None` leaves it to the system.
    pub so_send_buffer_bytes: Option<usize>,
    /// Connections at once, over all listeners; `None`: as many as there are file descriptors.
    /// More wait in the kernel's accept queue.
    pub max_connections: Option<usize>,
    /// Connections of one address, over all listeners; `None`: no limit. More are closed.
    pub max_connections_per_address: Option<usize>,
    /// Connections on their way to a complete CONNECT, over all listeners. Full: the oldest goes,
    /// if it is older than `HANDSHAKE_GRACE_MS`; else the new one waits in the kernel.
    pub max_handshakes: usize,
    /// From accept to the end of a CONNECT (KAL-04). Longer: closed.
    pub connect_timeout: Duration,
    /// Who may tell another address than its own.
    pub trusted: Networks,
    /// How often certificate files are looked at.
    pub reload_period: Duration,
}

#[cfg(test)]
impl Default for Config {
    /// No listener.
    fn default() -> Self {
        Self {
            tcp: None,
            ssl: None,
            ws: None,
            wss: None,
            unix: None,
            so_receive_buffer_bytes: None,
            so_send_buffer_bytes: None,
            max_connections: None,
            max_connections_per_address: None,
            max_handshakes: 100,
            connect_timeout: Duration::from_secs(10),
            trusted: Networks::default(),
            reload_period: Duration::from_secs(10),
        }
    }
}

/// A listener on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorConfig {
    /// Port 0 takes any free port.
    pub bind: SocketAddr,
    /// The largest packet taken from a client, announced to v5 clients (QTA-02).
    pub max_packet_bytes: usize,
    /// Connections of this listener at once; `None`: no limit of its own.
    pub max_connections: Option<usize>,
    /// SO_KEEPALIVE.
    pub so_keep_alive: bool,
    /// At a stop, how long connections get to take what was already written to them.
    pub shutdown_timeout: Duration,
    /// Each connection begins with a PROXY header.
    pub proxy: bool,
    pub tls: Option<TlsConfig>,
    pub ws: Option<WsConfig>,
}

/// A listener on a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixConfig {
    pub path: PathBuf,
    /// Permission bits of the socket's file.
    pub mode: u32,
    pub max_packet_bytes: usize,
    pub max_connections: Option<usize>,
    pub proxy: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WsConfig {
    /// Subprotocols taken, the preferred one first.
    pub sub_protocols: Vec<String>,
    /// X-Forwarded-For and X-Real-IP from trusted networks are believed.
    pub forwarded: bool,
}

/// The lowest version that a client may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    V12,
    V13,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    Off,
    Requested,
    Required,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    pub lowest: TlsVersion,
    /// Names of cipher suites; empty: all that are good.
    pub cipher_suites: Vec<String>,
    /// The first is for clients that ask for no name or an unknown one. Never empty.
    pub identities: Vec<Identity>,
    pub client_auth: ClientAuth,
    pub ca_file: Option<PathBuf>,
    pub crl_file: Option<PathBuf>,
}

/// A certificate with its chain, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    pub key_password: Option<Secret>,
}

/// A text that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
