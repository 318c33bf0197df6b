//! Wills: when they go out, when they don't, and what they are then (WIL).

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{Broker, Client, Connect, Level, Will, prop, wire};

const SECOND: Duration = Duration::from_secs(1);
/// A delay or expiry that no test waits for: what comes, came because of something else.
const LONG: u32 = 600;

#[track_caller]
fn watcher(broker: &Broker) -> Client {
    let mut watcher = Client::connect(broker, &Connect::v5("watcher"));
    assert!(watcher.subscribe("w/#", 2) < 0x80);
    watcher
}

/// DISCONNECT of a level 5 client, with properties.
fn goodbye(code: u8, properties: &[u8]) -> Vec<u8> {
    wire::frame(0xE0, &wire::all(&[&[code], &wire::varint(properties.len()), properties]))
}

/// Leaves with these bytes, and sees the broker close.
#[track_caller]
fn leave(mut client: Client, bytes: &[u8]) {
    client.send(bytes);
    client.expect_close();
}

/// WIL-01, MQTT-3.1.2-8: a takeover publishes the Will of the connection that it cuts, once, and
/// before anything that the new connection publishes.
#[test]
fn a_takeover_publishes_the_will_once_and_first() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    let connects = [
        Connect::new(Level::V31, "x"),
        Connect::v311("x"),
        Connect::v311("x").persistent(),
        Connect::v5("x"),
        Connect::v5("x").persistent(),
    ];
    for connect in connects {
        for newcomer in [Level::V5, Level::V311] {
            let will = Will::new("w/x", "gone").qos(1);
            let mut a = Client::connect(&broker, &connect.clone().will(will));
            let mut b = Client::connect(&broker, &Connect::new(newcomer, "x"));
            b.publish("w/x", "here", 1);
            a.expect_refusal(&[0x8E]);
            assert_eq!(watcher.take().payload(), "gone", "{connect:?}");
            assert_eq!(watcher.take().payload(), "here", "{connect:?}");
            b.disconnect();
        }
    }
    watcher.ping();
    watcher.expect_silence(SECOND / 2);
    assert_eq!(broker.metric("publishedWills_total"), Some(10.0));
    assert_eq!(broker.metric("lastWillClients"), Some(0.0));
}

/// WIL-01, MQTT-3.1.4-3: with a delay, a takeover that goes on with the session publishes nothing,
/// and one that ends it publishes at once.
#[test]
fn a_takeover_of_a_delayed_will_depends_on_the_session() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    let with_will = |payload: &str, expiry: u32| {
        let will = Will::new("w/x", payload).qos(1).delay(1);
        Connect::v5("x").resume().expiry(expiry).will(will)
    };
    let _a = Client::connect(&broker, &with_will("resumed", LONG));
    let b = Client::connect(&broker, &Connect::v5("x").persistent());
    assert!(b.session_present);
    watcher.expect_silence(3 * SECOND);
    b.disconnect();

    let will = Will::new("w/x", "clean").qos(1).delay(LONG);
    let _a = Client::connect(&broker, &Connect::v5("y").expiry(LONG).will(will));
    let _b = Client::connect(&broker, &Connect::v5("y"));
    assert_eq!(watcher.take().payload(), "clean");

    let will = Will::new("w/x", "no expiry").qos(1).delay(LONG);
    let _a = Client::connect(&broker, &Connect::v5("z").will(will));
    let b = Client::connect(&broker, &Connect::v5("z").persistent());
    assert!(!b.session_present);
    assert_eq!(watcher.take().payload(), "no expiry");
}

/// WIL-02, MQTT-3.1.3-9: a client that is back in time cancels its Will; one that is not gets it
/// published, not before its delay.
#[test]
fn a_client_that_is_back_in_time_cancels_its_will() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    let connect = |id: &str| {
        let will = Will::new(format!("w/{id}"), "gone").qos(1).delay(2);
        Connect::v5(id).resume().expiry(60).will(will)
    };
    let [back, away] = ["back", "away"].map(|id| Client::connect(&broker, &connect(id)));
    let left = Instant::now();
    back.reset();
    away.reset();
    sleep(SECOND / 2);
    let back = Client::connect(&broker, &Connect::v5("back").persistent());
    assert!(back.session_present);
    assert_eq!(watcher.take().topic(), "w/away");
    assert!(left.elapsed() > Duration::from_millis(1900), "after {:?}", left.elapsed());
    watcher.expect_silence(2 * SECOND);
    assert_eq!(broker.metric("lastWillClients"), Some(0.0));
}

