//! The line of totals that goes to the log once a period (`stats.enabled`).

use std::time::Duration;

use super::drop_reason::{Direction, DropReason, dropped_so_far};
use super::metrics;

/// Logs the totals since the start once every `period`, until the task is aborted.
pub async fn print(period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        let directions = [Direction::Inbound, Direction::Outbound];
        let of = |direction| DropReason::ALL.iter().map(move |why| dropped_so_far(*why, direction));
        let dropped: u64 = directions.into_iter().flat_map(of).sum();
        let delivered = metrics::DELIVERED_QOS0.get()
            + metrics::DELIVERED_QOS1.get()
            + metrics::DELIVERED_QOS2.get();
        tracing::info!(
            connected = metrics::CONNECTED_SESSIONS.get(),
            sessions = metrics::ALL_CLIENT_SESSIONS.get(),
            subscriptions = metrics::SUBSCRIPTIONS.get(),
            retained = metrics::RETAINED_MESSAGES.get(),
            published = metrics::PUBLISHED_TOTAL.get(),
            delivered,
            dropped,
            in_flight = metrics::INFLIGHT.get(),
            lag_bytes = metrics::LOG_LAG_BYTES.get(),
            "totals"
        );
    }
}
