//! One append, awaited: for what a session does rarely. The hot path has its own sink.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::storage::{AppendOutcome, AppendSink};

struct Once(Mutex<Option<oneshot::Sender<AppendOutcome>>>);

impl AppendSink for Once {
    fn settled(&self, _ticket: u64, outcome: AppendOutcome) {
        if let Some(sender) = self.0.lock().take() {
            // Whoever waited may have given up (IN-7); the outcome stands all the same.
            sender.send(outcome).ok();
        }
    }
}

/// The outcome of one append. A backend that drops the sink without a word leaves it in doubt.
#[derive(Debug)]
pub(super) struct Settled {
    receiver: oneshot::Receiver<AppendOutcome>,
    outcome: Option<AppendOutcome>,
}

impl Settled {
    /// Cancel safe: yes; the append goes on. May be asked again, also when it has answered.
    pub(super) async fn outcome(&mut self) -> AppendOutcome {
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        let outcome = (&mut self.receiver).await.unwrap_or(AppendOutcome::InDoubt);
        *self.outcome.insert(outcome)
    }
}

/// A sink for one append, and what waits for it.
pub(super) fn once() -> (Arc<dyn AppendSink>, Settled) {
    let (sender, receiver) = oneshot::channel();
    (Arc::new(Once(Mutex::new(Some(sender)))), Settled { receiver, outcome: None })
}

/// For an append whose end changes nothing for anybody: a failure is in the log.
#[derive(Debug)]
pub(super) struct Unwatched(pub(super) &'static str);

impl AppendSink for Unwatched {
    fn settled(&self, _ticket: u64, outcome: AppendOutcome) {
        match outcome {
            AppendOutcome::Stored(_) => {}
            AppendOutcome::NotStored | AppendOutcome::InDoubt => {
                tracing::warn!(what = self.0, ?outcome, "could not be stored");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim in doubt is waited for twice: once by its CONNECT, once by whoever sets it right.
    #[tokio::test]
    async fn an_outcome_may_be_asked_for_again() {
        let (sink, mut settled) = once();
        sink.settled(0, AppendOutcome::InDoubt);
        assert_eq!(settled.outcome().await, AppendOutcome::InDoubt);
        assert_eq!(settled.outcome().await, AppendOutcome::InDoubt);
    }
}
