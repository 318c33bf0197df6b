//! The cells that hot paths write: relaxed atomics, spread over cache lines where many threads
//! write at once, added up only when somebody reads the metrics page.

use std::array;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A power of two; more threads than this share cells, which is slower but still right.
const SHARDS: usize = 8;

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    SHARD.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        mine.get()
    })
}

#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

/// A count that only grows.
#[derive(Debug)]
pub struct Counter([Line<AtomicU64>; SHARDS]);

impl Counter {
    pub(super) const fn new() -> Counter {
        Counter([const { Line(AtomicU64::new(0)) }; SHARDS])
    }

    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, n: u64) {
        self.0[shard()].0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.iter().map(|line| line.0.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// A level that many threads raise and lower. It has no `set`: see [`Gauge`].
#[derive(Debug)]
pub struct Level([Line<AtomicI64>; SHARDS]);

impl Level {
    pub(super) const fn new() -> Level {
        Level([const { Line(AtomicI64::new(0)) }; SHARDS])
    }

    pub fn add(&self, n: i64) {
        self.0[shard()].0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn inc(&self) {
        self.add(1);
    }

    pub fn dec(&self) {
        self.add(-1);
    }

    pub fn get(&self) -> i64 {
        self.0.iter().map(|line| line.0.load(Ordering::Relaxed)).sum()
    }
}

/// A value that one owner states.
#[derive(Debug)]
pub struct Gauge(AtomicI64);

impl Gauge {
    pub(super) const fn new() -> Gauge {
        Gauge(AtomicI64::new(0))
    }

    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of a timer's buckets in microseconds; what is longer falls into the last, open
/// one.
pub(super) const BOUNDS_US: [u64; 17] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];
const BUCKETS: usize = BOUNDS_US.len() + 1;

/// Durations, as a histogram. Meant for one observation a batch, not one a message.
#[derive(Debug)]
pub struct Timer {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// What a timer held when it was read.
pub(super) struct TimerSnapshot {
    /// For each bound, how many were not longer.
    pub(super) cumulative: [u64; BOUNDS_US.len()],
    pub(super) count: u64,
    pub(super) sum_seconds: f64,
}

impl Timer {
    pub(super) const fn new() -> Timer {
        Timer { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_ns: AtomicU64::new(0) }
    }

    pub fn observe(&self, took: Duration) {
        self.observe_n(took, 1);
    }

    /// `n` things took `took` each.
    pub fn observe_n(&self, took: Duration, n: u64) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|&bound| bound * 1000 < ns);
        self.buckets[bucket].fetch_add(n, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns.saturating_mul(n), Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> TimerSnapshot {
        let mut count = 0;
        let cumulative = array::from_fn(|bucket| {
            count += self.buckets[bucket].load(Ordering::Relaxed);
            count
        });
        count += self.buckets[BOUNDS_US.len()].load(Ordering::Relaxed);
        let sum_seconds = self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9;
        TimerSnapshot { cumulative, count, sum_seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_threads_add_up() {
        static COUNTER: Counter = Counter::new();
        static LEVEL: Level = Level::new();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        COUNTER.inc();
                        LEVEL.inc();
                        LEVEL.dec();
                    }
                });
            }
        });
        assert_eq!(COUNTER.get(), 2 * SHARDS as u64 * 1000);
        assert_eq!(LEVEL.get(), 0);
    }

    #[test]
    fn a_duration_counts_in_every_bucket_that_is_not_shorter() {
        let timer = Timer::new();
        timer.observe(Duration::from_micros(50));
        timer.observe(Duration::from_micros(51));
        timer.observe_n(Duration::from_secs(60), 3);
        let snapshot = timer.snapshot();
        assert_eq!(snapshot.cumulative[0], 1);
        assert_eq!(snapshot.cumulative[1], 2);
        assert_eq!(snapshot.cumulative[BOUNDS_US.len() - 1], 2);
        assert_eq!(snapshot.count, 5);
        assert!((snapshot.sum_seconds - 180.000_101).abs() < 1e-6);
    }
}
