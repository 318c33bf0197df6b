//! What an operator decides about listeners.

use std::net::SocketAddr;
use std::time::Duration;

use super::ConnectionRateConfig;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `None` when the listener is switched off.
    pub tcp: Option<TcpConfig>,
    /// SO_RCVBUF, set before listen (IN-3); `None` leaves it to the system.
    pub so_receive_buffer_bytes: Option<usize>,
    /// SO_SNDBUF (OUT-1); `None` leaves it to the system.
    pub so_send_buffer_bytes: Option<usize>,
    /// Connections at once, over all listeners; `None`: as many as there are file descriptors.
    /// More wait in the kernel's accept queue.
    pub max_connections: Option<usize>,
    /// How fast connections may come. Faster: closed before a byte is read.
    pub connection_rate: ConnectionRateConfig,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Port 0 takes any free port.
    pub bind: SocketAddr,
    /// The largest packet taken from a client, announced to v5 clients (QTA-02).
    pub max_packet_bytes: usize,
    /// SO_KEEPALIVE.
    pub so_keep_alive: bool,
    /// At a stop, how long connections get to take what was already written to them.
    pub shutdown_timeout: Duration,
}
