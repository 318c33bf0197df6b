//! When sessions expire and Wills are due (design decision 14): one ordered set, one task.

use std::collections::BTreeSet;
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

/// Due times: one entry for each session that is off-line and has something due, however often
/// its client comes and goes.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: Mutex<BTreeSet<(u64, ClientId)>>,
    earlier: Notify,
}

impl Timers {
    /// Moves a session's entry from where `timer_ms` says it is to `due_ms`; `None`: to nowhere.
    pub(super) fn set(
        &self,
        timer_ms: &mut Option<u64>,
        due_ms: Option<u64>,
        client_id: &ClientId,
    ) {
        if *timer_ms == due_ms && due_ms.is_none() {
            return;
        }
        let mut due = self.due.lock();
        if let Some(old_ms) = std::mem::replace(timer_ms, due_ms) {
            due.remove(&(old_ms, client_id.clone()));
        }
        let Some(due_ms) = due_ms else { return };
        let first = due.first().is_none_or(|(first_ms, _)| due_ms < *first_ms);
        due.insert((due_ms, client_id.clone()));
        drop(due);
        if first {
            self.earlier.notify_one();
        }
    }

    fn due(&self, now_ms: u64) -> Option<ClientId> {
        let mut due = self.due.lock();
        due.first().filter(|(due_ms, _)| *due_ms <= now_ms)?;
        due.pop_first().map(|(_, client_id)| client_id)
    }

    fn next(&self) -> Option<u64> {
        self.due.lock().first().map(|(due_ms, _)| *due_ms)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// INV-5: a session has one entry, however often it goes and comes; none when nothing is due.
    #[test]
    fn a_session_has_one_entry() {
        let timers = Timers::default();
        let [one, other] = ["one", "other"].map(ClientId::new);
        let (mut at_one, mut at_other) = (None, None);
        timers.set(&mut at_other, Some(500), &other);
        for due_ms in [900, 300, 700] {
            timers.set(&mut at_one, Some(due_ms), &one);
        }
        assert_eq!(timers.due.lock().len(), 2);
        assert_eq!(timers.due(499), None);
        assert_eq!(timers.due(500), Some(other));
        assert_eq!(timers.next(), Some(700));
        timers.set(&mut at_one, None, &one);
        assert_eq!((timers.next(), timers.due(u64::MAX)), (None, None));
    }
}
