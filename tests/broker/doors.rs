//! Listeners: who may come in, who is told to be there, and what strangers at the door can't do to
//! those inside.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use crate::support::{
    Broker, Client, Connect, Level, Link, Start, Transport, encrypt, free_port, papers, trusting,
};

const PATIENCE: Duration = Duration::from_secs(15);
pub(crate) const TRANSPORTS: [Transport; 4] =
    [Transport::Tcp, Transport::Tls, Transport::Ws, Transport::Wss];

/// A broker with all its listeners.
pub(crate) struct House {
    pub(crate) broker: Broker,
    ports: [u16; 4],
}

impl House {
    pub(crate) fn open(start: Start) -> House {
        let ports = [(); 4].map(|()| free_port());
        let listeners = TRANSPORTS.iter().zip(ports);
        let settings = listeners.flat_map(|(transport, port)| transport.settings(port));
        let start = settings.fold(start, |start, (name, value)| start.env(&name, value));
        let mut house = House { broker: start.start(), ports };
        house.ports[0] = house.broker.address().port();
        house
    }

    pub(crate) fn port(&self, transport: Transport) -> u16 {
        self.ports[TRANSPORTS.iter().position(|other| *other == transport).unwrap()]
    }

    pub(crate) fn socket(&self, transport: Transport) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port(transport))).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A client that is let in, over a socket on which `first` was said before all else.
    pub(crate) fn client(&self, transport: Transport, first: &[u8], connect: &Connect) -> Client {
        let mut socket = self.socket(transport);
        socket.write_all(first).unwrap();
        Client::on(Link::over(socket, transport), connect.level).say_hello(connect)
    }

    fn turned(&self, listener: &str, cause: &str) -> f64 {
        let page = self.broker.scrape();
        let series = format!(
            "listenerHandshakeFailures_total{{listener=\"{listener}\",cause=\"{cause}\"}} "
        );
        let line = page.lines().find_map(|line| line.strip_prefix(&series));
        line.expect("the series exists").parse().unwrap()
    }
}

fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Tls => "ssl",
        Transport::Ws => "ws",
        Transport::Wss => "wss",
    }
}

/// Whether the other side ended the connection, by end or reset.
fn ended(stream: &mut TcpStream) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn v2(command: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16).to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, 0x11][..], &length, body].concat()
}

/// One broker, four transports: what one publishes, the others get; sessions go over from one to
/// the other; the counts say who is there.
#[test]
fn transports_share_one_broker() {
    let house = House::open(Start::new());
    let mut clients = TRANSPORTS.map(|transport| {
        let connect = Connect::v5(format!("{transport:?}")).persistent();
        let mut client = house.client(transport, b"", &connect);
        client.subscribe("t", 1);
        client
    });
    house.broker.await_metric("connectedSslSessions", 2.0);
    let large = "m".repeat(60_000);
    for from in 0..clients.len() {
        clients[from].publish("t", &large, 1);
        clients.iter_mut().for_each(|client| assert_eq!(client.take().payload(), large));
    }
    for client in clients {
        client.disconnect();
    }
    house.broker.await_metric("connectedSslSessions", 0.0);
    let moved = house.client(Transport::Wss, b"", &Connect::v5("Tcp").persistent().resume());
    assert!(moved.session_present, "it goes on over another transport");
    let page = house.broker.scrape();
    for transport in TRANSPORTS {
        let listener = name(transport);
        let open = f64::from(u8::from(transport == Transport::Wss));
        let line = format!("listenerOpenConnections{{listener=\"{listener}\"}} {open}\n");
        assert!(page.contains(&line), "{line}");
    }
}

/// PROXY headers of both versions on every listener: the session has the client's own address;
/// LOCAL and UNKNOWN are taken; without a header nobody comes in.
#[test]
fn proxy_headers_tell_the_address_on_every_listener() {
    let start = Start::new()
        .env("MQTT_PROXY_PROTOCOL_ENABLED", true)
        .env("SECURITY_ALLOW_ANONYMOUS", true)
        .allow_log("ANONYMOUS ACCESS")
        .env("RUST_LOG", "info,sluice::session=debug");
    let house = House::open(start);
    let one = b"PROXY TCP4 192.0.2.7 10.0.0.1 56789 1883\r\n".to_vec();
    let two = v2(0x21, &[192, 0, 2, 8, 10, 0, 0, 1, 0, 9, 7, 91]);
    for transport in TRANSPORTS {
        for (header, address) in [(&one, "192.0.2.7:56789"), (&two, "192.0.2.8:9")] {
            house.client(transport, header, &Connect::v5("proxied")).disconnect();
            let peer = format!("peer={}:{address}", name(transport));
            house.broker.eventually(&peer, |broker| broker.log().contains(&peer));
        }
        for header in [v2(0x20, &[]), b"PROXY UNKNOWN\r\n".to_vec()] {
            house.client(transport, &header, &Connect::v5("balancer")).disconnect();
        }
        let before = house.turned(name(transport), "proxy");
        let mut bare = house.socket(transport);
        bare.write_all(b"GET /mqtt HTTP/1.1\r\n").unwrap();
        assert!(ended(&mut bare));
        house
            .broker
            .eventually("it was counted", |_| house.turned(name(transport), "proxy") > before);
    }
}

