//! A node's side of the cluster's token bucket: blocks of tokens on lease, so that a PUBLISH costs
//! an atomic operation and no round trip (QUO-1 to QUO-9).
//!
//! What comes in: charges of admission and routing. What goes out: yes, no, or "wait for a draw";
//! draws and returns at the [`TokenBucket`]. Who calls: session charges PUBLISHes, Wills and
//! retained copies, routing charges copies; the broker runs [`Quota::run`]. It stands in this room
//! because the port does, and everybody who charges is above it. Never: a message, or what a
//! refusal looks like to a client.
//!
//! ```text
//!            draw gave less than asked                 time to refill a block
//! drawing ─────────────────────────────→ backing off ──────────────────────────→ drawing
//! any ──bucket failed or silent──→ down: open for 30 s, then only the lease ──probe──→ drawing
//! ```

mod driver;
mod lease;
mod reached;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::lease::Lease;
pub use self::reached::Reached;
use super::TokenBucket;
use crate::limits::RateWindows;
use crate::telemetry::metrics;

/// How long work goes on without the bucket (QUO-8; not a setting).
pub const GRACE: Duration = Duration::from_secs(30);
/// A draw or return that takes longer counts as failed.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How often a bucket that failed is tried.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Bounds of the pause after an empty draw.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What a bucket's tokens are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// PUBLISH packets, in and out (QUO-1).
    Throughput,
    /// Copies into durable queues of DEVICE clients (DEV-7).
    DeviceQueues,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSettings {
    pub purpose: Purpose,
    /// Tokens per draw (QUO-6).
    pub block: u64,
    /// How long a block takes to refill: the pause after a draw that found the bucket empty.
    pub back_off: Duration,
    /// A block lasts for that pause: then a scarce budget is drawn once a pause, and no more often.
    pub paced: bool,
    /// How often unused tokens go back; `None`: never (QUO-7).
    pub lease_return: Option<Duration>,
}

impl QuotaSettings {
    /// `block_size`: as an operator gave it; `None`: a tenth of a second's tokens, at least 1.
    pub fn new(
        purpose: Purpose,
        windows: &RateWindows,
        block_size: Option<u64>,
        lease_return: Option<Duration>,
    ) -> Self {
        let a_second = windows.sustained(1.0);
        let block = block_size.unwrap_or((a_second / 10.0) as u64).clamp(1, u64::from(u32::MAX));
        let refill = Duration::try_from_secs_f64(block as f64 / a_second).unwrap_or(BACK_OFF.1);
        let back_off = refill.clamp(BACK_OFF.0, BACK_OFF.1);
        Self { purpose, block, back_off, paced: refill >= back_off, lease_return }
    }
}

/// Tokens that were taken for something, to be given back if it comes to nothing. Of what was
/// admitted without the bucket there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Charge(u64);

impl Charge {
    /// Two charges that stand or fall together.
    pub fn and(self, other: Charge) -> Charge {
        Charge(self.0 + other.0)
    }
}

/// What became of an attempt that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Attempt {
    Admitted(Charge),
    Refused,
    /// The lease is used up and the bucket was not asked yet: [`Quota::take`] does.
    Wait,
}

/// Tokens for copies of one pass; what is left goes back.
#[derive(Debug)]
#[must_use]
pub struct Purse {
    /// Paid for.
    charged: u64,
    /// Admitted without the bucket.
    open: u64,
}

impl Purse {
    /// For when there is no quota.
    pub const UNLIMITED: Purse = Purse { charged: 0, open: u64::MAX };
    pub const EMPTY: Purse = Purse { charged: 0, open: 0 };

    /// Pays for one copy.
    pub fn pay(&mut self) -> bool {
        let from = if self.charged > 0 { &mut self.charged } else { &mut self.open };
        let pays = *from > 0;
        *from = from.saturating_sub(1);
        pays
    }

    /// Copies that it pays for.
    pub fn holds(&self) -> u64 {
        self.charged.saturating_add(self.open)
    }
}

#[derive(Debug, Default)]
struct Slow {
    /// A draw found the bucket empty: until then nobody asks again.
    back_off_until: Option<Instant>,
    /// Draws bring what time brings, and no more: since when, at the latest draw.
    scarce_at: Option<Instant>,
    /// The bucket has failed since.
    down_since: Option<Instant>,
    /// Tokens that are waited for. Waiting is bounded by whoever waits: connections, a dispatcher.
    need: u64,
}

/// One node's lease of one bucket.
pub struct Quota {
    bucket: Arc<dyn TokenBucket>,
    settings: QuotaSettings,
    lease: Lease,
    slow: Mutex<Slow>,
    /// Charged beyond the lease; the next draw pays for it first.
    owed: AtomicU64,
    /// Wakes the driver.
    wanted: Notify,
    /// A draw has ended, one way or another.
    drawn: Notify,
    reached: Reached,
}

