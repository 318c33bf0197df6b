//! Which room may name which, and where an outside library lives.

use crate::source::{Source, is_name, words};

/// The rooms and their layers. Imports go only to a lower number.
const ROOMS: [(&str, u8); 17] = [
    ("mqtt", 0),
    ("limits", 0),
    ("telemetry", 0),
    ("codec", 1),
    ("plan", 1),
    ("storage", 1),
    ("delivery", 2),
    ("cluster", 0),
    ("routing", 3),
    ("security", 3),
    ("session", 4),
    ("listener", 5),
    ("admin", 6),
    ("bench", 6),
    ("config", 7),
    ("broker", 8),
    ("main", 9),
];

/// Modules that another room may name: part of the door, because the name is the better half of
/// what they offer (`telemetry::task::spawn`). The second list says who; empty is everybody.
const SIDE_DOORS: [(&str, &[&str]); 8] = [
    ("telemetry::clock", &[]),
    ("telemetry::fail_point", &[]),
    ("telemetry::ledger", &["admin", "broker"]),
    ("telemetry::metrics", &[]),
    ("telemetry::task", &[]),
    ("telemetry::logging", &["main", "broker"]),
    // Invariant 9: only `broker` names a backend.
    ("storage::embedded", &["broker"]),
    ("storage::redis", &["broker"]),
];

/// An outside library, and the only places that may name it.
const LIBRARIES: [(&str, &[&str]); 19] = [
    // What an administrator of Kafka may do meanwhile, tests do.
    ("rdkafka", &["src/storage/kafka", "tests/cluster"]),
    ("redis", &["src/storage/redis"]),
    ("ed25519_dalek", &["src/plan"]),
    ("axum", &["src/admin/", "src/admin.rs"]),
    // Two sides of TLS: what we serve, and the services that we ask.
    ("rustls", &["src/listener", "src/security/http", "tests/", "benches/"]),
    ("tokio_rustls", &["src/listener", "src/security/http"]),
    ("rustls_native_certs", &["src/security/http"]),
    ("hyper_util", &["src/security/http"]),
    ("http_body_util", &["src/security/http"]),
    ("hyper", &["src/security"]),
    ("webpki", &["src/listener/tls"]),
    ("ring", &["src/listener"]),
    ("httparse", &["src/listener"]),
    ("pkcs8", &["src/listener"]),
    ("tungstenite", &["src/listener", "tests/"]),
    ("fjall", &["src/storage/embedded"]),
    ("xxhash_rust", &["src/storage", "src/routing", "src/cluster"]),
    ("mqttbytes", &["src/bench", "tests/", "benches/", "src/codec/tests"]),
    ("rmqtt_codec", &["tests/", "benches/", "src/codec/tests"]),
];

/// Invariant 8: these know neither Tokio nor time, so that a test can drive every case.
const PURE: [&str; 6] = [
    "src/mqtt/",
    "src/codec/",
    "src/delivery/watermark.rs",
    "src/delivery/credit.rs",
    "src/delivery/packet_ids.rs",
    "src/routing/trie",
];
const IMPURE: [&str; 4] = ["tokio", "Instant", "SystemTime", "wall_ms"];

fn layer(room: &str) -> Option<u8> {
    ROOMS.iter().find(|(name, _)| *name == room).map(|(_, layer)| *layer)
}

pub(crate) fn imports(file: &Source) -> Vec<String> {
    let Some(room) = file.room().filter(|room| *room != "lib") else { return Vec::new() };
    let Some(own) = layer(room) else {
        return vec![file.fault(0, &format!("`{room}` is not in the table of rooms"))];
    };
    let allowed: Vec<&str> =
        ROOMS.iter().filter(|(_, layer)| *layer < own).map(|(name, _)| *name).collect();
    let mut faults = Vec::new();
    for (at, path) in crate_paths(&file.code) {
        let other = path.split("::").next().unwrap_or(&path);
        // A room's macros stand at the crate's root, and carry its name.
        let own_macro = other.starts_with(&format!("{room}_"));
        if other != room && !own_macro && !allowed.contains(&other) {
            let list = allowed.join(", ");
            let what = format!("`{room}` (layer {own}) names `{other}`; it may name: {list}");
            faults.push(file.fault(at, &what));
        }
    }
    faults.dedup();
    faults.extend(escapes(file));
    faults
}

/// What follows `crate::` (in the binary: `sluice::`), with groups taken apart, as far as two
/// names: `storage::ports`.
fn crate_paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for root in ["crate", "sluice"] {
        for at in words(code, root) {
            if let Some(rest) = code[at + root.len()..].trim_start().strip_prefix("::") {
                expand(rest, "", &mut |path| paths.push((at, path)));
            }
        }
    }
    paths
}

fn expand(rest: &str, prefix: &str, found: &mut dyn FnMut(String)) {
    let rest = rest.trim_start();
    if let Some(group) = rest.strip_prefix('{') {
        for part in group_parts(group) {
            expand(part, prefix, found);
        }
        return;
    }
    let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
    if name.is_empty() || name == "self" {
        found(prefix.trim_end_matches("::").to_owned());
        return;
    }
    let path = format!("{prefix}{name}");
    match rest[name.len()..].trim_start().strip_prefix("::") {
        Some(deeper) if prefix.is_empty() => expand(deeper, &format!("{path}::"), found),
        Some(_) | None => found(path),
    }
}

