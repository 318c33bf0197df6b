//! Stops, kills and starts: what is kept (SES-05, WIL-11).

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{AckKind, Broker, Client, Connect, Level, Start, Will, wire};

const SECOND: Duration = Duration::from_secs(1);

/// INV-2, MQTT-4.1.0-1: a kill loses no session, subscription, retained or queued message, and an
/// exchange that was under way goes on with its id.
#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    let mut broker = Broker::start();
    let connects = [Connect::v311("v311").persistent(), Connect::v5("v5").persistent()];
    for connect in &connects {
        let mut client = Client::connect(&broker, connect);
        client.subscribe_with(&[(b"a/+", 1), (b"b/#", 2), (b"gone", 1)], &[]);
        client.unsubscribe(&[b"gone"]);
        client.disconnect();
    }
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").persistent());
    publisher.retain("b/r", "retained");
    for number in 0..50 {
        publisher.publish("a/x", number.to_string(), 1);
    }
    publisher.publish("gone", "never", 1);
    publisher.publish("b", "twice?", 2);
    // Received, and not released before the kill.
    let id = publisher.fresh_id();
    let open = wire::publish(Level::V5, 4, "b/open", id, &[], "once");
    publisher.send(&open);
    assert_eq!(publisher.acknowledged(AckKind::Pubrec, id), 0);
    broker.kill_and_restart();

    let mut publisher = Client::connect(&broker, &Connect::v5("publisher").persistent());
    assert!(publisher.session_present);
    let mut again = open;
    again[0] |= 8;
    publisher.send(&again);
    assert_eq!(publisher.acknowledged(AckKind::Pubrec, id), 0);
    publisher.send(&wire::ack(6, id));
    assert_eq!(publisher.acknowledged(AckKind::Pubcomp, id), 0);
    for connect in &connects {
        let mut client = Client::connect(&broker, connect);
        assert!(client.session_present);
        assert_eq!(client.take().payload(), "retained");
        for number in 0..50 {
            assert_eq!(client.take().payload(), number.to_string());
        }
        assert_eq!(client.take().payload(), "twice?");
        assert_eq!(client.take().payload(), "once");
        client.ping();
        client.expect_silence(SECOND / 4);
        client.unsubscribe(&[b"b/#"]);
        client.subscribe("own", 1);
        publisher.publish("gone", "never", 1);
        publisher.publish("own", "live", 1);
        assert_eq!(client.take().payload(), "live");
        client.unsubscribe(&[b"own"]);
        client.disconnect();
    }
    let mut late = Client::connect(&broker, &Connect::v5("late"));
    late.subscribe("b/r", 1);
    assert_eq!(late.take().payload(), "retained");
}

/// INV-2: the same through many kills, each at another moment of a stream of publishes.
#[test]
fn kills_in_mid_stream_lose_nothing() {
    let mut broker = Broker::start();
    let connect = Connect::v5("subscriber").persistent();
    let mut client = Client::connect(&broker, &connect);
    client.subscribe("t", 1);
    client.disconnect();
    let mut acked: Vec<String> = Vec::new();
    for round in 0..5 {
        let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
        for number in 0..40 + round * 13 {
            let payload = format!("{round}/{number}");
            publisher.publish("t", &payload, 1);
            acked.push(payload);
        }
        // These may get into the log or not.
        for number in 0..5 {
            let id = publisher.fresh_id();
            let payload = format!("{round}/open {number}");
            publisher.send(&wire::publish(Level::V5, 2, "t", id, &[], &payload));
        }
        broker.kill_and_restart();
    }
    let mut client = Client::connect(&broker, &connect);
    assert!(client.session_present);
    let mut got: Vec<String> = Vec::new();
    while let Some(publish) = client.take_within(SECOND) {
        got.push(publish.payload());
    }
    got.retain(|payload| !payload.contains("open"));
    assert_eq!(got, acked, "each once, in order");
}

/// INV-2, MQTT-3.8.4-4: what the replay after a kill routes again goes to nobody who subscribed
/// only later; each message comes once, to those who were there.
#[test]
fn a_replay_gives_a_subscription_nothing_older_than_itself() {
    let checkpoint_late = Start::new().env("STORAGE_EMBEDDED_CHECKPOINT_INTERVAL_MS", 600_000);
    let mut broker = checkpoint_late.start();
    let connects = ["early", "late"].map(|id| Connect::v5(id).persistent());
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    for (number, connect) in connects.iter().enumerate() {
        let mut client = Client::connect(&broker, connect);
        client.subscribe("t", 1);
        client.disconnect();
        publisher.publish("t", number.to_string(), 1);
    }
    broker.kill_and_restart();
    for (connect, due) in connects.iter().zip([vec!["0", "1"], vec!["1"]]) {
        let mut client = Client::connect(&broker, connect);
        let got: Vec<String> =
            client.drain(SECOND / 4).iter().map(|publish| publish.payload()).collect();
        assert_eq!(got, due);
    }
}

