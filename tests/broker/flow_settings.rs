//! The settings of flow control at the edges of what they may be, together.

use crate::support::{Client, Connect, Start};

/// The settings of flow control and queues, and their least and largest values.
const FLOW: [(&str, u64, u64); 9] = [
    ("NETTY_WRITE_BUFFER_HIGH_WATER_MARK", 1, 16_384),
    ("NETTY_WRITE_BUFFER_LOW_WATER_MARK", 1, 16_384),
    ("LISTENER_READ_AHEAD", 1, 1_000_000),
    ("LISTENER_READ_AHEAD_BYTES", 1024, 1 << 30),
    ("LISTENER_INBOUND_BUDGET_BYTES", 1 << 20, 1 << 40),
    ("MQTT_MAX_IN_FLIGHT_MSGS", 1, 65_535),
    ("MQTT_FLOW_CONTROL_DELAYED_QUEUE_MAX_SIZE", 0, 65_535),
    ("MQTT_FLOW_CONTROL_MQTT_3X_RECEIVE_MAX", 1, 65_535),
    ("MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT", 1, 65_535),
];

/// OUT-1, IN-4, RM-1, RM-2, DEV-5: with all marks and windows as narrow as they can be, low and
/// high mark equal, everything comes, one at a time; and so it does with all as wide as they can
/// be.
#[test]
fn flow_control_works_at_both_ends_of_its_settings() {
    for widest in [false, true] {
        let start = FLOW.into_iter().fold(Start::new(), |start, (name, least, largest)| {
            start.env(name, if widest { largest } else { least })
        });
        let broker = start.start();
        let connects = [
            Connect::v5("v5").persistent(),
            Connect::v311("v3").persistent(),
            Connect::v5("plain"),
        ];
        let mut clients = connects.map(|connect| Client::connect(&broker, &connect));
        clients.iter_mut().for_each(|client| _ = client.subscribe("t", 2));
        let mut publisher = Client::connect(&broker, &Connect::v5("p"));
        let announced = publisher.connack.number(0x21).unwrap_or(65_535);
        assert_eq!(announced, if widest { 65_535 } else { 1 }, "our Receive Maximum");
        for number in 0..20_u8 {
            // Larger than the narrow marks: each packet fills the channel by itself.
            let payload = format!("{number:<5000}");
            publisher.publish("t", &payload, number % 3);
            for client in &mut clients {
                assert_eq!(client.take().payload(), payload, "{number}, widest: {widest}");
                client.ping();
            }
        }
        assert_eq!(broker.metric("droppedMsgs_total"), Some(0.0), "widest: {widest}");
        broker.await_metric("nonWritableClients", 0.0);
    }
}

/// OUT-1, RM-1, RM-2, DEV-5: values beyond what a packet id or a mark can be stop the start, all of
/// them named at once.
#[test]
fn all_wrong_settings_of_flow_control_are_named_at_once() {
    let wrong = [
        ("MQTT_MAX_IN_FLIGHT_MSGS", "65536"),
        ("MQTT_FLOW_CONTROL_DELAYED_QUEUE_MAX_SIZE", "65536"),
        ("MQTT_FLOW_CONTROL_MQTT_3X_RECEIVE_MAX", "0"),
        ("MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT", "65536"),
        ("NETTY_WRITE_BUFFER_HIGH_WATER_MARK", "18446744073709551615"),
        ("NETTY_WRITE_BUFFER_LOW_WATER_MARK", "0"),
        ("LISTENER_READ_AHEAD", "0"),
        ("LISTENER_INBOUND_BUDGET_BYTES", "65535"),
    ];
    let start = wrong.into_iter().fold(Start::new(), |start, (name, value)| start.env(name, value));
    let Err((status, log)) = start.try_start() else { panic!("it started") };
    assert_eq!(status.code(), Some(2), "{log}");
    for (name, value) in wrong {
        assert!(log.contains(name) && log.contains(value), "{name} is not named:\n{log}");
    }
}
