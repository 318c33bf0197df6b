//! The scripts: each bout opens a connection, or a few, does what nobody should, and says what it
//! could do that it must not.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use serde_json::json;

use super::forged;
use super::{Field, SECRET};
use crate::doors::TRANSPORTS;
use crate::support::{Connect, Level, Link, Random, Transport, papers, prop, trusting, wire};

/// What was open that must not be; none: nothing.
type Open = Option<String>;

type Bout = fn(&Field, &mut Random) -> Open;

pub(super) const ALL: [(&str, Bout); 10] = [
    ("tls", tls),
    ("upgrade", upgrade),
    ("frames", frames),
    ("connect", connect),
    ("auth", auth),
    ("tokens", tokens),
    ("packets", packets),
    ("expressions", expressions),
    ("http", http),
    ("slowloris", slowloris),
];

fn impatient(stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_millis(40))).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
}

/// What comes within a moment.
fn heard(mut stream: impl Read) -> Vec<u8> {
    let (mut heard, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        heard.extend_from_slice(&piece[..count]);
        if heard.len() > 64 * 1024 {
            break;
        }
    }
    heard
}

/// Flips, cuts, doubles or lengthens some bytes.
fn mutated(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1));
        match random.below(6) {
            0 => bytes.truncate(at.max(1)),
            1 => bytes.insert(at, random.next() as u8),
            2 if at < bytes.len() => bytes[at] = 0xFF,
            3 if at < bytes.len() => drop(bytes.remove(at)),
            4 => bytes.extend_from_within(at..),
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
        bytes.truncate(64 * 1024);
    }
    bytes
}

fn noise(random: &mut Random, most: usize) -> Vec<u8> {
    (0..random.below(most)).map(|_| random.next() as u8).collect()
}

/// CONNACK with success, wherever it stands at the begin of what was heard.
fn let_in(heard: &[u8], what: &str) -> Open {
    let is_in = heard.len() >= 4 && heard[0] == 0x20 && heard[3] == 0;
    is_in.then(|| format!("{what} was let in"))
}

/// A link over any transport on which nothing was said; none: the broker did not want it.
fn link(field: &Field, random: &mut Random) -> Link {
    let transport = *random.pick(&TRANSPORTS);
    let link = Link::over(field.house.socket(transport), transport);
    impatient(link.socket());
    link
}

