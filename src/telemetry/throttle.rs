//! "At most once a minute" for log lines that traffic could repeat without end.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// One for each log line; a `static` beside it.
///
/// ```
/// static CROWDED: sluice::telemetry::Throttle = sluice::telemetry::Throttle::per_minute();
/// if let Some(unsaid) = CROWDED.ready() {
///     tracing::warn!(unsaid, "connections wait for a permit");
/// }
/// ```
#[derive(Debug)]
pub struct Throttle {
    period_ms: u64,
    /// When the next line may go, in milliseconds since the first use in this process, plus 1.
    next_ms: AtomicU64,
    unsaid: AtomicU64,
}

impl Throttle {
    pub const fn per_minute() -> Throttle {
        Throttle::every(Duration::from_secs(60))
    }

    pub const fn every(period: Duration) -> Throttle {
        Throttle {
            period_ms: period.as_millis() as u64,
            next_ms: AtomicU64::new(0),
            unsaid: AtomicU64::new(0),
        }
    }

    /// `Some(n)` when the line may be written now; `n` lines were held back since the last one.
    pub fn ready(&self) -> Option<u64> {
        self.ready_at(since_start_ms() + 1)
    }

    fn ready_at(&self, now_ms: u64) -> Option<u64> {
        let next = self.next_ms.load(Ordering::Relaxed);
        let claimed = now_ms >= next
            && self
                .next_ms
                .compare_exchange(
                    next,
                    now_ms.saturating_add(self.period_ms),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if claimed {
            Some(self.unsaid.swap(0, Ordering::Relaxed))
        } else {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

fn since_start_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OUT-3, QUO-9: at most one line a minute, and it says how many were held back.
    #[test]
    fn one_line_a_period_tells_how_many_were_held_back() {
        let throttle = Throttle::per_minute();
        assert_eq!(throttle.ready_at(1), Some(0));
        assert_eq!(throttle.ready_at(2), None);
        assert_eq!(throttle.ready_at(60_000), None);
        assert_eq!(throttle.ready_at(60_001), Some(2));
        assert_eq!(throttle.ready_at(60_002), None);
    }
}
