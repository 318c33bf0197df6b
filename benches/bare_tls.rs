//! What rustls alone does: a server that shakes hands, and nothing else. `benches/doors` holds
//! the broker's handshakes against it.
//!
//! `cargo bench --bench bare_tls -- CERTIFICATE KEY` prints its port and process, and serves until
//! its standard input ends.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and may end")]

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// More than clients have under way.
const THREADS: usize = 128;

fn config(cert: &Path, key: &Path) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let chain = CertificateDer::pem_file_iter(cert).unwrap().map(Result::unwrap).collect();
    let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap());
    let config = config.as_mut().unwrap();
    // As the broker does it: tickets.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
    Arc::new(config.clone())
}

/// One client, from its handshake to its end; one that breaks off is as good.
fn serve(stream: TcpStream, config: &Arc<ServerConfig>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let connection = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let mut said = [0; 1024];
    while stream.read(&mut said)? > 0 {}
    Ok(())
}

fn main() {
    // `cargo bench` says `--bench` besides.
    let files: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [cert, key] = &files[..] else {
        println!("skipped: it takes a certificate and a key, and is started by benches/doors");
        return;
    };
    let config = config(Path::new(cert), Path::new(key));
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    println!("{} {}", listener.local_addr().unwrap().port(), std::process::id());
    for _ in 0..THREADS {
        let (listener, config) = (Arc::clone(&listener), Arc::clone(&config));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                drop(serve(stream, &config));
            }
        });
    }
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
