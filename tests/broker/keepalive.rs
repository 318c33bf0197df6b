//! Keep alive, half-open connections and connection set-up (KAL).
//!
//! These rows are about time. A lower bound is asserted as it stands; an upper bound is generous,
//! because it also holds on a machine that is busy with other tests.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{Broker, Client, Connect, Level, Packet, Start, Will, hex, wire};

const SECOND: Duration = Duration::from_secs(1);

/// KAL-01, MQTT-3.1.2-22: a client is closed not before one and a half times its keep alive, and
/// soon after it; level 5 hears 0x8D first; the Will is published.
#[test]
fn a_silent_client_is_closed_after_one_and_a_half_keep_alives() {
    let broker = Broker::start();
    let mut watcher = Client::connect(&broker, &Connect::v5("watcher"));
    watcher.subscribe("will", 1);
    for level in Level::ALL {
        let will = Will::new("will", "silent").qos(1);
        let connect = Connect::new(level, "silent").keep_alive(1).will(will);
        let mut client = Client::connect(&broker, &connect);
        client.ping();
        sleep(Duration::from_millis(1400));
        client.ping();
        let last = Instant::now();
        client.expect_refusal(&[0x8D]);
        let silent = last.elapsed();
        // The last packet reached the broker a moment before its answer reached us.
        assert!(silent > Duration::from_millis(1450), "closed after {silent:?}");
        assert!(silent < 10 * SECOND, "closed after {silent:?}");
        assert_eq!(watcher.take().payload(), "silent");
    }
}

/// KAL-01: what a broker did not read while it stood still (a stopped process, a suspended machine)
/// is no silence of its clients.
#[test]
fn a_broker_that_stood_still_takes_nobody_for_silent() {
    let broker = Broker::start();
    let connect = |n: usize| Connect::v5(format!("c{n}")).keep_alive(1);
    let mut clients: Vec<_> = (0..50).map(|n| Client::connect(&broker, &connect(n))).collect();
    broker.pause();
    for _ in 0..8 {
        sleep(Duration::from_millis(300));
        clients.iter_mut().for_each(|client| client.send(&wire::PINGREQ));
    }
    broker.resume();
    for client in &mut clients {
        for _ in 0..8 {
            assert_eq!(client.recv(), Packet::Pingresp);
        }
        client.ping();
    }
}

/// KAL-02, MQTT-3.1.2-22: what is sent to a client doesn't keep it alive.
#[test]
fn deliveries_do_not_keep_a_client_alive() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::v5("half-open").keep_alive(1));
    client.subscribe("t", 0);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let until = Instant::now() + Duration::from_millis(3500);
    while Instant::now() < until {
        publisher.publish("t", "m", 0);
        sleep(Duration::from_millis(100));
    }
    assert_eq!(client.expect_close_within(10 * SECOND).reason(), Some(0x8D));
}

/// KAL-02: nor do the bytes of a packet that never ends.
#[test]
fn a_dripping_packet_does_not_keep_a_client_alive() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::v5("dripping").keep_alive(1));
    let packet = wire::publish(Level::V5, 0, "t", 0, &[], "a message that drips in");
    let mut sent = 0;
    for byte in &packet[..12] {
        sent += usize::from(client.try_send(&[*byte]));
        sleep(Duration::from_millis(300));
    }
    assert!(sent > 4, "closed after {sent} bytes, before its time");
    client.expect_close_within(10 * SECOND);
}

/// KAL-02's other side: any complete packet counts, not only PINGREQ.
#[test]
fn every_complete_packet_keeps_a_client_alive() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::v5("busy").keep_alive(1));
    for _ in 0..6 {
        sleep(Duration::from_millis(500));
        client.publish("t", "m", 0);
    }
    client.ping();
}

/// KAL-03, section 3.1.2.10: keep alive 0 switches the check off, where no cap is set.
#[test]
fn keep_alive_0_is_no_keep_alive() {
    let broker = Start::new().env("MQTT_KEEP_ALIVE_MAX_KEEP_ALIVE_SEC", 0).start();
    let mut clients: Vec<Client> = Level::ALL
        .map(|level| Client::connect(&broker, &Connect::new(level, format!("{level:?}"))))
        .into();
    for client in &mut clients {
        assert_eq!(client.connack.number(0x13), None, "no Server Keep Alive");
        client.subscribe("t", 1);
    }
    sleep(5 * SECOND);
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    publisher.publish("t", "still here", 1);
    clients.iter_mut().for_each(|client| assert_eq!(client.take().payload(), "still here"));
}

