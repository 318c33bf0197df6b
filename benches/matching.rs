//! Subscription index and retained store at size.
//!
//! `cargo bench --bench matching` runs small criterion benches, for comparing two versions.
//! `cargo bench --bench matching -- report` prints the figures at full size instead: a million
//! subscriptions (60 % exact, 15 % with `+`, 15 % with `#`, 10 % shared), half a million retained
//! topics.
//!
//! What the report counts. Memory is the growth of resident memory under jemalloc, with freed
//! pages given back at once: filter texts, nodes, tables, entries (a session number, options and
//! a 64-bit position: 24 bytes) and the allocator's waste; not the sessions, nor the list that a
//! session keeps of its own filters. A lookup's time is one call that visits all matching
//! subscriptions of a random topic, on one thread, with nobody else at the index, the clock's own
//! cost (20 to 40 ns) included; no lock, no hand-over to an outbox. Rates of subscribe and
//! unsubscribe include making and checking the `TopicFilter`, not the storage or the SUBACK.
#![allow(clippy::print_stdout, reason = "the report is what this program is for")]
#![allow(clippy::disallowed_types, reason = "a bench measures real time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use hdrhistogram::Histogram;
use sluice::mqtt::{QoS, SubscriptionOptions, TopicFilter};
use sluice::routing::{Retained, SubscriptionIndex};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What the broker keeps for one subscription.
#[derive(Clone, Copy, Debug)]
struct Entry {
    _options: SubscriptionOptions,
    _since: u64,
}

type Index = SubscriptionIndex<u32, Entry>;

fn entry() -> Entry {
    Entry { _options: SubscriptionOptions::v3(QoS::AtLeastOnce), _since: 7 }
}

/// A small fixed generator: the same run every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % n
    }
}

const DEVICES: usize = 20_000;

/// The `n`th filter of the mix, over the topics of [`topic`].
fn filter(n: usize) -> String {
    let (device, round) = (n % DEVICES, n / DEVICES);
    let site = device % 1000;
    match (n + round * 3) * 7 % 20 {
        0..12 => format!("site/{site}/device/{device}/sensor/{round}"),
        12 => format!("site/+/device/{device}/sensor/{round}"),
        13 => format!("site/{site}/device/{device}/+/{round}"),
        14 => format!("+/{site}/device/{device}/sensor/{round}"),
        15 | 16 => format!("site/{site}/device/{device}/{round}/#"),
        17 => format!("site/{site}/device/{device}/#"),
        18 => format!("$share/group{}/site/{site}/device/{device}/#", round % 3),
        _ => format!("$share/workers/site/{site}/+/{device}/sensor/{round}"),
    }
}

fn topic(random: &mut Random) -> String {
    let device = random.below(DEVICES);
    format!("site/{}/device/{device}/sensor/{}", device % 1000, random.below(50))
}

fn checked(text: &str) -> TopicFilter {
    TopicFilter::new(text).expect("the mix holds valid filters")
}

fn filled(count: usize, filter: impl Fn(usize) -> String) -> Index {
    let mut index = Index::new();
    for n in 0..count {
        index.subscribe(&checked(&filter(n)), n as u32, entry());
    }
    index
}

/// Visits everything that matches, group members' choice included; returns how many.
fn lookup(index: &Index, topic: &str) -> usize {
    let (mut plain, mut shared) = (0, 0);
    index.matches(
        topic,
        &mut |one| {
            black_box(one);
            plain += 1;
        },
        &mut |group| {
            black_box(group);
            shared += 1;
        },
    );
    plain + shared
}

fn resident_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: f64 = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * 4096.0
}

fn record(times: &mut Histogram<u64>, took: Duration) {
    times.record(took.as_nanos() as u64).expect("the histogram grows");
}

