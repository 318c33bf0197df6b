//! Clean start, session present and session expiry (SES).

use std::thread::sleep;
use std::time::Duration;

use crate::support::{Broker, Client, Connect, Level, Start, Will, prop, wire};

const SECOND: Duration = Duration::from_secs(1);

/// DISCONNECT of a level 5 client with reason 0x00 and a Session Expiry Interval.
fn goodbye(expiry: u32) -> Vec<u8> {
    let property = prop::session_expiry(expiry);
    wire::frame(0xE0, &wire::all(&[&[0], &wire::varint(property.len()), &property]))
}

#[track_caller]
fn leave(mut client: Client, bytes: &[u8]) {
    client.send(bytes);
    client.expect_close();
}

/// Whether a session is there; the look is itself a connect, which ends it.
#[track_caller]
fn is_present(broker: &Broker, id: &str) -> bool {
    let client = Client::connect(broker, &Connect::v5(id).resume());
    let present = client.session_present;
    client.disconnect();
    present
}

/// SES-01, MQTT-4.1.0-2, MQTT-3.2.2-3: an expired session is gone with its subscription and what
/// was queued, however its connection ended; one in time is not.
#[test]
fn an_expired_session_is_gone() {
    let broker = Broker::start();
    let connect = |id: &str, expiry: u32| Connect::v5(id).resume().expiry(expiry);
    for (id, expiry) in [("polite", 1), ("rude", 1), ("control", 60)] {
        let mut client = Client::connect(&broker, &connect(id, expiry));
        assert_eq!(client.connack.number(0x11), None, "the expiry was granted as asked");
        client.subscribe("t", 1);
        if id == "rude" { client.reset() } else { client.disconnect() }
    }
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    broker.await_metric("connectedSessions", 1.0);
    publisher.publish("t", "queued", 1);
    // Nobody connects: the sessions end by themselves.
    broker.await_metric("allClientSessions", 2.0);
    broker.await_metric("subscriptions", 1.0);
    assert_eq!(broker.metric("sessionsExpired_total"), Some(2.0));
    for id in ["polite", "rude"] {
        let mut client = Client::connect(&broker, &connect(id, 0));
        assert!(!client.session_present, "{id}");
        publisher.publish("t", "later", 1);
        client.ping();
        client.expect_silence(SECOND / 4);
    }
    let mut control = Client::connect(&broker, &connect("control", 0));
    assert!(control.session_present);
    assert_eq!(control.take().payload(), "queued");
}

/// SES-02, section 3.14.2.2.2: the interval of a DISCONNECT replaces the one of CONNECT; without
/// one that stands; 0 ends the session at once.
#[test]
fn disconnect_may_change_the_expiry() {
    let broker = Broker::start();
    let connect =
        |id: &str, expiry: u32| Client::connect(&broker, &Connect::v5(id).resume().expiry(expiry));
    leave(connect("longer", 1), &goodbye(30));
    leave(connect("for ever", 1), &goodbye(u32::MAX));
    leave(connect("shorter", 300), &goodbye(1));
    leave(connect("kept", 30), &wire::DISCONNECT);
    let with_will = wire::all(&[&[4, 5], &prop::session_expiry(30)]);
    leave(connect("with Will", 1), &wire::frame(0xE0, &with_will));
    leave(connect("at once", 300), &goodbye(0));
    assert!(!is_present(&broker, "at once"));
    broker.await_metric("sessionsExpired_total", 1.0);
    sleep(SECOND);
    for id in ["longer", "for ever", "kept", "with Will"] {
        assert!(is_present(&broker, id), "{id}");
    }
    assert!(!is_present(&broker, "shorter"));
}

/// Section 3.14.2.2.2: a session that CONNECT gave no expiry can't get one at DISCONNECT: that is a
/// protocol error, and no goodbye, so the Will goes out. Naming 0 again is no error.
#[test]
fn disconnect_may_not_give_an_expiry_to_a_session_without() {
    let broker = Broker::start();
    let mut watcher = Client::connect(&broker, &Connect::v5("watcher"));
    watcher.subscribe("w", 1);
    Client::connect(&broker, &Connect::v5("x").persistent()).disconnect();
    for resumes in [true, false] {
        let connect = Connect::v5("x").resume().will(Will::new("w", "error").qos(1));
        let mut client = Client::connect(&broker, &connect);
        assert_eq!(client.session_present, resumes);
        client.send(&goodbye(10));
        client.expect_refusal(&[0x82]);
        assert_eq!(watcher.take().payload(), "error");
        let mut client = Client::connect(&broker, &connect);
        assert!(!client.session_present);
        client.send(&goodbye(0));
        assert!(client.expect_close().packets.is_empty());
    }
    watcher.expect_silence(SECOND / 4);
}

