//! Shares the ledger of dropped messages with the other nodes, where there are some.

use std::sync::Arc;
use std::time::Duration;

use crate::storage::NodeLosses;
use crate::telemetry::ledger::{self, Seen};

/// How often what is new is told.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Tells until the task is aborted. While Redis is away nothing is told, and nothing is forgotten.
pub(super) async fn share(losses: Arc<NodeLosses>) {
    let mut seen = Seen::default();
    loop {
        let news = ledger::news(seen);
        let rows: Vec<_> = news.rows.iter().map(ledger::DroppedRow::to_pair).collect();
        match losses.put(news.whole, &rows).await {
            Ok(deleted) => {
                seen = news.seen;
                if deleted {
                    ledger::clear();
                }
            }
            Err(error) => tracing::debug!(%error, "dropped messages are not shared now"),
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}
