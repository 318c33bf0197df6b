//! `sluice health`: asks the node on this machine how it is, as a container's health check does.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::Config;
use crate::listener::{TlsConfig, to_own_door};

/// A node that is well answers in a fraction of it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of the answer. More is not a health report.
const ANSWER_BYTES: u64 = 64 * 1024;

/// What the node says of itself: `Ok` when it is up. Blocks.
pub fn probe(config: &Config) -> Result<String, String> {
    let address = reachable(config.bind);
    let asked = ask(address, config.tls.as_ref())
        .map_err(|fault| format!("no answer on {address}: {fault}"));
    let answer = asked?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status == "200" { Ok(body.to_owned()) } else { Err(format!("{status}: {body}")) }
}

fn ask(address: SocketAddr, tls: Option<&TlsConfig>) -> std::io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    match tls {
        None => answer(stream),
        Some(tls) => answer(to_own_door(stream, tls)?),
    }
}

fn answer(mut stream: impl Read + Write) -> std::io::Result<String> {
    let request = "GET /actuator/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match stream.take(ANSWER_BYTES).read_to_end(&mut answer) {
        // TLS that ends without a goodbye: what came is whole, or no answer.
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => return Err(error),
        Ok(_) | Err(_) => {}
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Where something that listens on `bind` is reached from this machine.
fn reachable(bind: SocketAddr) -> SocketAddr {
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, bind.port())
}
