//! How many sessions there may be: counted exactly, however many clients connect at once (QTA-05).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The count behind `mqtt.sessions-limit`.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Arc<AtomicU64>);

/// One session counts, for as long as this lives.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicU64>);

impl Places {
    /// `None`: there are as many as there may be.
    pub(super) fn take(&self, limit: Option<u64>) -> Option<Place> {
        let most = limit.unwrap_or(u64::MAX);
        let one_more = |taken: u64| (taken < most).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Place(Arc::clone(&self.0)))
    }

    /// What exists stays, also when the limit was lowered.
    pub(super) fn take_anyway(&self) -> Place {
        self.0.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(&self.0))
    }

    pub(super) fn taken(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// QTA-05: never one too many, and a place is free again when its session is gone.
    #[test]
    fn places_are_exact_under_concurrency() {
        let places = Places::default();
        let take = || places.take(Some(50));
        let held: Vec<Place> = std::thread::scope(|scope| {
            let takes = || (0..100).filter_map(|_| take()).collect::<Vec<Place>>();
            let threads = [(); 8].map(|()| scope.spawn(takes));
            threads.into_iter().flat_map(|thread| thread.join().expect("ends")).collect()
        });
        assert_eq!((held.len(), places.taken()), (50, 50));
        drop(held);
        assert!(take().is_some() && places.taken() == 0);
    }
}