/// SES-05, MQTT-4.1.0-2: the time of a session runs from its disconnect, over stops and kills.
fn expiry_runs_on(end: fn(&mut Broker), begin: fn(&mut Broker)) {
    let mut broker = Broker::start();
    for (id, expiry) in [("short", 1), ("touched", 6), ("untouched", 6)] {
        let mut client = Client::connect(&broker, &Connect::v5(id).expiry(expiry));
        client.subscribe("t", 1);
        client.reset();
    }
    broker.await_metric("connectedSessions", 0.0);
    let dropped = Instant::now();
    // One log, one order: behind this acknowledgement the times of the disconnects are on the disk.
    Client::connect(&broker, &Connect::v5("witness")).publish("x", "", 1);
    end(&mut broker);
    sleep(3 * SECOND);
    begin(&mut broker);
    let present = |id: &str| {
        let client = Client::connect(&broker, &Connect::v5(id).resume());
        client.session_present
    };
    assert!(!present("short"), "it expired while the broker was away");
    // On a machine that is too slow to look in time, this says nothing.
    let in_time = dropped.elapsed() < 5 * SECOND;
    assert!(present("touched") || !in_time, "kept in its time");
    sleep((dropped + 7 * SECOND).saturating_duration_since(Instant::now()));
    assert!(!present("untouched"), "its time began again with the broker");
    broker.await_metric("subscriptions", 0.0);
}

/// SES-05 with SIGKILL.
#[test]
fn expiry_runs_on_over_a_kill() {
    expiry_runs_on(Broker::kill, Broker::start_again);
}

/// SES-05 with SIGTERM.
#[test]
fn expiry_runs_on_over_a_stop() {
    expiry_runs_on(Broker::stop, Broker::start_again);
}

/// WIL-11, section 3.1.2.5: Wills of clients that a kill cut off go out after the start, once, and
/// a second kill does not put them off; none for a client that is back. Sessions without a client
/// end in their time, however often the broker is killed.
#[test]
fn wills_and_sessions_of_a_kill_come_to_their_end() {
    let mut broker = Broker::start();
    let mut watcher = Client::connect(&broker, &Connect::v5("watcher").persistent());
    watcher.subscribe("w/#", 1);
    let connect = |id: &str, delay: u32| {
        let will = Will::new(format!("w/{id}"), "gone").qos(1).delay(delay);
        Connect::v5(id).resume().expiry(60).will(will)
    };
    let ids = ["away", "back", "delayed", "polite"];
    let clients = ids.map(|id| Client::connect(&broker, &connect(id, 0)));
    let [_away, _back, _delayed, polite] = clients;
    polite.disconnect();
    let plain = Will::new("w/plain", "gone").qos(1);
    let _plain = Client::connect(&broker, &Connect::v311("plain").will(plain));
    let _ending = Client::connect(&broker, &Connect::v5("ending").expiry(1));
    broker.kill_and_restart();
    let first = Instant::now();
    let back = Client::connect(&broker, &connect("back", 0));
    assert!(back.session_present);
    drop(Client::connect(&broker, &connect("delayed", 600)));
    sleep(5 * SECOND);
    broker.kill_and_restart();
    let mut watcher = Client::connect(&broker, &Connect::v5("watcher").persistent());
    let _back = Client::connect(&broker, &connect("back", 0));
    let mut topics = [watcher.take().topic(), watcher.take().topic()];
    topics.sort_unstable();
    assert_eq!(topics, ["w/away", "w/plain"]);
    assert!(first.elapsed() < 14 * SECOND, "after {:?}", first.elapsed());
    broker.await_metric("sessionsExpired_total", 1.0);
    watcher.expect_silence(2 * SECOND);
}

/// An orderly stop: exit code 0 also while clients publish, and what was acknowledged is there
/// after the start; DISCONNECT 0x8B for level 5, a bare close for the others.
#[test]
fn a_stop_is_orderly_under_load() {
    let mut broker = Broker::start();
    let kept = Connect::v5("kept").persistent();
    let mut client = Client::connect(&broker, &kept);
    client.subscribe("t", 1);
    client.disconnect();
    let mut idle: Vec<Client> = Level::ALL
        .map(|level| Client::connect(&broker, &Connect::new(level, format!("{level:?}"))))
        .into();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let loader = std::thread::spawn(move || {
        let mut acked = 0;
        loop {
            let id = publisher.fresh_id();
            let packet = wire::publish(Level::V5, 2, "t", id, &[], acked.to_string());
            if !publisher.try_send(&packet) {
                return (acked, publisher.expect_close().reason());
            }
            match publisher.recv_within(10 * SECOND) {
                Some(crate::support::Packet::Ack { .. }) => acked += 1,
                Some(crate::support::Packet::Disconnect { code, .. }) => {
                    return (acked, Some(code));
                }
                other => panic!("{other:?}"),
            }
        }
    });
    sleep(SECOND / 2);
    broker.stop();
    let (acked, reason) = loader.join().unwrap();
    assert_eq!(reason, Some(0x8B));
    idle.iter_mut().for_each(|client| client.expect_refusal(&[0x8B]));
    broker.start_again();
    let mut client = Client::connect(&broker, &kept);
    assert!(client.session_present);
    for number in 0..acked {
        assert_eq!(client.take().payload(), number.to_string());
    }
}
