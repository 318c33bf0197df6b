//! The HTTP request that becomes a WebSocket (RFC 6455 section 4.2), and the client's address as
//! a trusted HTTP proxy tells it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::WsConfig;
use super::super::networks::Networks;
use crate::limits::{UPGRADE_HEAD_BYTES, UPGRADE_HEADERS};

/// Where MQTT is, as in TBMQ.
const PATH: &str = "/mqtt";
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// An upgrade that was refused: status line, a further header line, and words for a human.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused(&'static str, &'static str, &'static str);

const BAD: Refused = Refused("400 Bad Request", "", "This is no WebSocket upgrade.\n");
const NO_PROTOCOL: Refused =
    Refused("400 Bad Request", "", "Sec-WebSocket-Protocol must offer mqtt or mqttv3.1.\n");
const ELSEWHERE: Refused = Refused("404 Not Found", "", "MQTT is at /mqtt.\n");
const NOT_GET: Refused =
    Refused("405 Method Not Allowed", "Allow: GET\r\n", "An upgrade is a GET.\n");
const NO_UPGRADE: Refused = Refused(
    "426 Upgrade Required",
    "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    "This port speaks WebSocket, version 13.\n",
);
const TOO_LARGE: Refused =
    Refused("431 Request Header Fields Too Large", "", "The request's head is too large.\n");

/// A request that becomes a WebSocket.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    /// The subprotocol that was agreed on.
    protocol: String,
    accept: String,
    /// Addresses that proxies added, the nearest proxy's last.
    forwarded: Vec<String>,
}

/// Carries the upgrade through. Gives back the client's address, if `socket` is trusted to tell
/// another one, and bytes that came behind the request.
pub(super) async fn upgrade(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    config: &WsConfig,
    trusted: &Networks,
    socket: Option<SocketAddr>,
) -> io::Result<(Option<SocketAddr>, Vec<u8>)> {
    let (mut head, early) = match read_head(io).await? {
        Some(read) => read,
        None => return refuse(io, TOO_LARGE).await,
    };
    let request = match parse(&head, config) {
        Ok(request) => request,
        Err(refused) => return refuse(io, refused).await,
    };
    head.clear();
    let Request { protocol, accept, forwarded } = request;
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    );
    io.write_all(answer.as_bytes()).await?;
    io.flush().await?;
    let told = socket.filter(|socket| config.forwarded && trusted.contains(socket.ip()));
    let told = told.map(|socket| farthest(&forwarded, trusted).map_or(socket, |ip| (ip, 0).into()));
    Ok((told.or(socket), early))
}

/// The request's head, and what came behind it; `None`: it is too large.
async fn read_head(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut head: Vec<u8> = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let read = io.read(&mut piece).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The end may lie across two reads.
        let from = head.len().saturating_sub(3);
        head.extend_from_slice(&piece[..read]);
        if let Some(at) = head[from..].windows(4).position(|four| four == b"\r\n\r\n") {
            let early = head.split_off(from + at + 4);
            return Ok((head.len() <= UPGRADE_HEAD_BYTES).then_some((head, early)));
        }
        // What can't be a request is not waited for: a client that speaks bare MQTT, say.
        if !head[0].is_ascii_uppercase() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP"));
        }
        if head.len() >= UPGRADE_HEAD_BYTES {
            return Ok(None);
        }
    }
}

async fn refuse<T>(io: &mut (impl AsyncWrite + Unpin), refused: Refused) -> io::Result<T> {
    let Refused(status, more, text) = refused;
    let length = text.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\n{more}Content-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    );
    io.write_all(answer.as_bytes()).await?;
    io.shutdown().await?;
    Err(io::Error::new(io::ErrorKind::InvalidInput, status))
}

