//! One put, awaited.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::storage::{AppendOutcome, AppendSink, ChangeLog, Durability, Row};

/// How long storage may take. Longer: nobody can say whether it is stored.
const PATIENCE: Duration = Duration::from_secs(10);

struct Once(Mutex<Option<oneshot::Sender<AppendOutcome>>>);

impl AppendSink for Once {
    fn settled(&self, _ticket: u64, outcome: AppendOutcome) {
        if let Some(sender) = self.0.lock().take() {
            // Whoever waited may have given up; the outcome stands all the same.
            sender.send(outcome).ok();
        }
    }
}

/// Stores the rows durably; when this returns true, followers have them, too.
pub(super) async fn put(tables: &dyn ChangeLog, rows: Vec<Row>) -> bool {
    let (sender, receiver) = oneshot::channel();
    let sink = Arc::new(Once(Mutex::new(Some(sender))));
    tables.put(rows, Durability::Durable, sink, 0);
    let settled = tokio::time::timeout(PATIENCE, receiver).await;
    matches!(settled, Ok(Ok(AppendOutcome::Stored(_))))
}

/// For a put whose end changes nothing for anybody: a failure is in the log, and the next purge
/// tries again.
#[derive(Debug)]
pub(super) struct Unwatched;

impl AppendSink for Unwatched {
    fn settled(&self, _ticket: u64, outcome: AppendOutcome) {
        match outcome {
            AppendOutcome::Stored(_) => {}
            AppendOutcome::NotStored | AppendOutcome::InDoubt => {
                tracing::warn!(?outcome, "ended blocks could not be cleared away");
            }
        }
    }
}