/// Section 3.2.2.3.2, MQTT-3.2.2-21's sibling: a capped expiry is told, and the cap holds for a
/// DISCONNECT, too.
#[test]
fn the_cap_of_the_expiry_holds_everywhere() {
    let broker = Start::new().env("MQTT_CLIENT_SESSION_EXPIRY_MAX_EXPIRY_INTERVAL", 2).start();
    for asked in [3, 300, u32::MAX] {
        let client = Client::connect(&broker, &Connect::v5("x").expiry(asked));
        assert_eq!(client.connack.number(0x11), Some(2), "asked for {asked}");
        leave(client, &goodbye(asked));
        let again = Client::connect(&broker, &Connect::v5("x").resume().expiry(2));
        assert!(again.session_present);
        assert_eq!(again.connack.number(0x11), None, "granted as asked");
        leave(again, &goodbye(asked));
    }
    broker.await_metric("sessionsExpired_total", 1.0);
    assert!(!is_present(&broker, "x"));
}

/// The same for the older levels, whose sessions have a life of the operator's choice.
#[test]
fn an_idle_session_of_the_older_levels_has_a_life() {
    let broker = Start::new().env("MQTT_CLIENT_SESSION_EXPIRY_TTL", 1).start();
    Client::connect(&broker, &Connect::v311("x").persistent()).disconnect();
    assert!(Client::connect(&broker, &Connect::v311("x").persistent()).session_present);
    broker.await_metric("sessionsExpired_total", 1.0);
    assert!(!Client::connect(&broker, &Connect::v311("x").persistent()).session_present);
}

/// SES-06, MQTT-3.1.2-5, MQTT-4.5.0-1: a session is stored with its subscription and gets what was
/// published meanwhile; clean start 1 with an expiry makes one, too.
#[test]
fn a_session_gets_what_it_missed() {
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let connects = [
        Connect::new(Level::V31, "v31").persistent(),
        Connect::v311("v311").persistent(),
        Connect::v5("clean start 1").expiry(300),
        Connect::v5("clean start 0").persistent(),
    ];
    for connect in &connects {
        for qos in [1, 2] {
            let mut client = Client::connect(&broker, connect);
            assert!(!client.session_present);
            client.subscribe("t", qos);
            client.reset();
            broker.await_metric("connectedSessions", 1.0);
            publisher.publish("t", "missed", qos);
            let resumed = connect.clone().resume();
            let mut client = Client::connect(&broker, &resumed);
            // MQTT 3.1 has no such flag.
            assert_eq!(client.session_present, connect.level != Level::V31);
            let got = client.take();
            assert_eq!((got.payload(), got.qos, got.dup), ("missed".into(), qos, false));
            publisher.publish("t", "live", qos);
            assert_eq!(client.take().payload(), "live");
            client.disconnect();
            let clean = Connect::new(connect.level, connect.id());
            Client::connect(&broker, &clean).disconnect();
        }
    }
}

/// SES-07, MQTT-3.2.2-2, -3 (v5), MQTT-3.2.2-1, -2 (3.1.1): the flag in CONNACK is 0, 1, 0, 0, also
/// for a session without a subscription.
#[test]
fn session_present_tells_the_truth() {
    let broker = Broker::start();
    for level in [Level::V311, Level::V5] {
        let kept = Connect::new(level, "x").persistent();
        let clean = Connect::new(level, "x");
        let flags = [&kept, &kept, &clean, &kept].map(|connect| {
            let client = Client::connect(&broker, connect);
            let present = client.session_present;
            client.disconnect();
            present
        });
        assert_eq!(flags, [false, true, false, false], "{level:?}");
        Client::connect(&broker, &clean).disconnect();
    }
    // Clean start wipes what is there even if its own session is to be kept.
    let kept_anew = Connect::v5("y").expiry(300);
    for (connect, present) in
        [(&kept_anew, false), (&kept_anew, false), (&kept_anew.clone().resume(), true)]
    {
        let client = Client::connect(&broker, connect);
        assert_eq!(client.session_present, present);
        client.reset();
    }
}