/// KAL-03, MQTT-3.2.2-21: a keep alive over the cap, or none, is replaced by it for a level 5
/// client, and CONNACK says so; the older levels can't be told and keep theirs.
#[test]
fn a_capped_keep_alive_is_told_and_held() {
    let broker = Start::new().env("MQTT_KEEP_ALIVE_MAX_KEEP_ALIVE_SEC", 1).start();
    let mut older = Client::connect(&broker, &Connect::v311("older"));
    for asked in [60_000, 2, 0] {
        let mut client = Client::connect(&broker, &Connect::v5("capped").keep_alive(asked));
        assert_eq!(client.connack.number(0x13), Some(1), "Server Keep Alive for {asked}");
        client.expect_refusal(&[0x8D]);
    }
    let within = Client::connect(&broker, &Connect::v5("within").keep_alive(1));
    assert_eq!(within.connack.number(0x13), None, "nothing was replaced");
    older.ping();
}

/// KAL-04, section 3.1.4: a connection that never finishes its CONNECT is closed in time, and
/// keeps nobody out meanwhile.
#[test]
fn a_connection_without_connect_is_closed_in_time() {
    let broker = Start::new()
        .env("MQTT_CONNECT_TIMEOUT_MS", 1500)
        .env("MQTT_CONNECT_CLAIM_TIMEOUT_MS", 1000)
        .start();
    Client::connect(&broker, &Connect::v5("warm")).disconnect();
    let files = broker.open_files();
    let half = Connect::v5("half").bytes();
    let open = |number: usize| {
        let mut client = Client::open(&broker, Level::V5);
        match number % 4 {
            0 => client.send(&half[..half.len() / 2]),
            1 => client.send(&half[..1]),
            _ => {}
        }
        client
    };
    let mut strangers: Vec<Client> = (0..200).map(open).collect();
    let opened = Instant::now();
    for number in 0..5 {
        Client::connect(&broker, &Connect::v5(format!("canary{number}"))).disconnect();
    }
    for stranger in &mut strangers {
        stranger.expect_close_within(12 * SECOND);
    }
    assert!(opened.elapsed() > SECOND, "closed before their time");
    drop(strangers);
    let deadline = Instant::now() + 10 * SECOND;
    while broker.open_files() > files + 2 {
        assert!(Instant::now() < deadline, "{} files open", broker.open_files());
        sleep(Duration::from_millis(20));
    }
}

/// KAL-04: bytes that drip in don't stretch the time for CONNECT.
#[test]
fn a_dripping_connect_is_closed_in_time() {
    let broker = Start::new()
        .env("MQTT_CONNECT_TIMEOUT_MS", 1500)
        .env("MQTT_CONNECT_CLAIM_TIMEOUT_MS", 1000)
        .start();
    let mut client = Client::open(&broker, Level::V5);
    let bytes = Connect::v5("a client id that is long enough to drip in slowly").bytes();
    let started = Instant::now();
    let mut sent = 0;
    for byte in &bytes {
        if started.elapsed() > 4 * SECOND || !client.try_send(&[*byte]) {
            break;
        }
        sent += 1;
        sleep(Duration::from_millis(100));
    }
    assert!(sent < bytes.len(), "the whole CONNECT was taken");
    client.expect_connect_refused(&hex("80818283 9f"));
}

/// KAL-06, MQTT-3.1.4-5: after a mass drop of persistent clients with Wills, everybody is back at
/// once; cleaning up is not in their way.
#[test]
fn after_a_mass_drop_everybody_gets_back_in() {
    const CLIENTS: usize = 300;
    let broker = Broker::start();
    let connect = |number: usize| {
        let will = Will::new(format!("will/{number}"), "gone").qos(1);
        Connect::v5(format!("fleet{number}")).persistent().will(will)
    };
    let mut fleet: Vec<Client> = Vec::new();
    for number in 0..CLIENTS {
        let mut client = Client::connect(&broker, &connect(number));
        client.subscribe(format!("to/{number}"), 1);
        fleet.push(client);
    }
    fleet.drain(..).for_each(Client::reset);
    let mut sockets: Vec<(Client, Instant)> = Vec::new();
    for number in 0..CLIENTS {
        let mut client = Client::open(&broker, Level::V5);
        client.send(&connect(number).bytes());
        sockets.push((client, Instant::now()));
    }
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    let mut waits: Vec<Duration> = Vec::new();
    for (number, (client, since)) in sockets.iter_mut().enumerate() {
        let answer = client.recv();
        let resumed = matches!(
            answer,
            crate::support::Packet::Connack { session_present: true, code: 0, .. }
        );
        assert!(resumed, "client {number} got {answer:?}");
        waits.push(since.elapsed());
    }
    waits.sort_unstable();
    assert!(waits[CLIENTS * 99 / 100] < 5 * SECOND, "p99 is {:?}", waits[CLIENTS * 99 / 100]);
    publisher.publish("to/7", "welcome back", 1);
    assert_eq!(sockets[7].0.take().payload(), "welcome back");
}
