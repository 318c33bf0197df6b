//! MQTT over WebSocket, as bytes: frames of every cut, what breaks the rules, and what must not
//! cost memory. (`tests/run` runs other tests over WebSocket, too.)

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Broker, Connect, Level, Packet, Start, free_port, parse, wire};

const PATIENCE: Duration = Duration::from_secs(15);

/// A broker with a WebSocket listener, and its port.
fn broker(more: &[(&str, &str)]) -> (Broker, u16) {
    let port = free_port();
    let start = Start::new()
        .env("LISTENER_WS_ENABLED", true)
        .env("LISTENER_WS_BIND_ADDRESS", "127.0.0.1")
        .env("LISTENER_WS_BIND_PORT", port);
    let start = more.iter().fold(start, |start, (name, value)| start.env(name, value));
    (start.start(), port)
}

fn socket(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn request(path: &str, lines: &[&str]) -> String {
    let always = "Host: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                  Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13";
    format!("GET {path} HTTP/1.1\r\n{always}\r\n{}\r\n\r\n", lines.join("\r\n"))
}

/// The head of an HTTP answer, exactly.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an HTTP answer");
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

fn upgraded(port: u16) -> TcpStream {
    let mut stream = socket(port);
    let offer = "Sec-WebSocket-Protocol: mqtt";
    stream.write_all(request("/mqtt", &[offer]).as_bytes()).unwrap();
    let head = head(&mut stream);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream
}

/// A client's frame; the mask is 0, which is a mask like any other.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        short @ 0..126 => bytes.push(0x80 | short as u8),
        long => {
            bytes.push(0x80 | 126);
            bytes.extend((long as u16).to_be_bytes());
        }
    }
    [&bytes[..], &[0; 4], payload].concat()
}

/// One frame of the broker's: its first byte and its payload.
fn read_frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes).expect("a frame");
    let length = match bytes[1] {
        126 => {
            let mut long = [0; 2];
            stream.read_exact(&mut long).unwrap();
            u16::from_be_bytes(long) as usize
        }
        short => usize::from(short),
    };
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).unwrap();
    (bytes[0], payload)
}

/// The packets in the broker's next binary frames, until there are so many.
fn packets(stream: &mut TcpStream, count: usize) -> Vec<Packet> {
    let (mut bytes, mut packets) = (Vec::new(), Vec::new());
    while packets.len() < count {
        match parse(Level::V5, &bytes).unwrap() {
            Some((packet, length)) => {
                bytes.drain(..length);
                packets.push(packet);
            }
            None => {
                let (first, payload) = read_frame(stream);
                assert_eq!(first, 0x82, "a whole binary message");
                bytes.extend(payload);
            }
        }
    }
    packets
}

