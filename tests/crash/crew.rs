//! The clients of a run, and its end: everybody finishes, and is asked what came.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::publisher::Publisher;
use crate::subscriber::Subscriber;
use crate::support::{Level, Random};
use crate::world::{Phase, World};

const STEP: Duration = Duration::from_millis(20);

/// Subscribers that have their SUBACK.
pub(crate) fn subscribed(
    world: &Arc<World>,
    kinds: &[(Level, u8)],
    random: &mut Random,
) -> Vec<Subscriber> {
    let subscriber = |&(level, qos): &(Level, u8)| {
        let mut subscriber = Subscriber::new(Arc::clone(world), level, qos, random.next());
        assert!(subscriber.subscribe(), "no SUBACK");
        subscriber
    };
    kinds.iter().map(subscriber).collect()
}

/// Everybody, at work.
pub(crate) struct Crew {
    world: Arc<World>,
    publishers: Vec<JoinHandle<()>>,
    subscribers: Vec<JoinHandle<Subscriber>>,
}

impl Crew {
    pub(crate) fn at_work(
        world: &Arc<World>,
        subscribers: Vec<Subscriber>,
        publishers: usize,
        random: &mut Random,
    ) -> Crew {
        let spawn = |subscriber: Subscriber| std::thread::spawn(move || subscriber.run());
        let subscribers = subscribers.into_iter().map(spawn).collect();
        let publishers = (0..publishers)
            .map(|index| {
                let publisher = Publisher::new(Arc::clone(world), index, random.next());
                std::thread::spawn(move || publisher.run())
            })
            .collect();
        Crew { world: Arc::clone(world), publishers, subscribers }
    }

    /// Lets everybody finish in this time; what was wrong, and how many messages came.
    pub(crate) fn finish(self, patience: Duration) -> (Vec<String>, usize) {
        let deadline = Instant::now() + patience;
        let world = &self.world;
        if world.phase() == Phase::Load {
            world.set_phase(Phase::Finish);
        }
        let late = |done: bool| !done && world.phase() != Phase::End && Instant::now() < deadline;
        while late(self.publishers.iter().all(JoinHandle::is_finished)) {
            std::thread::sleep(STEP);
        }
        if !self.publishers.iter().all(JoinHandle::is_finished) {
            world.fault("publishers wait for acknowledgements that don't come".to_owned());
        }
        while late(self.subscribers.iter().all(JoinHandle::is_finished)) {
            std::thread::sleep(STEP);
        }
        world.set_phase(Phase::End);
        self.publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        let subscribers: Vec<Subscriber> =
            self.subscribers.into_iter().map(|subscriber| subscriber.join().unwrap()).collect();
        let mut faults = world.faults();
        let (mut came, mut repeats) = (0, 0);
        for subscriber in subscribers {
            repeats += subscriber.repeats();
            match subscriber.verdict() {
                Ok(messages) => came += messages,
                Err(what) => faults.push(what),
            }
        }
        // Said here: what the brokers' logs are then refused for may be its consequence.
        eprintln!("{came} messages, {repeats} repeats, faults: {faults:?}");
        (faults, came)
    }
}
