//! Where clients come from: the address that a proxy tells counts everywhere, and the listener says
//! whether one who proves nothing may come in.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::doors::{House, TRANSPORTS};
use crate::operator::{self, Operator};
use crate::support::{Broker, Client, Connect, Level, Link, PATIENCE, Packet, Start, Transport};

const FAR: &str = "192.0.2.77";

fn proxied(line: usize) -> Vec<u8> {
    format!("PROXY TCP4 {FAR} 10.0.0.1 {} 1883\r\n", 50_000 + line).into_bytes()
}

/// The code in the CONNACK of a client that is as good as in or as good as out.
fn code(house: &House, transport: Transport, first: &[u8], connect: &Connect) -> u8 {
    let mut socket = house.socket(transport);
    socket.write_all(first).unwrap();
    let mut client = Client::on(Link::over(socket, transport), connect.level);
    client.send(&connect.bytes());
    match client.recv() {
        Packet::Connack { code, .. } => code,
        other => panic!("{other:?} in place of CONNACK"),
    }
}

/// The client's own address behind a balancer stands in the list of sessions and in that of
/// refused clients, counts for limits by address, and is what a block by address names, on every
/// listener.
#[test]
fn the_address_that_a_balancer_tells_counts_everywhere() {
    let start = operator::start_basic()
        .env("MQTT_PROXY_PROTOCOL_ENABLED", true)
        .env("LISTENER_MAX_CONNECTIONS_PER_ADDRESS", 1);
    let house = House::open(start);
    let operator = Operator::login(&house.broker);
    operator.credential("u", &json!({ "userName": "u", "password": "p" }));
    for (number, transport) in TRANSPORTS.into_iter().enumerate() {
        let id = format!("far-{transport:?}");
        let connect = Connect::v5(&id).user("u").password("p");
        let mut client = house.client(transport, &proxied(number), &connect);
        let session = operator.get(&format!("/api/client-session?clientId={id}")).ok();
        assert_eq!(session["clientIpAdr"], FAR, "{transport:?}: {session}");
        let mut second = house.socket(transport);
        second.write_all(&proxied(number)).unwrap();
        let ended = second.read_to_end(&mut Vec::new());
        assert!(ended.is_ok_and(|read| read == 0), "two of one address over {transport:?}");
        client.ping();
        client.disconnect();
        house.broker.await_metric("connectedSessions", 0.0);
        house.broker.await_metric("listenerOpenConnections", 0.0);
        let wrong = Connect::v5("wrong").user("u").password("q");
        assert_eq!(code(&house, transport, &proxied(number), &wrong), 0x86);
        let refused = operator.get("/api/unauthorized/client?pageSize=1").ok();
        assert_eq!(refused["data"][0]["ipAddress"], FAR, "{refused}");
        house.broker.await_metric("listenerOpenConnections", 0.0);
    }
    let block = json!({ "type": "IP_ADDRESS", "value": FAR });
    operator.post("/api/blockedClient", &block).ok();
    for (number, transport) in TRANSPORTS.into_iter().enumerate() {
        let connect = Connect::v5("blocked").user("u").password("p");
        assert_eq!(code(&house, transport, &proxied(number), &connect), 0x8A);
        house.broker.await_metric("listenerOpenConnections", 0.0);
        let other = proxied(number + 10);
        let other = String::from_utf8(other).unwrap().replace(FAR, "192.0.2.78").into_bytes();
        assert_eq!(code(&house, transport, &other, &connect), 0, "his neighbour");
        house.broker.await_metric("listenerOpenConnections", 0.0);
    }
}

