//! The one task that talks to the bucket: so draws are single flight (QUO-6).

use std::sync::atomic::Ordering;

use tokio::time::{Instant, sleep_until, timeout};

use super::{ANSWER_WITHIN, PROBE_EVERY, Quota, Slow};
use crate::storage::StorageError;

impl Quota {
    /// Draws, returns and probes until the task is aborted.
    pub async fn run(&self) {
        let period = self.settings.lease_return;
        let mut tick = period.map(|period| Instant::now() + period);
        let mut draws_since_tick = 0_u32;
        let mut probe = None;
        loop {
            let down = self.is_down();
            probe = probe.filter(|_| down).or_else(|| down.then(|| Instant::now() + PROBE_EVERY));
            tokio::select! {
                biased;
                () = at(probe) => {
                    probe = None;
                    self.draw().await;
                }
                () = at(tick) => {
                    tick = period.map(|period| Instant::now() + period);
                    self.return_idle(draws_since_tick > 0).await;
                    draws_since_tick = 0;
                }
                () = self.wanted.notified(), if !down => {
                    if self.may_draw() {
                        draws_since_tick += 1;
                        self.draw().await;
                    }
                    self.drawn.notify_waiters();
                }
            }
        }
    }

    fn is_down(&self) -> bool {
        self.slow.lock().down_since.is_some()
    }

    /// Whether a draw is wanted, and likely to bring something.
    fn may_draw(&self) -> bool {
        let mut slow = self.slow.lock();
        if slow.back_off_until.is_some_and(|until| until > Instant::now()) {
            // Whoever waits is answered by that.
            slow.need = 0;
            return false;
        }
        let owed = self.owed.load(Ordering::Relaxed);
        slow.need > 0 || owed > 0 || self.lease.runs_low(self.settings.block / 16)
    }

    async fn draw(&self) {
        let need = std::mem::take(&mut self.slow.lock().need);
        let owed = self.owed.load(Ordering::Relaxed);
        // The lease never grows past what is needed now, or one block.
        let short = need.max(self.settings.block).saturating_sub(self.lease.tokens());
        let asked = (short + owed).max(1);
        let drawn = answered(self.bucket.draw(asked)).await;
        let now = Instant::now();
        let mut slow = self.slow.lock();
        match drawn {
            Ok(drawn) => {
                let paid = drawn.min(owed);
                self.owed.fetch_sub(paid, Ordering::Relaxed);
                self.lease.add(drawn - paid);
                let pause = drawn < asked || self.is_scarce(&slow, drawn, now);
                slow.scarce_at = pause.then_some(now);
                slow.back_off_until = pause.then(|| now + self.settings.back_off);
                if slow.down_since.take().is_some() {
                    let purpose = self.settings.purpose;
                    tracing::info!(?purpose, "the token bucket answers again");
                }
            }
            Err(error) => {
                drop(slow);
                self.failed(&error);
            }
        }
    }

    /// Whether the block that was just drawn is all that has come since the bucket was empty: then
    /// the next draw would find it empty again.
    fn is_scarce(&self, slow: &Slow, drawn: u64, now: Instant) -> bool {
        let recent = |at: Instant| now.duration_since(at) < 2 * self.settings.back_off;
        self.settings.paced && drawn <= self.settings.block && slow.scarce_at.is_some_and(recent)
    }

    fn failed(&self, error: &StorageError) {
        let mut slow = self.slow.lock();
        if slow.down_since.is_none() {
            slow.down_since = Some(Instant::now());
            slow.back_off_until = None;
            drop(slow);
            tracing::warn!(%error, purpose = ?self.settings.purpose,
                "the token bucket is away: open for 30 s, then only what was drawn is used");
        }
    }

    /// QUO-7. A node that draws keeps its rest, unless most of a block lay idle.
    async fn return_idle(&self, busy: bool) {
        if self.is_down() {
            return;
        }
        let idle = self.lease.take_idle(if busy { self.settings.block / 2 } else { 0 });
        if idle == 0 {
            return;
        }
        if let Err(error) = answered(self.bucket.give_back(idle)).await {
            // It may have arrived: tokens that are counted twice would overspend, so these are
            // lost, at most one block.
            self.failed(&error);
            self.drawn.notify_waiters();
        }
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn answered<T>(
    call: impl Future<Output = Result<T, StorageError>>,
) -> Result<T, StorageError> {
    let silent = || StorageError::Unavailable("the token bucket does not answer".into());
    timeout(ANSWER_WITHIN, call).await.unwrap_or_else(|_| Err(silent()))
}
