//! Levels that can't leak: what raises one holds a guard, and lowers it when the guard goes.

use super::metrics::Level;

/// One more in a level, for as long as this lives.
#[derive(Debug)]
pub struct Counted(&'static Level);

impl Counted {
    pub fn one(level: &'static Level) -> Self {
        level.inc();
        Self(level)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::HELD_READERS;
    use super::*;

    /// MET-1: a task that is cut off leaves its level as it was.
    #[tokio::test]
    async fn a_guard_that_is_dropped_with_its_task_counts_no_more() {
        let before = HELD_READERS.get();
        let held = super::super::task::spawn("held", async {
            let _held = Counted::one(&HELD_READERS);
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        assert_eq!(HELD_READERS.get(), before + 1);
        held.abort();
        assert!(held.await.unwrap_err().is_cancelled());
        assert_eq!(HELD_READERS.get(), before);
    }
}