/// The parts of a `{a, b::{c, d}}` group, as far as its closing brace.
fn group_parts(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => {
                parts.push(&group[start..at]);
                break;
            }
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Chains of `super::` that climb out of the room, past the eyes of the table above.
fn escapes(file: &Source) -> Vec<String> {
    let Some(path) = file.in_src() else { return Vec::new() };
    let depth = path.trim_end_matches("/mod").split('/').count();
    let mut faults = Vec::new();
    for at in words(&file.code, "super") {
        if file.code[..at].trim_end().ends_with("super::") {
            continue;
        }
        let mut rest = &file.code[at..];
        let mut climbs = 0;
        while let Some(after) = rest.strip_prefix("super") {
            climbs += 1;
            rest = after.strip_prefix("::").unwrap_or("");
        }
        if climbs >= depth + inline_depth(&file.code[..at]) {
            faults.push(file.fault(at, "`super` climbs out of the room; name it `crate::...`"));
        }
    }
    faults
}

/// How many `mod name {` blocks are open here.
fn inline_depth(before: &str) -> usize {
    let opened = words(before, "mod").filter(|at| {
        let Some((head, body)) = before[at + 3..].split_once('{') else { return false };
        let one_name = head.trim().chars().all(is_name) && !head.trim().is_empty();
        one_name && body.matches('{').count() + 1 > body.matches('}').count()
    });
    opened.count()
}

/// Paths from one room into an inner module of another.
pub(crate) fn doors(files: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        let Some(room) = file.room().filter(|room| *room != "lib") else { continue };
        for (at, path) in crate_paths(&file.code) {
            let Some((other, inner)) = path.split_once("::") else { continue };
            let side = SIDE_DOORS.iter().find(|(door, _)| *door == path);
            let open = side.is_some_and(|(_, who)| who.is_empty() || who.contains(&room));
            if other != room && is_module(files, other, inner) && !open {
                let what =
                    format!("`{room}` names the inner module `{path}`; use `{other}`'s door");
                faults.push(file.fault(at, &what));
            }
        }
    }
    faults
}

fn is_module(files: &[Source], room: &str, inner: &str) -> bool {
    let names = [format!("src/{room}/{inner}.rs"), format!("src/{room}/{inner}/mod.rs")];
    files.iter().any(|file| names.contains(&file.path))
}

pub(crate) fn libraries(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    for (library, places) in LIBRARIES {
        if places.iter().any(|place| file.path.starts_with(place)) {
            continue;
        }
        let path = |at: &usize| {
            let after = file.code[at + library.len()..].starts_with("::");
            let used = file.code[..*at].trim_end().ends_with("use");
            (after || used) && !file.code[..*at].trim_end().ends_with("::")
        };
        for at in words(&file.code, library).filter(path) {
            let list = places.join(", ");
            faults.push(file.fault(at, &format!("`{library}` lives only in: {list}")));
        }
    }
    faults
}

pub(crate) fn purity(file: &Source) -> Vec<String> {
    let test_file = file.path.contains("tests");
    if test_file || !PURE.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    let found = |word: &'static str| {
        let fault = move |at| file.fault(at, &format!("`{word}` in a file that is pure"));
        words(&file.code, word).map(fault)
    };
    IMPURE.into_iter().flat_map(found).collect()
}

#[test]
fn an_import_upwards_or_sideways_is_found() {
    let bad = [
        "use crate::session::Session;",
        "use crate::{\n    mqtt::QoS,\n    delivery::{Outbox, Credit},\n};",
        "fn f() { crate::broker::run() }",
        "use crate::codec::Packet;",
        "mod tests { use super::super::super::routing::Trie; }",
    ];
    for text in bad {
        let faults = imports(&Source::new("src/storage/record.rs", text));
        assert_eq!(faults.len(), 1, "{text}: {faults:?}");
    }
    let message = &imports(&Source::new("src/storage/record.rs", bad[0]))[0];
    let expected = "src/storage/record.rs:1: `storage` (layer 1) names `session`; \
                    it may name: mqtt, limits, telemetry, cluster";
    assert_eq!(message, expected);
}

#[test]
fn imports_downwards_and_inside_a_room_are_fine() {
    let text = "use crate::mqtt::{QoS, ClientId};\nuse crate::storage::ports;\nuse super::ports;\n\
                mod tests { use super::super::ports; use super::*; }\n// crate::session::X\n\
                crate::storage_contract!();\n";
    assert!(imports(&Source::new("src/storage/record.rs", text)).is_empty());
    assert_eq!(imports(&Source::new("src/unknown/mod.rs", "")).len(), 1);
}

#[test]
fn a_way_past_the_door_is_found() {
    let file = |path, text| Source::new(path, text);
    let bad = [
        file("src/delivery/outbox.rs", "pub struct Outbox;"),
        file("src/storage/embedded/mod.rs", "//! Embedded."),
        file("src/routing/mod.rs", "use crate::{delivery::outbox::Outbox, storage::embedded};"),
        file("src/broker/mod.rs", "use crate::storage::embedded::Embedded;"),
        file("src/session/mod.rs", "use crate::delivery::Outbox;"),
    ];
    let faults = doors(&bad);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults.iter().all(|fault| fault.starts_with("src/routing/mod.rs:1")), "{faults:?}");
}

#[test]
fn a_library_out_of_its_room_is_found() {
    let bad = "use axum::Router;\nuse fjall;\nfn f() { ::redis::cmd() }\n";
    assert_eq!(libraries(&Source::new("src/session/mod.rs", bad)).len(), 2);
    assert!(libraries(&Source::new("src/session/mod.rs", "use crate::storage::redis;")).is_empty());
    assert!(libraries(&Source::new("src/admin/mod.rs", "use axum::Router;")).is_empty());
}

#[test]
fn a_clock_in_a_pure_file_is_found() {
    let bad = "use tokio::time::Instant;";
    assert_eq!(purity(&Source::new("src/codec/decoder.rs", bad)).len(), 2);
    assert!(purity(&Source::new("src/session/mod.rs", bad)).is_empty());
}
