//! What known fleets of clients rely on (CLI).

use std::time::Duration;

use crate::support::{Broker, Client, Connect, Random, Will, prop, wire};

/// CLI-01, v3.1.1 MQTT-3.3.5-1, v5 MQTT-3.3.4-2: one copy for overlapping filters, live and from
/// the queue, before a restart and after it.
#[test]
fn overlapping_filters_give_one_copy_always() {
    let filters: [(&[u8], u8); 3] =
        [(b"test/bla/status", 0), (b"test/+/status", 1), (b"test/#", 1)];
    let mut broker = Broker::start();
    for connect in [Connect::v311("hub").persistent(), Connect::v5("hub5").persistent()] {
        let mut hub = Client::connect(&broker, &connect);
        hub.subscribe_with(&filters, &[]);
        for round in ["live", "queued", "after a restart"] {
            if round != "live" {
                hub.send(&wire::DISCONNECT);
                hub.expect_close();
            }
            Client::connect(&broker, &Connect::v311("device")).publish("test/bla/status", round, 1);
            if round == "after a restart" {
                broker.kill_and_restart();
            }
            if round != "live" {
                hub = Client::connect(&broker, &connect);
                assert!(hub.session_present);
            }
            let mut got = hub.take();
            // What was acknowledged just before a kill may come again.
            while got.dup && round == "after a restart" && got.payload() != round {
                got = hub.take();
            }
            assert_eq!((got.payload().as_str(), got.qos), (round, 1));
            hub.ping();
            hub.expect_silence(Duration::from_millis(50));
        }
    }
}

/// CLI-02, MQTT-3.1.2-8: an edge node of Sparkplug that drops and returns at once: the host sees
/// NBIRTH n, NDEATH n, NBIRTH n+1, each once.
#[test]
fn a_death_certificate_comes_between_two_births() {
    let broker = Broker::start();
    let mut host = Client::connect(&broker, &Connect::v5("host"));
    host.subscribe("spBv1.0/g/+/edge", 1);
    for (level, name) in [(4, "edge4"), (5, "edge5")] {
        for sequence in 0..40_u32 {
            let id = sequence.to_string();
            let connect = if level == 4 { Connect::v311(name) } else { Connect::v5(name) };
            let connect = connect.will(Will::new("spBv1.0/g/NDEATH/edge", &id).qos(1));
            let mut edge = Client::connect(&broker, &connect);
            edge.publish("spBv1.0/g/NBIRTH/edge", &id, 1);
            match (sequence % 3, level) {
                (0, 5) => {
                    // DISCONNECT with 0x04: the Will goes out.
                    edge.send(&[0xE0, 1, 4]);
                    edge.expect_close();
                }
                (1, _) => edge.reset(),
                // The next CONNECT takes the session over while this socket is still open.
                _ => std::mem::forget(edge),
            }
        }
        // The last edge node has gone for good, or is taken over by this.
        Client::connect(&broker, &Connect::v311(name)).disconnect();
        for sequence in 0..40 {
            for kind in ["NBIRTH", "NDEATH"] {
                let got = host.take();
                let due = (format!("spBv1.0/g/{kind}/edge"), sequence.to_string());
                assert_eq!((got.topic(), got.payload()), due, "level {level}");
            }
        }
        host.ping();
        host.expect_silence(Duration::from_millis(50));
    }
}

/// CLI-04, v3.1.1 MQTT-3.1.2-8: devices with a retained Will that come and go, the broker
/// restarted once: at the end every retained state is what is true.
#[test]
fn retained_availability_is_true_in_the_end() {
    const DEVICES: usize = 60;
    let mut broker = Broker::start();
    let mut random = Random::seeded(4);
    let topic = |number: usize| format!("tele/{number}/LWT");
    let connect = |broker: &Broker, number: usize| {
        let will = Will::new(topic(number), "Offline").qos(1).retain();
        let name = format!("DVES_{number}");
        let connect = Connect::v311(name).keep_alive(30).will(will);
        let mut device = Client::connect(broker, &connect);
        device.retain(topic(number), "Online");
        device
    };
    let mut devices: Vec<Option<Client>> =
        (0..DEVICES).map(|number| Some(connect(&broker, number))).collect();
    for step in 0..300 {
        let number = random.below(DEVICES);
        match devices[number].take() {
            Some(device) if random.below(3) > 0 => device.reset(),
            // Wi-Fi came back before the broker noticed that it was gone.
            Some(device) => {
                devices[number] = Some(connect(&broker, number));
                drop(device);
            }
            None => devices[number] = Some(connect(&broker, number)),
        }
        if step == 150 {
            broker.kill_and_restart();
            for (number, device) in devices.iter_mut().enumerate() {
                if device.take().is_some() {
                    *device = Some(connect(&broker, number));
                }
            }
        }
    }
    let mut wrong = Vec::new();
    for _ in 0..100 {
        let mut hub = Client::connect(&broker, &Connect::v311("hub"));
        hub.subscribe("tele/+/LWT", 0);
        let states: Vec<_> = (0..DEVICES).map(|_| hub.take()).collect();
        wrong = (0..DEVICES)
            .filter(|number| {
                let due = if devices[*number].is_some() { "Online" } else { "Offline" };
                let is = |state: &&crate::support::Publish| state.topic() == topic(*number);
                states.iter().find(is).is_none_or(|state| state.payload() != due)
            })
            .collect();
        if wrong.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("wrong in the end: {wrong:?}");
}

/// CLI-05, MQTT-3.3.1-1, MQTT-4.4.0-1: a fleet that comes from a broker without QoS 2, with new
/// ids on resends and with a gap after SUBACK finds the standard here.
#[test]
fn a_fleet_from_another_cloud_finds_the_standard() {
    let broker = Broker::start();
    let connect = Connect::v5("thing").persistent().with(prop::receive_maximum(5));
    let mut thing = Client::connect(&broker, &connect);
    let shadow = "$aws/things/thing/shadow/update/delta";
    assert_eq!(thing.subscribe(shadow, 1), 1, "a topic that begins with $ can be named");
    assert_eq!(thing.subscribe("jobs/#", 2), 2, "QoS 2 is granted");
    let mut service = Client::connect(&broker, &Connect::v311("service"));
    service.publish("jobs/1", "exactly once", 2);
    let first = thing.expect_publish();
    assert_eq!((first.qos, first.dup), (2, false));
    thing.reset();
    let mut thing = Client::connect(&broker, &connect);
    let again = thing.take();
    assert_eq!((again.id, again.dup), (first.id, true), "the same id, and DUP=1");
    thing.ping();
    thing.expect_silence(Duration::from_millis(50));
}
