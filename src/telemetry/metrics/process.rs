//! What the operating system knows about this process. Where it can't be read the series is
//! absent, never wrong.

use std::fs;
use std::sync::OnceLock;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::super::clock::wall_ms;
use super::{Series, Source};

const fn gauge(name: &'static str, help: &'static str, read: fn() -> Option<f64>) -> Series {
    Series { name, labels: &[], help, source: Source::ReadGauge(read) }
}

const fn counter(name: &'static str, help: &'static str, read: fn() -> Option<f64>) -> Series {
    Series { name, labels: &[], help, source: Source::ReadCounter(read) }
}

pub(super) const SERIES: [Series; 6] = [
    counter(
        "process_cpu_seconds_total",
        "Processor time of this process, user and system.",
        cpu_seconds,
    ),
    gauge("process_resident_memory_bytes", "Resident memory of this process.", || {
        status_number("VmRSS:").map(|kb| kb * 1024.0)
    }),
    gauge("process_threads", "Threads of this process.", || status_number("Threads:")),
    gauge("process_open_fds", "Open file descriptors, sockets included.", open_fds),
    gauge("process_max_fds", "File descriptors this process may open.", max_fds),
    gauge(
        "process_start_time_seconds",
        "When this process started, in seconds since 1970-01-01 UTC.",
        start_time_seconds,
    ),
];

fn cpu_seconds() -> Option<f64> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

fn status_number(field: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn open_fds() -> Option<f64> {
    // The folder's own descriptor is among them while it is read.
    fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count().saturating_sub(1) as f64)
}

fn max_fds() -> Option<f64> {
    getrlimit(Resource::Nofile).current.map(|limit| limit as f64)
}

/// The kernel counts it in ticks since boot; good to about a hundredth of a second.
fn start_time_seconds() -> Option<f64> {
    static START: OnceLock<Option<f64>> = OnceLock::new();
    *START.get_or_init(|| {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The second field is the program's name in brackets and may hold blanks and brackets.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks: f64 = fields.split_whitespace().nth(START_FIELD)?.parse().ok()?;
        let since_boot = ticks / clock_ticks_per_second() as f64;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        Some(wall_ms() as f64 / 1000.0 - (uptime - since_boot))
    })
}

/// `starttime` is the 22nd field; two are before the bracket closes.
const START_FIELD: usize = 19;
