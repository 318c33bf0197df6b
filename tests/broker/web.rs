//! A web service as an operator may run one: it answers what a test tells it to, bare or over TLS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::authority::Authority;
use crate::support::PATIENCE;

/// One request as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// `POST /path HTTP/1.1`.
    pub(crate) line: String,
    /// Names in small letters.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

type Answers = dyn Fn(&Asked) -> (u16, String) + Send + Sync;

/// It ends with this.
pub(crate) struct Web {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    answers: Box<Answers>,
    tls: Option<Arc<ServerConfig>>,
    asked: Mutex<Vec<Asked>>,
    open: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

impl Web {
    pub(crate) fn open(answers: impl Fn(&Asked) -> (u16, String) + Send + Sync + 'static) -> Web {
        Web::begin(0, None, Box::new(answers))
    }

    /// At a port that was in use before.
    pub(crate) fn open_at(
        port: u16,
        answers: impl Fn(&Asked) -> (u16, String) + Send + Sync + 'static,
    ) -> Web {
        Web::begin(port, None, Box::new(answers))
    }

    /// Over TLS, for clients that show a certificate of the same authority.
    pub(crate) fn encrypted(
        authority: &Authority,
        answers: impl Fn(&Asked) -> (u16, String) + Send + Sync + 'static,
    ) -> Web {
        Web::encrypted_at(0, authority, answers)
    }

    /// The same at a port that was in use before.
    pub(crate) fn encrypted_at(
        port: u16,
        authority: &Authority,
        answers: impl Fn(&Asked) -> (u16, String) + Send + Sync + 'static,
    ) -> Web {
        let (own, mut roots) = (authority.server(), RootCertStore::empty());
        roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let key = PrivateKeyDer::try_from(own.key.serialize_der()).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(own.pem.as_bytes()).unwrap()];
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(chain, key)
            .unwrap();
        Web::begin(port, Some(Arc::new(config)), Box::new(answers))
    }

    fn begin(port: u16, tls: Option<Arc<ServerConfig>>, answers: Box<Answers>) -> Web {
        // Who had the port before may not quite be gone.
        let deadline = Instant::now() + PATIENCE;
        let listener = loop {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                Err(error) if Instant::now() > deadline => panic!("port {port}: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
                Ok(listener) => break listener,
            }
        };
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            answers,
            tls,
            asked: Mutex::default(),
            open: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if serving.ended.load(Ordering::SeqCst) {
                    return;
                }
                serving.open.lock().push(stream.try_clone().unwrap());
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Web { port, shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.open.lock().len()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        for stream in self.shared.open.lock().drain(..) {
            let _gone = stream.shutdown(Shutdown::Both);
        }
        // Wakes the thread that accepts.
        let _woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        match &self.tls {
            None => self.answer_all(stream),
            Some(config) => {
                let connection = ServerConnection::new(Arc::clone(config)).unwrap();
                self.answer_all(StreamOwned::new(connection, stream));
            }
        }
    }

    /// Requests one after another, until the other side goes.
    fn answer_all(&self, stream: impl Read + Write) {
        let mut stream = BufReader::new(stream);
        while let Some(asked) = read(&mut stream) {
            self.asked.lock().push(asked.clone());
            let (status, body) = (self.answers)(&asked);
            let length = body.len();
            let head = format!("HTTP/1.1 {status} It\r\nContent-Length: {length}\r\n\r\n");
            let stream = stream.get_mut();
            if stream.write_all((head + &body).as_bytes()).and_then(|()| stream.flush()).is_err() {
                return;
            }
        }
    }
}

fn read(stream: &mut impl BufRead) -> Option<Asked> {
    let mut asked = Asked::default();
    stream.read_line(&mut asked.line).ok().filter(|count| *count > 0)?;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        asked.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = asked.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    asked.body = String::from_utf8(body).ok()?;
    asked.line = asked.line.trim_end().to_owned();
    Some(asked)
}
