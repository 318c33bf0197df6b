//! The shared budget of one node: token windows in this process (QUO-1).

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::storage::{BoxFuture, StorageError, TokenBucket};

/// `capacity` tokens, refilled evenly over `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub capacity: u64,
    pub period: Duration,
}

/// A draw takes from every window, so the tightest one decides. Without windows there is no limit.
#[derive(Debug)]
pub struct LocalBucket {
    windows: Mutex<Vec<State>>,
}

#[derive(Debug)]
struct State {
    window: Window,
    tokens: u64,
    /// Everything up to here was refilled; what is left of a token's time is not lost.
    filled: Instant,
}

impl State {
    fn refill(&mut self, now: Instant) {
        let Window { capacity, period } = self.window;
        let nanos = period.as_nanos().max(1);
        let passed = now.duration_since(self.filled).as_nanos();
        let fresh = passed * u128::from(capacity) / nanos;
        if u128::from(self.tokens) + fresh >= u128::from(capacity) {
            self.tokens = capacity;
            self.filled = now;
        } else if fresh > 0 {
            self.tokens += fresh as u64;
            let spent = fresh * nanos / u128::from(capacity);
            self.filled += Duration::from_nanos(spent as u64);
        }
    }
}

impl LocalBucket {
    pub fn new(windows: &[Window]) -> Self {
        let filled = Instant::now();
        let full = |window: &Window| State { window: *window, tokens: window.capacity, filled };
        Self { windows: Mutex::new(windows.iter().map(full).collect()) }
    }

    fn take(&self, n: u64) -> u64 {
        let now = Instant::now();
        let mut windows = self.windows.lock();
        windows.iter_mut().for_each(|state| state.refill(now));
        let taken = windows.iter().map(|state| state.tokens).fold(n, u64::min);
        windows.iter_mut().for_each(|state| state.tokens -= taken);
        taken
    }
}

impl TokenBucket for LocalBucket {
    fn draw(&self, n: u64) -> BoxFuture<'_, Result<u64, StorageError>> {
        Box::pin(async move { Ok(self.take(n)) })
    }

    fn draw_now(&self, n: u64) -> Option<u64> {
        Some(self.take(n))
    }

    fn give_back(&self, n: u64) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            for state in self.windows.lock().iter_mut() {
                state.tokens = state.tokens.saturating_add(n).min(state.window.capacity);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(capacity: u64, seconds: u64) -> Window {
        Window { capacity, period: Duration::from_secs(seconds) }
    }

    /// QUO-1: the tightest window decides, and tokens come back evenly.
    #[tokio::test(start_paused = true)]
    async fn all_windows_hold_and_refill_evenly() {
        let bucket = LocalBucket::new(&[window(10, 1), window(15, 60)]);
        assert_eq!(bucket.take(100), 10);
        assert_eq!(bucket.take(1), 0);
        tokio::time::advance(Duration::from_millis(550)).await;
        assert_eq!(bucket.take(100), 5, "the second window has 5 of 15 left");
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(bucket.take(100), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn returned_tokens_never_exceed_the_capacity() {
        let bucket = LocalBucket::new(&[window(10, 1)]);
        assert_eq!(bucket.draw(4).await.expect("draws"), 4);
        bucket.give_back(100).await.expect("takes them");
        assert_eq!(bucket.take(100), 10);
        assert_eq!(LocalBucket::new(&[]).take(100), 100, "no window, no limit");
    }
}
