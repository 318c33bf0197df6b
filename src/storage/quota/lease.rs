//! The tokens a node holds, in one atomic word: how many, and the fewest since the last tick.

use std::sync::atomic::{AtomicU64, Ordering};

/// What never fell below some number was not needed in that time, and can go back (QUO-7).
#[derive(Debug, Default)]
pub(super) struct Lease(AtomicU64);

fn split(word: u64) -> (u64, u64) {
    (word >> 32, word & u64::from(u32::MAX))
}

fn join(tokens: u64, fewest: u64) -> u64 {
    (tokens.min(u64::from(u32::MAX)) << 32) | fewest.min(u64::from(u32::MAX))
}

impl Lease {
    /// Takes all of `n`, or nothing.
    pub(super) fn take(&self, n: u64) -> bool {
        self.change(|tokens, fewest| {
            let left = tokens.checked_sub(n)?;
            Some((left, fewest.min(left)))
        })
        .is_some()
    }

    pub(super) fn take_up_to(&self, n: u64) -> u64 {
        let before = self.change(|tokens, fewest| {
            let left = tokens.saturating_sub(n);
            Some((left, fewest.min(left)))
        });
        before.map_or(0, |(tokens, _)| tokens.min(n))
    }

    pub(super) fn add(&self, n: u64) {
        if n > 0 {
            self.change(|tokens, fewest| Some((tokens.saturating_add(n), fewest)));
        }
    }

    /// Takes what was not needed since the last tick.
    pub(super) fn take_idle(&self, at_least: u64) -> u64 {
        let before = self.change(|tokens, fewest| {
            let idle = if fewest > at_least { fewest } else { 0 };
            Some((tokens - idle, tokens - idle))
        });
        before.map_or(0, |(_, fewest)| if fewest > at_least { fewest } else { 0 })
    }

    pub(super) fn tokens(&self) -> u64 {
        split(self.0.load(Ordering::Relaxed)).0
    }

    pub(super) fn runs_low(&self, mark: u64) -> bool {
        self.tokens() <= mark
    }

    fn change(&self, to: impl Fn(u64, u64) -> Option<(u64, u64)>) -> Option<(u64, u64)> {
        let step = |word| {
            let (tokens, fewest) = split(word);
            to(tokens, fewest).map(|(tokens, fewest)| join(tokens, fewest))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).ok().map(split)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// QUO-7: what was not needed in a whole tick goes back, what was needed stays.
    #[test]
    fn only_what_was_never_needed_is_idle() {
        let lease = Lease::default();
        lease.add(100);
        assert_eq!(lease.take_idle(0), 0, "it was drawn within this tick");
        assert!(lease.take(30));
        lease.add(10);
        assert_eq!((lease.take_idle(0), lease.tokens()), (70, 10));
        assert_eq!((lease.take_idle(10), lease.take_idle(0), lease.tokens()), (0, 10, 0));
        assert!(!lease.take(1));
        lease.add(5);
        assert_eq!((lease.take_up_to(9), lease.take_up_to(9)), (5, 0));
    }
}