fn rate(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

fn print_times(what: &str, times: &Histogram<u64>) {
    println!(
        "{what:<44} p50 {:>8.2} us   p99 {:>8.2} us   p99.9 {:>8.2} us   max {:>8.1} us",
        times.value_at_quantile(0.5) as f64 / 1e3,
        times.value_at_quantile(0.99) as f64 / 1e3,
        times.value_at_quantile(0.999) as f64 / 1e3,
        times.max() as f64 / 1e3,
    );
}

fn lookup_times(what: &str, index: &Index, count: usize) {
    let mut random = Random(11);
    let topics: Vec<String> = (0..count).map(|_| topic(&mut random)).collect();
    let mut times = Histogram::new(3).expect("three digits are valid");
    let (mut few, mut most, mut found) = (0, 0, 0);
    for topic in &topics {
        let start = Instant::now();
        let matched = lookup(index, topic);
        let took = start.elapsed();
        most = most.max(matched);
        found += matched;
        if matched <= 20 {
            few += 1;
            record(&mut times, took);
        }
    }
    print_times(what, &times);
    println!(
        "    {few} of {count} lookups matched <= 20; mean {:.1}, most {most}",
        found as f64 / count as f64
    );
}

fn report_index(what: &str, filter: impl Fn(usize) -> String) {
    const COUNT: usize = 1_000_000;
    println!("\n{what}");
    let before = resident_bytes();
    let mut random = Random(5);
    let start = Instant::now();
    let mut index = Index::new();
    let mut times = Histogram::new(3).expect("three digits are valid");
    for n in 0..COUNT {
        let filter = checked(&filter(n));
        let one = Instant::now();
        index.subscribe(&filter, n as u32, entry());
        record(&mut times, one.elapsed());
    }
    println!("subscribe, filling                           {:>10.0} /s", rate(COUNT, start));
    let per = (resident_bytes() - before) / COUNT as f64;
    println!(
        "memory per subscription                      {per:>10.0} bytes ({} places)",
        index.nodes()
    );
    print_times("one subscribe while filling", &times);
    lookup_times("lookup", &index, 300_000);
    let start = Instant::now();
    for _ in 0..COUNT {
        let n = random.below(COUNT);
        let filter = checked(&filter(n));
        index.unsubscribe(&filter, &(n as u32)).expect("it is there");
        index.subscribe(&filter, n as u32, entry());
    }
    println!(
        "unsubscribe + subscribe at random            {:>10.0} operations/s",
        rate(2 * COUNT, start)
    );
    let start = Instant::now();
    for n in 0..COUNT {
        index.unsubscribe(&checked(&filter(n)), &(n as u32)).expect("it is there");
    }
    println!("unsubscribe, emptying                        {:>10.0} /s", rate(COUNT, start));
    println!(
        "left afterwards                              {:>10.1} MB ({} places)",
        (resident_bytes() - before) / 1e6,
        index.nodes()
    );
}

fn report_crowd() {
    const COUNT: u32 = 1_000_000;
    println!("\n1 000 000 subscribers of one filter");
    let news = checked("news/#");
    let before = resident_bytes();
    let mut index = Index::new();
    let start = Instant::now();
    for key in 0..COUNT {
        index.subscribe(&news, key, entry());
    }
    println!(
        "subscribe                                    {:>10.0} /s",
        rate(COUNT as usize, start)
    );
    println!(
        "memory per subscription                      {:>10.0} bytes",
        (resident_bytes() - before) / f64::from(COUNT)
    );
    let start = Instant::now();
    assert_eq!(lookup(&index, "news/today"), COUNT as usize);
    println!(
        "visiting                                     {:>10.2} ns a subscriber",
        start.elapsed().as_nanos() as f64 / f64::from(COUNT)
    );
    let mut random = Random(1);
    let start = Instant::now();
    for _ in 0..COUNT {
        let key = random.below(COUNT as usize) as u32;
        index.unsubscribe(&news, &key).expect("it is there");
        index.subscribe(&news, key, entry());
    }
    println!(
        "unsubscribe + subscribe at random            {:>10.0} operations/s",
        rate(2 * COUNT as usize, start)
    );
}

fn retained(count: usize) -> Retained<[u64; 2]> {
    let mut store = Retained::new();
    for n in 0..count {
        let topic = match n % 50 {
            0 => format!("site/{}/status", n / 50),
            leaf => format!("site/{}/raw/sensor/{leaf}", n / 50),
        };
        store.set(&topic, [1, 2], 16, None).expect("no limit is set");
    }
    store
}

/// Reads a filter to its end in pages, as a SUBSCRIBE does, and times each page.
fn page_times(store: &Retained<[u64; 2]>, filter: &str, max: usize) {
    let mut times = Histogram::new(3).expect("three digits are valid");
    let (mut found, mut cursor) = (0, None);
    let start = Instant::now();
    loop {
        let page = Instant::now();
        cursor = store.page(filter, cursor.as_ref(), max, 0, |topic, value| {
            black_box((topic, value));
            found += 1;
            true
        });
        record(&mut times, page.elapsed());
        if cursor.is_none() {
            break;
        }
    }
    let whole = start.elapsed().as_secs_f64() * 1e3;
    print_times(&format!("{filter}, pages of {max}"), &times);
    println!("    {found} topics in {} pages, {whole:.1} ms in all", times.len());
}

fn report_retained() {
    const COUNT: usize = 500_000;
    println!("\n500 000 retained topics (values of 16 bytes)");
    let before = resident_bytes();
    let start = Instant::now();
    let mut store = retained(COUNT);
    println!("set, filling                                 {:>10.0} /s", rate(COUNT, start));
    println!(
        "memory per topic                             {:>10.0} bytes",
        (resident_bytes() - before) / COUNT as f64
    );
    page_times(&store, "#", 256);
    page_times(&store, "site/+/status", 256);
    page_times(&store, "+/5000/#", 256);
    page_times(&store, "+/+/+/+/none", 256);
    let start = Instant::now();
    for n in 0..COUNT {
        let topic = format!("site/{}/status", n % 10_000);
        store.set(&topic, [3, 4], 16, Some(n as u64)).expect("no limit is set");
    }
    println!("set again, with expiry                       {:>10.0} /s", rate(COUNT, start));
    let start = Instant::now();
    let gone = store.expire(u64::MAX, usize::MAX, |_| false).len();
    println!(
        "expire                                       {:>10.0} /s ({gone} topics)",
        rate(gone, start)
    );
    drop(store);
    println!(
        "left afterwards                              {:>10.1} MB",
        (resident_bytes() - before) / 1e6
    );
}

fn report() {
    report_index("1 000 000 subscriptions, mixed", filter);
    report_index("1 000 000 subscriptions, all exact", |n| {
        format!("site/{}/device/{}/sensor/{}", n % 1000, n % DEVICES, n / DEVICES)
    });
    report_crowd();
    report_retained();
}

fn small(criterion: &mut Criterion) {
    let mut random = Random(3);
    let exact = filled(100_000, |n| {
        format!("site/{}/device/{}/sensor/{}", n % 1000, n % DEVICES, n / DEVICES)
    });
    let mixed = filled(100_000, filter);
    let tiny = filled(10, |n| format!("fan/{n}/+"));
    let topics: Vec<String> = (0..1024).map(|_| topic(&mut random)).collect();
    let mut turn = 0;
    let mut next = move || {
        turn = (turn + 1) % 1024;
        turn
    };
    criterion.bench_function("lookup, 10 filters", |b| b.iter(|| lookup(&tiny, "fan/3/x")));
    criterion.bench_function("lookup, 100 000 exact", |b| {
        b.iter(|| lookup(&exact, &topics[next()]));
    });
    criterion.bench_function("lookup, 100 000 mixed", |b| {
        b.iter(|| lookup(&mixed, &topics[next()]));
    });
    let mut index = mixed;
    let filters: Vec<TopicFilter> = (0..1024).map(|n| checked(&filter(n * 97))).collect();
    criterion.bench_function("unsubscribe + subscribe, 100 000 mixed", |b| {
        b.iter(|| {
            let n = next();
            index.unsubscribe(&filters[n], &(n as u32 * 97));
            index.subscribe(&filters[n], n as u32 * 97, entry());
        });
    });
    let store = retained(50_000);
    criterion.bench_function("retained page of 256, #", |b| {
        b.iter(|| store.page("#", None, 256, 0, |topic, _| !black_box(topic).is_empty()));
    });
    criterion.bench_function("retained page of 256, site/+/status", |b| {
        b.iter(|| store.page("site/+/status", None, 256, 0, |t, _| !black_box(t).is_empty()));
    });
}

/// jemalloc reads this once, when the process starts.
const GIVE_BACK: (&str, &str) = ("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0");

fn main() {
    if !std::env::args().any(|argument| argument == "report") {
        let mut criterion = Criterion::default().configure_from_args();
        small(&mut criterion);
        criterion.final_summary();
    } else if std::env::var(GIVE_BACK.0).is_ok() {
        report();
    } else {
        let program = std::env::current_exe().expect("a running program has a path");
        let mut again = std::process::Command::new(program);
        let ended = again.arg("report").env(GIVE_BACK.0, GIVE_BACK.1).status();
        let ended = ended.expect("what runs can be run again");
        assert!(ended.success(), "the report did not come to its end");
    }
}
