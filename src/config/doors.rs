//! The listeners' settings: the same keys below `listener.tcp`, `.ssl`, `.ws` and `.wss`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::reader::Reader;
use super::rooms::{PACKET_MAX, millis, seconds};
use crate::limits::KB;
use crate::listener::{
    ClientAuth, Config, ConnectionRateConfig, DoorConfig, Identity, Networks, Secret, TlsConfig,
    TlsFault, TlsVersion, UnixConfig, WsConfig, tls_faults,
};

/// A listener on a port, and its keys.
struct Keys {
    name: &'static str,
    enabled: &'static str,
    bind_address: &'static str,
    bind_port: &'static str,
    proxy: &'static str,
    max_connections: &'static str,
    payload: &'static str,
    keep_alive: &'static str,
    shutdown: &'static str,
}

struct TlsKeys {
    protocol: &'static str,
    suites: &'static str,
    client_auth: &'static str,
    kind: &'static str,
    cert: &'static str,
    key: &'static str,
    password: &'static str,
    more: &'static str,
    ca: &'static str,
    crl: &'static str,
}

struct WsKeys {
    sub_protocols: &'static str,
    forwarded: &'static str,
}

macro_rules! keys {
    ($kind:ident $name:literal: $($field:ident = $key:literal,)+) => {
        $kind { $($field: concat!("listener.", $name, ".", $key),)+ }
    };
}

macro_rules! door {
    ($name:literal) => {
        Keys {
            name: $name,
            ..keys! { Keys $name:
                name = "",
                enabled = "enabled",
                bind_address = "bind_address",
                bind_port = "bind_port",
                proxy = "proxy_enabled",
                max_connections = "max_connections",
                payload = "netty.max_payload_size",
                keep_alive = "netty.so_keep_alive",
                shutdown = "netty.shutdown_timeout",
            }
        }
    };
}

macro_rules! tls {
    ($name:literal) => {
        keys! { TlsKeys $name:
            protocol = "config.protocol",
            suites = "config.enabled_cipher_suites",
            client_auth = "config.client_auth",
            kind = "config.credentials.type",
            cert = "config.credentials.pem.cert_file",
            key = "config.credentials.pem.key_file",
            password = "config.credentials.pem.key_password",
            more = "config.credentials.pem.more_certs",
            ca = "config.credentials.pem.ca_file",
            crl = "config.credentials.pem.crl_file",
        }
    };
}

macro_rules! ws {
    ($name:literal) => {
        keys! { WsKeys $name:
            sub_protocols = "netty.sub_protocols",
            forwarded = "forwarded_enabled",
        }
    };
}

const TCP: Keys = door!("tcp");
const SSL: (Keys, TlsKeys) = (door!("ssl"), tls!("ssl"));
const WS: (Keys, WsKeys) = (door!("ws"), ws!("ws"));
const WSS: (Keys, TlsKeys, WsKeys) = (door!("wss"), tls!("wss"), ws!("wss"));

fn connection_rate(r: &mut Reader<'_>) -> ConnectionRateConfig {
    let enabled = r.flag("listener.connection-rate.enabled");
    let node = r.counts_or_none("listener.connection-rate.config", "connections");
    let source = r.counts_or_none("listener.connection-rate.per-ip-config", "connections");
    let config = ConnectionRateConfig { node, source };
    if enabled { config } else { ConnectionRateConfig::default() }
}

pub(super) fn read(r: &mut Reader<'_>) -> Config {
    let proxy = r.flag("listener.proxy_enabled");
    let (tcp, ssl) = (door(r, &TCP, proxy), door(r, &SSL.0, proxy));
    let (ws, wss) = (door(r, &WS.0, proxy), door(r, &WSS.0, proxy));
    let of_ssl = tls(r, &SSL.1);
    let of_wss = tls(r, &WSS.1);
    let (in_ws, in_wss) = (websocket(r, &WS.1), websocket(r, &WSS.2));
    let connections =
        |r: &mut Reader<'_>, key| r.limit(key, "connections", 10_000_000).map(|most| most as usize);
    let buffer = |r: &mut Reader<'_>, key| r.limit(key, "KB", 1_048_576).map(|kb| kb as usize * KB);
    Config {
        tcp,
        ssl: ssl.map(|door| DoorConfig { tls: Some(of_ssl), ..door }),
        ws: ws.map(|door| DoorConfig { ws: Some(in_ws), ..door }),
        wss: wss.map(|door| DoorConfig { tls: Some(of_wss), ws: Some(in_wss), ..door }),
        unix: unix(r, proxy),
        so_receive_buffer_bytes: buffer(r, "listener.so_receive_buffer"),
        so_send_buffer_bytes: buffer(r, "listener.so_send_buffer"),
        max_connections: connections(r, "listener.max_connections"),
        max_connections_per_address: connections(r, "listener.max_connections_per_address"),
        connection_rate: connection_rate(r),
        max_handshakes: r.size("listener.max_handshakes", "connections", 1..=1_000_000),
        connect_timeout: millis(r, "mqtt.connect.timeout-ms", 100, 600_000),
        trusted: r.read("listener.proxy_trusted_networks", "networks".into(), Networks::parse),
        reload_period: millis(r, "listener.certificates_reload_period_ms", 50, 86_400_000),
    }
}

