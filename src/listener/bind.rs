//! Listening sockets, with the options of the configuration.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::Config;
use crate::limits::LISTEN_BACKLOG;

#[derive(Debug)]
pub(super) enum Listening {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// A socket's file, which goes with its listener. (A kill leaves it; the next start replaces it.)
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "the socket's file stays");
        }
    }
}

#[derive(Debug)]
pub(super) enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Listening {
    pub(super) fn tcp(config: &Config, address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if let Some(bytes) = config.so_receive_buffer_bytes {
            // Before listen, so that the window scale of each connection allows for it (IN-3).
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(LISTEN_BACKLOG as i32)?;
        Ok(Self::Tcp(TcpListener::from_std(socket.into())?))
    }

    /// A socket's file that nobody listens on is left from an earlier run, and goes.
    pub(super) fn unix(path: &Path, mode: u32) -> io::Result<Self> {
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
        if is_socket {
            match std::os::unix::net::UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                }
                Ok(_) | Err(_) => return Err(io::ErrorKind::AddrInUse.into()),
            }
        }
        let listener = UnixListener::bind(path)?;
        let _file = SocketFile(path.to_owned());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(Self::Unix { listener, _file })
    }

    /// The port is known even when any was asked for. `None`: on a path.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Listening::Tcp(listener) => listener.local_addr().ok(),
            Listening::Unix { .. } => None,
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listening::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok(Accepted::Tcp(stream, address))
            }
            Listening::Unix { listener, .. } => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;

    use super::*;

    /// IN-3: the receive buffer is what the setting says, for the listener and what it accepts.
    #[tokio::test]
    async fn the_receive_buffer_is_set_before_listen() {
        const BYTES: usize = 24 * 1024;
        let config = Config { so_receive_buffer_bytes: Some(BYTES), ..Config::default() };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let Ok(Listening::Tcp(listener)) = Listening::tcp(&config, address) else {
            panic!("a free port");
        };
        let peer = TcpStream::connect(listener.local_addr().expect("bound"));
        let (peer, accepted) = tokio::join!(peer, listener.accept());
        let (_peer, (accepted, _)) = (peer.expect("connects"), accepted.expect("accepts"));
        for socket in [SockRef::from(&listener), SockRef::from(&accepted)] {
            // The kernel doubles it, for its own bookkeeping.
            assert_eq!(socket.recv_buffer_size().expect("a socket"), 2 * BYTES);
        }
    }

    /// A socket's file of an earlier run is no hindrance; one in use, and any other file, is.
    #[tokio::test]
    async fn a_left_over_socket_is_replaced_and_nothing_else() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("mqtt.sock");
        let bind = || Listening::unix(&path, 0o600);
        let first = bind().unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists(), "an orderly end leaves nothing");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "as after a kill");
        drop(bind().unwrap());
        std::fs::write(&path, "not ours").unwrap();
        assert!(bind().is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "not ours");
    }
}