/// SES-07, MQTT-3.2.2-6 (v5): a CONNACK that refuses never has the flag, also for a known session.
#[test]
fn a_refusal_has_no_session_present() {
    let broker = Broker::start();
    Client::connect(&broker, &Connect::v5("x").persistent()).disconnect();
    let method = Connect::v5("x").persistent().with(prop::text(0x15, "unknown"));
    let mut client = Client::open(&broker, Level::V5);
    client.send(&method.bytes());
    match client.expect_close().packets.as_slice() {
        [crate::support::Packet::Connack { session_present: false, code: 0x8C, .. }] => {}
        other => panic!("{other:?}"),
    }
    assert!(is_present(&broker, "x"), "the refused CONNECT changed nothing");
}

/// SES-08, MQTT-3.1.2-4 (v5), MQTT-3.1.2-6 (3.1.1): nothing of an earlier session leaks through a
/// clean one into the next.
#[test]
fn a_clean_start_wipes_everything() {
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let mut publish = |range: std::ops::Range<usize>, qos: u8| {
        for number in range {
            publisher.publish("t", number.to_string(), qos);
        }
    };
    let expect = |client: &mut Client, range: std::ops::Range<usize>| {
        range.for_each(|number| assert_eq!(client.take().payload(), number.to_string()));
    };
    for level in [Level::V311, Level::V5] {
        let kept = Connect::new(level, "x").persistent();
        for cycle in 0..5 {
            let qos = cycle % 2 + 1;
            let mut client = Client::connect(&broker, &kept);
            assert!(!client.session_present);
            client.subscribe("t", qos);
            publish(0..10, qos);
            expect(&mut client, 0..10);
            client.ping();
            client.reset();
            publish(10..20, qos);
            let mut client = Client::connect(&broker, &kept);
            expect(&mut client, 10..20);
            // Two more that it never acknowledges, and one that it never gets.
            publish(20..22, qos);
            client.expect_publish();
            client.disconnect();
            publish(22..23, qos);
            let mut client = Client::connect(&broker, &Connect::new(level, "x"));
            publish(23..24, qos);
            client.ping();
            client.expect_silence(Duration::from_millis(50));
            client.disconnect();
            let mut client = Client::connect(&broker, &kept);
            assert!(!client.session_present);
            client.subscribe("t", qos);
            publish(100..120, qos);
            expect(&mut client, 100..120);
            client.ping();
            client.expect_silence(Duration::from_millis(20));
            client.disconnect();
            Client::connect(&broker, &Connect::new(level, "x")).disconnect();
        }
    }
}

/// SES-10, MQTT-3.1.2-6 (3.1.1), MQTT-4.1.0-2 (v5): of clean and of expired sessions nothing stays,
/// nor comes back with a restart.
#[test]
fn nothing_is_left_of_sessions_that_ended() {
    const CLIENTS: usize = 250;
    let mut broker = Broker::start();
    let join = |broker: &Broker, connect: Connect, number: usize| {
        let mut client = Client::connect(broker, &connect);
        client.subscribe(format!("t/{}/#", number % 10), 1);
        client.subscribe("t/#", 1);
        client
    };
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|number| {
            let id = format!("clean{number}");
            let level = [Level::V5, Level::V311, Level::V31][number % 3];
            join(&broker, Connect::new(level, id), number)
        })
        .collect();
    clients.extend(
        (0..CLIENTS).map(|number| {
            join(&broker, Connect::v5(format!("expiring{number}")).expiry(2), number)
        }),
    );
    broker.await_metric("allClientSessions", 2.0 * CLIENTS as f64);
    broker.await_metric("subscriptions", 4.0 * CLIENTS as f64);
    clients.into_iter().for_each(Client::reset);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    for number in 0..100 {
        publisher.publish(format!("t/{}/x", number % 10), "m", 1);
    }
    for name in ["subscriptions", "subscriptionTopicTrieSize", "subscriptionTrieNodes"] {
        broker.await_metric(name, 0.0);
    }
    broker.await_metric("allClientSessions", 1.0);
    publisher.disconnect();
    broker.restart();
    broker.await_metric("allClientSessions", 0.0);
    broker.await_metric("subscriptions", 0.0);
    for id in ["clean7", "expiring7"] {
        assert!(!is_present(&broker, id));
    }
    broker.kill_and_restart();
    broker.await_metric("allClientSessions", 0.0);
    broker.await_metric("subscriptions", 0.0);
}