fn closed_with(stream: &mut TcpStream, code: u16) {
    let (first, payload) = read_frame(stream);
    assert_eq!((first, payload), (0x88, code.to_be_bytes().to_vec()));
    let mut rest = Vec::new();
    // A reset is an end, too: what we sent last was not read.
    let _end = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

fn hello(client_id: &str) -> Vec<u8> {
    Connect::v5(client_id).keep_alive(0).bytes()
}

/// WSS-02, MQTT-6.0.0-3, -4: what is offered and where decides; a refused client is told, no error
/// is logged.
#[test]
fn upgrades_are_accepted_or_refused_as_offered() {
    let (_broker, port) = broker(&[]);
    let ask = |path: &str, lines: &[&str]| {
        let mut stream = socket(port);
        stream.write_all(request(path, lines).as_bytes()).unwrap();
        head(&mut stream)
    };
    let agreed = [
        (&["Sec-WebSocket-Protocol: mqtt"][..], "mqtt"),
        (&["Sec-WebSocket-Protocol: foo, mqtt"], "mqtt"),
        (&["Sec-WebSocket-Protocol: mqttv3.1"], "mqttv3.1"),
        (&["Sec-WebSocket-Protocol: mqttv3.1, mqtt"], "mqtt"),
        (&["Sec-WebSocket-Protocol: foo", "Sec-WebSocket-Protocol: mqtt"], "mqtt"),
    ];
    for (lines, protocol) in agreed {
        let head = ask("/mqtt", lines);
        assert!(head.starts_with("HTTP/1.1 101 "), "{lines:?}: {head}");
        assert!(head.contains(&format!("\r\nSec-WebSocket-Protocol: {protocol}\r\n")), "{head}");
        assert!(!head.contains("Extensions"), "{head}");
    }
    let deflate = "Sec-WebSocket-Extensions: permessage-deflate";
    let with_bomb = ask("/mqtt", &["Sec-WebSocket-Protocol: mqtt", deflate]);
    assert!(with_bomb.starts_with("HTTP/1.1 101 ") && !with_bomb.contains("xtensions"));
    for lines in [&[][..], &["Sec-WebSocket-Protocol: foo"]] {
        assert!(ask("/mqtt", lines).starts_with("HTTP/1.1 400 "), "{lines:?}");
    }
    for path in ["/", "/mqttt", "/ws"] {
        let head = ask(path, &["Sec-WebSocket-Protocol: mqtt"]);
        assert!(head.starts_with("HTTP/1.1 404 "), "{path}: {head}");
    }
}

/// MQTT-6.0.0-2: packets may lie across frames, and many in one.
#[test]
fn packets_are_split_and_joined_over_frames() {
    let (_broker, port) = broker(&[]);
    let mut stream = upgraded(port);
    let bytes = wire::all(&[
        &hello("split"),
        &wire::subscribe(Level::V5, 1, &[], &[(b"t", 0)]),
        &wire::publish(Level::V5, 0, "t", 0, &[], vec![b'm'; 300]),
        &wire::PINGREQ,
    ]);
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    for byte in first {
        stream.write_all(&frame(0x82, &[*byte])).unwrap();
    }
    // One message in three frames, an empty one among them, with a ping in between.
    stream.write_all(&frame(0x02, &rest[..7])).unwrap();
    stream.write_all(&frame(0x89, b"!")).unwrap();
    stream.write_all(&frame(0x00, b"")).unwrap();
    stream.write_all(&frame(0x80, &rest[7..])).unwrap();
    let (mut got, mut kinds, mut ponged) = (Vec::new(), Vec::new(), false);
    while kinds.len() < 4 || !ponged {
        match read_frame(&mut stream) {
            (0x82, payload) => got.extend(payload),
            (0x8A, payload) => ponged = payload == b"!",
            other => panic!("{other:?}"),
        }
        while let Some((_, length)) = parse(Level::V5, &got).unwrap() {
            kinds.push(got[0] >> 4);
            got.drain(..length);
        }
    }
    // The message goes by way of the log, so PINGRESP may be before it.
    kinds.sort_unstable();
    assert_eq!(kinds, [2, 3, 9, 13], "CONNACK, PUBLISH, SUBACK, PINGRESP");
}

/// WSS-02, WSS-04: text, a bare mask, an over-long frame: the close code tells, before and behind
/// CONNECT; the session's Will goes out.
#[test]
fn broken_rules_end_with_a_close_code() {
    let (broker, port) = broker(&[]);
    let cases: [(&str, Vec<u8>, u16); 4] = [
        ("text", frame(0x81, b"hello"), 1003),
        ("no mask", vec![0x82, 1, 0x10], 1002),
        ("a compressed frame", frame(0xC2, b"x"), 1002),
        ("64 MB", vec![0x82, 0xFF, 0, 0, 0, 0, 4, 0, 0, 0], 1009),
    ];
    let before = broker.rss_kib();
    for (what, bytes, code) in &cases {
        let mut early = upgraded(port);
        early.write_all(bytes).unwrap();
        closed_with(&mut early, *code);
        let mut late = upgraded(port);
        late.write_all(&frame(0x82, &hello("late"))).unwrap();
        assert!(matches!(packets(&mut late, 1)[0], Packet::Connack { code: 0, .. }), "{what}");
        late.write_all(bytes).unwrap();
        closed_with(&mut late, *code);
    }
    assert!(broker.rss_kib() < before + 8 * 1024, "nothing of 64 MB was made room for");
}

/// The broker says goodbye in both protocols, and answers a client's goodbye.
#[test]
fn both_sides_close_in_order() {
    let (mut broker, port) = broker(&[]);
    let mut leaving = upgraded(port);
    leaving.write_all(&frame(0x82, &hello("leaving"))).unwrap();
    packets(&mut leaving, 1);
    leaving.write_all(&frame(0x88, &[0x03, 0xE9])).unwrap();
    closed_with(&mut leaving, 1001);
    let mut staying = upgraded(port);
    staying.write_all(&frame(0x82, &hello("staying"))).unwrap();
    packets(&mut staying, 1);
    broker.stop();
    let last = packets(&mut staying, 1);
    assert!(matches!(last[0], Packet::Disconnect { code: 0x8B, .. }), "{last:?}");
    closed_with(&mut staying, 1000);
}

/// WSS-03: a PUBLISH that never comes whole is waited for, as long as keep alive says, and then
/// its place is free again.
#[test]
fn a_packet_without_its_rest_is_waited_for_and_given_up() {
    let (broker, port) = broker(&[]);
    let mut stream = upgraded(port);
    stream.write_all(&frame(0x82, &Connect::v5("half").keep_alive(1).bytes())).unwrap();
    packets(&mut stream, 1);
    stream.write_all(&frame(0x82, &[0x30, 0x80, 0x20, 0, 1, b't'])).unwrap();
    // Pings of the WebSocket are no packets of MQTT (KAL-02).
    stream.write_all(&frame(0x89, b"")).unwrap();
    assert_eq!(read_frame(&mut stream), (0x8A, Vec::new()));
    let last = packets(&mut stream, 1);
    assert!(matches!(last[0], Packet::Disconnect { code: 0x8D, .. }), "{last:?}");
    closed_with(&mut stream, 1000);
    broker.await_metric("connectedSessions", 0.0);
    broker.eventually("its place is free", |broker| {
        broker.scrape().contains("listenerOpenConnections{listener=\"ws\"} 0")
    });
}

/// The packet limit of this listener is its own, and announced.
#[test]
fn the_packet_limit_is_this_listeners() {
    let (_broker, port) = broker(&[("WS_NETTY_MAX_PAYLOAD_SIZE", "300")]);
    let mut stream = upgraded(port);
    stream.write_all(&frame(0x82, &hello("limited"))).unwrap();
    let connack = packets(&mut stream, 1).remove(0);
    let Packet::Connack { properties, .. } = connack else { panic!("{connack:?}") };
    assert_eq!(properties.number(0x27), Some(300));
    let large = wire::publish(Level::V5, 0, "t", 0, &[], vec![b'm'; 300]);
    stream.write_all(&frame(0x82, &large)).unwrap();
    let last = packets(&mut stream, 1);
    assert!(matches!(last[0], Packet::Disconnect { code: 0x95, .. }), "{last:?}");
}
