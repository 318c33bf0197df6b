//! What the metrics page and the log tell while messages flow, and the limit on sessions.

use std::time::{Duration, Instant};

use crate::support::{Broker, Client, Connect, Level, Packet, Start, prop, wire};

/// Waits until a metric has this value.
#[track_caller]
fn await_metric(broker: &Broker, name: &str, due: f64) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while broker.metric(name) != Some(due) {
        assert!(Instant::now() < deadline, "{name} is {:?}, not {due}", broker.metric(name));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// MET-1: what is in flight and what waits for credit is on the page, and off it with the
/// connection that held it.
#[test]
fn levels_of_flow_control_rise_and_fall_with_their_connection() {
    let broker = Broker::start();
    let mut slow = Client::connect(&broker, &Connect::v5("slow").with(prop::receive_maximum(2)));
    slow.subscribe("t", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    for number in 0..5 {
        publisher.publish("t", number.to_string(), 1);
    }
    await_metric(&broker, "flowControl_inflightCount", 2.0);
    await_metric(&broker, "flowControl_delayedQueueSize", 3.0);
    slow.take();
    await_metric(&broker, "flowControl_delayedQueueSize", 2.0);
    slow.reset();
    await_metric(&broker, "flowControl_inflightCount", 0.0);
    await_metric(&broker, "flowControl_delayedQueueSize", 0.0);
    await_metric(&broker, "connectedSessions", 1.0);
}

/// MET-1: copies are counted by the QoS they were sent with, bytes and group commits as well, and
/// every timer of the way of a message has seen something.
#[test]
fn every_series_of_the_way_of_a_message_moves() {
    let broker = Broker::start();
    let mut offline = Client::connect(&broker, &Connect::v5("offline").persistent());
    offline.subscribe("t", 2);
    offline.disconnect();
    let mut live = Client::connect(&broker, &Connect::v5("live"));
    live.subscribe("t", 2);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    for qos in 0..=2 {
        publisher.publish("t", "payload", qos);
        live.take();
    }
    publisher.retain("kept", "value");
    live.subscribe("kept", 0);
    live.take();
    let mut back = Client::connect(&broker, &Connect::v5("offline").persistent().resume());
    back.take();
    back.take();
    let page = broker.scrape();
    let of = |series: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series}")).parse::<f64>().unwrap()
    };
    // The retained copy is the second one at QoS 0.
    let delivered = |qos: u8| of(&format!("deliveredMsgs_total{{qos=\"{qos}\"}}"));
    assert_eq!([delivered(0), delivered(1), delivered(2)], [2.0, 2.0, 2.0]);
    let moved = [
        "sentBytes_total",
        "receivedBytes_total",
        "publishLogAppendedBytes_total",
        "publishLogSync_seconds_count",
        "delivery_seconds_count",
        "notPersistentMessagesProcessing_seconds_count",
        "persistentMessagesProcessing_seconds_count",
        "subscriptionLookup_seconds_count",
        "retainedMsgLookup_seconds_count",
        "deviceProcessor_pack_processing_time_seconds_count{consumerId=\"0\"}",
        "deviceProcessor_total{consumerId=\"0\",statsName=\"successfulMsgs\"}",
    ];
    for series in moved {
        assert!(of(series) > 0.0, "{series} did not move:\n{page}");
    }
}

/// RM-5, MET-1: an acknowledgement that fits nothing is counted.
#[test]
fn an_unknown_acknowledgement_is_counted() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::v5("odd"));
    client.send(&wire::ack(4, 77));
    client.ping();
    let page = broker.scrape();
    assert!(page.contains("flowControl_total{statsName=\"unknownAcks\"} 1"), "{page}");
}

/// The totals go to the log once a period.
#[test]
fn totals_go_to_the_log() {
    let broker = Start::new().env("STATS_PRINT_INTERVAL_MS", 1000).start();
    let mut client = Client::connect(&broker, &Connect::v5("client"));
    client.subscribe("t", 1);
    client.publish("t", "m", 1);
    client.take();
    let deadline = Instant::now() + Duration::from_secs(10);
    let told = |log: &str| log.contains("published=1") && log.contains("delivered=1");
    while !told(&broker.log()) {
        assert!(Instant::now() < deadline, "no line of totals:\n{}", broker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `mqtt.sessions-limit`: one session more is refused, by 0x97 or 3; a known one comes back, and
/// an ended one makes room.
#[test]
fn one_session_more_than_the_limit_is_refused() {
    let broker = Start::new().env("MQTT_SESSIONS_LIMIT", 2).start();
    let first = Client::connect(&broker, &Connect::v5("first"));
    let kept = Connect::v311("kept").persistent();
    Client::connect(&broker, &kept).disconnect();
    for (connect, code) in [(Connect::v5("third"), 0x97), (Connect::v311("third"), 3)] {
        let mut refused = Client::open(&broker, connect.level);
        refused.send(&connect.bytes());
        match refused.recv() {
            Packet::Connack { code: answered, .. } => assert_eq!(answered, code),
            other => panic!("CONNECT was answered with {other:?}"),
        }
        refused.expect_close();
    }
    Client::connect(&broker, &kept.resume()).disconnect();
    first.disconnect();
    await_metric(&broker, "connectedSessions", 0.0);
    // On the cluster profile a session's end is one in the log, too.
    broker.eventually("there is room again", |broker| {
        let mut third = Client::open(broker, Level::V5);
        third.send(&Connect::v5("third").bytes());
        matches!(third.recv(), Packet::Connack { code: 0, .. })
    });
}