fn door(r: &mut Reader<'_>, keys: &Keys, proxy: bool) -> Option<DoorConfig> {
    let enabled = r.flag(keys.enabled);
    let address = r.address(keys.bind_address);
    let door = DoorConfig {
        bind: SocketAddr::new(address, r.short(keys.bind_port, "port", 0)),
        max_packet_bytes: r.size(keys.payload, "bytes", 128..=PACKET_MAX),
        max_connections: r
            .limit(keys.max_connections, "connections", 10_000_000)
            .map(|most| most as usize),
        so_keep_alive: r.flag(keys.keep_alive),
        shutdown_timeout: seconds(r, keys.shutdown, 0, 600),
        proxy: follows(r, keys.proxy, proxy),
        tls: None,
        ws: None,
    };
    enabled.then_some(door)
}

/// A switch that an empty text leaves as the general one is.
fn follows(r: &mut Reader<'_>, key: &'static str, general: bool) -> bool {
    let read = |text: &str| match text.to_ascii_lowercase().as_str() {
        "" => Some(None),
        "true" => Some(Some(true)),
        "false" => Some(Some(false)),
        _ => None,
    };
    r.read(key, "true, false or empty".into(), read).unwrap_or(general)
}

fn tls(r: &mut Reader<'_>, keys: &TlsKeys) -> TlsConfig {
    // KEYSTORE is TBMQ's other kind: `docs/security.md` says how to turn one into PEM.
    r.choice(keys.kind, &["PEM"]);
    let lowest = match r.choice(keys.protocol, &["TLSv1.2", "TLSv1.3"]) {
        0 => TlsVersion::V12,
        _ => TlsVersion::V13,
    };
    let client_auth = match r.choice(keys.client_auth, &["off", "requested", "required"]) {
        0 => ClientAuth::Off,
        1 => ClientAuth::Requested,
        _ => ClientAuth::Required,
    };
    let key_password = r.text(keys.password).map(|text| Secret(text.to_owned()));
    let first = Identity {
        cert_file: r.file(keys.cert),
        key_file: r.file(keys.key),
        key_password: key_password.clone(),
    };
    let more = r.read(keys.more, "cert:key,cert:key,…".into(), |text| {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let pair = |part: &str| {
            let (cert, key) = part.split_once(':')?;
            let (cert_file, key_file) = (PathBuf::from(cert.trim()), PathBuf::from(key.trim()));
            Some(Identity { cert_file, key_file, key_password: key_password.clone() })
        };
        parts.map(pair).collect::<Option<Vec<Identity>>>()
    });
    TlsConfig {
        lowest,
        cipher_suites: r.list(keys.suites),
        identities: [vec![first], more].concat(),
        client_auth,
        ca_file: r.text(keys.ca).map(PathBuf::from),
        crl_file: r.text(keys.crl).map(PathBuf::from),
    }
}

/// HTTPS for the administration.
pub(super) fn https(r: &mut Reader<'_>) -> Option<TlsConfig> {
    let enabled = r.flag("server.ssl.enabled");
    r.choice("server.ssl.credentials.type", &["PEM"]);
    let lowest = match r.choice("server.ssl.protocol", &["TLSv1.2", "TLSv1.3"]) {
        0 => TlsVersion::V12,
        _ => TlsVersion::V13,
    };
    let key_password = r.text("server.ssl.credentials.pem.key_password");
    let identity = Identity {
        cert_file: r.file("server.ssl.credentials.pem.cert_file"),
        key_file: r.file("server.ssl.credentials.pem.key_file"),
        key_password: key_password.map(|text| Secret(text.to_owned())),
    };
    let tls = TlsConfig {
        lowest,
        cipher_suites: Vec::new(),
        identities: vec![identity],
        client_auth: ClientAuth::Off,
        ca_file: None,
        crl_file: None,
    };
    for TlsFault { setting, text } in if enabled { tls_faults(&tls) } else { Vec::new() } {
        r.fault(format!("server.ssl.{setting}: {text}"));
    }
    enabled.then_some(tls)
}

