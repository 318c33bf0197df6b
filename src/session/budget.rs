//! The node's budget for publishes that are not in the log yet (IN-4), shared first come, first
//! served.

use tokio::sync::Semaphore;

use crate::telemetry::metrics;

/// Permits are counted in units, so that large budgets fit into the semaphore.
const UNIT: usize = 64;

/// When it is used up, readers wait in turn; nothing is dropped.
#[derive(Debug)]
pub(super) struct Budget {
    units: Semaphore,
    total: usize,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        let total = units(bytes).min(Semaphore::MAX_PERMITS);
        Self { units: Semaphore::new(total), total }
    }

    /// Takes `bytes` if they are there.
    pub(super) fn try_take(&self, bytes: usize) -> bool {
        match self.units.try_acquire_many(self.want(bytes)) {
            Ok(permit) => {
                permit.forget();
                true
            }
            Err(_) => false,
        }
    }

    /// Waits for `bytes`. Cancel safe: yes.
    pub(super) async fn take(&self, bytes: usize) {
        // The semaphore is never closed.
        if let Ok(permit) = self.units.acquire_many(self.want(bytes)).await {
            permit.forget();
        }
    }

    /// One batch never asks for more than there is in all.
    fn want(&self, bytes: usize) -> u32 {
        units(bytes).min(self.total) as u32
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.units.add_permits(self.want(bytes) as usize);
    }

    /// For the metrics page.
    pub(super) fn tell(&self) {
        let used = self.total.saturating_sub(self.units.available_permits());
        metrics::INBOUND_BUDGET_USED.set((used * UNIT) as i64);
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IN-4: what was taken comes back, and a batch larger than the budget is not stuck for ever.
    #[tokio::test]
    async fn the_budget_is_conserved() {
        let budget = Budget::new(1024);
        assert!(budget.try_take(1000));
        assert!(!budget.try_take(100));
        budget.give_back(1000);
        budget.take(1 << 30).await;
        budget.give_back(1 << 30);
        assert!(budget.try_take(1024));
    }
}
