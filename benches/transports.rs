//! What TLS and WebSocket cost: QoS 1 from publishers to subscribers over each transport in turn,
//! in one run against one broker; then full and resumed TLS handshakes a second, and resident
//! memory of idle connections. `cargo bench --bench transports`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and may end")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "it measures real time")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};

const PAIRS: usize = 4;
const WINDOW: usize = 100;
const PAYLOAD: usize = 256;
const SECONDS: u64 = 4;
const ROUNDS: usize = 3;
const IDLE: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Transport {
    Tcp,
    Tls,
    Ws,
    Wss,
}

const ALL: [Transport; 4] = [Transport::Tcp, Transport::Tls, Transport::Ws, Transport::Wss];

struct Broker {
    child: Child,
    ports: [u16; 4],
    client: Arc<ClientConfig>,
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn client_config(cert: CertificateDer<'static>, resumes: bool) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(cert).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    if !resumes {
        config.resumption = Resumption::disabled();
    }
    Arc::new(config)
}

fn start(folder: &Path) -> (Broker, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ports = [(); 4].map(|()| free());
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.env("STORAGE_EMBEDDED_PATH", folder.join("data")).env("RUST_LOG", "warn");
    command.env("HTTP_BIND_PORT", free().to_string());
    for (name, port) in ["TCP", "SSL", "WS", "WSS"].into_iter().zip(ports) {
        command
            .env(format!("LISTENER_{name}_ENABLED"), "true")
            .env(format!("LISTENER_{name}_BIND_ADDRESS"), "127.0.0.1")
            .env(format!("LISTENER_{name}_BIND_PORT"), port.to_string())
            .env(format!("LISTENER_{name}_PEM_CERT"), &cert)
            .env(format!("LISTENER_{name}_PEM_KEY"), &key);
    }
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    while TcpStream::connect(("127.0.0.1", ports[0])).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let cert = made.cert.der().clone();
    let client = client_config(cert.clone(), true);
    (Broker { child, ports, client }, client_config(cert, false))
}

enum Carrier {
    Bare(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// A connection; over WebSocket its bytes are in frames, with a mask of 0, which costs the client
/// nothing and the broker as much as any other.
struct Link {
    carrier: Carrier,
    framed: bool,
    raw: Vec<u8>,
    plain: Vec<u8>,
}

impl Link {
    fn open(broker: &Broker, transport: Transport, config: &Arc<ClientConfig>) -> Link {
        let address = SocketAddr::from(([127, 0, 0, 1], broker.ports[transport as usize]));
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        let carrier = match transport {
            Transport::Tcp | Transport::Ws => Carrier::Bare(socket),
            Transport::Tls | Transport::Wss => {
                let name = ServerName::try_from("localhost").unwrap();
                let client = ClientConnection::new(Arc::clone(config), name).unwrap();
                Carrier::Tls(Box::new(StreamOwned::new(client, socket)))
            }
        };
        let mut link = Link { carrier, framed: false, raw: Vec::new(), plain: Vec::new() };
        if matches!(transport, Transport::Ws | Transport::Wss) {
            link.send(
                b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                  Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Protocol: mqtt\r\n\r\n",
            );
            while !link.plain.ends_with(b"\r\n\r\n") {
                link.fill();
            }
            link.plain.clear();
            link.framed = true;
        }
        link
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut framed;
        let bytes = if self.framed {
            framed = vec![0x82, 0x80 | 127];
            if bytes.len() < 126 {
                framed = vec![0x82, 0x80 | bytes.len() as u8];
            } else if let Ok(short) = u16::try_from(bytes.len()) {
                framed[1] = 0x80 | 126;
                framed.extend(short.to_be_bytes());
            } else {
                framed.extend((bytes.len() as u64).to_be_bytes());
            }
            framed.extend([0; 4]);
            framed.extend_from_slice(bytes);
            &framed
        } else {
            bytes
        };
        match &mut self.carrier {
            Carrier::Bare(stream) => stream.write_all(bytes).unwrap(),
            Carrier::Tls(stream) => {
                stream.write_all(bytes).unwrap();
                stream.flush().unwrap();
            }
        }
    }

    /// Reads once; what frames carry goes into `plain`.
    fn fill(&mut self) {
        let mut piece = [0; 64 * 1024];
        let read = match &mut self.carrier {
            Carrier::Bare(stream) => stream.read(&mut piece).unwrap(),
            Carrier::Tls(stream) => stream.read(&mut piece).unwrap(),
        };
        assert!(read > 0, "the broker closed");
        if !self.framed {
            return self.plain.extend_from_slice(&piece[..read]);
        }
        self.raw.extend_from_slice(&piece[..read]);
        let mut at = 0;
        while let Some((head, length)) = frame(&self.raw[at..]) {
            let Some(payload) = self.raw.get(at + head..at + head + length) else { break };
            self.plain.extend_from_slice(payload);
            at += head + length;
        }
        self.raw.drain(..at);
    }

    /// Takes whole packets out; calls with each first byte and body.
    fn packets(&mut self, mut each: impl FnMut(u8, &[u8])) {
        self.fill();
        let mut at = 0;
        while let Some((head, length)) = packet(&self.plain[at..]) {
            let Some(body) = self.plain.get(at + head..at + head + length) else { break };
            each(self.plain[at], body);
            at += head + length;
        }
        self.plain.drain(..at);
    }

    fn expect(&mut self, first: u8) {
        let mut there = false;
        while !there {
            self.packets(|kind, _| there |= kind == first);
        }
    }

    fn hello(&mut self, id: &str) {
        let mut packet = vec![0x10, 12 + id.len() as u8];
        packet.extend(b"\0\x04MQTT\x04\x02\0\0\0");
        packet.push(id.len() as u8);
        packet.extend(id.bytes());
        self.send(&packet);
        self.expect(0x20);
    }
}

/// Lengths of a broker's frame's head and payload.
fn frame(bytes: &[u8]) -> Option<(usize, usize)> {
    match *bytes.get(1)? {
        126 => Some((4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])))),
        127 => Some((10, u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?) as usize)),
        short => Some((2, usize::from(short))),
    }
}

