//! Which connection connects next, when connections come and go.

use super::schedule::{Pacer, Schedule};
use super::tally::Timeline;

/// A connection that failed is tried again after this, so that a broker which is down does not
/// make the generator spin.
const RETRY_NS: u64 = 10_000_000;

#[derive(Debug)]
pub(super) struct Churn {
    /// Connections that may connect, oldest last.
    vacant: Vec<u32>,
    /// Connections that failed, and when they may try again.
    resting: Vec<(u64, u32)>,
    end_ns: u64,
    /// Due times of this thread's connects; `None` connects whenever a place is vacant.
    schedule: Option<(Schedule, Pacer)>,
    owed: u64,
    started: u64,
    thread: u32,
    threads: u32,
}

impl Churn {
    pub(super) fn new(places: u32) -> Churn {
        Churn {
            vacant: (0..places).rev().collect(),
            resting: Vec::new(),
            end_ns: 0,
            schedule: None,
            owed: 0,
            started: 0,
            thread: 0,
            threads: 1,
        }
    }

    pub(super) fn begin(
        &mut self,
        timeline: Timeline,
        schedule: Option<Schedule>,
        thread: u32,
        threads: u32,
    ) {
        self.end_ns = timeline.window_to_ns;
        (self.thread, self.threads) = (thread, threads);
        self.schedule =
            schedule.map(|schedule| (schedule, Pacer::new(schedule, vec![thread], threads)));
    }

    /// The next connection to open, and since when it is due.
    pub(super) fn next(&mut self, now_ns: u64) -> Option<(u32, u64)> {
        if now_ns >= self.end_ns {
            return None;
        }
        let vacant = &mut self.vacant;
        self.resting.retain(|&(since_ns, at)| {
            let rests = since_ns > now_ns;
            if !rests {
                vacant.push(at);
            }
            rests
        });
        let Some((schedule, pacer)) = &mut self.schedule else {
            return self.vacant.pop().map(|at| (at, now_ns));
        };
        while pacer.take(now_ns).is_some() {
            self.owed += 1;
        }
        if self.owed == 0 {
            return None;
        }
        let at = self.vacant.pop()?;
        let number = self.started * u64::from(self.threads) + u64::from(self.thread);
        self.owed -= 1;
        self.started += 1;
        Some((at, schedule.due_ns(number)))
    }

    /// When the schedule asks for the next connect.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.schedule.as_ref().and_then(|(_, pacer)| pacer.next_due_ns())
    }

    pub(super) fn done(&mut self, at: u32) {
        self.vacant.push(at);
    }

    pub(super) fn failed(&mut self, at: u32, now_ns: u64) {
        self.resting.push((now_ns + RETRY_NS, at));
    }
}