fn websocket(r: &mut Reader<'_>, keys: &WsKeys) -> WsConfig {
    let [mqtt, old] = r.names(keys.sub_protocols, ["mqtt", "mqttv3.1"]);
    let offered = [(mqtt, "mqtt"), (old, "mqttv3.1")];
    let taken = offered.iter().filter(|(taken, _)| *taken).map(|(_, name)| (*name).to_owned());
    WsConfig { sub_protocols: taken.collect(), forwarded: r.flag(keys.forwarded) }
}

fn unix(r: &mut Reader<'_>, proxy: bool) -> Option<UnixConfig> {
    let enabled = r.flag("listener.unix.enabled");
    let mode = r.read("listener.unix.mode", "permission bits, 000 to 777".into(), |text| {
        u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777)
    });
    let unix = UnixConfig {
        path: r.file("listener.unix.path"),
        mode,
        max_packet_bytes: r.size("listener.unix.max_payload_size", "bytes", 128..=PACKET_MAX),
        max_connections: r
            .limit("listener.unix.max_connections", "connections", 10_000_000)
            .map(|most| most as usize),
        proxy: follows(r, "listener.unix.proxy_enabled", proxy),
    };
    enabled.then_some(unix)
}

/// What must hold between values that are each right by themselves, and in the files they name.
pub(super) fn relations(
    r: &mut Reader<'_>,
    config: &Config,
    http: SocketAddr,
    inbound_budget: usize,
    segment_bytes: u64,
) {
    let all = doors(config);
    if all.is_empty() && config.unix.is_none() {
        let keys = [TCP.enabled, SSL.0.enabled, WS.0.enabled, WSS.0.enabled];
        return r.contradiction(&keys, "wanted a listener that is switched on");
    }
    let mut packets: Vec<(&'static str, usize)> =
        all.iter().map(|(keys, door)| (keys.payload, door.max_packet_bytes)).collect();
    let unix = config.unix.as_ref();
    packets.extend(unix.map(|unix| ("listener.unix.max_payload_size", unix.max_packet_bytes)));
    for (key, packet) in packets {
        if packet > inbound_budget {
            let sizes = [key, "listener.inbound_budget_bytes"];
            r.contradiction(&sizes, "wanted a budget that holds the largest packet");
        }
        if packet as u64 + super::rooms::RECORD_ROOM > segment_bytes {
            let sizes = [key, "storage.embedded.segment-bytes"];
            r.contradiction(&sizes, "wanted segments at least 65536 bytes larger than a packet");
        }
    }
    let mut ports: Vec<(&'static str, SocketAddr)> = vec![("server.port", http)];
    for (keys, door) in &all {
        let meets = ports.iter().find(|(_, other)| meet(*other, door.bind)).map(|(key, _)| *key);
        if let Some(other) = meets {
            r.contradiction(&[keys.bind_port, other], "wanted two different ports");
        }
        ports.push((keys.bind_port, door.bind));
    }
    for (keys, door) in &all {
        if door.ws.as_ref().is_some_and(|ws| ws.sub_protocols.is_empty()) {
            let key = if keys.name == "ws" { WS.1.sub_protocols } else { WSS.2.sub_protocols };
            r.contradiction(&[key], "wanted mqtt, mqttv3.1 or both");
        }
        for TlsFault { setting, text } in door.tls.iter().flat_map(tls_faults) {
            r.fault(format!("listener.{}.config.{setting}: {text}", keys.name));
        }
    }
}

fn doors(config: &Config) -> Vec<(&'static Keys, &DoorConfig)> {
    const KEYS: [&Keys; 4] = [&TCP, &SSL.0, &WS.0, &WSS.0];
    let doors = [&config.tcp, &config.ssl, &config.ws, &config.wss];
    let pairs = KEYS.into_iter().zip(doors);
    pairs.filter_map(|(keys, door)| door.as_ref().map(|door| (keys, door))).collect()
}

/// Whether both can't be bound at once.
fn meet(a: SocketAddr, b: SocketAddr) -> bool {
    let all = |ip: IpAddr| ip.is_unspecified();
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || all(a.ip()) || all(b.ip()))
}
