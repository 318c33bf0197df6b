//! How long a start takes: 1 000 000 stored subscriptions and 100 000 retained messages, from the
//! start of the process to the first CONNACK.
//!
//! `cargo bench --bench startup`. The data is made first, through MQTT, by 1 000 persistent
//! clients with 1 000 filters each (exact, `+` and `#` mixed) and one publisher; that is not
//! counted. Measured twice: after an orderly stop, and after `kill -9`, where the log above the
//! last checkpoint is replayed. The page cache is warm: a cold disk adds its reads.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CLIENTS: usize = 1000;
const FILTERS: usize = 1000;
const RETAINED: usize = 100_000;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(folder: &Path, port: u16) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sluice"))
        .env("STORAGE_EMBEDDED_PATH", folder)
        .env("LISTENER_TCP_BIND_ADDRESS", "127.0.0.1")
        .env("LISTENER_TCP_BIND_PORT", port.to_string())
        .env("LISTENER_WS_ENABLED", "false")
        .env("HTTP_BIND_PORT", free_port().to_string())
        .env("RUST_LOG", "warn")
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (vec![first], body.len());
    loop {
        let byte = (rest % 128) as u8;
        rest /= 128;
        out.push(if rest > 0 { byte | 128 } else { byte });
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
    out
}

/// Connects with a persistent session; waits for CONNACK.
fn connect(port: u16, id: &str) -> TcpStream {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            let mut body = Vec::new();
            text(&mut body, "MQTT");
            body.extend_from_slice(&[4, 0, 0, 0]);
            text(&mut body, id);
            stream.write_all(&frame(0x10, &body)).unwrap();
            let mut connack = [0; 4];
            stream.read_exact(&mut connack).unwrap();
            assert_eq!(connack[3], 0, "CONNACK refuses");
            return stream;
        }
        assert!(Instant::now() < deadline, "the broker does not listen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn subscribe(stream: &mut TcpStream, client: usize) {
    let mut body = vec![0, 1];
    for n in 0..FILTERS {
        let filter = match n % 10 {
            0 => format!("site/{client}/+/{n}/state"),
            1 => format!("site/{client}/line/{n}/#"),
            _ => format!("site/{client}/line/{n}/state"),
        };
        text(&mut body, &filter);
        body.push(1);
    }
    stream.write_all(&frame(0x82, &body)).unwrap();
    // SUBACK: two bytes of packet id and a code a filter, all granted.
    let mut answer = vec![0; 3 + 2 + FILTERS];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer[5..].iter().all(|code| *code == 1), "SUBACK refuses");
}

fn retain(stream: &mut TcpStream) {
    for n in 0..RETAINED {
        let mut body = Vec::new();
        text(&mut body, &format!("retained/{}/{n}", n % 100));
        body.extend_from_slice(&((n % 60_000) as u16 + 1).to_be_bytes());
        body.extend_from_slice(&[b'x'; 64]);
        stream.write_all(&frame(0x33, &body)).unwrap();
        if n % 500 == 499 {
            let mut acks = vec![0; 500 * 4];
            stream.read_exact(&mut acks).unwrap();
        }
    }
}

fn timed_start(folder: &Path, what: &str) -> Child {
    let (port, started) = (free_port(), Instant::now());
    let broker = start(folder, port);
    drop(connect(port, "probe"));
    println!("start after {what}: {:.2} s to the first CONNACK", started.elapsed().as_secs_f64());
    broker
}

fn main() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (port, began) = (free_port(), Instant::now());
    let mut broker = start(folder.path(), port);
    for client in 0..CLIENTS {
        subscribe(&mut connect(port, &format!("client-{client}")), client);
    }
    retain(&mut connect(port, "publisher"));
    println!(
        "{} subscriptions, {RETAINED} retained messages made in {:.1} s",
        CLIENTS * FILTERS,
        began.elapsed().as_secs_f64()
    );
    broker.kill().unwrap();
    broker.wait().unwrap();
    let mut broker = timed_start(folder.path(), "kill -9");
    let pid = rustix::process::Pid::from_child(&broker);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    broker.wait().unwrap();
    let mut broker = timed_start(folder.path(), "an orderly stop");
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.id())).unwrap();
    let rss = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    println!("resident with all of it loaded: {}", rss.trim_start_matches("VmRSS:").trim());
    broker.kill().unwrap();
    broker.wait().unwrap();
}
