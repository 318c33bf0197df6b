//! What the threads of a run share: the plan, the clock, the phase, and the boards.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::plan::Plan;
use super::tally::{Board, Tally, Timeline};

#[derive(Debug)]
pub(super) struct RunState {
    pub(super) plan: Plan,
    pub(super) boards: Vec<Board>,
    /// Set once, when every connection stands.
    pub(super) timeline: OnceLock<Timeline>,
    stop: AtomicBool,
    born: Instant,
    /// The first thing that went wrong, in words; what follows is only counted.
    first_fault: Mutex<Option<String>>,
}

impl RunState {
    pub(super) fn new(plan: Plan) -> RunState {
        let boards = (0..plan.args.threads).map(|_| Board::default()).collect();
        RunState {
            plan,
            boards,
            timeline: OnceLock::new(),
            stop: AtomicBool::new(false),
            born: Instant::now(),
            first_fault: Mutex::new(None),
        }
    }

    /// The run's clock: monotonic, the same for all threads, and what payloads carry.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.born.elapsed().as_nanos() as u64
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn fault(&self, text: impl FnOnce() -> String) {
        self.first_fault.lock().get_or_insert_with(text);
    }

    pub(super) fn first_fault(&self) -> Option<String> {
        self.first_fault.lock().clone()
    }

    pub(super) fn sum(&self) -> Tally {
        Tally::sum(&self.boards)
    }
}
