//! Crash tests: the real broker is killed with SIGKILL at random moments under load, on a disk
//! that loses what was not synced, and is held to every acknowledgement it gave.
//!
//! `SLUICE_CRASH_KILLS=100` runs the long form; `SLUICE_CRASH_SEED=…` repeats a run, whose seed is
//! printed. What the operating system schedules differs all the same, so a seed repeats the kind
//! of a run and not every step of it.

#![allow(clippy::unwrap_used, reason = "in a test, unwrap is an assertion")]
#![allow(clippy::print_stderr, reason = "seeds, and the log of a failed broker")]
#![allow(clippy::disallowed_types, reason = "these tests run beside the broker, in real time")]

#[allow(dead_code, unused_imports, reason = "the black-box tests use all of it, these a part")]
#[path = "../broker/support/mod.rs"]
mod support;

mod crew;
mod disk_faults;
mod journal;
mod keeper;
mod kills;
mod link;
mod lost_writes;
mod order_of_syncs;
mod publisher;
mod subscriber;
mod world;

/// These tests are about the folder: no services.
pub(crate) fn services() -> Vec<(String, String)> {
    Vec::new()
}
