//! Scripts that attack every door at once, while a canary works on.
//!
//! What comes in: a broker with all listeners and providers. What goes out: the test's verdict: no
//! panic, nothing grown, no door open, and the canary served. Never: a credential that lets in
//! where nothing should; the one of `guest` may do nothing but `guest/#`.
//!
//! `SLUICE_ATTACK_SECONDS=3600 tests/run broker attack::` is the long form, with quiet moments in
//! between; it prints what the canary saw in both, and the broker's memory as it went.
//! `SLUICE_ATTACK_PAUSE_MS` is the rest of each script between two bouts.

mod bouts;
mod forged;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::doors::House;
use crate::operator::{self, Operator};
use crate::support::{Client, Connect, Random, Transport, papers};

const SECRET: &str = "canary/secret";
/// How long the canary works before the attack, and after each part of it.
const QUIET: Duration = Duration::from_secs(2);

/// What scripts share.
struct Field {
    house: House,
    operator: Operator,
    /// Scripts rest while it is set.
    quiet: AtomicBool,
    over: AtomicBool,
    bouts: [AtomicU64; bouts::ALL.len()],
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn field() -> Field {
    let start = operator::start_basic()
        .env("SECURITY_MQTT_JWT_ENABLED", true)
        .env("SECURITY_MQTT_JWT_SECRET", "0123456789abcdef0123456789abcdef")
        .env("SECURITY_MQTT_SCRAM_ENABLED", true)
        .env("SECURITY_MQTT_SSL_ENABLED", true)
        .env("LISTENER_SSL_CLIENT_AUTH", "requested")
        .env("LISTENER_SSL_PEM_CA", papers().file("server.pem"))
        .env("MQTT_CONNECT_TIMEOUT_MS", 2000)
        .env("MQTT_CONNECT_CLAIM_TIMEOUT_MS", 1000);
    let house = House::open(start);
    let operator = Operator::login(&house.broker);
    operator.credential("canary", &json!({ "userName": "canary", "password": "canary" }));
    let rules = json!({ "rules": [{ "action": "allow", "filter": "guest/#" }] });
    operator.credential(
        "guest",
        &json!({ "userName": "guest", "password": "guest", "authRules": rules }),
    );
    let scram = json!({ "name": "scram", "credentialsType": "SCRAM", "credentialsValue":
        { "userName": "scram", "password": "pencil", "algorithm": "SHA-256" } });
    operator.post("/api/mqtt/client/credentials", &scram).ok();
    for expression in ["(a|aa)+$", "(x+x+)+y", "([a-z]+)*[0-9]"] {
        let block = json!({ "type": "REGEX", "value": expression,
            "regexMatchTarget": "BY_USERNAME" });
        operator.post("/api/blockedClient", &block).ok();
    }
    let (quiet, over) = (AtomicBool::new(false), AtomicBool::new(false));
    Field { house, operator, quiet, over, bouts: std::array::from_fn(|_| AtomicU64::new(0)) }
}

impl Field {
    /// One script, bout after bout.
    fn attack(&self, at: usize, pause: Duration) {
        let (name, bout) = bouts::ALL[at];
        let mut random = Random::seeded(at as u64 + 1);
        while !self.over.load(Ordering::Relaxed) {
            if self.quiet.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            if let Some(open) = bout(self, &mut random) {
                panic!("{name} found a door open: {open}");
            }
            self.bouts[at].fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(pause);
        }
    }

    /// The canary's messages to itself, until it is time; how long each took.
    fn sing(&self, canary: &mut Client, for_so_long: Duration) -> Vec<Duration> {
        let (until, mut took) = (Instant::now() + for_so_long, Vec::new());
        while Instant::now() < until {
            let text = format!("{}", took.len());
            let since = Instant::now();
            canary.publish(SECRET, &text, 1);
            assert_eq!(canary.take().payload(), text, "it is the only one that may say this");
            took.push(since.elapsed());
            std::thread::sleep(Duration::from_millis(5));
        }
        took
    }

    fn usage(&self) -> (u64, usize) {
        (self.house.broker.rss_kib(), self.house.broker.open_files())
    }
}

fn p99(took: &mut [Duration]) -> Duration {
    took.sort();
    took[took.len().saturating_sub(1) * 99 / 100]
}

/// PAR-05, KAL-04, WSS-04: malformed TLS, WebSocket, CONNECT, AUTH, tokens, HTTP, expressions that
/// explode elsewhere, drips and half-open connections, all at once.
#[test]
fn an_attack_on_all_doors_opens_none() {
    let whole = Duration::from_secs(number("SLUICE_ATTACK_SECONDS", 8));
    let pause = Duration::from_millis(number("SLUICE_ATTACK_PAUSE_MS", 5));
    let is_long = whole > Duration::from_secs(60);
    let part = if is_long { Duration::from_secs(50) } else { whole };
    let field = field();
    let connect = Connect::v5("canary").user("canary").password("canary");
    let mut canary = field.house.client(Transport::Wss, b"", &connect);
    canary.subscribe(SECRET, 1);
    let (mut calm, mut loud, mut usage) = (Vec::new(), Vec::new(), Vec::new());
    let until = Instant::now() + whole;
    std::thread::scope(|scope| {
        let _over = Over(&field.over);
        field.quiet.store(true, Ordering::Relaxed);
        for at in 0..bouts::ALL.len() {
            let field = &field;
            scope.spawn(move || field.attack(at, pause));
        }
        while Instant::now() < until {
            calm.extend(field.sing(&mut canary, if is_long { 5 * QUIET } else { QUIET }));
            usage.push(field.usage());
            field.quiet.store(false, Ordering::Relaxed);
            loud.extend(field.sing(&mut canary, part));
            field.quiet.store(true, Ordering::Relaxed);
        }
    });
    let house = &field.house;
    house.broker.await_metric("listenerOpenConnections", 1.0);
    let files = usage[0].1;
    house.broker.eventually("files are closed", |broker| broker.open_files() <= files + 8);
    usage.push(field.usage());
    canary.ping();
    let counts: Vec<String> = (bouts::ALL.iter().zip(&field.bouts))
        .map(|((name, _), count)| format!("{name} {}", count.load(Ordering::Relaxed)))
        .collect();
    let (calm, loud) = (p99(&mut calm), p99(&mut loud));
    eprintln!("bouts: {}", counts.join(", "));
    eprintln!("canary's p99: {calm:?} in quiet moments, {loud:?} under attack");
    eprintln!("KiB, files: {usage:?}");
    assert!(field.bouts.iter().all(|count| count.load(Ordering::Relaxed) > 0), "{counts:?}");
    assert_eq!(house.broker.metric("taskPanics_total"), Some(0.0));
    // What is remembered of refused clients and logins has its bound after the first part.
    let (before, after) = (usage[(usage.len() - 1) / 2].0, usage[usage.len() - 1].0);
    let grown = after.saturating_sub(before);
    assert!(grown < before / 5 + 24 * 1024, "from {before} to {after} KiB");
}

/// Ends the scripts also where the canary fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
