//! The kills: load, SIGKILL, loss of what was not synced, start, and at the end the oracle.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::crew::{Crew, subscribed};
use crate::keeper::Keeper;
use crate::lost_writes::{Disk, Loss, on_lossy_disk};
use crate::support::{Broker, Client, Connect, Level, Random, Start};
use crate::world::{Phase, World};

const PUBLISHERS: usize = 4;
const SUBSCRIBERS: [(Level, u8); 4] =
    [(Level::V311, 1), (Level::V5, 1), (Level::V311, 2), (Level::V5, 2)];
/// What was begun must be finished in this time after the last kill.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run: everybody at work, and a broker that dies again and again.
struct Run {
    world: Arc<World>,
    broker: Broker,
    disk: Disk,
    random: Random,
    crew: Crew,
    keeper: JoinHandle<Keeper>,
    /// Changes to files that kills took back.
    lost: usize,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("SLUICE_CRASH_SEED").unwrap_or(now.as_nanos() as u64 % 1_000_000);
    eprintln!("seed: SLUICE_CRASH_SEED={seed}");
    seed
}

impl Run {
    /// The broker with the subscribers' sessions, after a first end: in peace and with all of it on
    /// the disk, or by a kill that loses all that was not synced.
    fn start(start: Start, seed: u64, in_peace: bool) -> Option<Run> {
        let start = start
            .env("MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT", 65_535)
            .env("STORAGE_EMBEDDED_CHECKPOINT_INTERVAL_MS", 100)
            .env("LOST_WRITES_SYNC_WAIT_US", 1000);
        let mut broker = on_lossy_disk(start)?.start();
        let world = Arc::new(World::default());
        world.set_address(Some(broker.address()));
        let mut random = Random::seeded(seed);
        let subscribers = subscribed(&world, &SUBSCRIBERS, &mut random);
        if in_peace {
            broker.stop();
            Disk::of(&broker).lose(Loss::Nothing, &mut random);
        } else {
            broker.kill();
            Disk::of(&broker).lose(Loss::Everything, &mut random);
        }
        broker.start_again();
        world.set_address(Some(broker.address()));

        let crew = Crew::at_work(&world, subscribers, PUBLISHERS, &mut random);
        let keeper = Keeper::new(Arc::clone(&world), random.next());
        let keeper = std::thread::spawn(move || keeper.run());
        let disk = Disk::of(&broker);
        Some(Run { world, broker, disk, random, crew, keeper, lost: 0 })
    }

    fn kill(&mut self, loss: Loss) {
        self.world.set_address(None);
        self.broker.kill();
        self.lost += self.disk.lose(loss, &mut self.random);
    }

    /// One round: some work, then a kill.
    fn round(&mut self, loss: Option<Loss>) {
        let some = *self.random.pick(&[Loss::Some, Loss::Some, Loss::Everything, Loss::Nothing]);
        let loss = loss.unwrap_or(some);
        std::thread::sleep(Duration::from_millis(20 + self.random.below(400) as u64));
        self.kill(loss);
        // Now and then it dies again while it recovers.
        while self.random.below(5) == 0 {
            let soon = Duration::from_millis(self.random.below(150) as u64);
            self.broker.start_and_kill(soon);
            self.lost += self.disk.lose(loss, &mut self.random);
        }
        self.broker.start_again();
        self.world.set_address(Some(self.broker.address()));
    }

    /// Lets everybody finish; what was wrong, and how many messages came.
    fn finish(self) -> (Vec<String>, usize) {
        let (mut faults, came) = self.crew.finish(PATIENCE);
        let keeper = self.keeper.join().unwrap();
        // The keeper may say something behind the others' end.
        let late = self.world.faults().into_iter().filter(|fault| !faults.contains(fault));
        faults.extend(late.collect::<Vec<_>>());
        eprintln!("{} changes lost, {} checks", self.lost, keeper.checks);
        (faults, came)
    }
}

/// STO-03, QOS-06, INV-1, INV-2, INV-3, MQTT-4.3.2-4, MQTT-4.3.3-8, MQTT-4.4.0-1, MQTT-4.6.0-5:
/// after kills at random moments, with the loss of all or a part of what was not synced, every
/// acknowledged message comes once or more at QoS 1 and exactly once at QoS 2, in order, DUP=1 on
/// what is sent again only; sessions, subscriptions and retained messages are kept.
#[test]
fn what_was_acknowledged_survives_kills_and_lost_writes() {
    let kills = number("SLUICE_CRASH_KILLS").unwrap_or(5);
    let Some(mut run) = Run::start(Start::new(), seed(), false) else { return };
    assert!(run.disk.syncs() > 0, "the shim sees no syncs");
    for _ in 0..kills {
        run.round(None);
        if run.world.phase() == Phase::End {
            break;
        }
    }
    assert!(run.disk.syncs() > 0 && run.disk.writes() > 0, "the shim sees no syncs or writes");
    let (faults, came) = run.finish();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(came > 100, "only {came} messages: that was no load");
}

/// The harness can fail: with `STORAGE_EMBEDDED_SYNC=never` the same run loses what was
/// acknowledged, and the oracle says so.
#[test]
fn without_syncs_the_oracle_finds_the_loss() {
    let start = Start::new().env("STORAGE_EMBEDDED_SYNC", "never").allow_log("sync");
    let Some(mut run) = Run::start(start, seed(), true) else { return };
    for _ in 0..20 {
        if run.world.phase() == Phase::End {
            break;
        }
        run.round(Some(Loss::Everything));
    }
    let (faults, _) = run.finish();
    let lost = |fault: &String| {
        ["missing", "was lost", "retained", "copies came"].iter().any(|word| fault.contains(word))
    };
    eprintln!("found: {faults:?}");
    assert!(faults.iter().any(lost), "nothing was lost without a sync: {faults:?}");
}

/// How many of a hundred acknowledged messages a session that was away doesn't get after one kill
/// with the loss of everything unsynced.
fn lost_of_a_hundred(sync: &str) -> Option<usize> {
    let start = Start::new().env("STORAGE_EMBEDDED_SYNC", sync).allow_log("sync is never");
    let mut broker = on_lossy_disk(start)?.start();
    let connect = Connect::v5("away").persistent();
    Client::connect(&broker, &connect).subscribe("t", 1);
    broker.stop();
    let (disk, mut random) = (Disk::of(&broker), Random::seeded(1));
    disk.lose(Loss::Nothing, &mut random);
    broker.start_again();
    let mut publisher = Client::connect(&broker, &Connect::v311("publisher"));
    (0..100).for_each(|number| assert_eq!(publisher.publish("t", number.to_string(), 1), 0));
    broker.kill();
    disk.lose(Loss::Everything, &mut random);
    broker.start_again();
    let mut away = Client::connect(&broker, &connect);
    Some(100 - away.drain(Duration::from_millis(300)).len())
}

/// INV-2: syncing is what keeps acknowledged messages, and the shim's loss is what takes them.
#[test]
fn acknowledged_messages_are_kept_by_syncs_and_by_nothing_else() {
    let Some(lost) = lost_of_a_hundred("never") else { return };
    assert_eq!(lost, 100, "without syncs");
    assert_eq!(lost_of_a_hundred("always"), Some(0), "with syncs");
}