/// Lengths of a packet's fixed header and rest.
fn packet(bytes: &[u8]) -> Option<(usize, usize)> {
    let (mut length, mut at) = (0, 1);
    loop {
        let byte = *bytes.get(at)?;
        length |= usize::from(byte & 0x7F) << (7 * (at - 1));
        at += 1;
        if byte < 0x80 {
            return Some((at, length));
        }
    }
}

/// Messages a second that reach their subscribers.
fn rate(broker: &Broker, transport: Transport, round: usize) -> f64 {
    let (stop, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for pair in 0..PAIRS {
            let topic = format!("bench/{transport:?}/{pair}");
            let (stop, taken) = (&stop, &taken);
            let mut subscriber = Link::open(broker, transport, &broker.client);
            subscriber.hello(&format!("s{round}{pair}{transport:?}"));
            let mut packet = vec![0x82, 5 + topic.len() as u8, 0, 1, 0, topic.len() as u8];
            packet.extend(topic.bytes());
            packet.push(1);
            subscriber.send(&packet);
            subscriber.expect(0x90);
            let mut publisher = Link::open(broker, transport, &broker.client);
            publisher.hello(&format!("p{round}{pair}{transport:?}"));
            scope.spawn(move || {
                let mut acks = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    subscriber.packets(|kind, body| {
                        if kind & 0xF0 == 0x30 {
                            let at = 2 + usize::from(body[1]);
                            acks.extend([0x40, 2, body[at], body[at + 1]]);
                        }
                    });
                    taken.fetch_add(acks.len() as u64 / 4, Ordering::Relaxed);
                    if !acks.is_empty() {
                        subscriber.send(&acks);
                        acks.clear();
                    }
                }
            });
            scope.spawn(move || {
                let length = 4 + topic.len() + PAYLOAD;
                let mut batch = Vec::new();
                for id in 1..=WINDOW as u16 {
                    batch.extend([0x32, length as u8 & 0x7F | 0x80, (length >> 7) as u8, 0]);
                    batch.push(topic.len() as u8);
                    batch.extend(topic.bytes());
                    batch.extend(id.to_be_bytes());
                    batch.extend([b'm'; PAYLOAD]);
                }
                while !stop.load(Ordering::Relaxed) {
                    publisher.send(&batch);
                    let mut open = WINDOW;
                    while open > 0 {
                        publisher.packets(|kind, _| open -= usize::from(kind == 0x40));
                    }
                }
                // The subscriber waits for one more.
                publisher.send(&batch);
                std::thread::sleep(Duration::from_millis(300));
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        let (before, since) = (taken.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(Duration::from_secs(SECONDS));
        let count = taken.load(Ordering::Relaxed) - before;
        let rate = count as f64 / since.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// TLS handshakes a second, CONNECT included, one after another.
fn handshakes(broker: &Broker, config: &Arc<ClientConfig>, kind: HandshakeKind) -> f64 {
    let (mut count, mut of_kind, since) = (0, 0, Instant::now());
    while since.elapsed() < Duration::from_secs(SECONDS) {
        let mut link = Link::open(broker, Transport::Tls, config);
        link.hello("handshake");
        let Carrier::Tls(stream) = &link.carrier else { unreachable!("it was opened so") };
        of_kind += usize::from(stream.conn.handshake_kind() == Some(kind));
        count += 1;
    }
    assert!(of_kind + 1 >= count, "{of_kind} of {count} were {kind:?}");
    count as f64 / since.elapsed().as_secs_f64()
}

fn rss_kib(broker: &Broker) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, without_resumption) = start(folder.path());
    let mut rates = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        for transport in ALL {
            rates[transport as usize].push(rate(&broker, transport, round));
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let medians = ALL.map(|transport| median(&mut rates[transport as usize]));
    println!("QoS 1, {PAIRS} pairs, {PAYLOAD} B, window {WINDOW}, medians of {ROUNDS}:");
    for (transport, rate) in ALL.iter().zip(medians) {
        println!("  {transport:?}: {rate:.0}/s, {:.0} % of TCP", 100.0 * rate / medians[0]);
    }
    let full = handshakes(&broker, &without_resumption, HandshakeKind::Full);
    let resumed = handshakes(&broker, &broker.client, HandshakeKind::Resumed);
    println!("TLS connects one after another: {full:.0}/s full, {resumed:.0}/s resumed");
    for transport in ALL {
        let before = rss_kib(&broker);
        let open = |number: usize| {
            let mut link = Link::open(&broker, transport, &broker.client);
            link.hello(&format!("i{transport:?}{number}"));
            link
        };
        let links: Vec<Link> = (0..IDLE).map(open).collect();
        std::thread::sleep(Duration::from_secs(1));
        let grown = (rss_kib(&broker) - before) / links.len() as f64;
        println!("idle over {transport:?}: {grown:.1} KiB each ({IDLE} connections)");
    }
}