/// SES-11, MQTT-3.3.1-9: to resume is not to subscribe: retained messages come at SUBSCRIBE only.
#[test]
fn resuming_sends_no_retained_message() {
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    publisher.retain("t", "r");
    for level in Level::ALL {
        let connect = Connect::new(level, format!("{level:?}")).persistent();
        let mut client = Client::connect(&broker, &connect);
        client.subscribe("t", 1);
        assert_eq!(client.take().payload(), "r");
        client.ping();
        client.reset();
        broker.await_metric("connectedSessions", 1.0);
        let mut client = Client::connect(&broker, &connect);
        client.ping();
        client.expect_silence(SECOND);
        client.subscribe("t", 1);
        let got = client.take();
        assert_eq!((got.payload(), got.retain), ("r".into(), true));
        client.disconnect();
    }
}

/// SES-12, MQTT-3.1.2-23, section 3.1.2.11.2: without the property a level 5 session ends with its
/// connection; a level 4 one with clean session 0 does not.
#[test]
fn an_absent_expiry_is_none() {
    let broker = Broker::start();
    for (connect, present) in
        [(Connect::v5("five").resume(), false), (Connect::v311("four").resume(), true)]
    {
        let mut client = Client::connect(&broker, &connect);
        client.subscribe("t", 1);
        client.reset();
        broker.await_metric("connectedSessions", 0.0);
        let again = Client::connect(&broker, &connect);
        assert_eq!(again.session_present, present);
        again.disconnect();
    }
}

/// SES-12, MQTT-3.1.2-5: a session goes on across levels, with what waits for it; also on a level 5
/// connection that asks for no expiry, with which it then ends.
#[test]
fn a_session_goes_on_across_levels() {
    let broker = Broker::start();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let [v311, v5] = [Level::V311, Level::V5].map(|level| Connect::new(level, "x").persistent());
    let mut client = Client::connect(&broker, &v311);
    client.subscribe("t", 2);
    client.disconnect();
    for (number, connect) in [&v5, &v311, &v5, &Connect::v5("x").resume()].iter().enumerate() {
        publisher.publish("t", format!("one {number}"), 1);
        publisher.publish("t", format!("two {number}"), 2);
        let mut client = Client::connect(&broker, connect);
        assert!(client.session_present, "step {number}");
        assert_eq!(client.take().payload(), format!("one {number}"));
        assert_eq!(client.take().payload(), format!("two {number}"));
        publisher.publish("t", "live", 2);
        assert_eq!(client.take().payload(), "live");
        client.ping();
        client.disconnect();
    }
    assert!(!Client::connect(&broker, &v311).session_present);
    broker.await_metric("subscriptions", 0.0);
}

/// STO-04, MQTT-4.5.0-1: a client that acknowledges slowly, over many short connections, gets
/// everything in order; what it acknowledged does not come again, and nothing else is passed over.
#[test]
fn slow_acknowledgements_over_reconnects_pass_nothing_over() {
    const ALL: usize = 200;
    let broker = Broker::start();
    let connect = Connect::v5("slow").persistent().with(prop::receive_maximum(10));
    let mut slow = Client::connect(&broker, &connect);
    slow.subscribe("t", 1);
    slow.disconnect();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let (mut next, mut published) = (0, 0);
    while next < ALL {
        while published < ALL.min(next + 40) {
            publisher.publish("t", published.to_string(), 1);
            published += 1;
        }
        let mut slow = Client::connect(&broker, &connect);
        assert!(slow.session_present);
        let got: Vec<_> = (next..ALL.min(next + 10)).map(|_| slow.expect_publish()).collect();
        for (number, publish) in (next..).zip(&got) {
            assert_eq!(publish.payload(), number.to_string());
        }
        got.iter().take(7).for_each(|publish| slow.send(&wire::ack(4, publish.id)));
        next += got.len().min(7);
        slow.ping();
        slow.reset();
    }
}

/// Section 4.12, MQTT-4.12.0-6: this node knows no authentication method, so AUTH is a protocol
/// error, before and after CONNECT.
#[test]
fn auth_without_a_method_is_a_protocol_error() {
    let broker = Broker::start();
    for auth in ["f000", "f00118", "f0021800"] {
        let mut client = Client::connect(&broker, &Connect::v5("x"));
        client.send_hex(auth);
        client.expect_refusal(&[0x81, 0x82]);
        let mut client = Client::open(&broker, Level::V5);
        client.send_hex(auth);
        client.expect_bytes_then_close(&[]);
    }
}
