//! Slow, stuck, dying and flooding clients together, by chance, again and again: what the clients
//! saw, the counters and the ledger agree to the message, and nothing is left of them.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::operator::{self, Operator};
use crate::support::{AckKind, Broker, Client, Connect, Level, Publish, Random, prop, wire};

/// Each of them reads, or doesn't, from the first message of a round to the last: what it did not
/// get was dropped.
const FAITHFUL: [&str; 4] = ["quick", "slow0", "stuck0", "stuck1"];
/// Sessions that last: they get everything.
const LASTING: [&str; 3] = ["dies1", "dies2", "slow"];
const PUBLISHERS: usize = 2;

/// What is 0 when everybody has left.
const GAUGES: [&str; 10] = [
    "connectedSessions",
    "allClientSessions",
    "subscriptions",
    "nonWritableClients",
    "heldReaders",
    "inboundBudgetUsedBytes",
    "publishLogLagBytes",
    "flowControl_inflightCount",
    "flowControl_delayedQueueSize",
    "lastWillClients",
];

/// One round: clients come, live as they do, and leave.
struct Round<'a> {
    broker: &'a Broker,
    seed: u64,
    /// All are there who must get everything.
    ready: Barrier,
    /// Publishers stop.
    enough: AtomicBool,
    /// All that was published was dispatched; how much that was.
    over: AtomicBool,
    published: AtomicUsize,
}

