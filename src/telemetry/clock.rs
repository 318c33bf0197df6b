//! The wall clock, as milliseconds since the epoch. Tests and the simulation may tie it to
//! Tokio's clock, which they can pause.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

static PAUSED: OnceLock<(u64, Instant)> = OnceLock::new();

/// Milliseconds since 1970-01-01 UTC.
pub fn wall_ms() -> u64 {
    if let Some((base_ms, start)) = PAUSED.get() {
        return base_ms + start.elapsed().as_millis() as u64;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// From here on the wall clock follows Tokio's: for a process that runs on paused time.
pub fn follow_tokio() {
    PAUSED.get_or_init(|| (1_700_000_000_000, Instant::now()));
}
