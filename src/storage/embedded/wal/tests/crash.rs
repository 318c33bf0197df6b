//! The power fails, at any point, again and again.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::storage::embedded::wal::sim_disk::Random;

/// What must, may and must not be found at the next start.
#[derive(Default)]
struct Model {
    /// Offset → ticket: settled as stored and durable, or replayed once.
    must: BTreeMap<u64, u64>,
    /// Tickets that are surely not stored.
    never: BTreeSet<u64>,
    lens: BTreeMap<u64, usize>,
    /// No new frame may stand below: the greatest offset ever given out, lost or not.
    used_up_to: u64,
    next_ticket: u64,
    /// What the state above has made durable itself: below, the log may forget.
    checkpoint: u64,
}

impl Model {
    /// Takes in how tickets ended before the power failed.
    fn settle(&mut self, outcomes: &Outcomes, relaxed: &BTreeSet<u64>) {
        let mut last = self.used_up_to;
        for (&ticket, &outcome) in outcomes.by_ticket.lock().iter() {
            match outcome {
                AppendOutcome::Stored(position) => {
                    assert!(position.offset > last, "{position:?} is used or out of order");
                    last = position.offset;
                    if !relaxed.contains(&ticket) {
                        self.must.insert(position.offset, ticket);
                    }
                }
                AppendOutcome::NotStored => {
                    self.never.insert(ticket);
                }
                AppendOutcome::InDoubt => {}
            }
        }
        self.used_up_to = last;
    }

    /// The state above is durable up to one of the frames that are there.
    fn forget_below(&mut self, offset: u64) {
        self.checkpoint = offset;
        let kept = self.must.split_off(&offset);
        self.never.extend(std::mem::replace(&mut self.must, kept).into_values());
    }

    /// Compares a replay from the checkpoint; what it gave is there for good from now on, and
    /// what it did not give must never come back.
    fn check(&mut self, replayed: &Replayed) {
        let mut found = BTreeMap::new();
        let mut last = (0, None);
        for entry in replayed {
            let ticket = ticket_of(&entry.2);
            assert!(entry.0 > last.0, "offsets rise");
            assert!(Some(ticket) > last.1, "ticket {ticket} after {:?}", last.1);
            last = (entry.0, Some(ticket));
            assert!(!self.never.contains(&ticket), "ticket {ticket} was surely not stored");
            let len = *self.lens.get(&ticket).expect("nothing is invented");
            assert_same(entry, ticket, entry.0, len);
            found.insert(entry.0, ticket);
        }
        for (offset, ticket) in &self.must {
            assert_eq!(found.get(offset), Some(ticket), "durable, and gone from {offset}");
        }
        let there: BTreeSet<u64> = found.values().copied().collect();
        self.never.extend((0..self.next_ticket).filter(|ticket| !there.contains(ticket)));
        self.used_up_to = self.used_up_to.max(last.0);
        self.must = found;
    }
}

struct Run {
    random: Random,
    model: Model,
    faults: bool,
}

impl Run {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn fault(&mut self, disk: &SimDisk) {
        match self.below(8) {
            0 => disk.fail_writes(1 + self.below(3)),
            1 => disk.fail_write_after(self.below(6000)),
            2 => disk.fail_syncs(1 + self.below(3)),
            3 => disk.limit(Some(self.below(60_000))),
            4 => disk.limit(None),
            _ => {}
        }
    }

    /// Writes until the power fails; the disk as it is then.
    async fn live(&mut self, disk: &SimDisk) -> SimDisk {
        let crash_in = self.below(60);
        disk.crash_in(crash_in);
        let opened = open_at(&disk.disk(), small(), self.model.checkpoint);
        if let Some(image) = disk.crashed() {
            return image;
        }
        let (wal, replayed) = opened.expect("opens");
        self.model.check(&replayed);
        let known: Vec<u64> = self.model.must.keys().copied().collect();
        let outcomes = Outcomes::on(disk);
        let mut relaxed = BTreeSet::new();
        wal.start(Box::new(Applied::default()), Driver::Task);
        let image = loop {
            for _ in 0..self.below(6) {
                let len = [0, 30, 500, 5000][self.below(4) as usize] + self.below(300) as usize;
                let ticket = self.model.next_ticket;
                self.model.next_ticket += 1;
                self.model.lens.insert(ticket, len);
                let durability = match self.below(3) {
                    0 => Durability::Relaxed,
                    _ => Durability::Durable,
                };
                if durability == Durability::Relaxed {
                    relaxed.insert(ticket);
                }
                submit(&wal, &outcomes, ticket, len, durability);
            }
            if self.faults {
                self.fault(disk);
            }
            match self.below(3) {
                0 => tokio::time::sleep(Duration::from_millis(600)).await,
                _ => turn().await,
            }
            if let Some(image) = disk.crashed() {
                break image;
            }
            if !known.is_empty() && self.below(4) == 0 {
                let offset = known[self.below(known.len() as u64) as usize];
                if offset > self.model.checkpoint {
                    self.model.forget_below(offset);
                    drop(wal.remove_before(offset));
                }
            }
            // Once in a while the program alone ends: in peace, with nothing lost.
            if self.below(20) == 0 {
                disk.limit(None);
                drop(wal);
                break disk.crashed().unwrap_or_else(|| disk.crash());
            }
        };
        self.model.settle(&outcomes, &relaxed);
        image
    }
}

fn run(seed: u64, faults: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let random = Random(!seed);
    let mut run = Run { random, model: Model::default(), faults };
    let mut disk = SimDisk::new(seed);
    for _ in 0..6 {
        disk = runtime.block_on(run.live(&disk));
    }
    let opened = open_at(&disk.disk(), small(), run.model.checkpoint);
    let (_wal, replayed) = opened.expect("opens");
    run.model.check(&replayed);
}

fn run_all(seeds: std::ops::Range<u64>, faults: bool) {
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed, faults));
        assert!(result.is_ok(), "seed {seed} fails; its message is above");
    }
}

/// Invariant 2: what settled as durable is there after any crash, in order, with its bytes;
/// nothing is invented, nothing that was surely not stored comes back, no offset is used twice.
#[test]
fn every_durable_frame_outlives_crashes_at_any_point() {
    run_all(0..300, false);
}

/// Invariant 2, on a medium that fails, tears writes and is full now and then.
#[test]
fn every_durable_frame_outlives_crashes_of_a_faulty_disk() {
    run_all(1000..1300, true);
}
