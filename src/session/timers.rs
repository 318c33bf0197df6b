//! When sessions expire and Wills are due (design decision 14): one heap, one task.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::context::Context;
use super::lifecycle;
use crate::mqtt::ClientId;
use crate::telemetry::clock;

/// The longest sleep: the wall clock may be set while we sleep.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);

/// Due times of sessions that are off-line. An entry that is no longer true is dropped when it
/// comes up; bounded by the number of times sessions went off-line and are still due.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(u64, ClientId)>>>,
    earlier: Notify,
}

impl Timers {
    pub(super) fn set(&self, due_ms: u64, client_id: ClientId) {
        let mut heap = self.heap.lock();
        let first = heap.peek().is_none_or(|Reverse((first_ms, _))| due_ms < *first_ms);
        heap.push(Reverse((due_ms, client_id)));
        drop(heap);
        if first {
            self.earlier.notify_one();
        }
    }

    fn due(&self, now_ms: u64) -> Option<ClientId> {
        let mut heap = self.heap.lock();
        if heap.peek().is_some_and(|Reverse((due_ms, _))| *due_ms <= now_ms) {
            return heap.pop().map(|Reverse((_, client_id))| client_id);
        }
        None
    }

    fn next(&self) -> Option<u64> {
        self.heap.lock().peek().map(|Reverse((due_ms, _))| *due_ms)
    }
}

/// Ends sessions and fires Wills when they are due, until the task is aborted.
pub(super) async fn run(context: Arc<Context>) {
    loop {
        while let Some(client_id) = context.timers.due(clock::wall_ms()) {
            lifecycle::due(&context, &client_id).await;
        }
        let now_ms = clock::wall_ms();
        let sleep = match context.timers.next() {
            Some(due_ms) => Duration::from_millis(due_ms.saturating_sub(now_ms).max(1)),
            None => LOOK_AT_LEAST_EVERY,
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep(sleep.min(LOOK_AT_LEAST_EVERY)) => {}
            () = context.timers.earlier.notified() => {}
        }
    }
}
