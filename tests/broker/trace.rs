//! `RUST_LOG=sluice=trace`: one message can be followed through the stops that ARCHITECTURE.md
//! lists.

use std::time::{Duration, Instant};

use crate::support::{Broker, Client, Connect, Start};

/// A line that tells of a stop: its number, and the line's text.
fn stops(log: &str) -> Vec<(u32, &str)> {
    let number = |line: &str| {
        let (_, rest) = line.split_once("stop=")?;
        rest.split(' ').next()?.parse().ok()
    };
    log.lines().filter_map(|line| Some((number(line)?, line))).collect()
}

/// The value of a field.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, rest) = line.split_once(&format!(" {name}=")).unwrap_or_else(|| panic!("{line}"));
    rest.split(' ').next().unwrap()
}

/// The first line at or behind `from` that tells of this stop and has all of these texts.
#[track_caller]
fn next(log: &[(u32, &str)], from: usize, stop: u32, with: &[&str]) -> usize {
    let fits = |line: &(u32, &str)| line.0 == stop && with.iter().all(|text| line.1.contains(text));
    let found = log[from..].iter().position(fits);
    from + found.unwrap_or_else(|| panic!("no stop {stop} with {with:?} behind line {from}"))
}

#[track_caller]
fn await_stop(broker: &Broker, stop: u32) -> String {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let log = broker.log();
        if stops(&log).iter().any(|(number, _)| *number == stop) {
            return log;
        }
        assert!(Instant::now() < deadline, "no stop {stop}:\n{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The life of one PUBLISH at QoS 1 to a persistent subscriber, stop by stop, in order.
#[test]
fn one_message_is_seen_at_every_stop_in_order() {
    let broker = Start::new().env("RUST_LOG", "sluice=trace").start();
    let mut subscriber = Client::connect(&broker, &Connect::v5("listens").persistent());
    subscriber.subscribe("way/of/one", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("speaks"));
    publisher.publish("way/of/one", "m", 1);
    let got = subscriber.take();
    assert_eq!(got.payload(), "m");
    let log = await_stop(&broker, 12);
    let log = stops(&log);
    let (speaks, listens, topic) = ("client=speaks", "client=listens", "topic=\"way/of/one\"");
    let mut at = next(&log, 0, 1, &["peer=tcp:127.0.0.1"]);
    at = next(&log, at, 2, &[speaks]);
    at = next(&log, at, 3, &[speaks, "packet=\"PUBLISH\""]);
    at = next(&log, at, 4, &[speaks, topic]);
    at = next(&log, at, 5, &[speaks, "messages=1"]);
    let ticket = format!("ticket={}", field(log[at].1, "ticket"));
    at = next(&log, at, 6, &["durable=true"]);
    let written = at;
    at = next(&log, at, 7, &[speaks, &ticket]);
    at = next(&log, at, 8, &[speaks, topic, "copies=1"]);
    assert_eq!(field(log[at].1, "position"), field(log[written].1, "position"));
    at = next(&log, at, 9, &["queue=client listens", "copies=1"]);
    at = next(&log, at, 10, &[listens, topic, "qos=1", "dup=false"]);
    at = next(&log, at, 11, &[listens]);
    next(&log, at, 12, &[listens, "acks=1", "done=1"]);
}

/// What is asked for at INFO has none of it.
#[test]
fn at_info_no_stop_is_told() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::v5("client"));
    client.subscribe("t", 1);
    client.publish("t", "m", 1);
    client.take();
    client.ping();
    assert_eq!(stops(&broker.log()).len(), 0);
}