/// A header from a network that is not trusted is no header; listeners may differ.
#[test]
fn proxy_headers_count_from_trusted_networks_only() {
    let start = Start::new()
        .env("MQTT_SSL_PROXY_PROTOCOL_ENABLED", true)
        .env("MQTT_PROXY_TRUSTED_NETWORKS", "10.0.0.0/8");
    let house = House::open(start);
    house.client(Transport::Tcp, b"", &Connect::v5("direct")).disconnect();
    let mut liar = house.socket(Transport::Tls);
    let _sent = liar.write_all(b"PROXY TCP4 192.0.2.7 10.0.0.1 56789 1883\r\n");
    assert!(ended(&mut liar));
    house.broker.eventually("it was counted", |_| house.turned("ssl", "proxy") == 1.0);
}

/// Connections of one address are bounded, the address being the client's own.
#[test]
fn connections_of_one_address_are_bounded() {
    let start = Start::new()
        .env("MQTT_PROXY_PROTOCOL_ENABLED", true)
        .env("SECURITY_ALLOW_ANONYMOUS", true)
        .allow_log("ANONYMOUS ACCESS")
        .env("LISTENER_MAX_CONNECTIONS_PER_ADDRESS", 2);
    let house = House::open(start);
    let header = |last: u8| v2(0x21, &[192, 0, 2, last, 10, 0, 0, 1, 0, 9, 7, 91]);
    let connect = |id: &str| Connect::v5(id);
    let first = house.client(Transport::Tcp, &header(1), &connect("a"));
    let _second = house.client(Transport::Wss, &header(1), &connect("b"));
    let mut third = house.socket(Transport::Tcp);
    third.write_all(&header(1)).unwrap();
    assert!(ended(&mut third));
    house.broker.eventually("it was counted", |_| house.turned("tcp", "address") == 1.0);
    house.client(Transport::Tls, &header(2), &connect("c")).disconnect();
    first.disconnect();
    // The place is free a moment after the client has seen the end.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut again = house.socket(Transport::Tcp);
        again.write_all(&[header(1), connect("d").bytes()].concat()).unwrap();
        let mut answer = [0];
        if matches!(again.read(&mut answer), Ok(1)) {
            assert_eq!(answer, [0x20], "CONNACK");
            break;
        }
        assert!(Instant::now() < deadline, "the place was never free");
    }
}

/// Each listener has its own number of connections; one that is full keeps nobody out elsewhere.
#[test]
fn connections_of_one_listener_are_bounded() {
    let house = House::open(Start::new().env("LISTENER_SSL_MAX_CONNECTIONS", 1));
    let inside = house.client(Transport::Tls, b"", &Connect::v5("inside"));
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| house.client(Transport::Tls, b"", &Connect::v5("waiting")));
        house.client(Transport::Wss, b"", &Connect::v5("elsewhere")).disconnect();
        assert!(!waiting.is_finished());
        inside.disconnect();
        waiting.join().unwrap()
    });
    waiting.disconnect();
}

/// What a stranger says who never comes to a CONNECT.
fn strangers(house: &House, each: usize) -> Vec<TcpStream> {
    let config = trusting(&papers().cert);
    let name = ServerName::try_from("localhost").unwrap();
    let mut hello = Vec::new();
    ClientConnection::new(config, name).unwrap().write_tls(&mut hello).unwrap();
    let http = b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n";
    let half = Connect::v5("half").bytes();
    let mut strangers = Vec::new();
    for number in 0..each {
        let said: [(Transport, &[u8]); 8] = [
            (Transport::Tcp, b""),
            (Transport::Tcp, &half[..half.len() / 2]),
            (Transport::Tls, b""),
            (Transport::Tls, &hello[..hello.len() / 2]),
            // A whole ClientHello, and then nothing.
            (Transport::Tls, &hello),
            (Transport::Ws, &http[..20 + number % 20]),
            (Transport::Ws, b""),
            (Transport::Wss, &hello),
        ];
        for (transport, bytes) in said {
            let mut socket = house.socket(transport);
            socket.write_all(bytes).unwrap();
            strangers.push(socket);
        }
    }
    strangers
}

