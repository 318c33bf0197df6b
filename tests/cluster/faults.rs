//! Nodes die, stand still and leave under load, brokers of Kafka and masters of Redis die, one
//! after another, and everybody is held to every acknowledgement. The publishers and subscribers
//! are those of tests/crash.
//!
//! `SLUICE_CLUSTER_FAULTS=30` runs the long forms; `SLUICE_CRASH_SEED=…` repeats the kind of a run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::Signal;

use crate::crew::{Crew, subscribed};
use crate::nodes::{nodes, nodes_with};
use crate::redis_server::ask;
use crate::services::{Services, services};
use crate::support::{Broker, Level, Random};
use crate::world::{Phase, World};

const NODES: usize = 3;
const PUBLISHERS: usize = 3;
const SUBSCRIBERS: [(Level, u8); 3] = [(Level::V311, 1), (Level::V5, 2), (Level::V5, 1)];
/// What was begun must be finished in this time after the last fault.
const PATIENCE: Duration = Duration::from_secs(90);
/// What of Kafka and Redis came back must have all that it missed in this time.
const CATCH_UP: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGKILL, and a start right behind it or much later.
    Killed,
    /// SIGKILL of two nodes in one moment.
    TwoKilled,
    /// SIGSTOP until the others take it for dead; it wakes, ends, and is started again.
    Stopped,
    /// SIGSTOP for less than that: nobody may notice.
    Slept,
    /// An orderly end, and a start.
    Left,
    /// All nodes leave and come back, one after another.
    Rolled,
    /// SIGKILL of one of three Kafka brokers, most often the leader of something.
    KafkaKilled,
    /// SIGKILL of a master of Redis: Sentinel, or the others of its cluster, promote a replica.
    RedisKilled,
}

const OF_NODES: [Fault; 5] =
    [Fault::Killed, Fault::Stopped, Fault::TwoKilled, Fault::Left, Fault::Slept];
