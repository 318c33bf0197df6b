//! The PROXY protocol, versions 1 and 2: a balancer's first bytes, which tell the client's own
//! address. Exactly the header is read, so that what follows it (MQTT, TLS, HTTP) is untouched.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::limits::PROXY_HEADER_BYTES;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The longest line of version 1, its end included.
const LINE_BYTES: usize = 107;

/// Reads the header. `None`: a connection of the balancer itself (LOCAL, UNKNOWN), such as a
/// health check, or one that has no address.
pub(super) async fn read(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    // Both forms are longer than this; a stranger is found out at the first wrong byte.
    let (mut first, mut known) = ([0; 12], 0);
    while known < first.len() {
        match io.read(&mut first[known..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => known += read,
        }
        let line = b"PROXY ".iter().zip(&first[..known]).all(|(a, b)| a == b);
        if !line && first[..known] != SIGNATURE[..known] {
            return Err(bad("no PROXY header"));
        }
    }
    if first == *SIGNATURE { binary(io).await } else { line(io, &first).await }
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

async fn line(io: &mut (impl AsyncRead + Unpin), first: &[u8]) -> io::Result<Option<SocketAddr>> {
    let mut line = first.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() == LINE_BYTES {
            return Err(bad("a PROXY line without an end"));
        }
        line.push(io.read_u8().await?);
    }
    let text = std::str::from_utf8(&line).map_err(|_| bad("a PROXY line that is no text"))?;
    parse_line(text.trim_end_matches("\r\n")).ok_or_else(|| bad("a bad PROXY line"))
}

fn parse_line(line: &str) -> Option<Option<SocketAddr>> {
    let mut words = line.strip_prefix("PROXY ")?.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let mut address = || words.next()?.parse::<IpAddr>().ok();
    let (source, destination) = (address()?, address()?);
    let mut port = || words.next()?.parse::<u16>().ok();
    let (source_port, _port) = (port()?, port()?);
    let fits = match family {
        "TCP4" => source.is_ipv4() && destination.is_ipv4(),
        "TCP6" => source.is_ipv6() && destination.is_ipv6(),
        _ => false,
    };
    (fits && words.next().is_none()).then(|| Some(SocketAddr::new(source, source_port)))
}

async fn binary(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut head = [0; 4];
    io.read_exact(&mut head).await?;
    let [command, family, length @ ..] = head;
    let length = usize::from(u16::from_be_bytes(length));
    if length > PROXY_HEADER_BYTES {
        return Err(bad("a PROXY header that is too long"));
    }
    let mut body = vec![0; length];
    io.read_exact(&mut body).await?;
    parse_binary(command, family, &body).ok_or_else(|| bad("a bad PROXY header"))
}

/// What stands behind the addresses (TLVs) tells nothing that we need.
fn parse_binary(command: u8, family: u8, body: &[u8]) -> Option<Option<SocketAddr>> {
    match (command, family) {
        // LOCAL: whatever it says of addresses is not meant.
        (0x20, _) => Some(None),
        // UNSPEC, and UNIX sockets, whose paths are no addresses of clients.
        (0x21, 0x00) => Some(None),
        (0x21, 0x31) if body.len() >= 216 => Some(None),
        (0x21, 0x11) => {
            let body: &[u8; 12] = body.first_chunk()?;
            let ip: [u8; 4] = *body.first_chunk()?;
            let port = u16::from_be_bytes([body[8], body[9]]);
            Some(Some((Ipv4Addr::from(ip), port).into()))
        }
        (0x21, 0x21) => {
            let body: &[u8; 36] = body.first_chunk()?;
            let ip: [u8; 16] = *body.first_chunk()?;
            let port = u16::from_be_bytes([body[32], body[33]]);
            Some(Some((Ipv6Addr::from(ip), port).into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(mut bytes: &[u8]) -> (Result<Option<SocketAddr>, String>, usize) {
        let all = bytes.len();
        let read = read(&mut bytes).await.map_err(|error| error.to_string());
        (read, all - bytes.len())
    }

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u16).to_be_bytes();
        [SIGNATURE, &[command, family][..], &length, body].concat()
    }

    const V4: [u8; 12] = [192, 0, 2, 7, 10, 0, 0, 1, 0xDD, 0xD5, 0x07, 0x5B];

    /// Both forms tell the client's address, and nothing behind the header is taken.
    #[tokio::test]
    async fn addresses_are_read_and_what_follows_is_left() {
        let v6 = [Ipv6Addr::LOCALHOST.octets(), [9; 16]].concat();
        let v6 = [v6, vec![0, 80, 1, 1]].concat();
        let cases = [
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 56789 1883\r\n".to_vec(), "192.0.2.7:56789"),
            (b"PROXY TCP6 2001:db8::7 ::1 5 1883\r\n".to_vec(), "[2001:db8::7]:5"),
            (v2(0x21, 0x11, &V4), "192.0.2.7:56789"),
            (v2(0x21, 0x11, &[&V4[..], &[4, 0, 1, 0]].concat()), "192.0.2.7:56789"),
            (v2(0x21, 0x21, &v6), "[::1]:80"),
        ];
        for (header, address) in cases {
            let bytes = [&header[..], b"\x10\x0cPROXY TCP4"].concat();
            let (read, taken) = read_all(&bytes).await;
            assert_eq!(read, Ok(Some(address.parse().unwrap())), "{header:02x?}");
            assert_eq!(taken, header.len());
        }
    }

    #[tokio::test]
    async fn local_and_unknown_connections_are_taken() {
        for header in [
            b"PROXY UNKNOWN\r\n".to_vec(),
            b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(),
            v2(0x20, 0x00, &[]),
            v2(0x20, 0x11, &V4),
            v2(0x21, 0x00, &[]),
            v2(0x21, 0x31, &[b'/'; 216]),
        ] {
            assert_eq!(read_all(&header).await, (Ok(None), header.len()), "{header:02x?}");
        }
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused() {
        for header in [
            b"\x10".to_vec(),
            b"PROXX".to_vec(),
            b"PROXX TCP4 192.0.2.7 10.0.0.1 1 1\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 10.0.0.1 56789\r\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 5 6\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 10.0.0.1 66789 1\r\n".to_vec(),
            b"PROXY UDP4 192.0.2.7 10.0.0.1 1 1\r\n".to_vec(),
            [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 200]].concat(),
            v2(0x31, 0x11, &V4),
            v2(0x22, 0x11, &V4),
            v2(0x21, 0x12, &V4),
            v2(0x21, 0x11, &V4[..11]),
            v2(0x21, 0x21, &V4),
            v2(0x21, 0x11, &[0; PROXY_HEADER_BYTES + 1]),
        ] {
            assert!(read_all(&header).await.0.is_err(), "{header:02x?}");
        }
        assert!(read_all(b"PROXY TCP4").await.0.is_err(), "an end in between");
    }
}