/// KAL-04, on every listener: who stops half way is closed in time, its place is free again, and
/// others come in meanwhile.
#[test]
fn half_open_connections_are_closed_in_time() {
    let start = Start::new()
        .env("MQTT_CONNECT_TIMEOUT_MS", 1500)
        .env("MQTT_CONNECT_CLAIM_TIMEOUT_MS", 1000);
    let house = House::open(start);
    house.client(Transport::Wss, b"", &Connect::v5("warm")).disconnect();
    house.broker.await_metric("listenerOpenConnections", 0.0);
    let files = house.broker.open_files();
    let mut strangers = strangers(&house, 12);
    let opened = Instant::now();
    for transport in TRANSPORTS {
        house.client(transport, b"", &Connect::v5("canary")).disconnect();
    }
    assert!(strangers.iter_mut().all(ended), "each is closed");
    assert!(opened.elapsed() > Duration::from_secs(1), "closed before their time");
    for listener in ["tcp", "ssl", "ws", "wss"] {
        assert!(house.turned(listener, "timeout") >= 12.0, "{listener}");
    }
    house.broker.eventually("files are closed", |broker| broker.open_files() <= files);
}

/// Half-open connections beyond the bound push out the oldest of them, so a new client always gets
/// in, long before their time is over.
#[test]
fn a_crowd_at_the_door_keeps_nobody_out() {
    let start =
        Start::new().env("LISTENER_MAX_HANDSHAKES", 24).env("MQTT_CONNECT_TIMEOUT_MS", 600_000);
    let house = House::open(start);
    let mut inside = house.client(Transport::Tls, b"", &Connect::v5("inside"));
    let strangers = strangers(&house, 12);
    for transport in TRANSPORTS {
        house.client(transport, b"", &Connect::v5("canary")).disconnect();
    }
    inside.ping();
    let crowded: f64 =
        ["tcp", "ssl", "ws", "wss"].map(|door| house.turned(door, "crowded")).iter().sum();
    assert!(crowded >= strangers.len() as f64 - 24.0, "{crowded} went");
    drop(strangers);
    house.client(Transport::Wss, b"", &Connect::v5("canary")).disconnect();
}

