//! What one frame costs from `submit` to its settlement, on a real folder (the system's
//! temporary one) with the server's allocator.
//!
//! `batch` is the messages (300 bytes each) of one frame; `open` is how many frames are open at a
//! time: 1 shows the latency of a lone publisher, 64 what group commit makes of many. Not
//! measured: what is above the log (encoding, tables, dispatch), and reading back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sluice::storage::embedded::wal::{
    Applier, Driver, Frame, FrameKind, RealDisk, SyncMode, Wal, WalConfig,
};
use sluice::storage::{AppendOutcome, AppendSink, Durability};
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const MESSAGE: usize = 300;

struct Settled {
    count: AtomicU64,
    submitter: Thread,
}

impl AppendSink for Settled {
    fn settled(&self, _ticket: u64, outcome: AppendOutcome) {
        assert!(matches!(outcome, AppendOutcome::Stored(_)), "the disk is in trouble");
        self.count.fetch_add(1, Ordering::Release);
        self.submitter.unpark();
    }
}

/// Counts groups and keeps the folder small, as a dispatcher that keeps up would.
struct Groups(Arc<AtomicU64>);

impl Applier for Groups {
    fn apply(&mut self, _offset: u64, _frame: &Frame) {}

    fn group_end(&mut self, _end: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Appends `frames` frames with at most `open` open.
fn append(wal: &Wal, body: &Bytes, frames: u64, open: u64) -> Duration {
    let submitter = std::thread::current();
    let sink = Arc::new(Settled { count: AtomicU64::new(0), submitter });
    let begun = Instant::now();
    for ticket in 0..frames {
        while ticket - sink.count.load(Ordering::Acquire) >= open {
            std::thread::park();
        }
        let head = Bytes::new();
        let frame = Frame { kind: FrameKind::Publishes, head, body: body.clone(), live: None };
        wal.submit(frame, Durability::Durable, Arc::clone(&sink) as _, ticket);
    }
    while sink.count.load(Ordering::Acquire) < frames {
        std::thread::park();
    }
    begun.elapsed()
}

fn log_append(criterion: &mut Criterion) {
    for sync in [SyncMode::Always, SyncMode::Never] {
        let mut bench = criterion.benchmark_group(format!("log_append/sync={sync:?}"));
        bench.sample_size(20).measurement_time(Duration::from_secs(4));
        for (batch, open) in [(1, 1), (1, 64), (50, 1), (50, 64)] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let disk = RealDisk::open(folder.path()).expect("opens");
            let config = WalConfig { sync, ..WalConfig::default() };
            let wal = Wal::open(disk, config, 0, &mut |_, _, _, _| Ok(())).expect("opens");
            let groups = Arc::new(AtomicU64::new(0));
            wal.start(Box::new(Groups(Arc::clone(&groups))), Driver::Thread);
            let body = Bytes::from(vec![0x61; batch * MESSAGE]);
            let mut samples = VecDeque::new();
            bench.throughput(Throughput::Elements(batch as u64));
            let name = BenchmarkId::from_parameter(format!("batch={batch},open={open}"));
            bench.bench_function(name, |bencher| {
                bencher.iter_custom(|frames| {
                    let before = groups.load(Ordering::Relaxed);
                    let took = append(&wal, &body, frames, open);
                    let in_groups = groups.load(Ordering::Relaxed) - before;
                    samples.push_back(frames as f64 / in_groups.max(1) as f64);
                    wal.remove_before(wal.end()).expect("removes");
                    took
                });
            });
            let mean = samples.iter().sum::<f64>() / samples.len().max(1) as f64;
            #[allow(clippy::print_stderr, reason = "criterion has no place for a second number")]
            {
                eprintln!("    frames in a group: {mean:.1}");
            }
        }
    }
}

criterion_group!(benches, log_append);
criterion_main!(benches);