/// WIL-03, MQTT-3.1.2-8: the end of the session publishes a Will before its delay is over.
#[test]
fn a_will_does_not_wait_longer_than_its_session() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    let connect = |expiry: u32| {
        let will = Will::new("w/x", format!("expiry {expiry}")).qos(1).delay(LONG);
        Connect::v5("x").expiry(expiry).will(will)
    };
    leave(Client::connect(&broker, &connect(0)), &goodbye(4, &[]));
    assert_eq!(watcher.take().payload(), "expiry 0");
    Client::connect(&broker, &connect(0)).reset();
    assert_eq!(watcher.take().payload(), "expiry 0");
    let client = Client::connect(&broker, &connect(2));
    let left = Instant::now();
    client.reset();
    assert_eq!(watcher.take().payload(), "expiry 2");
    assert!(left.elapsed() > Duration::from_millis(1900), "after {:?}", left.elapsed());
    // A DISCONNECT that shortens the session shortens the wait.
    let client = Client::connect(&broker, &connect(LONG));
    leave(client, &goodbye(4, &prop::session_expiry(0)));
    assert_eq!(watcher.take().payload(), format!("expiry {LONG}"));
}

/// WIL-04, MQTT-3.1.2-4: a clean start during the delay ends the session, so the Will goes out
/// then, and not again when the delay is over.
#[test]
fn a_clean_start_publishes_a_waiting_will_once() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    for (id, delay) in [("long", LONG), ("short", 2)] {
        let will = Will::new("w/x", id).qos(1).delay(delay);
        Client::connect(&broker, &Connect::v5(id).expiry(LONG).will(will)).reset();
        broker.await_metric("connectedSessions", 1.0);
        let again = Client::connect(&broker, &Connect::v5(id));
        assert!(!again.session_present);
        assert_eq!(watcher.take().payload(), id);
        again.disconnect();
    }
    watcher.expect_silence(3 * SECOND);
}

/// WIL-05, MQTT-3.14.4-3, MQTT-3.1.2-10: only a DISCONNECT with reason 0x00 takes the Will back.
#[test]
fn only_a_normal_disconnect_takes_the_will_back() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    let connect = |level: Level, payload: &str| {
        Connect::new(level, "x").will(Will::new("w/x", payload).qos(1))
    };
    for level in Level::ALL {
        leave(Client::connect(&broker, &connect(level, "empty")), &wire::DISCONNECT);
    }
    leave(Client::connect(&broker, &connect(Level::V5, "zero")), &goodbye(0, &[]));
    leave(Client::connect(&broker, &connect(Level::V5, "short")), &wire::frame(0xE0, &[0]));
    for code in [0x04, 0x80, 0x81, 0x82, 0x93, 0x99] {
        let payload = format!("{code:#x}");
        leave(Client::connect(&broker, &connect(Level::V5, &payload)), &goodbye(code, &[]));
        assert_eq!(watcher.take().payload(), payload);
    }
    leave(Client::connect(&broker, &connect(Level::V5, "bare 4")), &wire::frame(0xE0, &[4]));
    assert_eq!(watcher.take().payload(), "bare 4");
    watcher.ping();
    watcher.expect_silence(SECOND / 2);
}

