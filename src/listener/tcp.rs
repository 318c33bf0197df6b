//! Plain TCP: bind with the options of the configuration, accept, hand over.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::halves::WriteHalf;
use super::{Config, ConnectionRate, TcpConfig};
use crate::limits::{LISTEN_BACKLOG, NOTSENT_LOWAT_BYTES};
use crate::session::Sessions;
use crate::telemetry::{metrics, task};

/// After a failed accept (too many open files, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a listener could not open.
#[derive(Debug, thiserror::Error)]
#[error("MQTT can't listen on {address} (listener.tcp.bind_address, .bind_port): {fault}")]
pub struct BindError {
    address: SocketAddr,
    fault: io::Error,
}

/// A bound TCP listener that does not accept yet.
#[derive(Debug)]
pub struct Tcp {
    listener: TcpListener,
    config: Config,
    tcp: TcpConfig,
    permits: Arc<Semaphore>,
    rate: ConnectionRate,
}

impl Tcp {
    pub fn bind(config: &Config, tcp: &TcpConfig) -> Result<Self, BindError> {
        let failed = |fault| BindError { address: tcp.bind, fault };
        let listener = bind(config, tcp.bind).map_err(failed)?;
        let most = Semaphore::MAX_PERMITS;
        let permits = config.max_connections.unwrap_or(most).min(most);
        let permits = Arc::new(Semaphore::new(permits));
        let rate = ConnectionRate::new(&config.connection_rate);
        Ok(Self { listener, config: config.clone(), tcp: tcp.clone(), permits, rate })
    }

    /// Where it listens: the port is known even when any was asked for.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts until the task is aborted. Without a permit it waits, and the kernel's backlog is
    /// the queue.
    pub async fn accept_loop(self, sessions: Sessions) {
        loop {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    tracing::trace!(stop = 1, %peer, "accepted");
                    if self.rate.admit(peer.ip()) {
                        self.hand_over(stream, peer, permit, &sessions);
                    }
                }
                Err(error) => {
                    metrics::CONNECTION_REFUSED.inc();
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn hand_over(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        permit: OwnedSemaphorePermit,
        sessions: &Sessions,
    ) {
        if let Err(error) = self.prepare(&stream) {
            // The peer has gone already.
            tracing::debug!(%peer, %error, "a connection could not be prepared");
            return;
        }
        let (sessions, max_bytes) = (sessions.clone(), self.tcp.max_packet_bytes as u32);
        task::spawn("session", async move {
            let (read, write) = stream.into_split();
            let write = WriteHalf::new(write);
            let socket = write.socket();
            sessions.serve(read, write, Some(socket), max_bytes).await;
            drop(permit);
        });
    }

    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        socket.set_tcp_notsent_lowat(NOTSENT_LOWAT_BYTES as u32)?;
        if let Some(bytes) = self.config.so_send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        if self.tcp.so_keep_alive {
            socket.set_tcp_keepalive(&TcpKeepalive::new())?;
        }
        Ok(())
    }
}

fn bind(config: &Config, address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if let Some(bytes) = config.so_receive_buffer_bytes {
        // Before listen, so that the window scale of each connection allows for it (IN-3).
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG as i32)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IN-3: the receive buffer is what the setting says, for the listener and what it accepts.
    #[tokio::test]
    async fn the_receive_buffer_is_set_before_listen() {
        const BYTES: usize = 24 * 1024;
        let config = Config {
            tcp: None,
            so_receive_buffer_bytes: Some(BYTES),
            so_send_buffer_bytes: None,
            max_connections: None,
            connection_rate: crate::listener::ConnectionRateConfig::default(),
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = bind(&config, address).expect("a free port");
        let peer = TcpStream::connect(listener.local_addr().expect("bound"));
        let (peer, accepted) = tokio::join!(peer, listener.accept());
        let (_peer, (accepted, _)) = (peer.expect("connects"), accepted.expect("accepts"));
        for socket in [SockRef::from(&listener), SockRef::from(&accepted)] {
            // The kernel doubles it, for its own bookkeeping.
            assert_eq!(socket.recv_buffer_size().expect("a socket"), 2 * BYTES);
        }
    }
}