fn tls(field: &Field, random: &mut Random) -> Open {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(trusting(&papers().cert), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let transport = *random.pick(&[Transport::Tls, Transport::Wss]);
    let mut socket = field.house.socket(transport);
    impatient(&socket);
    let said = match random.below(6) {
        0 => noise(random, 3000),
        1 => [&b"\x16\x03\x01\xFF\xFF"[..], &noise(random, 3000)].concat(),
        2 => [&hello[..], &noise(random, 3000)].concat(),
        // Alerts, application data and early data out of place.
        3 => [&hello[..], b"\x15\x03\x03\0\x02\x01\0", b"\x17\x03\x03\0\x04abcd"].concat(),
        4 => b"\x14\x03\x03\0\x01\x01".repeat(50),
        _ => mutated(random, &hello),
    };
    let _taken = socket.write_all(&said);
    if random.below(3) > 0 {
        heard(&socket);
    }
    if random.below(8) == 0 {
        // A certificate that nobody here has signed.
        let shown = forged::client(papers().cert.as_str());
        let stream = field.house.socket(Transport::Tls);
        impatient(&stream);
        if let Ok(mut encrypted) = crate::support::encrypt(stream, shown) {
            let _taken = encrypted.write_all(&Connect::v5("localhost").bytes());
            return let_in(&heard(encrypted), "a forged certificate");
        }
    }
    None
}

fn upgrade(field: &Field, random: &mut Random) -> Open {
    let good = "GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Protocol: mqtt\r\n\r\n";
    let said = match random.below(5) {
        0 => noise(random, 2000),
        1 => format!("GET /{} HTTP/1.1\r\n", "a".repeat(20_000)).into_bytes(),
        2 => ["GET /mqtt HTTP/1.1\r\n", &"X: y\r\n".repeat(3000), "\r\n"].concat().into_bytes(),
        3 => good.replace("mqtt\r\n\r\n", "chat\r\n\r\n").into_bytes(),
        _ => mutated(random, good.as_bytes()),
    };
    let mut socket = field.house.socket(Transport::Ws);
    impatient(&socket);
    let _taken = socket.write_all(&said);
    heard(socket);
    None
}

/// Behind a good upgrade: frames that break rules, and a CONNECT that lacks a proof.
fn frames(field: &Field, random: &mut Random) -> Open {
    let mut socket = field.house.socket(Transport::Ws);
    impatient(&socket);
    let _taken = socket.write_all(
        b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
          Sec-WebSocket-Protocol: mqtt\r\n\r\n",
    );
    let mut head = [0; 512];
    let _head = socket.read(&mut head);
    let hello = Connect::v5("f").user("canary").password("wrong").bytes();
    let mut frame = vec![0x82, 0x80 | hello.len() as u8, 0, 0, 0, 0];
    frame.extend(&hello);
    let said = match random.below(7) {
        0 => [&[0x82, 0xFF][..], &[0xFF; 8], &noise(random, 100)].concat(),
        1 => [&[0x81, 0x85, 0, 0, 0, 0][..], b"hello"].concat(),
        2 => [&[0x02, 0x80, 0, 0, 0, 0][..], &[0x82, 0x80, 0, 0, 0, 0]].concat(),
        3 => [&[0x89, 0xFE, 0, 200, 0, 0, 0, 0][..], &[7; 200]].concat(),
        4 => [0x89, 0x80, 0, 0, 0, 0].repeat(500),
        5 => [&[0x00, 0x80, 0, 0, 0, 0].repeat(500)[..], &frame].concat(),
        _ => mutated(random, &frame),
    };
    let _taken = socket.write_all(&said);
    let heard = heard(socket);
    let_in(heard.get(2..).unwrap_or_default(), "a client with a wrong password")
}

/// CONNECTs that are broken, endless, or good but for their proof.
fn connect(field: &Field, random: &mut Random) -> Open {
    let level = *random.pick(&[Level::V311, Level::V5]);
    let hello = Connect::new(level, format!("c{}", random.below(50)));
    let hello = match random.below(4) {
        0 => hello,
        1 => hello.user("canary").password("wrong"),
        2 => hello.user("' OR 1=1 --").password("x".repeat(5000)),
        _ => hello.user("canary"),
    };
    let good = hello.bytes();
    let said = match random.below(4) {
        0 => good,
        1 => [&[0x10, 0xFF, 0xFF, 0xFF, 0x7F][..], &good].concat(),
        2 => [&good[..], &good].concat(),
        _ => mutated(random, &good),
    };
    let mut link = link(field, random);
    let _taken = link.write_all(&said);
    let_in(&heard(link), "a client without a proof")
}

/// Steps of SCRAM that are not those of somebody who knows the password.
fn auth(field: &Field, random: &mut Random) -> Open {
    let method = *random.pick(&["SCRAM-SHA-256", "SCRAM-SHA-512", "scram-sha-256", "", "PLAIN"]);
    let first =
        *random.pick(&["n,,n=scram,r=abc", "n,,n=nobody,r=abc", "p=tls,,n=scram,r=", "", "n,"]);
    let data = mutated(random, format!("{first} ").as_bytes());
    let hello =
        Connect::v5("a").with(prop::text(0x15, method)).with(prop::text(0x16, &data)).bytes();
    let step = |code: u8, data: &[u8]| {
        let properties = [prop::text(0x15, method), prop::text(0x16, data)].concat();
        wire::frame(0xF0, &[&[code][..], &wire::block(Level::V5, &properties)].concat())
    };
    let proof = format!("c=biws,r=abc{},p=AAAA", random.next());
    let last = match random.below(4) {
        0 => step(0x18, proof.as_bytes()),
        1 => step(0x19, b""),
        2 => step(0x00, proof.as_bytes()),
        _ => mutated(random, &step(0x18, proof.as_bytes())),
    };
    let mut link = link(field, random);
    let _taken = link.write_all(&hello);
    let mut answer = [0; 2048];
    let challenge = link.read(&mut answer).unwrap_or(0);
    let _taken = link.write_all(&last);
    let heard = [&answer[..challenge], &heard(link)].concat();
    let behind = heard.iter().position(|byte| *byte == 0x20).unwrap_or(heard.len());
    let_in(&heard, "SCRAM without a password")
        .or_else(|| let_in(&heard[behind..], "SCRAM without a password"))
}

fn tokens(field: &Field, random: &mut Random) -> Open {
    let token = forged::token(random);
    let mut link = link(field, random);
    let _taken = link.write_all(&Connect::v5("t").user("any").password(&token).bytes());
    let_in(&heard(link), "a forged token")
}

/// A guest that is let in breaks rules, and reaches for what is not its own.
fn packets(field: &Field, random: &mut Random) -> Open {
    let level = *random.pick(&[Level::V311, Level::V5]);
    let mut link = link(field, random);
    let hello = Connect::new(level, "guest").user("guest").password("guest").bytes();
    let publish = wire::publish(level, 1 << 1, SECRET, 7, &[], "foreign");
    let own = wire::publish(level, 1 << 1, "guest/t", 8, &[], "m");
    let subscribe = wire::subscribe(level, 9, &[], &[(b"#", 1), (SECRET.as_bytes(), 1)]);
    let shared = wire::subscribe(level, 10, &[], &[(b"$share/g/canary/#", 1)]);
    let packet = random.pick(&[publish, own, subscribe, shared, wire::ack(0x40, 77)]).clone();
    let said = match random.below(3) {
        0 => packet,
        1 => mutated(random, &packet),
        _ => noise(random, 500),
    };
    let _taken = link.write_all(&[hello, said].concat());
    let heard = heard(link);
    let told = heard.windows(SECRET.len()).any(|piece| piece == SECRET.as_bytes());
    told.then(|| "a guest was told the canary's secret".to_owned())
}

/// Texts that make backtracking matchers run for ever.
fn expressions(field: &Field, random: &mut Random) -> Open {
    let name = random.pick(&["a", "x", "ab"]).repeat(1 + random.below(2000));
    let mut client = link(field, random);
    let hello = Connect::v5("e").user(format!("{name}!")).password("p").bytes();
    let _taken = client.write_all(&hello);
    let open = let_in(&heard(client), "a name that nobody has");
    let patterns = ["(a+)+$", "(((((a*)*)*)*)*)b", "(a{1000}){1000}", "\\p{L}{1,500}{1,50}", "((("];
    let rules = json!({ "pubAuthRulePatterns": [*random.pick(&patterns)] });
    let value = json!({ "userName": "bomb", "authRules": rules });
    let body = json!({ "name": "bomb", "credentialsValue": value });
    let answer = field.operator.post("/api/mqtt/client/credentials", &body);
    assert!(matches!(answer.status, 200 | 400), "{}", answer.text);
    if let Some(id) = answer.body["id"].as_str() {
        field.operator.delete(&format!("/api/mqtt/client/credentials/{id}")).ok();
    }
    open
}

/// The administration without a right to it.
fn http(field: &Field, random: &mut Random) -> Open {
    let mut socket =
        TcpStream::connect((Ipv4Addr::LOCALHOST, field.house.broker.http_address().port())).ok()?;
    impatient(&socket);
    let path = *random.pick(&["/api/admin", "/api/client-session", "/api/mqtt/client/credentials"]);
    let request = |method: &str, token: &str, body: &str| {
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        )
    };
    let good = request("GET", &forged::token(random), "");
    let said = match random.below(6) {
        0 => noise(random, 2000),
        1 => good.clone().into_bytes(),
        2 => request("POST", "x", &"[".repeat(10_000)).into_bytes(),
        3 => format!("GET {path} HTTP/1.1\r\n{}", "A: b\r\n".repeat(2000)).into_bytes(),
        4 => "POST /api/auth/login HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
              Content-Length: 41\r\nConnection: close\r\n\r\n\
              {\"username\":\"nobody\",\"password\":\"guessed\"}"
            .into(),
        _ => mutated(random, good.as_bytes()),
    };
    let _taken = socket.write_all(&said);
    let heard = heard(socket);
    let is_open = heard.starts_with(b"HTTP/1.1 200") && said.windows(5).any(|at| at == b"/api/");
    is_open.then(|| format!("the administration answered {}", String::from_utf8_lossy(&said)))
}

/// Connections that begin and never go on, and some that drip.
fn slowloris(field: &Field, random: &mut Random) -> Open {
    let hello = Connect::v5("slow").bytes();
    let mut sockets: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut socket = field.house.socket(*random.pick(&TRANSPORTS));
            let said = &hello[..random.below(hello.len())];
            let _taken = socket.write_all(said);
            socket
        })
        .collect();
    let http = field.house.broker.http_address();
    sockets.extend((0..4).filter_map(|_| TcpStream::connect(http).ok()));
    for _ in 0..10 {
        for socket in &mut sockets {
            let _taken = socket.write_all(&[*random.pick(b"GET \x16\x10\0")]);
        }
        if field.over.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    None
}