const OF_CLUSTER: [Fault; 3] = [Fault::RedisKilled, Fault::Killed, Fault::TwoKilled];
const OF_ALL: [Fault; 8] = [
    Fault::KafkaKilled,
    Fault::RedisKilled,
    Fault::Killed,
    Fault::Stopped,
    Fault::Rolled,
    Fault::TwoKilled,
    Fault::Left,
    Fault::Slept,
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// What a number of tries is worth: the seed is printed.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("SLUICE_CRASH_SEED").unwrap_or(now.as_nanos() as u64 % 1_000_000);
    eprintln!("seed: SLUICE_CRASH_SEED={seed}");
    seed
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + CATCH_UP;
    while !holds() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Services that fail: brokers of Kafka, and a Redis that has replicas.
struct Outside {
    services: Services,
    redis: Vec<u16>,
    /// How many masters it has, and how many replicas each.
    masters: usize,
    replicas: usize,
}

impl Outside {
    /// Three brokers of Kafka; a master of Redis with two replicas, watched by three Sentinels.
    fn with_sentinels() -> Self {
        let services = Services::start(&["--kafka", "3", "--redis", "sentinel"]).unwrap();
        Outside { redis: services.redis_ports(), services, masters: 1, replicas: 2 }
    }

    /// One broker of Kafka; three masters of Redis share the slots, with a replica each.
    fn with_redis_cluster() -> Self {
        let services = Services::start(&["--kafka", "1", "--redis", "cluster"]).unwrap();
        Outside { redis: services.redis_ports(), services, masters: 3, replicas: 1 }
    }

    /// Every partition has all its replicas in step.
    fn kafka_is_whole(&self) -> bool {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.services.kafka());
        let client: BaseConsumer = config.create().unwrap();
        let Ok(seen) = client.fetch_metadata(None, Duration::from_secs(5)) else { return false };
        let whole = |topic: &rdkafka::metadata::MetadataTopic| {
            topic.partitions().iter().all(|one| one.isr().len() == one.replicas().len())
        };
        seen.brokers().len() == 3 && seen.topics().iter().all(whole)
    }

    /// Which of `redis1`, … are masters; none while not all have their replicas in step.
    fn redis_masters(&self) -> Vec<usize> {
        let has = |port: u16, words: &[&str]| {
            let info = ask(port, &["INFO", "replication"]).unwrap_or_default();
            words.iter().all(|word| info.contains(word))
        };
        let count = format!("connected_slaves:{}", self.replicas);
        let mut in_step = vec!["role:master", &count];
        in_step.extend(&["slave0:", "slave1:"][..self.replicas]);
        let all = || self.redis.iter().enumerate();
        let masters = all().filter(|(_, port)| has(**port, &in_step)).map(|(at, _)| at);
        let masters: Vec<usize> = masters.collect();
        let follows = ["role:slave", "master_link_status:up"];
        let following = all().filter(|(_, port)| has(**port, &follows)).count();
        let whole = masters.len() == self.masters && following == self.masters * self.replicas;
        if whole { masters } else { Vec::new() }
    }

    fn redis_is_whole(&self) -> bool {
        !self.redis_masters().is_empty()
    }

    fn suffer(&self, fault: Fault, random: &mut Random) {
        let pause = Duration::from_millis(1000 + random.below(6000) as u64);
        let name = if fault == Fault::KafkaKilled {
            format!("kafka{}", 1 + random.below(3))
        } else {
            wait_until("masters with their replicas", || self.redis_is_whole());
            format!("redis{}", 1 + random.pick(&self.redis_masters()))
        };
        eprintln!("{fault:?}: {name} for {pause:?}");
        self.services.act("kill", &name);
        std::thread::sleep(pause);
        self.services.act("start", &name);
        // A second one that went before the first is back could take with it what only it had.
        match fault {
            Fault::KafkaKilled => wait_until("replicas in step", || self.kafka_is_whole()),
            _ => wait_until("masters with their replicas", || self.redis_is_whole()),
        }
    }
}

/// Three nodes, and everybody at work.
struct Run {
    world: Arc<World>,
    nodes: Vec<Broker>,
    random: Random,
    crew: Crew,
    /// Behind the nodes, so that they go first.
    outside: Option<Outside>,
}

impl Run {
    fn start(seed: u64, outside: Option<Outside>) -> Option<Run> {
        // Warnings are due while nodes come and go; errors and panics are not.
        let allowed = ["WARN", "this node ends"];
        let nodes = match &outside {
            None => nodes(NODES, &allowed)?,
            Some(outside) => {
                let settings = outside.services.settings();
                let each = settings.iter().map(|(name, value)| (&**name, &**value));
                nodes_with(NODES, &each.collect::<Vec<_>>(), &allowed)?
            }
        };
        let world = Arc::new(World::default());
        world.set_addresses(nodes.iter().map(Broker::address).collect());
        let mut random = Random::seeded(seed);
        let subscribers = subscribed(&world, &SUBSCRIBERS, &mut random);
        let crew = Crew::at_work(&world, subscribers, PUBLISHERS, &mut random);
        Some(Run { world, nodes, random, crew, outside })
    }

    fn addresses_without(&self, gone: Option<usize>) {
        let there = self.nodes.iter().enumerate().filter(|(at, _)| Some(*at) != gone);
        self.world.set_addresses(there.map(|(_, node)| node.address()).collect());
    }

    fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::KafkaKilled | Fault::RedisKilled => {
                let outside = self.outside.as_ref().expect("these faults need it");
                outside.suffer(fault, &mut self.random);
            }
            Fault::Rolled => (0..NODES).for_each(|at| self.at_a_node(Fault::Left, at)),
            Fault::TwoKilled => self.at_two_nodes(),
            Fault::Killed | Fault::Stopped | Fault::Slept | Fault::Left => {
                let at = self.random.below(NODES);
                self.at_a_node(fault, at);
            }
        }
    }

    fn at_two_nodes(&mut self) {
        let stays = self.random.below(NODES);
        eprintln!("TwoKilled: all but node {stays}");
        self.world.set_addresses(vec![self.nodes[stays].address()]);
        let mut gone: Vec<usize> = (0..NODES).filter(|at| *at != stays).collect();
        gone.iter().for_each(|at| self.nodes[*at].signal(Signal::KILL));
        gone.iter().for_each(|at| _ = self.nodes[*at].await_exit());
        std::thread::sleep(Duration::from_millis(self.random.below(9000) as u64));
        if self.random.below(2) == 0 {
            gone.reverse();
        }
        gone.iter().for_each(|at| self.nodes[*at].start_again());
        self.addresses_without(None);
    }

    fn at_a_node(&mut self, fault: Fault, at: usize) {
        eprintln!("{fault:?}: node {at}");
        self.addresses_without(Some(at));
        let pause = Duration::from_millis(self.random.below(6000) as u64);
        let node = &mut self.nodes[at];
        match fault {
            Fault::Killed => {
                node.kill();
                std::thread::sleep(pause);
                node.start_again();
            }
            Fault::Stopped => {
                node.pause();
                std::thread::sleep(Duration::from_secs(14));
                node.resume();
                assert_eq!(node.await_exit().code(), Some(1), "{}", node.log());
                node.start_again();
            }
            Fault::Slept => {
                node.pause();
                std::thread::sleep(Duration::from_millis(500));
                node.resume();
            }
            Fault::Left => {
                node.stop();
                node.start_again();
            }
            Fault::Rolled | Fault::TwoKilled | Fault::KafkaKilled | Fault::RedisKilled => {}
        }
        self.addresses_without(None);
    }

    /// The first faults are the first kinds, the others by chance; then everybody is asked.
    fn through(mut self, kinds: &[Fault], faults: usize) {
        for round in 0..faults {
            std::thread::sleep(Duration::from_millis(500 + self.random.below(2000) as u64));
            let fault = kinds.get(round).copied();
            let fault = fault.unwrap_or_else(|| *self.random.pick(kinds));
            self.suffer(fault);
            if self.world.phase() == Phase::End {
                break;
            }
        }
        let (faults, came) = self.crew.finish(PATIENCE);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(came > 100, "only {came} messages: that was no load");
    }
}

/// CLU-01, CLU-03, INV-1, INV-3, SES-06, QOS-01: whatever happens to one node at a time, what was
/// acknowledged comes once or more at QoS 1 and exactly once at QoS 2, in order, and no session
/// is lost, while publishers and subscribers go from node to node.
#[test]
fn what_was_acknowledged_survives_the_faults_of_nodes() {
    let Some(run) = Run::start(seed(), None) else { return };
    run.through(&OF_NODES, number("SLUICE_CLUSTER_FAULTS").unwrap_or(5) as usize);
}

/// The same while brokers of Kafka (three, of which two must have a message) and masters of Redis
/// die, too (STO-01, STO-03, design decision 6).
#[test]
fn what_was_acknowledged_survives_the_faults_of_kafka_and_redis() {
    if services().is_none() {
        return;
    }
    let Some(run) = Run::start(seed(), Some(Outside::with_sentinels())) else { return };
    run.through(&OF_ALL, number("SLUICE_CLUSTER_FAULTS").unwrap_or(3) as usize);
}

/// The same on a Redis whose slots are shared by three masters (STO-03, design decisions 4, 6).
#[test]
fn what_was_acknowledged_survives_the_faults_of_a_redis_cluster() {
    if services().is_none() {
        return;
    }
    let Some(run) = Run::start(seed(), Some(Outside::with_redis_cluster())) else { return };
    run.through(&OF_CLUSTER, number("SLUICE_CLUSTER_FAULTS").unwrap_or(2) as usize);
}