/// MQTT-3.1.2-8: every other end of a connection publishes the Will, after what the client
/// published itself.
#[test]
fn a_will_comes_after_the_last_words() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    for level in Level::ALL {
        for qos in 0..3 {
            let will = Will::new("w/x", "will").qos(qos);
            let mut client = Client::connect(&broker, &Connect::new(level, "x").will(will));
            // A packet that a client may not send, in the same write as a last publish.
            let last = wire::publish(level, 0, "w/x", 0, &[], "last words");
            client.send(&wire::all(&[&last, &[0xD0, 0]]));
            client.expect_refusal(&[0x81, 0x82]);
            assert_eq!(watcher.take().payload(), "last words");
            let publish = watcher.take();
            assert_eq!((publish.payload(), publish.qos), ("will".into(), qos));
        }
    }
}

/// WIL-08, MQTT-3.1.2-15 (v5), MQTT-3.1.2-17 (3.1.1): a retained Will is kept like any retained
/// message, an empty one deletes, and one without RETAIN changes nothing.
#[test]
fn a_retained_will_is_kept() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    let retained = |number: usize| {
        let mut late = Client::connect(&broker, &Connect::v5(format!("late{number}")));
        late.subscribe("w/r", 2);
        late.ping();
        let got = late.take_within(Duration::from_millis(300));
        got.map(|publish| (publish.payload(), publish.qos, publish.retain))
    };
    for level in Level::ALL {
        for qos in 0..3 {
            let payload = format!("{level:?} {qos}");
            let will = Will::new("w/r", &payload).qos(qos).retain();
            Client::connect(&broker, &Connect::new(level, "x").will(will)).reset();
            let live = watcher.take();
            assert_eq!((live.payload(), live.retain), (payload.clone(), false));
            assert_eq!(retained(usize::from(qos)), Some((payload, qos, true)));
        }
    }
    let passing = Will::new("w/r", "passing").qos(1);
    Client::connect(&broker, &Connect::v5("x").will(passing)).reset();
    assert_eq!(watcher.take().payload(), "passing");
    assert_eq!(retained(7), Some(("V5 2".into(), 2, true)));
    let empty = Will::new("w/r", "").qos(1).retain();
    Client::connect(&broker, &Connect::v5("x").will(empty)).reset();
    assert_eq!(watcher.take().payload(), "");
    assert_eq!(retained(8), None);
}

/// WIL-09, MQTT-4.5.0-1: a Will is stored and queued like any publish, at the lower QoS, with its
/// properties, and its exchange is seen through.
#[test]
fn a_will_waits_for_an_offline_session() {
    let mut broker = Broker::start();
    for granted in [1, 2] {
        let id = format!("offline{granted}");
        let mut client = Client::connect(&broker, &Connect::v5(&id).persistent());
        client.subscribe("w/#", granted);
        client.disconnect();
    }
    let will = Will::new("w/x", "gone").qos(2).with(prop::text(0x03, "text/plain"));
    let will = will.with(prop::user("k", "v")).with(prop::four(0x02, LONG));
    Client::connect(&broker, &Connect::v5("x").will(will)).reset();
    broker.await_metric("publishedWills_total", 1.0);
    broker.kill_and_restart();
    for granted in [1, 2] {
        let connect = Connect::v5(format!("offline{granted}")).persistent();
        let mut client = Client::connect(&broker, &connect);
        assert!(client.session_present);
        let got = client.take();
        assert_eq!((got.payload(), got.qos), ("gone".into(), granted));
        assert_eq!(got.properties.bytes(0x03), Some(&b"text/plain"[..]));
        assert_eq!(got.properties.user(), [("k".into(), "v".into())]);
        let left = got.properties.number(0x02);
        assert!(left.is_some_and(|left| left <= LONG && left + 60 > LONG), "{left:?}");
        client.ping();
        client.expect_silence(SECOND / 4);
    }
}

/// WIL-10, as far as a node without authorization can: nobody publishes under `$` by way of a
/// Will, nor to a wildcard; such a CONNECT is refused and makes no session.
#[test]
fn a_will_to_a_forbidden_topic_is_refused() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    watcher.subscribe("$SYS/#", 1);
    watcher.subscribe("#", 1);
    for level in Level::ALL {
        for topic in ["$SYS/x", "$x", "w/#", "w/+", ""] {
            let connect = Connect::new(level, "x").will(Will::new(topic, "forbidden").qos(1));
            let mut client = Client::open(&broker, level);
            client.send(&connect.bytes());
            let codes: &[u8] = if level.is_v5() { &[0x81, 0x82, 0x90] } else { &[2, 3, 5] };
            client.expect_connect_refused(codes);
        }
    }
    watcher.expect_silence(SECOND / 2);
    broker.await_metric("allClientSessions", 1.0);
}

