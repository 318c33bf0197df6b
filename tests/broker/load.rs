//! `sluice bench` against the broker, over each transport: what it counts must add up.

use std::process::Command;

use serde_json::Value;

use crate::authority::Authority;
use crate::doors::{House, TRANSPORTS};
use crate::support::{Start, Transport, papers};

/// A run that must be without a fault; its report.
fn run(house: &House, transport: Transport, words: &str, more: &[String]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["bench"]).args(words.split_whitespace()).args(more);
    command.args(["--port", &house.port(transport).to_string(), "--json", "--strict"]);
    match transport {
        Transport::Tcp => {}
        Transport::Tls => drop(command.arg("--tls")),
        Transport::Ws => drop(command.arg("--ws")),
        Transport::Wss => drop(command.arg("--wss")),
    }
    let done = command.output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    let report = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{transport:?} {words}: {told}{report}");
    serde_json::from_str(&report).unwrap()
}

fn is_encrypted(transport: Transport) -> bool {
    matches!(transport, Transport::Tls | Transport::Wss)
}

fn trust(transport: Transport, ca_file: &str) -> Vec<String> {
    if is_encrypted(transport) { vec!["--ca-file".into(), ca_file.into()] } else { Vec::new() }
}

/// Nothing is lost, doubled or reordered over any transport, be messages small or larger than what
/// a reader takes at once; kept sessions are gone behind a run.
#[test]
fn load_runs_over_every_transport() {
    let house = House::open(Start::new());
    let ca_file = papers().file("server.pem");
    for transport in TRANSPORTS {
        let more = trust(transport, &ca_file);
        for words in [
            "p2p --clients 3 --qos 2 --warm 0 --secs 1 --persistent",
            "fan-out --clients 2 --qos 1 --rate 200 --payload 60000 --warm 0 --secs 1 --threads 2",
        ] {
            let report = run(&house, transport, words, &more);
            assert!(report["totals"]["received"].as_u64().unwrap() > 0, "{report}");
            let full = report["totals"]["tls_full"].as_u64().unwrap();
            let connections = report["connections"].as_u64().unwrap();
            assert_eq!(full, if is_encrypted(transport) { connections } else { 0 });
        }
    }
    house.broker.await_metric("allClientSessions", 0.0);
}

/// Sessions of TLS are resumed when the run asks for it, and else never; a certificate is shown;
/// one that does not fit the broker's authority is told.
#[test]
fn tls_of_a_run_is_what_its_options_say() {
    let authority = Authority::new();
    let start = Start::new()
        .env("LISTENER_SSL_CLIENT_AUTH", "required")
        .env("LISTENER_SSL_PEM_CA", authority.path("ca.pem").display());
    let house = House::open(start);
    let device = authority.device("device", 7);
    let mut more = trust(Transport::Tls, &papers().file("server.pem"));
    for (option, name, text) in [
        ("--cert-file", "device.pem", device.pem.clone()),
        ("--key-file", "device_key.pem", device.key.serialize_pem()),
    ] {
        more.extend([option.into(), authority.write(name, &text).display().to_string()]);
    }
    for version in ["1.2", "1.3"] {
        let words = format!("churn --clients 2 --warm 0 --secs 1 --tls-version {version}");
        let report = run(&house, Transport::Tls, &words, &more);
        assert!(report["totals"]["tls_full"].as_u64() > Some(2), "{report}");
        assert_eq!(report["totals"]["tls_resumed"], 0);
        let report = run(&house, Transport::Tls, &(words + " --resume"), &more);
        let (full, resumed) = (&report["totals"]["tls_full"], &report["totals"]["tls_resumed"]);
        assert!(resumed.as_u64() > full.as_u64(), "{report}");
    }
    let page = house.broker.scrape();
    let series = "listenerTlsHandshakes_total{listener=\"ssl\",kind=\"resumed\"} ";
    let counted = page.lines().find_map(|line| line.strip_prefix(series)).unwrap();
    assert!(counted.parse::<f64>().unwrap() >= 4.0, "{counted}");
    // Handshakes and nothing behind them: the broker takes each for one that went again.
    let bare = run(&house, Transport::Tls, "churn --clients 2 --warm 0 --secs 1 --no-mqtt", &more);
    assert!(bare["totals"]["cycles_window"].as_u64() > Some(2), "{bare}");
    assert_eq!(bare["totals"]["failed"], 0);
    let mut without = Command::new(env!("CARGO_BIN_EXE_sluice"));
    without.args(["bench", "idle", "--tls", "--clients", "1", "--ca-file"]);
    without.arg(authority.path("ca.pem"));
    without.args(["--port", &house.port(Transport::Tls).to_string()]);
    let done = without.output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(2) && told.contains("UnknownIssuer"), "{told}");
}
