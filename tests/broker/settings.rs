//! PAR-07: every numeric setting at 0, 1 and its largest value has a meaning, or is refused at the
//! start with a message that names it. Exit code 2 is a refusal; everything else is a crash.

use std::time::Duration;

use crate::support::{Broker, Client, Connect, Level, Packet, Start, wire};

/// The numeric settings of the commented default file: environment name and last part of the key.
fn numeric_settings() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/sluice.yml");
    let file = std::fs::read_to_string(path).unwrap();
    let setting = |line: &str| {
        let (key, value) = line.trim().split_once(": \"${")?;
        let (name, default) = value.strip_suffix("}\"")?.split_once(':')?;
        default.parse::<u64>().ok()?;
        // The tests choose the ports themselves.
        (!name.ends_with("_PORT")).then(|| (name.to_owned(), key.to_owned()))
    };
    let settings: Vec<(String, String)> = file.lines().filter_map(setting).collect();
    assert!(settings.len() > 30, "only {} numeric settings in {path}", settings.len());
    settings
}

fn each_setting_at(value: &str) {
    for (name, key) in numeric_settings() {
        let start = Start::new().env(&name, value).allow_log(&key).allow_log(&name);
        match start.try_start() {
            Ok(mut broker) => smoke(&mut broker, &name, value),
            Err((status, log)) => {
                assert_eq!(status.code(), Some(2), "{name}={value}: {status}\n{log}");
                let named = log.contains(&name) || log.contains(&key);
                assert!(named, "{name}={value} was refused without its name:\n{log}");
            }
        }
    }
}

/// One message at QoS 0 and at QoS 1, as far as the setting lets it through: there is an answer or
/// an end, and the process lives.
fn smoke(broker: &mut Broker, name: &str, value: &str) {
    let mut client = Client::open(broker, Level::V5);
    client.try_send(&Connect::v5("smoke").keep_alive(60).bytes());
    let answer = client.recv_within(Duration::from_secs(5));
    if matches!(answer, Some(Packet::Connack { code: 0, .. })) {
        client.try_send(&wire::subscribe(Level::V5, 1, &[], &[(b"a/b", 1)]));
        client.try_send(&wire::publish(Level::V5, 0, "a/b", 0, &[], "0"));
        client.try_send(&wire::publish(Level::V5, 2, "a/b", 9, &[], "1"));
        client.try_send(&wire::DISCONNECT);
        client.expect_close();
    }
    assert!(broker.is_running(), "{name}={value}: the broker is gone");
}

/// PAR-07: 0 is a meaning of its own, or refused.
#[test]
fn every_setting_at_0_works_or_is_refused_by_name() {
    each_setting_at("0");
}

/// PAR-07: the smallest value.
#[test]
fn every_setting_at_1_works_or_is_refused_by_name() {
    each_setting_at("1");
}

/// PAR-07: the largest value that a number can have.
#[test]
fn every_setting_at_its_largest_works_or_is_refused_by_name() {
    each_setting_at("18446744073709551615");
}
