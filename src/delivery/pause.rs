//! The wait of a persistent session after congestion (DEV-2, DEV-3): arithmetic over the instants
//! it is given. The timer runs in the writer task.

use std::time::Duration;

use tokio::time::Instant;

/// The waits between one look at the in-flight count and the next, about half a minute in all.
const LOOKS: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(3),
    Duration::from_secs(5),
    Duration::from_secs(9),
    Duration::from_secs(10),
];
/// Up to so much is added to each, so that the clients of one outage don't all come back at once.
const JITTER_MAX_MS: u64 = 1000;

/// Whether a session may take from its queue.
///
/// ```text
///           over high               under low, in flight > 0
/// open ──────────────→ congested ────────────────────────────→ draining
///  ↑                       └──────under low, in flight 0────→ open
///  └──── in flight 0 (an ack, or a look), or after the last look ────┘
/// ```
///
/// What ends a wait while the channel is over its high mark again leads back to congested. Going
/// over it does not begin the looks anew: the wait ends in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pause {
    #[default]
    Open,
    Congested,
    Draining {
        /// Looks so far.
        looks: usize,
        due: Instant,
    },
}

impl Pause {
    pub(super) fn is_open(self) -> bool {
        self == Pause::Open
    }

    /// When to look again, while waiting.
    pub(super) fn due(self) -> Option<Instant> {
        match self {
            Pause::Open | Pause::Congested => None,
            Pause::Draining { due, .. } => Some(due),
        }
    }

    /// The channel has become non-writable.
    pub(super) fn went_high(&mut self) {
        if *self == Pause::Open {
            *self = Pause::Congested;
        }
    }

    /// The channel has become writable again.
    pub(super) fn went_low(&mut self, in_flight: usize, now: Instant, dice: u64) {
        if *self == Pause::Congested {
            *self = match in_flight {
                0 => Pause::Open,
                _ => Pause::Draining { looks: 0, due: now + wait(0, dice) },
            };
        }
    }

    /// The last exchange in flight has ended.
    pub(super) fn drained(&mut self, writable: bool) {
        match *self {
            Pause::Open | Pause::Congested => {}
            Pause::Draining { .. } => *self = Self::ended(writable),
        }
    }

    /// Looks at the in-flight count, if it is time.
    pub(super) fn look(&mut self, in_flight: usize, writable: bool, now: Instant, dice: u64) {
        let Pause::Draining { looks, due } = *self else { return };
        if now < due {
            return;
        }
        let looks = looks + 1;
        *self = if in_flight == 0 || looks == LOOKS.len() {
            Self::ended(writable)
        } else {
            Pause::Draining { looks, due: now + wait(looks, dice) }
        };
    }

    fn ended(writable: bool) -> Self {
        if writable { Pause::Open } else { Pause::Congested }
    }
}

fn wait(look: usize, dice: u64) -> Duration {
    LOOKS[look] + Duration::from_millis(dice % (JITTER_MAX_MS + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until the pause is over; the instants at which it was looked at, in seconds.
    fn looks(dice: u64) -> Vec<f64> {
        let start = Instant::now();
        let (mut pause, mut now, mut at) = (Pause::Congested, start, Vec::new());
        pause.went_low(3, now, dice);
        while let Some(due) = pause.due() {
            pause.look(3, true, due - Duration::from_millis(1), dice);
            assert_eq!(pause.due(), Some(due), "nothing happens before it is due");
            now = due;
            at.push((now - start).as_secs_f64());
            pause.look(3, true, now, dice);
        }
        assert!(pause.is_open());
        at
    }

    /// DEV-3: looks after 1, 2, 3, 5, 9 and 10 s, each with up to 1 s of jitter; then it is over.
    #[test]
    fn the_looks_take_half_a_minute_in_all() {
        assert_eq!(looks(0), [1.0, 3.0, 6.0, 11.0, 20.0, 30.0]);
        assert_eq!(looks(1000), [2.0, 5.0, 9.0, 15.0, 25.0, 36.0]);
        assert_eq!(looks(1001), looks(0), "never more than a second");
    }

    /// DEV-3: nothing in flight, nothing to wait for.
    #[test]
    fn an_empty_window_ends_the_wait() {
        let now = Instant::now();
        let mut pause = Pause::default();
        pause.went_low(1, now, 0);
        assert!(pause.is_open(), "it was not congested");
        pause.went_high();
        assert!(!pause.is_open() && pause.due().is_none());
        pause.went_low(0, now, 0);
        assert!(pause.is_open());
        pause.went_high();
        pause.went_low(1, now, 0);
        assert!(!pause.is_open());
        pause.drained(true);
        assert!(pause.is_open());
        pause.went_high();
        pause.went_low(1, now, 0);
        pause.look(0, true, now + Duration::from_secs(1), 0);
        assert!(pause.is_open());
    }

    /// DEV-2: a wait that ends while the channel is full again ends congested; and being full
    /// again does not begin it anew.
    #[test]
    fn a_full_channel_stays_congested() {
        let now = Instant::now();
        let mut pause = Pause::Congested;
        pause.went_low(1, now, 0);
        let due = pause.due();
        pause.went_high();
        pause.went_low(1, now + Duration::from_millis(500), 0);
        assert_eq!(pause.due(), due);
        pause.drained(false);
        assert_eq!(pause, Pause::Congested);
    }
}
