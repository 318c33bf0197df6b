//! `licensed throughput reached` (QUO-9): raised when the quota refuses, for an operator to see.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::telemetry::{Throttle, clock};

/// How long it stands when nobody acknowledges it, from when it was first raised.
const STANDS: Duration = Duration::from_secs(300);

static SAID: Throttle = Throttle::per_minute();

#[derive(Debug, Default)]
pub struct Reached(Mutex<Option<(Instant, u64)>>);

impl Reached {
    pub(super) fn raise(&self) {
        if let Some(unsaid) = SAID.ready() {
            tracing::warn!(unsaid, "licensed throughput reached: messages are refused");
        }
        let mut raised = self.0.lock();
        let stands = raised.is_some_and(|(at, _)| at.elapsed() < STANDS);
        if !stands {
            *raised = Some((Instant::now(), clock::wall_ms()));
        }
    }

    /// Since when it stands, milliseconds of wall clock.
    pub fn since_ms(&self) -> Option<u64> {
        let raised = *self.0.lock();
        raised.filter(|(at, _)| at.elapsed() < STANDS).map(|(_, wall_ms)| wall_ms)
    }

    pub fn acknowledge(&self) {
        *self.0.lock() = None;
    }
}
