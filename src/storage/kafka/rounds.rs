//! What leaves for Kafka together. A round leaves when the one before it was answered and its gap
//! has passed, or when it is large enough; the first one after a rest leaves at once.
//!
//! librdkafka's own lingering knows two states of a message, too young and overdue. While five
//! records of a partition are on their way, it asks an idempotent producer's socket without a pause
//! whether an overdue one may follow: a pause of the broker costs a processor until it ends. So it
//! is given nothing that would have to wait there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::time::Instant;

/// A round of so many bytes does not wait for its gap.
const ENOUGH: usize = 16 << 10;
/// Nothing came while the last round was away: whoever sends waits for its answer, and is expected
/// so soon behind it. The gap would bring no more company.
const REPLIES: Duration = Duration::from_micros(500);
/// So many gaps pass between rounds, however large they are, while this node reads less than is
/// appended: what came sooner would only wait behind them.
const BEHIND: u32 = 2;

/// Records that wait for their round, in order. Bounded by what callers have open, as appends are.
pub(super) struct Rounds<T> {
    /// At least so long between two rounds.
    gap: Duration,
    /// A round is one request: records above this wait for the next one.
    most: usize,
    behind: AtomicBool,
    inner: Mutex<Inner<T>>,
    due: Condvar,
}

struct Inner<T> {
    waiting: Vec<(usize, T)>,
    bytes: usize,
    /// Records of the last round that were not answered.
    away: usize,
    left: Option<Instant>,
    /// When it was answered, if nothing had come meanwhile.
    alone: Option<Instant>,
    /// Whoever waits for a round has been told of this one.
    known: bool,
    ended: bool,
}

impl<T> Rounds<T> {
    pub(super) fn new(gap: Duration, most: usize) -> Self {
        let inner = Inner {
            waiting: Vec::new(),
            bytes: 0,
            away: 0,
            left: None,
            alone: None,
            known: false,
            ended: false,
        };
        let behind = AtomicBool::new(false);
        Self { gap, most, behind, inner: Mutex::new(inner), due: Condvar::new() }
    }

    /// Whether this node's reader has more in hand than it should.
    pub(super) fn set_behind(&self, behind: bool) {
        self.behind.store(behind, Ordering::Relaxed);
    }

    pub(super) fn push(&self, record: T, bytes: usize) {
        let mut inner = self.inner.lock();
        let enough = inner.bytes < ENOUGH && inner.bytes + bytes >= ENOUGH;
        inner.bytes += bytes;
        inner.waiting.push((bytes, record));
        if inner.away == 0 {
            self.tell(&mut inner, enough);
        }
    }

    /// The round that is due, if there is one.
    pub(super) fn take(&self) -> Vec<(usize, T)> {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        if inner.waiting.is_empty() || inner.away > 0 || self.wait_of(&inner, now).is_some() {
            return Vec::new();
        }
        let mut bytes = 0;
        let fits = inner.waiting.iter().take_while(|(size, _)| {
            bytes += size;
            bytes <= self.most
        });
        let count = fits.count().max(1);
        let round = match count == inner.waiting.len() {
            true => std::mem::take(&mut inner.waiting),
            false => inner.waiting.drain(..count).collect(),
        };
        inner.bytes -= round.iter().map(|(size, _)| size).sum::<usize>();
        inner.away = round.len();
        inner.left = Some(now);
        round
    }

    /// How long a round that could leave is to wait for company.
    fn wait_of(&self, inner: &Inner<T>, now: Instant) -> Option<Duration> {
        let left = inner.left?;
        let mut at = left + self.gap;
        if self.behind.load(Ordering::Relaxed) {
            at = left + self.gap * BEHIND;
        } else if inner.bytes >= ENOUGH {
            return None;
        } else if let Some(answered) = inner.alone {
            at = at.min(answered + REPLIES);
        }
        let wait = at.saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }

    /// One record of the last round was answered, or was not sent.
    pub(super) fn answered(&self) {
        let mut inner = self.inner.lock();
        inner.away = inner.away.saturating_sub(1);
        if inner.away > 0 {
            return;
        }
        inner.alone = inner.waiting.is_empty().then(Instant::now);
        if inner.alone.is_none() {
            self.tell(&mut inner, false);
        }
    }

