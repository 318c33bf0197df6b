//! When each message is due. Open loop: the send times come from the schedule alone, so that a
//! broker which stalls the sender can't hide the stall from the latencies.

/// Ticks are at least this long: at high rates all messages of a tick are due at its end,
/// together, and the event loop wakes at most 5 000 times a second.
const TICK_NS: u64 = 200_000;

/// Due times of numbered messages at a steady rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    start_ns: u64,
    period_ns: f64,
}

impl Schedule {
    pub(super) fn new(start_ns: u64, per_second: u64) -> Schedule {
        Schedule { start_ns, period_ns: 1e9 / per_second as f64 }
    }

    /// When message `number` (0, 1, 2 …, over all publishers) is due. At low rates that is its
    /// own moment; at high rates the end of the tick it falls into.
    #[inline]
    pub(super) fn due_ns(&self, number: u64) -> u64 {
        let offset = (number as f64 * self.period_ns) as u64;
        if self.period_ns >= TICK_NS as f64 {
            return self.start_ns + offset;
        }
        self.start_ns + offset.div_ceil(TICK_NS) * TICK_NS
    }
}

/// Walks the schedule for the publishers of one thread. Message n of publisher j, of P in all,
/// has the number n * P + j, whichever thread j lives in.
#[derive(Debug)]
pub(super) struct Pacer {
    schedule: Schedule,
    /// Global numbers of this thread's publishers, ascending.
    publishers: Vec<u32>,
    all: u64,
    round: u64,
    at: usize,
}

impl Pacer {
    pub(super) fn new(schedule: Schedule, publishers: Vec<u32>, all: u32) -> Pacer {
        Pacer { schedule, publishers, all: u64::from(all), round: 0, at: 0 }
    }

    /// When the next message of this thread is due; `None` if it has no publisher.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let publisher = *self.publishers.get(self.at)?;
        Some(self.schedule.due_ns(self.round * self.all + u64::from(publisher)))
    }

    /// Takes the next message if it is due by `now_ns`: the index, in this thread's list, of
    /// the publisher that owes one message more.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<usize> {
        if self.next_due_ns()? > now_ns {
            return None;
        }
        let owing = self.at;
        self.at += 1;
        if self.at == self.publishers.len() {
            (self.at, self.round) = (0, self.round + 1);
        }
        Some(owing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_a_low_rate_each_message_has_its_own_moment() {
        let schedule = Schedule::new(1_000, 1_000);
        assert_eq!(schedule.due_ns(0), 1_000);
        assert_eq!(schedule.due_ns(3), 3_001_000);
    }

    #[test]
    fn at_a_high_rate_messages_are_due_at_the_end_of_their_tick() {
        let schedule = Schedule::new(0, 100_000);
        assert_eq!(schedule.due_ns(1), TICK_NS);
        assert_eq!(schedule.due_ns(20), TICK_NS);
        assert_eq!(schedule.due_ns(21), 2 * TICK_NS);
    }

    #[test]
    fn the_rate_is_kept_over_an_hour() {
        let schedule = Schedule::new(0, 700_000);
        assert_eq!(schedule.due_ns(700_000 * 3_600), 3_600_000_000_000);
    }

    #[test]
    fn two_threads_share_the_schedule_without_gap_or_overlap() {
        let schedule = Schedule::new(0, 1_000);
        let mut even = Pacer::new(schedule, vec![0, 2, 4], 5);
        let mut odd = Pacer::new(schedule, vec![1, 3], 5);
        let mut taken = [0; 5];
        while let Some(at) = even.take(9_999_999) {
            taken[[0, 2, 4][at]] += 1;
        }
        while let Some(at) = odd.take(9_999_999) {
            taken[[1, 3][at]] += 1;
        }
        assert_eq!(taken, [2; 5], "10 ms at 1 000/s are 10 messages, 2 for each publisher");
        assert_eq!(even.next_due_ns(), Some(10_000_000));
        assert_eq!(odd.next_due_ns(), Some(11_000_000));
    }

    #[test]
    fn a_late_caller_gets_all_that_became_due_with_the_times_of_the_schedule() {
        let schedule = Schedule::new(0, 1_000);
        let mut pacer = Pacer::new(schedule, vec![0], 1);
        let mut owed = 0;
        while pacer.take(50_000_000).is_some() {
            owed += 1;
        }
        assert_eq!(owed, 51);
        assert_eq!(schedule.due_ns(7), 7_000_000);
    }
}
