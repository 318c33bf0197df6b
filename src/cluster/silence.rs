//! When a node counts as dead: by the clock of whoever listens, and only while the log is heard.

use std::collections::HashMap;

/// Milliseconds; the caller has the clock.
#[derive(Debug)]
pub struct Silence {
    /// So long without a word, and it is dead.
    patience_ms: u64,
    /// Our own words come back at least so often, or it is the log that is silent.
    own_ms: u64,
    heard: HashMap<u64, u64>,
    /// When an own word came back, and since when they do without a gap.
    own: Option<(u64, u64)>,
}

impl Silence {
    pub fn new(patience_ms: u64, own_ms: u64) -> Self {
        Self { patience_ms, own_ms, heard: HashMap::new(), own: None }
    }

    /// A word of this run was read.
    pub fn heard(&mut self, run: u64, now_ms: u64) {
        self.heard.insert(run, now_ms);
    }

    /// An own word was read.
    pub fn heard_own(&mut self, now_ms: u64) {
        let since = match self.own {
            Some((last, since)) if now_ms.saturating_sub(last) <= self.own_ms => since,
            Some(_) | None => now_ms,
        };
        self.own = Some((now_ms, since));
    }

    /// Which of these runs are dead: they were silent all the time while we heard ourselves. Who
    /// was asleep begins to count anew.
    pub fn dead(&mut self, runs: impl Iterator<Item = u64>, now_ms: u64) -> Vec<u64> {
        let awake = self.own.filter(|(last, _)| now_ms.saturating_sub(*last) <= self.own_ms);
        let runs: Vec<u64> = runs.collect();
        self.heard.retain(|run, _| runs.contains(run));
        let Some((_, since)) = awake else { return Vec::new() };
        let mut dead = Vec::new();
        for run in runs {
            let last = *self.heard.entry(run).or_insert(now_ms);
            if now_ms.saturating_sub(last.max(since)) >= self.patience_ms {
                dead.push(run);
            }
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_for(silence: &mut Silence, from: u64, to: u64, talking: &[u64]) {
        for now in (from..to).step_by(1000) {
            silence.heard_own(now);
            talking.iter().for_each(|run| silence.heard(*run, now));
        }
    }

    /// A node that says nothing for six seconds, while the log is heard, is dead.
    #[test]
    fn the_silent_one_is_dead() {
        let mut silence = Silence::new(6000, 2500);
        run_for(&mut silence, 0, 10_000, &[1, 2]);
        assert!(silence.dead([1, 2].into_iter(), 10_000).is_empty());
        run_for(&mut silence, 10_000, 15_000, &[1]);
        assert!(silence.dead([1, 2].into_iter(), 14_500).is_empty());
        run_for(&mut silence, 15_000, 17_000, &[1]);
        assert_eq!(silence.dead([1, 2].into_iter(), 16_500), [2]);
    }

    /// When nobody is heard, it is Kafka that is away; and who wakes up late blames nobody.
    #[test]
    fn a_silent_log_kills_nobody() {
        let mut silence = Silence::new(6000, 2500);
        run_for(&mut silence, 0, 3000, &[1]);
        assert!(silence.dead([1].into_iter(), 30_000).is_empty());
        silence.heard_own(30_000);
        assert!(silence.dead([1].into_iter(), 30_100).is_empty());
        run_for(&mut silence, 31_000, 36_000, &[]);
        assert!(silence.dead([1].into_iter(), 35_500).is_empty());
        run_for(&mut silence, 36_000, 37_000, &[]);
        assert_eq!(silence.dead([1].into_iter(), 36_000), [1]);
        assert!(silence.dead([7].into_iter(), 36_000).is_empty(), "one that has just come");
    }
}
