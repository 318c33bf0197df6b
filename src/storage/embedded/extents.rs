//! What bounds a queue: a number of messages and a life, or a retention by size and age. Sizes are
//! kept by stretches of the queue, as a log has segments: what is acknowledged in between may be
//! in the projection only, and its size is known to nobody.

use std::collections::VecDeque;
use std::time::Duration;

use crate::storage::QueueKey;

/// A retention by size goes by steps of this share of it: then the oldest stretch goes.
const STEPS: u64 = 64;

/// How much a queue may hold. Over it the oldest go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Messages(u64),
    Bytes(u64),
}

/// The bounds of all queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// `mqtt.persistent-session.device.persisted-messages.limit` and `.ttl` (DEV-5, DEV-6).
    pub(super) messages: u64,
    pub(super) life_ms: u64,
    /// `retention.bytes` and `retention.ms` of APPLICATION clients (APP-3); `None`: no bound.
    pub(super) application_bytes: Option<u64>,
    pub(super) application_life_ms: Option<u64>,
    /// The same of APPLICATION groups (SHR-4).
    pub(super) shared_bytes: Option<u64>,
    pub(super) shared_life_ms: Option<u64>,
}

impl Default for Bounds {
    fn default() -> Self {
        let week_ms = 604_800_000;
        Self {
            messages: 10_000,
            life_ms: week_ms,
            application_bytes: Some(1_048_576_000),
            application_life_ms: Some(week_ms),
            shared_bytes: Some(1_048_576_000),
            shared_life_ms: Some(week_ms),
        }
    }
}

impl Bounds {
    /// How much the queue may hold, and how long a message that has no expiry of its own.
    pub(super) fn of(&self, queue: &QueueKey) -> (Bound, Option<u64>) {
        match queue {
            QueueKey::Client(_) | QueueKey::Group(_) => {
                (Bound::Messages(self.messages), Some(self.life_ms))
            }
            QueueKey::Application(_) => {
                let bytes = self.application_bytes.unwrap_or(u64::MAX);
                (Bound::Bytes(bytes), self.application_life_ms)
            }
            QueueKey::Shared(_) => {
                let bytes = self.shared_bytes.unwrap_or(u64::MAX);
                (Bound::Bytes(bytes), self.shared_life_ms)
            }
        }
    }
}

/// A time in the unit of the log; what does not fit lasts for ever.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Stretches of a queue: where each ends, and what it held when it was filled. At most two for
/// each step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extents {
    stretches: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Extents {
    /// Adds messages of these sizes from `first_seq` on.
    pub(super) fn add(&mut self, first_seq: u64, sizes: impl Iterator<Item = u64>, most: u64) {
        let step = (most / STEPS).max(1);
        for (seq, size) in (first_seq..).zip(sizes) {
            self.bytes += size;
            match self.stretches.back_mut() {
                Some((end, bytes)) if *bytes < step => (*end, *bytes) = (seq + 1, *bytes + size),
                Some(_) | None => self.stretches.push_back((seq + 1, size)),
            }
        }
    }

    /// Adds a stretch as it was written.
    pub(super) fn push(&mut self, end: u64, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.stretches.push_back((end, bytes));
    }

    /// Takes the oldest stretch off when all together are over the bound; where it ends. The
    /// newest one always stays.
    pub(super) fn over(&mut self, most: u64) -> Option<u64> {
        if self.bytes <= most || self.stretches.len() < 2 {
            return None;
        }
        self.pop()
    }

    /// Everything below `floor` was acknowledged.
    pub(super) fn forget_below(&mut self, floor: u64) {
        while self.stretches.front().is_some_and(|(end, _)| *end <= floor) {
            self.pop();
        }
    }

    fn pop(&mut self) -> Option<u64> {
        let (end, bytes) = self.stretches.pop_front()?;
        self.bytes -= bytes;
        Some(end)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.stretches.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mqtt::ClientId;

    /// SHR-4, APP-3: clients and groups each have their own bounds, and no number of messages.
    #[test]
    fn logs_of_groups_have_a_retention_of_their_own() {
        let bounds = Bounds { shared_bytes: Some(7), shared_life_ms: None, ..Bounds::default() };
        let group = bounds.of(&QueueKey::Shared(Arc::from("$share/g/t")));
        assert_eq!(group, (Bound::Bytes(7), None));
        let client = bounds.of(&QueueKey::Application(ClientId::new("$share/g/t")));
        assert_eq!(client, (Bound::Bytes(1_048_576_000), Some(604_800_000)));
        let device = bounds.of(&QueueKey::Group(Arc::from("$share/g/t")));
        assert_eq!(device.0, Bound::Messages(10_000));
    }

    /// APP-3: the oldest stretch goes when all are over the retention, and no more than that.
    #[test]
    fn the_oldest_stretch_goes_over_the_retention() {
        let mut extents = Extents::default();
        extents.add(1, (0..640).map(|_| 10), 6400);
        assert_eq!(extents.over(6400), None);
        extents.add(641, std::iter::once(10), 6400);
        assert_eq!(extents.over(6400), Some(11));
        assert_eq!(extents.over(6400), None);
        extents.forget_below(11);
        assert_eq!(extents.iter().next(), Some((21, 100)));
        extents.forget_below(30);
        assert_eq!(extents.iter().next(), Some((31, 100)));
    }
}
