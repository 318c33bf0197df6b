//! Copies that their queues refuse for now. They wait here, in order, while routing goes on for
//! everybody who needs no queue; nothing is committed meanwhile, so that a crash routes them again.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::dispatcher::{Parts, Progress, RETRY};
use super::hand_over::Queued;
use super::here::cost;
use crate::limits::BACKLOG_BYTES;
use crate::storage::Position;
use crate::telemetry::{metrics, task};

#[derive(Default)]
struct State {
    /// The first one is on its way, as long as somebody drains.
    waiting: VecDeque<(Arc<[Queued]>, usize)>,
    bytes: usize,
}

/// At most [`BACKLOG_BYTES`] and one more append; then routing waits, and in the end publishers.
#[derive(Default)]
pub struct Backlog {
    state: Mutex<State>,
    room: Notify,
}

impl std::fmt::Debug for Backlog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backlog").field("bytes", &self.state.lock().bytes).finish()
    }
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    /// Everything below `to` was routed, and is in the queues if this says so.
    pub(super) fn routed(&self, progress: &Progress, to: Position) -> bool {
        let state = self.state.lock();
        let queued = state.waiting.is_empty();
        progress.advance(to, queued);
        queued
    }

    /// Behind all that waits; when there is too much of that, not before there is room.
    pub(super) async fn push(self: &Arc<Self>, parts: &Parts, queued: Vec<Queued>) {
        let bytes = queued.iter().flat_map(|one| &one.append.entries).map(cost).sum();
        loop {
            let room = self.room.notified();
            {
                let mut state = self.state.lock();
                if state.bytes < BACKLOG_BYTES {
                    state.bytes += bytes;
                    state.waiting.push_back((Arc::from(queued), bytes));
                    metrics::QUEUE_BACKLOG_BYTES.set(state.bytes as i64);
                    if state.waiting.len() == 1 {
                        let (backlog, parts) = (Arc::clone(self), parts.clone());
                        task::spawn("queue backlog", async move { backlog.drain(&parts).await });
                    }
                    return;
                }
            }
            room.await;
        }
    }

    /// Until nothing waits any more.
    async fn drain(&self, parts: &Parts) {
        loop {
            let first = self.state.lock().waiting.front().map(|(queued, _)| Arc::clone(queued));
            let Some(queued) = first else { return };
            match parts.append(&queued).await {
                Ok(appended) => {
                    let back = parts.appended(&queued, appended);
                    parts.hand_back(&back).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "device queues still refuse");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            let mut state = self.state.lock();
            let gone = state.waiting.pop_front().map_or(0, |(_, bytes)| bytes);
            state.bytes -= gone;
            metrics::QUEUE_BACKLOG_BYTES.set(state.bytes as i64);
            self.room.notify_one();
            if state.waiting.is_empty() {
                tracing::info!("device queues have all that waited for them");
                parts.progress.caught_up();
                return;
            }
        }
    }
}