impl Round<'_> {
    fn random(&self, of: u64) -> Random {
        Random::seeded(self.seed.wrapping_mul(31).wrapping_add(of))
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Publishes in bursts of every QoS, some larger than others.
    fn publish(&self, at: usize) {
        let mut random = self.random(at as u64);
        let mut client = Client::connect(self.broker, &Connect::v5(format!("p{at}")));
        self.ready.wait();
        let mut number = 0;
        while !self.enough.load(Ordering::Relaxed) {
            let burst = 1 + random.below(20) as u16;
            let size = 16_usize << random.below(8);
            let frame = |n: u16| {
                let payload = format!("{:<size$}", format!("{at} {}", number + usize::from(n)));
                wire::publish(Level::V5, 2, format!("s/{at}"), 1 + n, &[], payload)
            };
            client.send(&(0..burst).flat_map(frame).collect::<Vec<u8>>());
            client.acknowledged_all(AckKind::Puback, 1..=burst);
            number += usize::from(burst);
            std::thread::sleep(Duration::from_millis(random.below(8) as u64));
        }
        self.published.fetch_add(number, Ordering::Release);
        client.disconnect();
    }

    /// Says a lot to nobody; how much.
    fn flood(&self) -> usize {
        let mut random = self.random(100);
        let mut client = Client::connect(self.broker, &Connect::v5("flood"));
        let mut sent = 0;
        while !self.enough.load(Ordering::Relaxed) {
            let burst = random.below(200);
            let frame = wire::publish(Level::V5, 0, "flood", 0, &[], [b'x'; 300]);
            client.send(&frame.repeat(burst));
            client.ping();
            sent += burst;
            std::thread::sleep(Duration::from_millis(random.below(20) as u64));
        }
        client.disconnect();
        sent
    }

    /// Reads in its own way until all is over, and then the rest; how much came.
    fn listen(&self, which: usize) -> usize {
        let (id, mut random) = (FAITHFUL[which], self.random(200 + which as u64));
        let connect = Connect::v5(id).with(prop::receive_maximum(10));
        let mut client = match id {
            "quick" => Client::connect(self.broker, &connect),
            _ => Client::open_narrow(self.broker, Level::V5).say_hello(&connect),
        };
        client.subscribe("s/#", u8::from(id == "stuck1"));
        let (mut seen, mut got) = (Seen::default(), 0);
        self.ready.wait();
        while !self.is_over() {
            if id.starts_with("stuck") {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            if let Some(one) = client.take_within(Duration::from_millis(20)) {
                seen.rises(id, &one);
                got += 1;
            }
            if id == "slow0" {
                std::thread::sleep(Duration::from_millis(random.below(30) as u64));
            }
        }
        let mut quiet = 0;
        while quiet < 2 {
            // What was on its way comes before the answer; what waited for the credit that this
            // gives back, before the next one.
            client.ping();
            let rest = client.drain(Duration::ZERO);
            rest.iter().for_each(|one| seen.rises(id, one));
            got += rest.len();
            quiet = if rest.is_empty() { quiet + 1 } else { 0 };
        }
        client.disconnect();
        got
    }

    /// A session that lasts while its connections come and go, until it has everything.
    fn last(&self, which: usize) {
        let (id, mut random) = (LASTING[which], self.random(300 + which as u64));
        let connect = Connect::v5(id).persistent().with(prop::receive_maximum(50));
        let open = || match id {
            "slow" => Client::open_narrow(self.broker, Level::V5).say_hello(&connect),
            _ => Client::connect(self.broker, &connect),
        };
        let mut client = open();
        client.subscribe("s/#", 1);
        let mut seen = Seen::default();
        self.ready.wait();
        while !self.is_over() || seen.count() < self.published.load(Ordering::Acquire) {
            let takes = random.below(150);
            for _ in 0..takes {
                let Some(one) = client.take_within(Duration::from_millis(20)) else { break };
                seen.takes(id, &one);
                if id == "slow" && !self.is_over() {
                    std::thread::sleep(Duration::from_millis(random.below(10) as u64));
                }
            }
            if id != "slow" && !self.is_over() {
                match random.below(3) {
                    0 => client.reset(),
                    1 => client.disconnect(),
                    // Taken over.
                    _ => {}
                }
                client = open();
                assert!(client.session_present, "{id}");
            }
        }
        client.ping();
        client.disconnect();
        Client::connect(self.broker, &Connect::v5(id)).disconnect();
    }

    /// Comes, reads a little or nothing, and dies, with what it is owed.
    fn die(&self) {
        let mut random = self.random(400);
        while !self.is_over() {
            let connect = Connect::v5("mortal").with(prop::receive_maximum(5));
            let mut client = Client::open_narrow(self.broker, Level::V5).say_hello(&connect);
            client.subscribe("s/#", random.below(2) as u8);
            for _ in 0..random.below(30) {
                client.take_within(Duration::from_millis(10));
            }
            client.reset();
        }
    }
}

/// The numbers that came, by publisher.
#[derive(Default)]
struct Seen(BTreeMap<String, usize>);

impl Seen {
    fn number(one: &Publish) -> (String, usize) {
        let payload = one.payload();
        let (publisher, number) = payload.trim_end().split_once(' ').unwrap();
        (publisher.to_owned(), number.parse().unwrap())
    }

    /// In order, with gaps.
    fn rises(&mut self, id: &str, one: &Publish) {
        let (publisher, number) = Self::number(one);
        let next = self.0.entry(publisher).or_default();
        assert!(number >= *next, "{id}: {number} after {next}");
        *next = number + 1;
    }

    /// In order, without gaps; what comes again says so.
    fn takes(&mut self, id: &str, one: &Publish) {
        let (publisher, number) = Self::number(one);
        let next = self.0.entry(publisher).or_default();
        assert!(number == *next || number < *next && one.dup, "{id}: {number}, not {next}");
        *next = (*next).max(number + 1);
    }

    fn count(&self) -> usize {
        self.0.values().sum()
    }
}

/// What must be in the ledger, by client.
type Losses = BTreeMap<&'static str, usize>;

fn round(broker: &Broker, seed: u64, time: Duration, losses: &mut Losses) -> usize {
    let round = Round {
        broker,
        seed,
        ready: Barrier::new(FAITHFUL.len() + LASTING.len() + PUBLISHERS),
        enough: AtomicBool::new(false),
        over: AtomicBool::new(false),
        published: AtomicUsize::new(0),
    };
    let round = &round;
    std::thread::scope(|scope| {
        let faithful: Vec<_> =
            (0..FAITHFUL.len()).map(|which| scope.spawn(move || round.listen(which))).collect();
        let lasting: Vec<_> =
            (0..LASTING.len()).map(|which| scope.spawn(move || round.last(which))).collect();
        let mortal = scope.spawn(|| round.die());
        let flood = scope.spawn(|| round.flood());
        let publishers: Vec<_> =
            (0..PUBLISHERS).map(|at| scope.spawn(move || round.publish(at))).collect();
        std::thread::sleep(time);
        round.enough.store(true, Ordering::Relaxed);
        publishers.into_iter().for_each(|one| one.join().unwrap());
        *losses.entry("flood").or_default() += flood.join().unwrap();
        broker.await_metric("publishLogLagBytes", 0.0);
        round.over.store(true, Ordering::Release);
        let published = round.published.load(Ordering::Acquire);
        for (id, one) in FAITHFUL.into_iter().zip(faithful) {
            *losses.entry(id).or_default() += published - one.join().unwrap();
        }
        lasting.into_iter().for_each(|one| one.join().unwrap());
        mortal.join().unwrap();
        published
    })
}

fn rows(broker: &Broker, query: &str) -> usize {
    let path = format!("/api/dropped-messages?pageSize=1&{query}");
    let answer: Value = Operator::login(broker).get(&path).ok();
    answer["totalCount"].as_u64().expect("a sum") as usize
}

/// Seconds of a run that is long enough for a look at its memory.
const LONG: u64 = 900;
/// Rounds until the broker has what it keeps: the projection's memtables and its cache of blocks,
/// the buffers of threads. Each has a bound of its own, and a broker that has done nothing has none
/// of them: the start is behind that.
const WARM: usize = 10;
/// One round's memory says little, for the next one's may be a tenth less: the median of so many
/// counts, of as many minutes of a load at one end as at the other.
const LOOKED_AT: usize = 10;

fn median(rounds: &[u64]) -> u64 {
    let mut rounds = rounds.to_vec();
    rounds.sort_unstable();
    rounds[rounds.len() / 2]
}

/// Resident memory at rest: the least of what is seen in a while. In a long run the while is longer
/// than what the allocator keeps for a moment (10 s), or how busy the round was would count.
fn settled(broker: &Broker, long: bool) -> u64 {
    let look = |_| {
        std::thread::sleep(Duration::from_millis(200));
        broker.rss_kib()
    };
    (0..if long { 65 } else { 5 }).map(look).min().unwrap()
}

/// OUT-2, OUT-3, OUT-4, DEV-1 to DEV-3, RM-2, MET-1, MET-2, INV-2, INV-4, INV-7: rounds of such
/// clients. Lasting sessions get everything, once and in order; what others missed is in the ledger
/// under their name, to the message, and the ledger's sum is the counter; every gauge is back at
/// 0. `SLUICE_TESTS_SOAK_SECONDS` (4) in all; from 900 on memory is within 10 % of its start, too.
#[test]
fn nothing_is_left_of_slow_stuck_dying_and_flooding_clients() {
    let seconds = std::env::var("SLUICE_TESTS_SOAK_SECONDS").ok().and_then(|s| s.parse().ok());
    let seconds: u64 = seconds.unwrap_or(4);
    let broker = operator::start()
        .env("NETTY_WRITE_BUFFER_HIGH_WATER_MARK", 64)
        .env("NETTY_WRITE_BUFFER_LOW_WATER_MARK", 32)
        .env("NETTY_SO_SEND_BUFFER", 8)
        .env("MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT", 65_535)
        .start();
    let seed = u64::from(std::process::id());
    let a_round = Duration::from_secs((seconds / 2).clamp(1, 10));
    let (begun, mut losses, mut published) = (Instant::now(), Losses::new(), 0);
    let mut memory = Vec::new();
    while memory.len() < 2 || begun.elapsed().as_secs() < seconds {
        let number = memory.len() as u64;
        published += round(&broker, seed + number, a_round, &mut losses);
        for gauge in GAUGES {
            broker.await_metric(gauge, 0.0);
        }
        memory.push(settled(&broker, seconds >= LONG));
    }
    for (id, lost) in &losses {
        assert_eq!(rows(&broker, &format!("clientId={id}")), *lost, "{id}, seed {seed}");
    }
    assert_eq!(rows(&broker, "") as f64, broker.metric("droppedMsgs_total").unwrap());
    assert_eq!(broker.dropped("No subscribers"), losses["flood"]);
    eprintln!("soak: {published} published in {} rounds, lost {losses:?}", memory.len());
    if seconds >= LONG {
        assert!(memory.len() >= WARM + 2 * LOOKED_AT, "{} rounds", memory.len());
        let start = median(&memory[WARM..WARM + LOOKED_AT]);
        let end = median(&memory[memory.len() - LOOKED_AT..]);
        eprintln!("soak: {start} KiB at the start, {end} KiB at the end: {memory:?}");
        assert!(end <= start + start / 10, "from {start} to {end} KiB: {memory:?}");
    }
}
