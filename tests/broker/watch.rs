//! What an operator sees: health, metrics, and a broker that is stopped, stands still or restarts.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{Broker, Client, Connect, Will, wire};

/// Waits until a metric has this value; gauges may lag a moment behind.
#[track_caller]
fn await_metric(broker: &Broker, name: &str, due: f64) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while broker.metric(name) != Some(due) {
        assert!(Instant::now() < deadline, "{name} is {:?}, not {due}", broker.metric(name));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The names and labels of all series, without their values.
fn series(broker: &Broker) -> BTreeSet<String> {
    let page = broker.scrape();
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.rsplit_once(' ').expect("a name and a value").0.to_owned()).collect()
}

/// MET-1, TKO-06: health is up, and gauges follow the sessions, one for each client id.
#[test]
fn health_and_gauges_follow_the_sessions() {
    let broker = Broker::start();
    let (status, body) = broker.get("/actuator/health");
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("UP"), "{body}");
    assert_eq!(broker.get("/nothing/here").0, 404);
    let clients: Vec<Client> =
        (0..5).map(|n| Client::connect(&broker, &Connect::v5(format!("c{n}")))).collect();
    let _newer = Client::connect(&broker, &Connect::v5("c0"));
    await_metric(&broker, "connectedSessions", 5.0);
    drop(clients);
    await_metric(&broker, "connectedSessions", 1.0);
}

/// MEM-05: the number of series is a function of the program, not of its traffic.
#[test]
fn traffic_makes_no_new_series() {
    let broker = Broker::start();
    Client::connect(&broker, &Connect::v5("warm")).disconnect();
    let before = series(&broker);
    for number in 0..50 {
        let id = format!("client\"{number}\n\u{e9}{{}}");
        let mut client = Client::connect(&broker, &Connect::v311(id));
        client.subscribe(format!("$share/g\"{number}/t{number}/#"), 1);
        client.publish(format!("t{number}/\"\n"), "m", 1);
        client.take();
        client.disconnect();
    }
    let after = series(&broker);
    assert_eq!(before, after);
}

/// A broker that stood still goes on where it was: nobody is thrown out, nothing is lost.
#[test]
fn a_broker_that_stood_still_goes_on() {
    let broker = Broker::start();
    let mut subscriber = Client::connect(&broker, &Connect::v5("subscriber").keep_alive(60));
    subscriber.subscribe("t", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").keep_alive(60));
    broker.pause();
    for id in 1..=20 {
        publisher.send(&wire::publish(publisher.level, 2, "t", id, &[], id.to_string()));
    }
    subscriber.expect_silence(Duration::from_millis(200));
    broker.resume();
    for id in 1..=20 {
        assert_eq!(subscriber.take().payload(), id.to_string());
    }
    publisher.ping();
}

/// A stop in good order loses nothing either: retained, queued and subscribed come back.
#[test]
fn an_orderly_restart_keeps_what_was_stored() {
    let mut broker = Broker::start();
    let persistent = Connect::v5("persistent").persistent();
    let mut client = Client::connect(&broker, &persistent);
    client.subscribe("t/#", 2);
    client.disconnect();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    publisher.retain("t/retained", "kept");
    publisher.publish("t/queued", "queued", 2);
    broker.restart();
    let mut client = Client::connect(&broker, &persistent);
    assert!(client.session_present);
    assert_eq!([client.take().payload(), client.take().payload()], ["kept", "queued"]);
    let mut late = Client::connect(&broker, &Connect::v5("late"));
    late.subscribe("t/#", 1);
    let got = late.take();
    assert_eq!((got.payload().as_str(), got.retain), ("kept", true));
}

/// WIL-03, MQTT-3.1.2-8: a Will waits no longer than its session lives.
#[test]
fn a_delayed_will_goes_out_when_the_session_ends() {
    let broker = Broker::start();
    let mut watcher = Client::connect(&broker, &Connect::v5("watcher"));
    watcher.subscribe("will", 1);
    let connect = Connect::v5("gone").will(Will::new("will", "at once").qos(1).delay(60));
    Client::connect(&broker, &connect).reset();
    assert_eq!(watcher.take().payload(), "at once");
}
