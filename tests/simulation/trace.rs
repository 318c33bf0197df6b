//! What happened, line by line: hashed always, printed when one seed is run again, and its last
//! lines shown with a violation.

use std::collections::VecDeque;
use std::fmt::Display;

use parking_lot::Mutex;
use tokio::time::Instant;

const LAST_LINES: usize = 60;

pub(crate) struct Trace {
    start: Instant,
    print: bool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    hash: u64,
    lines: u64,
    last: VecDeque<String>,
    violation: Option<String>,
}

impl Trace {
    pub(crate) fn new(print: bool) -> Self {
        Trace { start: Instant::now(), print, inner: Mutex::default() }
    }

    /// Simulated milliseconds since the start.
    pub(crate) fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    pub(crate) fn note(&self, who: &str, what: impl Display) {
        let line = format!("{:>9.3} {who:<5} {what}", self.start.elapsed().as_secs_f64());
        if self.print {
            eprintln!("{line}");
        }
        let mut inner = self.inner.lock();
        // FNV-1a, chained over the lines.
        let hash = line.bytes().fold(inner.hash ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        inner.hash = hash;
        inner.lines += 1;
        if inner.last.len() == LAST_LINES {
            inner.last.pop_front();
        }
        inner.last.push_back(line);
    }

    /// An invariant does not hold. The first one ends the run.
    pub(crate) fn violate(&self, who: &str, what: impl Display) {
        let what = what.to_string();
        self.note(who, format_args!("VIOLATION: {what}"));
        let mut inner = self.inner.lock();
        if inner.violation.is_none() {
            let lines: Vec<&str> = inner.last.iter().map(String::as_str).collect();
            let text = format!("{who}: {what}\nthe last that happened:\n{}", lines.join("\n"));
            inner.violation = Some(text);
        }
    }

    pub(crate) fn violation(&self) -> Option<String> {
        self.inner.lock().violation.clone()
    }

    /// Two runs are the same when these are.
    pub(crate) fn fingerprint(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.lines, inner.hash)
    }
}