/// What an HTTP proxy tells of a WebSocket's client counts likewise, and only from networks that
/// are trusted.
#[test]
fn the_address_that_an_http_proxy_tells_counts_everywhere() {
    let start = operator::start_basic()
        .env("LISTENER_WS_FORWARDED_ENABLED", true)
        .env("LISTENER_MAX_CONNECTIONS_PER_ADDRESS", 1);
    let upgrade = format!(
        "GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Protocol: mqtt\r\nX-Forwarded-For: 203.0.113.5, {FAR}, 10.1.2.3\r\n\r\n"
    );
    let open = |house: &House| -> TcpStream {
        let mut stream = house.socket(Transport::Ws);
        stream.write_all(upgrade.as_bytes()).unwrap();
        stream
    };
    /// Until the head's end; nothing: it was closed.
    fn head(stream: &mut TcpStream) -> String {
        let (mut head, mut byte) = (String::new(), [0]);
        while !head.ends_with("\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
            head.push(char::from(byte[0]));
        }
        head
    }
    let hello = |stream: &mut TcpStream, id: &str| {
        let connect = Connect::v5(id).user("u").password("p").bytes();
        let mut frame = vec![0x82, 0x80 | connect.len() as u8, 0, 0, 0, 0];
        frame.extend(connect);
        stream.write_all(&frame).unwrap();
        let mut answer = [0; 6];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[2], 0x20, "CONNACK");
        answer[5]
    };
    let house = House::open(start.clone());
    let operator = Operator::login(&house.broker);
    operator.credential("u", &json!({ "userName": "u", "password": "p" }));
    let mut stream = open(&house);
    assert!(head(&mut stream).starts_with("HTTP/1.1 101"));
    assert_eq!(hello(&mut stream, "far"), 0);
    let session = operator.get("/api/client-session?clientId=far").ok();
    assert_eq!(session["clientIpAdr"], FAR, "the nearest that is no proxy: {session}");
    let mut second = open(&house);
    head(&mut second);
    assert_eq!(second.read_to_end(&mut Vec::new()).unwrap_or(0), 0, "two of one address");
    let block = json!({ "type": "IP_ADDRESS", "value": FAR });
    operator.post("/api/blockedClient", &block).ok();
    assert!(stream.read_to_end(&mut Vec::new()).is_ok(), "it was connected");
    house.broker.await_metric("listenerOpenConnections", 0.0);
    let mut blocked = open(&house);
    head(&mut blocked);
    assert_eq!(hello(&mut blocked, "again"), 0x8A);
    // Nobody is trusted: the socket's address counts, whatever the header says.
    let house = House::open(start.env("MQTT_PROXY_TRUSTED_NETWORKS", "10.0.0.0/8"));
    let operator = Operator::login(&house.broker);
    operator.credential("u", &json!({ "userName": "u", "password": "p" }));
    let mut stream = open(&house);
    head(&mut stream);
    assert_eq!(hello(&mut stream, "near"), 0);
    let session = operator.get("/api/client-session?clientId=near").ok();
    assert_eq!(session["clientIpAdr"], "127.0.0.1");
}

/// A listener says for itself whether clients that prove nothing come in by it, with a provider
/// and without.
#[test]
fn anonymous_clients_come_by_the_listener_that_says_so() {
    let only_ws = |start: Start| {
        start
            .env("SECURITY_ALLOW_ANONYMOUS", false)
            .env("LISTENER_WS_ALLOW_ANONYMOUS", true)
            .allow_log("no client can come in")
            .allow_log("ANONYMOUS ACCESS")
    };
    for start in [Start::new(), operator::start_basic()] {
        let house = House::open(only_ws(start));
        let said = |broker: &Broker| broker.log().contains("listener.ws.allow_anonymous");
        house.broker.eventually("it is said loudly", said);
        for transport in TRANSPORTS {
            let is_ws = transport == Transport::Ws;
            let expected = if is_ws { 0 } else { 0x87 };
            assert_eq!(code(&house, transport, b"", &Connect::v5("silent")), expected);
            let level4 = Connect::new(Level::V311, "silent");
            assert_eq!(code(&house, transport, b"", &level4), if is_ws { 0 } else { 5 });
        }
    }
    let with_password = Connect::v5("c").user("u").password("p");
    let house = House::open(only_ws(operator::start_basic()));
    assert_eq!(code(&house, Transport::Ws, b"", &with_password), 0x86, "a wrong proof is none");
    let start = Start::new().env("LISTENER_SSL_ALLOW_ANONYMOUS", "false");
    let house = House::open(start);
    assert_eq!(code(&house, Transport::Tls, b"", &Connect::v5("silent")), 0x87);
    assert_eq!(code(&house, Transport::Tcp, b"", &Connect::v5("silent")), 0);
}

/// A balancer on the same machine tells the address over a UNIX socket, too, in both versions.
#[test]
fn a_balancer_may_come_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mqtt.sock");
    let start = operator::start()
        .env("SECURITY_ALLOW_ANONYMOUS", true)
        .env("LISTENER_UNIX_ENABLED", true)
        .env("LISTENER_UNIX_PATH", path.display())
        .env("LISTENER_UNIX_PROXY_PROTOCOL_ENABLED", true)
        .allow_log("ANONYMOUS ACCESS");
    let broker = start.start();
    let operator = Operator::login(&broker);
    let address = [192, 0, 2, 77, 10, 0, 0, 1, 0xC3, 0x50, 7, 0x5B];
    let two = [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0C".as_slice(), &address].concat();
    for (id, header) in [("one", proxied(0)), ("two", two)] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&header).unwrap();
        stream.write_all(&Connect::v311(id).bytes()).unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x20, 2, 0, 0]);
        let session = operator.get(&format!("/api/client-session?clientId={id}")).ok();
        assert_eq!(session["clientIpAdr"], FAR, "{session}");
    }
}
