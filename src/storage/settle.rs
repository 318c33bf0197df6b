//! One append, awaited: for what is done rarely. The hot path has a sink of its own.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::ports::{AppendOutcome, AppendSink};

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
pub struct Settled {
    receiver: oneshot::Receiver<AppendOutcome>,
    /// A receiver gives it once.
    known: Option<AppendOutcome>,
}

impl Settled {
    /// Cancel safe: yes; the append goes on, and may be waited for again, also after its end.
    pub async fn outcome(&mut self) -> AppendOutcome {
        if let Some(known) = self.known {
            return known;
        }
        let outcome = (&mut self.receiver).await.unwrap_or(AppendOutcome::InDoubt);
        self.known = Some(outcome);
        outcome
    }
}

/// A sink for one append, and what waits for it.
pub fn once() -> (Arc<dyn AppendSink>, Settled) {
    let (sender, receiver) = oneshot::channel();
    (Arc::new(Once(Mutex::new(Some(sender)))), Settled { receiver, known: None })
}

/// For an append whose end changes nothing for anybody: a failure is in the log.
#[derive(Debug)]
pub struct Unwatched(pub &'static str);

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
