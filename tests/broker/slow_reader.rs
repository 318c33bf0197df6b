//! A subscriber that stops reading costs its own queue and nothing else (MEM-01, invariant 4).

use std::time::Duration;

use crate::support::{Broker, Client, Connect, Level, wire};

const MESSAGES: usize = 3000;

/// MEM-01: QoS 0 copies are skipped and counted, others lose nothing, and what does arrive is in
/// order.
#[test]
fn a_subscriber_that_stops_reading_loses_only_its_own() {
    let broker = Broker::start();
    let mut slow = Client::open_narrow(&broker, Level::V5).say_hello(&Connect::v5("slow"));
    slow.subscribe("load", 0);
    let mut quick = Client::connect(&broker, &Connect::v5("quick"));
    quick.subscribe("load", 0);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let before = broker.rss_kib();
    let mut got = 0;
    for number in 0..MESSAGES {
        let payload = format!("{number:<1024}");
        publisher.send(&wire::publish(Level::V5, 0, "load", 0, &[], payload));
        if number.is_multiple_of(50) {
            publisher.ping();
        }
        // Never so far behind that it is slow itself.
        while got + 16 < number {
            assert_eq!(quick.take().payload().trim(), got.to_string());
            got += 1;
        }
    }
    while got < MESSAGES {
        assert_eq!(quick.take().payload().trim(), got.to_string());
        got += 1;
    }
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 48 * 1024, "a slow reader costs {grown} KiB");
    let arrived: Vec<usize> = slow
        .drain(Duration::from_millis(500))
        .iter()
        .map(|publish| publish.payload().trim().parse().unwrap())
        .collect();
    assert!(arrived.is_sorted(), "{arrived:?}");
    let skipped = broker.metric("droppedMsgs_total").unwrap_or(0.0) as usize;
    assert_eq!(arrived.len() + skipped, MESSAGES, "arrived and counted as dropped");
}