/// PAR-05: garbage and drips on every listener, while a client works on; nothing panics, nothing is
/// left.
#[test]
fn garbage_and_drips_disturb_nobody() {
    let start = Start::new()
        .env("MQTT_CONNECT_TIMEOUT_MS", 3000)
        .env("MQTT_CONNECT_CLAIM_TIMEOUT_MS", 1000);
    let house = House::open(start);
    let mut canary = house.client(Transport::Wss, b"", &Connect::v5("canary"));
    canary.subscribe("t", 1);
    let files = house.broker.open_files();
    let seeds = [&b"\x16\x03\x01\xFF\xFF"[..], b"\x16\x03\x03\0\x05\x01\xFF\xFF\xFF\xFF", b"GET "];
    std::thread::scope(|scope| {
        for attacker in 0..4_u64 {
            let house = &house;
            scope.spawn(move || {
                let mut random = crate::support::Random::seeded(attacker);
                for round in 0..60 {
                    let mut socket = house.socket(*random.pick(&TRANSPORTS));
                    let length = 1 + random.below(3000);
                    let noise = (0..length).map(|_| random.next() as u8).collect::<Vec<u8>>();
                    let _taken = socket.write_all(seeds[round % seeds.len()]);
                    let _taken = socket.write_all(&noise);
                }
            });
        }
        for transport in TRANSPORTS {
            let house = &house;
            scope.spawn(move || {
                let mut drip = house.socket(transport);
                while drip.write_all(b"G").is_ok() {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
        }
        for number in 0..100 {
            let text = format!("{number}");
            canary.publish("t", &text, 1);
            assert_eq!(canary.take().payload(), text);
        }
    });
    house.broker.eventually("files are closed", |broker| broker.open_files() <= files);
    assert_eq!(house.broker.metric("taskPanics_total"), Some(0.0));
}

/// New certificate files are shown to new connections; those that are open stay. Bad files change
/// nothing, and the log says so.
#[test]
fn certificates_change_without_a_dropped_connection() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let fresh = || {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    };
    let install = |(cert, key): &(String, String)| {
        for (name, text) in [("cert.pem", cert), ("key.pem", key)] {
            std::fs::write(file("new"), text).unwrap();
            std::fs::rename(file("new"), file(name)).unwrap();
        }
    };
    let (old, new) = (fresh(), fresh());
    install(&old);
    let port = free_port();
    let broker = Start::new()
        .env("LISTENER_SSL_ENABLED", true)
        .env("LISTENER_SSL_BIND_ADDRESS", "127.0.0.1")
        .env("LISTENER_SSL_BIND_PORT", port)
        .env("LISTENER_SSL_PEM_CERT", file("cert.pem").display())
        .env("LISTENER_SSL_PEM_KEY", file("key.pem").display())
        .env("LISTENER_CERTIFICATES_RELOAD_PERIOD_MS", 50)
        // The new certificate is there a moment before its key.
        .allow_log("what was loaded before stays in use")
        .start();
    let connect = |trusted: &str| {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let link = Link::Tls(Box::new(encrypt(socket, trusting(trusted)).ok()?));
        Some(Client::on(link, Level::V5).say_hello(&Connect::v5("")))
    };
    let mut before = connect(&old.0).expect("the first certificate");
    install(&new);
    broker.eventually("the new certificate", |_| connect(&new.0).is_some());
    assert!(connect(&old.0).is_none());
    before.ping();
    std::fs::write(file("cert.pem"), "nonsense").unwrap();
    broker.eventually("the log says so", |broker| {
        broker.log().contains("cert_file: ") && broker.log().contains("no certificate in PEM")
    });
    assert!(connect(&new.0).is_some(), "the good one stays in use");
    before.ping();
}

/// All that is wrong with certificate files is told at the start, with exit code 2.
#[test]
fn bad_certificate_files_stop_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let start = Start::new()
        .env("LISTENER_SSL_ENABLED", true)
        .env("LISTENER_SSL_PEM_CERT", "missing.pem")
        .env("LISTENER_SSL_PEM_KEY", empty.display())
        .env("LISTENER_SSL_CLIENT_AUTH", "required")
        .env("LISTENER_WSS_ENABLED", true)
        .env("LISTENER_WSS_ENABLED_CIPHER_SUITES", "TLS_NULL");
    let Err((status, log)) = start.try_start() else { panic!("it started") };
    assert_eq!(status.code(), Some(2), "{log}");
    for part in [
        "listener.ssl.config.credentials.pem.cert_file: missing.pem",
        "listener.ssl.config.credentials.pem.key_file: ",
        "listener.ssl.config.credentials.pem.ca_file: ",
        "listener.wss.config.enabled_cipher_suites: TLS_NULL",
        "listener.wss.config.credentials.pem.cert_file: ws_mqtt_server.pem",
    ] {
        assert!(log.contains(part), "{part:?} is not in\n{log}");
    }
}

/// A UNIX socket is a listener like the others, for whom its file's permissions let in.
#[test]
fn a_unix_socket_is_a_listener() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mqtt.sock");
    let mut broker = Start::new()
        .env("LISTENER_UNIX_ENABLED", true)
        .env("LISTENER_UNIX_PATH", path.display())
        .env("LISTENER_UNIX_MAX_PAYLOAD_SIZE", 200)
        .start();
    let exchange = |bytes: &[u8], expected: usize| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = vec![0; expected];
        stream.read_exact(&mut answer).unwrap();
        answer
    };
    let hello = Connect::v311("local").bytes();
    assert_eq!(exchange(&hello, 4), [0x20, 2, 0, 0]);
    let ping = [&hello[..], &[0xC0, 0]].concat();
    assert_eq!(exchange(&ping, 6), [0x20, 2, 0, 0, 0xD0, 0]);
    // What a kill leaves behind is no hindrance.
    broker.kill_and_restart();
    assert_eq!(exchange(&hello, 4), [0x20, 2, 0, 0]);
}

/// KAL-05: buffers of handshakes are freed: hundreds of connects over TLS leave nothing behind.
#[test]
fn tls_connections_leave_nothing_behind() {
    let house = House::open(Start::new());
    let connects = |count: usize| {
        for _ in 0..count {
            house.client(Transport::Tls, b"", &Connect::v5("fleeting")).disconnect();
        }
    };
    connects(150);
    let before = house.broker.rss_kib();
    connects(600);
    let grown = house.broker.rss_kib().saturating_sub(before);
    // A handshake's buffers are tens of KiB: kept, they would be some twenty MiB.
    assert!(grown < 6 * 1024, "grown by {grown} KiB");
}
