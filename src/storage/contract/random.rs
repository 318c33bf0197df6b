//! Random mixes of appends, acks, marks, reservations, commits, crashes and restarts, against a
//! plain model. The seed is in every message, so a failure can be run again.

use std::collections::{BTreeMap, BTreeSet};

use super::kit::{client, run, text};
use super::{Factory, Harness, Options};
use crate::storage::{IdRun, QueueKey};

/// A small generator of its own: the cases must not depend on a crate for it.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What must be true of the queue.
#[derive(Debug, Default)]
struct Model {
    /// By sequence, everything ever routed into it.
    texts: BTreeMap<u64, String>,
    /// Acknowledged: gone, or back with DUP=1 after a crash.
    acked: BTreeSet<u64>,
    /// Acknowledged, and no crash since: surely gone.
    gone: BTreeSet<u64>,
    received: BTreeSet<u64>,
    runs: Vec<IdRun>,
    published: u64,
}

impl Model {
    fn publish(&mut self, count: u64) -> Vec<String> {
        let texts: Vec<String> = (0..count).map(|n| (self.published + n).to_string()).collect();
        for one in &texts {
            self.published += 1;
            self.texts.insert(self.published, one.clone());
        }
        texts
    }

    /// Compares one whole reading of the queue.
    fn check(&mut self, found: &[(u64, String, bool)], what: &str) {
        let mut there = BTreeSet::new();
        for (seq, text, received) in found {
            assert!(there.insert(*seq), "{what}: {seq} is there twice");
            assert_eq!(self.texts.get(seq), Some(text), "{what}: sequence {seq}");
            assert!(!self.gone.contains(seq), "{what}: {seq} came back without a crash");
            if self.received.contains(seq) {
                assert!(received, "{what}: the mark of {seq} is lost");
            }
            // The backend may bring it back: then it is owed again.
            self.acked.remove(seq);
        }
        for seq in self.texts.keys() {
            assert!(there.contains(seq) || self.acked.contains(seq), "{what}: {seq} is lost");
        }
    }
}

async fn read_all(harness: &Harness, queue: &QueueKey) -> Vec<(u64, String, bool)> {
    let (mut after, mut all) = (0, Vec::new());
    loop {
        let page = harness.page(queue, 1, after, 5).await;
        let Some(last) = page.messages.last() else { return all };
        after = last.seq;
        all.extend(page.messages.iter().map(|one| (one.seq, text(&one.message), one.received)));
    }
}

async fn step(harness: &mut Harness, queue: &QueueKey, model: &mut Model, dice: &mut Dice) {
    match dice.roll(12) {
        0..4 => {
            let texts = model.publish(1 + dice.roll(4));
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            harness.publish(&texts).await;
            if dice.roll(3) > 0 {
                harness.route(queue, 1).await;
            }
        }
        4..7 => {
            harness.route(queue, 1).await;
            let there = read_all(harness, queue).await;
            let start = if dice.roll(3) == 0 { dice.roll(4) as usize } else { 0 };
            let picked = there.iter().skip(start).take(1 + dice.roll(6) as usize);
            let seqs: Vec<u64> = picked.map(|one| one.0).collect();
            let above = seqs.last().map_or(0, |last| last + 1);
            harness.stores.queues.ack(queue, 1, &seqs, above);
            model.acked.extend(&seqs);
            model.gone.extend(&seqs);
        }
        7 => {
            harness.route(queue, 1).await;
            let there = read_all(harness, queue).await;
            let seqs: Vec<u64> = there.iter().take(2).map(|one| one.0).collect();
            harness.receive(queue, 1, &seqs).await;
            model.received.extend(&seqs);
        }
        8 => {
            let first = model.runs.last().map_or(1, |run| run.first_seq + u64::from(run.count));
            let reserved = run(first, 1 + (first % 60_000) as u16, 1 + dice.roll(9) as u16);
            harness.reserve(queue, 1, reserved).await;
            model.runs.push(reserved);
        }
        9 | 10 => {
            harness.route(queue, 1).await;
            harness.commit("state");
        }
        _ => {
            let orderly = dice.roll(3) == 0;
            if orderly {
                harness.restart().await;
            } else {
                harness.crash().await;
                model.gone.clear();
            }
            harness.route(queue, 1).await;
        }
    }
}

/// DEV-8, invariant 2: no entry is lost, none is there twice, sequences, marks and runs are what
/// they were, whatever happens.
pub async fn queues_survive_any_mix_of_crashes(factory: &dyn Factory) {
    for seed in 1..=factory.seeds() {
        let options = Options { seed, ..Options::default() };
        let mut harness = Harness::with(factory, options).await;
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (mut model, queue) = (Model::default(), client("c"));
        harness.open(&queue, 1).await;
        for number in 0..120 {
            step(&mut harness, &queue, &mut model, &mut dice).await;
            if number % 5 != 0 {
                continue;
            }
            harness.route(&queue, 1).await;
            let what = format!("seed {seed}, step {number}");
            let found = read_all(&harness, &queue).await;
            model.check(&found, &what);
            let state = harness.open(&queue, 1).await;
            assert_eq!(state.next_seq, model.published + 1, "{what}");
            let owed = |run: &&IdRun| {
                let covers = run.first_seq..run.first_seq + u64::from(run.count);
                found.iter().any(|one| covers.contains(&one.0)) || covers.end > state.next_seq
            };
            let runs: Vec<IdRun> = model.runs.iter().filter(owed).copied().collect();
            assert_eq!(state.runs, runs, "{what}");
        }
    }
}
