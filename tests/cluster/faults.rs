//! Nodes die, stand still and leave under load, one after another, and everybody is held to every
//! acknowledgement. The publishers and subscribers are those of tests/crash.
//!
//! `SLUICE_CLUSTER_FAULTS=30` runs the long form; `SLUICE_CRASH_SEED=…` repeats the kind of a run.

use std::sync::Arc;
use std::time::Duration;

use crate::crew::{Crew, subscribed};
use crate::nodes::nodes;
use crate::support::{Broker, Level, Random};
use crate::world::{Phase, World};

const NODES: usize = 3;
const PUBLISHERS: usize = 3;
const SUBSCRIBERS: [(Level, u8); 3] = [(Level::V311, 1), (Level::V5, 2), (Level::V5, 1)];
/// What was begun must be finished in this time after the last fault.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGKILL, and a start right behind it or much later.
    Killed,
    /// SIGSTOP until the others take it for dead; it wakes, ends, and is started again.
    Stopped,
    /// SIGSTOP for less than that: nobody may notice.
    Slept,
    /// An orderly end, and a start.
    Left,
}

const ALL: [Fault; 4] = [Fault::Killed, Fault::Stopped, Fault::Left, Fault::Slept];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Three nodes, and everybody at work.
struct Run {
    world: Arc<World>,
    nodes: Vec<Broker>,
    random: Random,
    crew: Crew,
}

impl Run {
    fn start(seed: u64) -> Option<Run> {
        // Warnings are due while nodes come and go; errors and panics are not.
        let allowed = ["WARN", "this node ends"];
        let nodes = nodes(NODES, &allowed)?;
        let world = Arc::new(World::default());
        world.set_addresses(nodes.iter().map(Broker::address).collect());
        let mut random = Random::seeded(seed);
        let subscribers = subscribed(&world, &SUBSCRIBERS, &mut random);
        let crew = Crew::at_work(&world, subscribers, PUBLISHERS, &mut random);
        Some(Run { world, nodes, random, crew })
    }

    fn addresses_without(&self, gone: Option<usize>) {
        let there = self.nodes.iter().enumerate().filter(|(at, _)| Some(*at) != gone);
        self.world.set_addresses(there.map(|(_, node)| node.address()).collect());
    }

    fn suffer(&mut self, fault: Fault) {
        let at = self.random.below(NODES);
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
        }
        self.addresses_without(None);
    }
}

/// CLU-01, CLU-03, INV-1, INV-3, SES-06, QOS-01: whatever happens to one node at a time, what was
/// acknowledged comes once or more at QoS 1 and exactly once at QoS 2, in order, and no session
/// is lost, while publishers and subscribers go from node to node.
#[test]
fn what_was_acknowledged_survives_the_faults_of_nodes() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("SLUICE_CRASH_SEED").unwrap_or(now.as_nanos() as u64 % 1_000_000);
    eprintln!("seed: SLUICE_CRASH_SEED={seed}");
    let Some(mut run) = Run::start(seed) else { return };
    let faults = number("SLUICE_CLUSTER_FAULTS").unwrap_or(4) as usize;
    for round in 0..faults {
        std::thread::sleep(Duration::from_millis(500 + run.random.below(2000) as u64));
        let fault = ALL.get(round).copied().unwrap_or_else(|| *run.random.pick(&ALL));
        run.suffer(fault);
        if run.world.phase() == Phase::End {
            break;
        }
    }
    let (faults, came) = run.crew.finish(PATIENCE);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(came > 100, "only {came} messages: that was no load");
}
