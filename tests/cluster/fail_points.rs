//! A node dies between two steps of a message's way, again and again, while the others go on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::crew::{Crew, subscribed};
use crate::nodes::settled_nodes;
use crate::support::{Broker, Level, Random};
use crate::world::{Phase, World};

const SUBSCRIBERS: [(Level, u8); 3] = [(Level::V311, 1), (Level::V5, 2), (Level::V5, 1)];
const PATIENCE: Duration = Duration::from_secs(90);
/// At which pass it dies; a claim is passed less often than the others.
const PASSES: [(&str, u32); 7] = [
    ("claim.stored", 4),
    ("publish.stored", 60),
    ("queue.appending", 60),
    ("queue.appended", 60),
    ("batch.dispatched", 100),
    ("commit.written", 20),
    ("delivery.acknowledged", 60),
];

/// A node that dies at `point`, as long as `fuse` is there.
fn settings(point: (&str, u32), fuse: &std::path::Path) -> Vec<(String, String)> {
    let text = format!("{}:{}:{}", point.0, point.1, fuse.display());
    vec![("SLUICE_FAIL_POINT".to_owned(), text)]
}

/// Each node has a place of its own to die at; when all have died there once, everybody is asked.
fn die_at(points: &[(&str, u32)]) {
    let folder = tempfile::tempdir().unwrap();
    let fuses: Vec<PathBuf> = points.iter().map(|(name, _)| folder.path().join(name)).collect();
    let own: Vec<_> = points.iter().zip(&fuses).map(|(one, fuse)| settings(*one, fuse)).collect();
    let Some(mut nodes) = settled_nodes(&own, &["WARN", "this node ends"]) else { return };
    let world = Arc::new(World::default());
    let addresses = |nodes: &[Broker]| nodes.iter().map(Broker::address).collect();
    world.set_addresses(addresses(&nodes));
    let mut random = Random::seeded(7);
    let subscribers = subscribed(&world, &SUBSCRIBERS, &mut random);
    fuses.iter().for_each(|fuse| std::fs::write(fuse, "").unwrap());
    let crew = Crew::at_work(&world, subscribers, 3, &mut random);
    let deadline = Instant::now() + PATIENCE;
    while fuses.iter().any(|fuse| fuse.exists()) && world.phase() != Phase::End {
        assert!(Instant::now() < deadline, "not all of {points:?} were passed");
        std::thread::sleep(Duration::from_millis(50));
        for (node, fuse) in nodes.iter_mut().zip(&fuses) {
            if fuse.exists() && !node.is_running() {
                std::fs::remove_file(fuse).unwrap();
                node.start_again();
            }
        }
        world.set_addresses(addresses(&nodes));
    }
    std::thread::sleep(Duration::from_secs(1));
    let (faults, came) = crew.finish(PATIENCE);
    assert!(faults.is_empty(), "{points:?}: {}", faults.join("\n"));
    assert!(came > 100, "only {came} messages: that was no load");
}

/// INV-1, INV-2, QOS-01, STO-03: behind the claim, before and behind the append to a queue, before
/// an acknowledgement.
#[test]
fn a_node_dies_on_the_way_into_queues() {
    die_at(&[PASSES[0], PASSES[2], PASSES[3]]);
}

/// The same before PUBACK, at the end of a batch, and behind a commit.
#[test]
fn a_node_dies_around_its_commit() {
    die_at(&[PASSES[1], PASSES[4], PASSES[5]]);
}

/// The same with what a subscriber has acknowledged, and its queue has not heard of.
#[test]
fn a_node_dies_with_an_acknowledgement_in_its_hands() {
    die_at(&[PASSES[6], PASSES[1]]);
}