    fn tell(&self, inner: &mut Inner<T>, anew: bool) {
        if !std::mem::replace(&mut inner.known, true) || anew {
            self.due.notify_one();
        }
    }

    /// Waits until a round is due; `false`: the end came. One waits.
    pub(super) fn wait(&self) -> bool {
        let mut inner = self.inner.lock();
        while !inner.ended {
            inner.known = !inner.waiting.is_empty() && inner.away == 0;
            if !inner.known {
                self.due.wait(&mut inner);
                continue;
            }
            let Some(wait) = self.wait_of(&inner, Instant::now()) else { return true };
            self.due.wait_for(&mut inner, wait);
        }
        false
    }

    /// What waits is given up, and no answer is waited for any more.
    pub(super) fn clear(&self) {
        let mut inner = self.inner.lock();
        (inner.bytes, inner.away, inner.left, inner.alone) = (0, 0, None, None);
        inner.waiting.clear();
    }

    pub(super) fn end(&self) {
        self.inner.lock().ended = true;
        self.due.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn taken(rounds: &Rounds<u8>) -> Vec<u8> {
        rounds.take().into_iter().map(|(_, record)| record).collect()
    }

    /// Decision 5: one round is on its way at a time, and nothing overtakes.
    #[test]
    fn a_round_leaves_when_the_one_before_was_answered() {
        let rounds = Rounds::new(Duration::ZERO, 100);
        rounds.push(1, 10);
        assert_eq!(taken(&rounds), [1], "the first one leaves at once");
        rounds.push(2, 10);
        rounds.push(3, 10);
        assert!(taken(&rounds).is_empty());
        rounds.answered();
        assert_eq!(taken(&rounds), [2, 3]);
        rounds.answered();
        rounds.push(4, 10);
        assert!(taken(&rounds).is_empty(), "one of two was answered");
        rounds.answered();
        assert!(rounds.wait());
        assert_eq!(taken(&rounds), [4]);
    }

    /// What comes within the gap waits for company, until there is enough of it.
    #[test]
    fn a_round_waits_for_company() {
        let rounds = Rounds::new(LONG, 10 * ENOUGH);
        rounds.push(1, 10);
        assert_eq!(taken(&rounds), [1]);
        rounds.push(2, 10);
        rounds.answered();
        assert!(taken(&rounds).is_empty());
        rounds.push(3, ENOUGH);
        assert!(rounds.wait());
        assert_eq!(taken(&rounds), [2, 3]);
    }

    /// A client that waits for each acknowledgement does not wait for the gap, too.
    #[test]
    fn whoever_waits_for_an_answer_is_not_kept_waiting() {
        let rounds = Rounds::new(LONG, 100);
        for record in 1..4 {
            rounds.push(record, 10);
            assert!(rounds.wait());
            assert_eq!(taken(&rounds), [record]);
            rounds.answered();
        }
    }

    /// When more is appended than is read, large rounds wait, too; for a while.
    #[test]
    fn a_reader_that_is_behind_slows_rounds_down() {
        let rounds = Rounds::new(LONG, 10 * ENOUGH);
        rounds.push(1, 10);
        assert_eq!(taken(&rounds), [1]);
        rounds.push(2, ENOUGH);
        rounds.answered();
        rounds.set_behind(true);
        assert!(taken(&rounds).is_empty());
        rounds.set_behind(false);
        assert_eq!(taken(&rounds), [2]);
    }

    /// INV-5: a round is one request; a record that is larger by itself goes alone.
    #[test]
    fn a_round_has_its_size() {
        let rounds = Rounds::new(Duration::ZERO, 100);
        for (record, bytes) in [(1, 60), (2, 40), (3, 1), (4, 500), (5, 1)] {
            rounds.push(record, bytes);
        }
        for round in [&[1, 2][..], &[3], &[4], &[5]] {
            assert_eq!(taken(&rounds), round);
            round.iter().for_each(|_| rounds.answered());
        }
    }

    /// A producer that is replaced begins anew, and an end ends the wait.
    #[test]
    fn what_is_given_up_does_not_hold_the_next_round() {
        let rounds = Rounds::new(LONG, 100);
        rounds.push(1, 10);
        assert_eq!(taken(&rounds), [1]);
        rounds.push(2, 10);
        rounds.clear();
        rounds.push(3, 10);
        assert_eq!(taken(&rounds), [3]);
        rounds.end();
        assert!(!rounds.wait());
    }
}