fn parse(head: &[u8], config: &WsConfig) -> Result<Request, Refused> {
    let mut headers = [httparse::EMPTY_HEADER; UPGRADE_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(TOO_LARGE),
        Ok(httparse::Status::Partial) | Err(_) => return Err(BAD),
    }
    if request.method != Some("GET") {
        return Err(NOT_GET);
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    if path.strip_suffix('/').unwrap_or(path) != PATH {
        return Err(ELSEWHERE);
    }
    let lines = |name: &'static str| {
        let of_it = request.headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name));
        of_it.map(|header| str::from_utf8(header.value).unwrap_or_default().trim())
    };
    let listed = |name| lines(name).flat_map(|line| line.split(',')).map(str::trim);
    let is_upgrade = listed("Upgrade").any(|what| what.eq_ignore_ascii_case("websocket"))
        && listed("Connection").any(|what| what.eq_ignore_ascii_case("upgrade"));
    if !is_upgrade || lines("Sec-WebSocket-Version").next() != Some("13") {
        return Err(NO_UPGRADE);
    }
    let mut keys = lines("Sec-WebSocket-Key");
    let (key, None) = (keys.next().unwrap_or_default(), keys.next()) else { return Err(BAD) };
    if BASE64.decode(key).map_or(0, |key| key.len()) != 16 {
        return Err(BAD);
    }
    // MQTT-6.0.0-3, -4: the one that we prefer among those that are offered.
    let offered = |ours: &&String| listed("Sec-WebSocket-Protocol").any(|theirs| theirs == *ours);
    let protocol = config.sub_protocols.iter().find(offered).ok_or(NO_PROTOCOL)?.clone();
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{MAGIC}").as_bytes());
    let mut forwarded: Vec<String> = listed("X-Forwarded-For").map(str::to_owned).collect();
    if forwarded.is_empty() {
        forwarded = lines("X-Real-IP").map(str::to_owned).collect();
    }
    Ok(Request { protocol, accept: BASE64.encode(hash), forwarded })
}

/// The address nearest to us that is no proxy of ours: what stands before it, a client may have
/// made up. `None`: nobody told one.
fn farthest(forwarded: &[String], trusted: &Networks) -> Option<IpAddr> {
    let mut farthest = None;
    for text in forwarded.iter().rev() {
        let Some(ip) = address(text) else { break };
        farthest = Some(ip);
        if !trusted.contains(ip) {
            break;
        }
    }
    farthest
}

