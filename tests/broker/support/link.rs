//! A client's connection over the transport that `SLUICE_TESTS_TRANSPORT` names (tcp, tls, ws,
//! wss): bytes go in and come out, whatever carries them. Other libraries do the carrying.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, StreamOwned};
use tempfile::TempDir;
use tungstenite::{ClientRequestBuilder, Message, WebSocket};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Tls,
    Ws,
    Wss,
}

impl Transport {
    pub(crate) fn chosen() -> Transport {
        match std::env::var("SLUICE_TESTS_TRANSPORT").as_deref() {
            Err(_) | Ok("" | "tcp") => Transport::Tcp,
            Ok("tls") => Transport::Tls,
            Ok("ws") => Transport::Ws,
            Ok("wss") => Transport::Wss,
            Ok(other) => panic!("SLUICE_TESTS_TRANSPORT is {other}"),
        }
    }

    /// Its listener, in names of settings.
    fn name(self) -> Option<&'static str> {
        match self {
            Transport::Tcp => None,
            Transport::Tls => Some("SSL"),
            Transport::Ws => Some("WS"),
            Transport::Wss => Some("WSS"),
        }
    }

    /// The setting of its listener that is `TCP_NETTY_…` for bare TCP.
    pub(crate) fn twin_of(self, setting: &str) -> Option<String> {
        let end = setting.strip_prefix("TCP_NETTY_")?;
        self.name().map(|name| format!("{name}_NETTY_{end}"))
    }

    /// What starts its listener on this port.
    pub(crate) fn settings(self, port: u16) -> Vec<(String, String)> {
        let Some(name) = self.name() else { return Vec::new() };
        let papers = papers();
        [
            ("ENABLED", "true".to_owned()),
            ("BIND_ADDRESS", "127.0.0.1".to_owned()),
            ("BIND_PORT", port.to_string()),
            ("PEM_CERT", papers.file("server.pem")),
            ("PEM_KEY", papers.file("server_key.pem")),
        ]
        .map(|(end, value)| (format!("LISTENER_{name}_{end}"), value))
        .into()
    }
}

/// A server's certificate, which its clients trust; one for a test process.
pub(crate) struct Papers {
    folder: TempDir,
    pub(crate) cert: String,
}

pub(crate) fn papers() -> &'static Papers {
    static PAPERS: OnceLock<Papers> = OnceLock::new();
    PAPERS.get_or_init(|| {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let papers = Papers { folder: TempDir::new().unwrap(), cert: made.cert.pem() };
        std::fs::write(papers.path("server.pem"), &papers.cert).unwrap();
        std::fs::write(papers.path("server_key.pem"), made.signing_key.serialize_pem()).unwrap();
        papers
    })
}

impl Papers {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

/// Trusts whatever this PEM holds, and shows nothing.
pub(crate) fn trusting(pem: &str) -> Arc<ClientConfig> {
    Arc::new(roots_of(pem).with_no_client_auth())
}

/// A client that trusts whatever this PEM holds.
pub(crate) fn roots_of(pem: &str) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    config.unwrap().with_root_certificates(roots)
}

pub(crate) type Encrypted = StreamOwned<ClientConnection, TcpStream>;

pub(crate) fn encrypt(stream: TcpStream, config: Arc<ClientConfig>) -> io::Result<Encrypted> {
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut encrypted = StreamOwned::new(client, stream);
    while encrypted.conn.is_handshaking() {
        encrypted.conn.complete_io(&mut encrypted.sock)?;
    }
    Ok(encrypted)
}

/// A WebSocket that is read and written as a stream.
pub(crate) struct Framed<S> {
    socket: WebSocket<S>,
    rest: Vec<u8>,
}

impl<S: Read + Write> Framed<S> {
    pub(crate) fn over(stream: S) -> Framed<S> {
        let uri = "ws://localhost/mqtt".parse().unwrap();
        let request = ClientRequestBuilder::new(uri).with_sub_protocol("mqtt");
        let (socket, _) = tungstenite::client(request, stream).expect("the upgrade is accepted");
        Framed { socket, rest: Vec::new() }
    }
}

fn plain(error: tungstenite::Error) -> io::Result<usize> {
    use tungstenite::Error;
    use tungstenite::error::ProtocolError;
    match error {
        Error::ConnectionClosed | Error::AlreadyClosed => Ok(0),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
            Err(ErrorKind::ConnectionReset.into())
        }
        Error::Io(error) => Err(error),
        other => Err(io::Error::other(other)),
    }
}

impl<S: Read + Write> Read for Framed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.socket.read() {
                Ok(Message::Binary(bytes)) => self.rest = bytes.into(),
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(_)) => return Ok(0),
                Ok(other) => panic!("the broker sent {other:?}"),
                Err(error) => return plain(error),
            }
        }
        let taken = buffer.len().min(self.rest.len());
        buffer[..taken].copy_from_slice(&self.rest[..taken]);
        self.rest.drain(..taken);
        Ok(taken)
    }
}

impl<S: Read + Write> Write for Framed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.socket.send(Message::binary(bytes.to_vec())) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => match plain(error)? {
                0 => Err(ErrorKind::BrokenPipe.into()),
                taken => Ok(taken),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.socket.flush() {
            Ok(()) => Ok(()),
            Err(error) => plain(error).map(|_| ()),
        }
    }
}

pub(crate) enum Link {
    Tcp(TcpStream),
    Tls(Box<Encrypted>),
    Ws(Box<Framed<TcpStream>>),
    Wss(Box<Framed<Encrypted>>),
}

impl Link {
    /// Shakes hands over a socket that stands.
    pub(crate) fn over(stream: TcpStream, transport: Transport) -> Link {
        let encrypted =
            |stream| encrypt(stream, trusting(&papers().cert)).expect("the TLS handshake succeeds");
        match transport {
            Transport::Tcp => Link::Tcp(stream),
            Transport::Tls => Link::Tls(Box::new(encrypted(stream))),
            Transport::Ws => Link::Ws(Box::new(Framed::over(stream))),
            Transport::Wss => Link::Wss(Box::new(Framed::over(encrypted(stream)))),
        }
    }

    /// What carries it all, for its timeouts and options.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Link::Tcp(stream) => stream,
            Link::Tls(stream) => &stream.sock,
            Link::Ws(stream) => stream.socket.get_ref(),
            Link::Wss(stream) => &stream.socket.get_ref().sock,
        }
    }
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Link::Tcp(stream) => stream.read(buffer),
            Link::Tls(stream) => stream.read(buffer),
            Link::Ws(stream) => stream.read(buffer),
            Link::Wss(stream) => stream.read(buffer),
        };
        match read {
            // A connection that breaks off says no goodbye in TLS either.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Link::Tcp(stream) => stream.write(bytes),
            Link::Tls(stream) => stream.write(bytes),
            Link::Ws(stream) => stream.write(bytes),
            Link::Wss(stream) => stream.write(bytes),
        };
        match written {
            Ok(0) if !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Link::Tcp(stream) => stream.flush(),
            Link::Tls(stream) => stream.flush(),
            Link::Ws(stream) => stream.flush(),
            Link::Wss(stream) => stream.flush(),
        }
    }
}
