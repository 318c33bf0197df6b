//! The wall clock, as milliseconds since the epoch. Tests and the simulation may tie it to
//! Tokio's clock, which they can pause.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use tokio::time::Instant;

/// Read only when `FOLLOWS` says so: a running broker pays for one relaxed load.
static START: RwLock<Option<Instant>> = RwLock::new(None);
static FOLLOWS: AtomicBool = AtomicBool::new(false);
/// What the clock shows when it begins to follow.
const BASE_MS: u64 = 1_700_000_000_000;

/// Milliseconds since 1970-01-01 UTC.
pub fn wall_ms() -> u64 {
    if FOLLOWS.load(Ordering::Relaxed)
        && let Some(start) = *START.read()
    {
        return BASE_MS + start.elapsed().as_millis() as u64;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// From here on the wall clock follows Tokio's: for a process that runs on paused time. Called
/// again, it starts over, so that one run after another sees the same times.
pub fn follow_tokio() {
    *START.write() = Some(Instant::now());
    FOLLOWS.store(true, Ordering::Relaxed);
}