/// WIL-12, MQTT-3.1.2-10: a half-open connection says its retained `offline` when it is displaced,
/// before the new connection's `online`, and never later.
#[test]
fn a_half_open_connection_does_not_speak_later() {
    let broker = Broker::start();
    let mut watcher = watcher(&broker);
    for level in [Level::V311, Level::V5] {
        let will = Will::new("w/state", "offline").qos(1).retain();
        let connect = Connect::new(level, "x").keep_alive(1).will(will);
        // It is never read from, nor written to again.
        let _half_open = Client::connect(&broker, &connect);
        let mut b = Client::connect(&broker, &Connect::new(level, "x"));
        b.retain("w/state", "online");
        assert_eq!(watcher.take().payload(), "offline");
        assert_eq!(watcher.take().payload(), "online");
        watcher.expect_silence(3 * SECOND);
        let mut late = Client::connect(&broker, &Connect::v5("late"));
        late.subscribe("w/state", 1);
        assert_eq!(late.take().payload(), "online");
        b.disconnect();
    }
}

/// WIL-14, MQTT-4.13.1-1: the session's end comes before the Will's delay and nothing points to
/// what is gone; illegal Will properties are refused, and cost nothing that stays.
#[test]
fn a_delay_beyond_the_session_and_illegal_properties() {
    let mut broker = Broker::start();
    let mut watcher = watcher(&broker);
    let will = Will::new("w/x", "ended").qos(1).delay(5);
    Client::connect(&broker, &Connect::v5("x").expiry(1).will(will)).reset();
    let refuse = |property: Vec<u8>| {
        let will = Will::new("w/x", "illegal").with(property);
        let mut client = Client::open(&broker, Level::V5);
        client.send(&Connect::v5("illegal").will(will).bytes());
        client.expect_connect_refused(&[0x81, 0x82]);
    };
    let delay = prop::four(0x18, 1);
    let illegal = [
        prop::session_expiry(1),
        prop::two(0x23, 1),
        prop::subscription_id(1),
        prop::byte(0x01, 2),
        wire::all(&[&delay, &delay]),
        prop::text(0x08, "reply/#"),
    ];
    illegal.iter().for_each(|property| refuse(property.clone()));
    let before = broker.rss_kib();
    for number in 0..1500 {
        refuse(illegal[number % illegal.len()].clone());
    }
    let grown = broker.rss_kib().saturating_sub(before);
    assert!(grown < 8 * 1024, "grown by {grown} KiB");
    assert_eq!(watcher.take().payload(), "ended");
    watcher.expect_silence(5 * SECOND);
    assert!(broker.is_running());
    assert_eq!(broker.metric("lastWillClients"), Some(0.0));
}

/// Section 3.1.2.5: at an orderly stop the Wills go out into the log: a subscriber finds them after
/// the start, once, and clients that said goodbye have none.
#[test]
fn a_stop_loses_no_will() {
    let mut broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::v5("offline").persistent());
    client.subscribe("w/#", 1);
    client.disconnect();
    let connect = |id: &str| {
        let will = Will::new(format!("w/{id}"), "gone").qos(1);
        Client::connect(&broker, &Connect::v5(id).will(will))
    };
    let _cut: Vec<Client> = (0..20).map(|number| connect(&format!("cut{number}"))).collect();
    connect("polite").disconnect();
    broker.restart();
    let mut client = Client::connect(&broker, &Connect::v5("offline").persistent());
    let mut topics: Vec<String> = (0..20).map(|_| client.take().topic()).collect();
    topics.sort_unstable();
    topics.dedup();
    assert_eq!(topics.len(), 20, "{topics:?}");
    client.expect_silence(SECOND);
}