impl std::fmt::Debug for Quota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quota").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Quota {
    pub fn new(settings: QuotaSettings, bucket: Arc<dyn TokenBucket>) -> Arc<Self> {
        Arc::new(Self {
            bucket,
            settings,
            lease: Lease::default(),
            slow: Mutex::default(),
            owed: AtomicU64::new(0),
            wanted: Notify::new(),
            drawn: Notify::new(),
            reached: Reached::default(),
        })
    }

    /// Takes `n` tokens if they can be had at once.
    pub fn attempt(&self, n: u64) -> Attempt {
        if self.lease.take(n) {
            self.look_ahead();
            return Attempt::Admitted(Charge(n));
        }
        self.without_tokens(1)
    }

    /// Takes `n` tokens, waiting for a draw if the lease has too few (QUO-6); `None`: refused.
    /// Cancel safe: yes.
    pub async fn take(&self, n: u64) -> Option<Charge> {
        loop {
            let drawn = self.drawn.notified();
            tokio::pin!(drawn);
            drawn.as_mut().enable();
            match self.attempt(n) {
                Attempt::Admitted(charge) => return Some(charge),
                Attempt::Refused => return None,
                Attempt::Wait => self.ask(n),
            }
            drawn.await;
        }
    }

    /// Takes as many of `n` tokens as can be had. Cancel safe: no; what was taken would be lost
    /// until the next draw.
    pub async fn take_up_to(&self, n: u64) -> Purse {
        let mut purse = Purse::EMPTY;
        loop {
            let drawn = self.drawn.notified();
            tokio::pin!(drawn);
            drawn.as_mut().enable();
            purse.charged += self.lease.take_up_to(n - purse.charged);
            let rest = n - purse.charged;
            if rest == 0 {
                self.look_ahead();
                return purse;
            }
            match self.without_tokens(rest) {
                Attempt::Admitted(_) => {
                    purse.open = rest;
                    return purse;
                }
                Attempt::Refused => return purse,
                Attempt::Wait => self.ask(rest),
            }
            drawn.await;
        }
    }

    /// For what must not wait, and for what can't be refused any more: where the bucket would have
    /// to be asked and can't be at once, it is charged with the next draw. `None`: refused.
    pub fn take_now(&self, n: u64) -> Option<Charge> {
        match self.attempt(n) {
            Attempt::Admitted(charge) => Some(charge),
            Attempt::Refused => None,
            Attempt::Wait => match self.bucket.draw_now(n.saturating_sub(self.lease.tokens())) {
                Some(drawn) => {
                    self.lease.add(drawn);
                    self.lease.take(n).then_some(Charge(n)).or_else(|| self.is_empty_now())
                }
                None => {
                    self.owe(n);
                    Some(Charge(0))
                }
            },
        }
    }

    /// The bucket has just been found empty.
    fn is_empty_now(&self) -> Option<Charge> {
        self.slow.lock().back_off_until = Some(Instant::now() + self.settings.back_off);
        if self.settings.purpose == Purpose::Throughput {
            self.reached.raise();
        }
        None
    }

    /// Charges what is admitted whatever the budget says: a resend of what may be stored already.
    pub fn charge(&self, n: u64) -> Charge {
        if self.lease.take(n) {
            return Charge(n);
        }
        self.owe(n);
        Charge(0)
    }

    /// What was charged came to nothing.
    pub fn give_back(&self, charge: Charge) {
        self.lease.add(charge.0);
    }

    pub fn empty(&self, purse: Purse) {
        self.lease.add(purse.charged);
    }

    /// `licensed throughput reached` (QUO-9).
    pub fn reached(&self) -> &Reached {
        &self.reached
    }

    /// Tokens on lease and not used.
    pub fn leased(&self) -> u64 {
        self.lease.tokens()
    }

    fn owe(&self, n: u64) {
        self.owed.fetch_add(n, Ordering::Relaxed);
        self.wanted.notify_one();
    }

    fn ask(&self, n: u64) {
        self.slow.lock().need += n;
        self.wanted.notify_one();
    }

    /// The lease has too little for so many decisions: what now?
    fn without_tokens(&self, decisions: u64) -> Attempt {
        let now = Instant::now();
        let slow = self.slow.lock();
        if let Some(since) = slow.down_since {
            drop(slow);
            if self.settings.purpose == Purpose::Throughput {
                metrics::QUOTA_DEGRADED.add(decisions);
            }
            // QUO-8: open for a while; then new work waits for better times, and that says
            // nothing about the licence.
            let open = now.duration_since(since) < GRACE;
            return if open { Attempt::Admitted(Charge(0)) } else { Attempt::Refused };
        }
        if slow.back_off_until.is_none_or(|until| until <= now) {
            return Attempt::Wait;
        }
        drop(slow);
        if self.settings.purpose == Purpose::Throughput {
            self.reached.raise();
        }
        Attempt::Refused
    }

    /// Draws before the lease is empty, so that nobody has to wait for a steady stream.
    fn look_ahead(&self) {
        if self.lease.runs_low(self.settings.block / 16) {
            self.wanted.notify_one();
        }
    }
}