/// With a port or without: `192.0.2.7`, `192.0.2.7:80`, `2001:db8::7`, `[2001:db8::7]:80`.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let ip = bare.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    ip.ok().map(|ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    const UPGRADE: &str = "Upgrade: websocket\r\nConnection: keep-alive, Upgrade";
    const VERSION: &str = "Sec-WebSocket-Version: 13";

    fn config() -> WsConfig {
        let sub_protocols = vec!["mqtt".to_owned(), "mqttv3.1".to_owned()];
        WsConfig { sub_protocols, forwarded: true }
    }

    fn ask(first: &str, lines: &[&str]) -> Result<Request, Refused> {
        let head = format!("{first}\r\n{}\r\n\r\n", lines.join("\r\n"));
        parse(head.as_bytes(), &config())
    }

    fn offer(protocols: &[&str]) -> Result<String, Refused> {
        let mut lines = vec!["Host: h", UPGRADE, KEY, VERSION];
        lines.extend(protocols);
        ask("GET /mqtt HTTP/1.1", &lines).map(|request| request.protocol)
    }

    /// WSS-02, MQTT-6.0.0-3, MQTT-6.0.0-4: mqtt where it is offered, however the list is written;
    /// without a known one, 400.
    #[test]
    fn the_subprotocol_is_agreed_on_or_refused() {
        let name = "Sec-WebSocket-Protocol";
        let of = |list: &str| offer(&[format!("{name}: {list}").as_str()]);
        for list in ["mqtt", "foo, mqtt", "mqttv3.1, mqtt", "mqtt,mqttv3.1", " mqtt "] {
            assert_eq!(of(list).as_deref(), Ok("mqtt"), "{list}");
        }
        assert_eq!(of("mqttv3.1").as_deref(), Ok("mqttv3.1"));
        let two = [format!("{name}: foo"), format!("{}: mqtt", name.to_lowercase())];
        assert_eq!(offer(&[&two[0], &two[1]]).as_deref(), Ok("mqtt"));
        for list in ["foo", "MQTT", "mqtt5", ""] {
            assert_eq!(of(list), Err(NO_PROTOCOL), "{list}");
        }
        assert_eq!(offer(&[]), Err(NO_PROTOCOL));
    }

    /// WSS-02: path variants and requests that are no upgrade.
    #[test]
    fn requests_of_another_kind_are_told_what_is_wrong() {
        let all = ["Host: h", UPGRADE, KEY, VERSION, "Sec-WebSocket-Protocol: mqtt"];
        for path in ["/mqtt", "/mqtt/", "/mqtt?token=1"] {
            let accepted = ask(&format!("GET {path} HTTP/1.1"), &all).expect("a good request");
            assert_eq!(accepted.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "RFC 6455, section 1.3");
        }
        for path in ["/", "/mqtt2", "/ws", "/MQTT", "//mqtt"] {
            assert_eq!(ask(&format!("GET {path} HTTP/1.1"), &all), Err(ELSEWHERE), "{path}");
        }
        assert_eq!(ask("POST /mqtt HTTP/1.1", &all), Err(NOT_GET));
        for missing in 1..4 {
            let mut lines = all.to_vec();
            lines.remove(missing);
            let expected = if missing == 2 { BAD } else { NO_UPGRADE };
            assert_eq!(ask("GET /mqtt HTTP/1.1", &lines), Err(expected), "without {missing}");
        }
        let twice = [&all[..], &[KEY]].concat();
        assert_eq!(ask("GET /mqtt HTTP/1.1", &twice), Err(BAD));
        let many: Vec<String> = (0..UPGRADE_HEADERS).map(|n| format!("X-{n}: y")).collect();
        let many = [&all[..], &many.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        assert_eq!(ask("GET /mqtt HTTP/1.1", &many), Err(TOO_LARGE));
    }

    #[test]
    fn the_nearest_stranger_among_the_forwarded_is_the_client() {
        let trusted = Networks::parse("10.0.0.0/8,::1").unwrap();
        let of = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|text| (*text).to_owned()).collect();
            farthest(&list, &trusted).map(|ip| ip.to_string())
        };
        assert_eq!(of(&["203.0.113.5"]).as_deref(), Some("203.0.113.5"));
        assert_eq!(of(&["1.1.1.1", "203.0.113.5", "10.0.0.9"]).as_deref(), Some("203.0.113.5"));
        assert_eq!(of(&["10.0.0.8", "10.0.0.9"]).as_deref(), Some("10.0.0.8"));
        assert_eq!(of(&["made up", "10.0.0.9"]).as_deref(), Some("10.0.0.9"));
        assert_eq!(of(&["made up"]), None);
        assert_eq!(of(&["203.0.113.5:99"]).as_deref(), Some("203.0.113.5"));
        assert_eq!(of(&["[2001:db8::7]:99"]).as_deref(), Some("2001:db8::7"));
        assert_eq!(of(&[]), None);
    }

    async fn run(bytes: &[u8], from: &str) -> (io::Result<(Option<SocketAddr>, Vec<u8>)>, String) {
        let (mut near, mut far) = tokio::io::duplex(1 << 16);
        near.write_all(bytes).await.unwrap();
        let trusted = Networks::parse("10.0.0.0/8").unwrap();
        let socket = Some(from.parse().unwrap());
        let upgraded = upgrade(&mut far, &config(), &trusted, socket).await;
        drop(far);
        let mut answer = String::new();
        near.read_to_string(&mut answer).await.unwrap();
        (upgraded, answer)
    }

    /// The address that a proxy tells counts only from a trusted network; early bytes are kept.
    #[tokio::test]
    async fn a_forwarded_address_is_believed_from_trusted_networks_only() {
        let lines = ["GET /mqtt HTTP/1.1", UPGRADE, KEY, VERSION, "Sec-WebSocket-Protocol: mqtt"];
        let request = [lines.join("\r\n"), "X-Real-IP: 203.0.113.5\r\n\r\nearly".into()];
        let request = request.join("\r\n");
        let (upgraded, answer) = run(request.as_bytes(), "10.0.0.1:1").await;
        let (address, early) = upgraded.unwrap();
        assert_eq!(address, Some("203.0.113.5:0".parse().unwrap()));
        assert_eq!(early, b"early");
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert!(answer.contains("\r\nSec-WebSocket-Protocol: mqtt\r\n"), "{answer}");
        let (upgraded, _) = run(request.as_bytes(), "192.0.2.1:1").await;
        assert_eq!(upgraded.unwrap().0, Some("192.0.2.1:1".parse().unwrap()));
    }

    /// PAR-05: a head without an end is refused at its bound; what is no HTTP, at once.
    #[tokio::test]
    async fn a_head_is_bounded() {
        let long = [b"GET /mqtt HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; UPGRADE_HEAD_BYTES]].concat();
        let (upgraded, answer) = run(&long, "10.0.0.1:1").await;
        assert!(upgraded.is_err());
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        let (upgraded, answer) = run(b"\x10\x0c\0\x04MQTT", "10.0.0.1:1").await;
        assert!(upgraded.is_err());
        assert_eq!(answer, "");
    }
}
