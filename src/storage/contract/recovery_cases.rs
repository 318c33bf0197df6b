//! What crashes and restarts leave of queues and commits.

use super::kit::{client, run, text};
use super::{Factory, Harness};
use crate::storage::Durability;

/// After a crash either an older pair of commit and state or the newest is found, never a mixture.
pub async fn commit_and_state_are_a_pair_after_a_crash(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let mut pairs = vec![(harness.committed.position, String::new())];
    for n in 0..30_u64 {
        harness.publish(&[&n.to_string()]).await;
        harness.drain().await;
        harness.commit(&n.to_string());
        pairs.push((harness.read, n.to_string()));
        if n % 7 != 6 {
            continue;
        }
        harness.crash().await;
        let found = String::from_utf8_lossy(&harness.committed.state).into_owned();
        let at = pairs.iter().position(|pair| pair.1 == found).expect("a state that was given");
        // A backend may move a commit over what is not the consumer's.
        assert!(harness.committed.position >= pairs[at].0);
        pairs.truncate(at + 1);
        let next = found.parse::<u64>().map_or(0, |state| state + 1);
        let next = (next <= n).then(|| next.to_string());
        let again = harness.drain().await;
        assert_eq!(again.first().cloned(), next, "the replay begins behind the commit");
        assert_eq!(again.last().cloned().unwrap_or(found), n.to_string());
        harness.commit(&n.to_string());
        pairs.push((harness.read, n.to_string()));
    }
}

/// DEV-8: a backend that loses the tail of a queue loses the commit above it, too, and the replay
/// fills it again: nothing is missing, nothing is there twice, sequences are the same.
pub async fn a_queue_lost_in_a_crash_is_filled_again_by_the_replay(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    harness.open(&queue, 1).await;
    let mut expected = Vec::new();
    for n in 0..60_u64 {
        let one = n.to_string();
        harness.publish(&[&one, "-"]).await;
        harness.route(&queue, 1).await;
        expected.extend([(2 * n + 1, one), (2 * n + 2, "-".to_owned())]);
        if n % 3 == 0 {
            harness.commit("state");
        }
        if n % 11 == 10 {
            harness.crash().await;
            harness.route(&queue, 1).await;
            assert_eq!(harness.queue(&queue, 1).await, expected, "after crash {n}");
        }
    }
    harness.restart().await;
    harness.route(&queue, 1).await;
    assert_eq!(harness.queue(&queue, 1).await, expected);
    assert_eq!(harness.stores.queues.depth(&queue), 120);
}

/// Decision 4 and MQTT-4.3.3: a mark and a run are durable when they settle, even when the entry
/// itself must be brought back by the replay.
pub async fn marks_and_runs_survive_a_crash(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    harness.open(&queue, 1).await;
    harness.publish(&["a", "b", "c"]).await;
    harness.route(&queue, 1).await;
    harness.reserve(&queue, 1, run(1, 10, 8)).await;
    harness.receive(&queue, 1, &[2]).await;
    for round in 0..3 {
        harness.crash().await;
        harness.route(&queue, 1).await;
        let state = harness.open(&queue, 1).await;
        assert_eq!(state.runs, [run(1, 10, 8)], "round {round}");
        assert!(state.sent_below >= 4, "round {round}: a resend carries DUP=1");
        let page = harness.page(&queue, 1, 0, 9).await;
        let found: Vec<(u64, String, bool)> =
            page.messages.iter().map(|one| (one.seq, text(&one.message), one.received)).collect();
        let expected =
            [(1, "a".to_owned(), false), (2, "b".to_owned(), true), (3, "c".to_owned(), false)];
        assert_eq!(found, expected, "round {round}");
        // Told, but not the last word: a crash hides what was sent after it.
        harness.stores.queues.ack(&queue, 1, &[], 2);
        harness.commit("");
    }
}

/// An orderly end keeps everything: acks, the cursor, the commit.
pub async fn an_ack_survives_an_orderly_restart(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    harness.open(&queue, 1).await;
    harness.publish(&["a", "b", "c", "d"]).await;
    harness.route(&queue, 1).await;
    harness.commit("");
    harness.reserve(&queue, 1, run(1, 1, 4)).await;
    harness.stores.queues.ack(&queue, 1, &[1, 3], 4);
    harness.stores.queues.ack(&queue, 1, &[], 4);
    for _ in 0..2 {
        harness.restart().await;
        assert_eq!(harness.queue(&queue, 1).await, [(2, "b".into()), (4, "d".into())]);
        assert_eq!(harness.open(&queue, 1).await.sent_below, 4);
    }
}

/// FLO-10: what was sent before a crash carries DUP=1 also when the client comes back only after
/// an orderly restart that followed it.
pub async fn a_crash_is_not_forgotten_by_an_orderly_restart(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    harness.open(&queue, 1).await;
    harness.publish(&["a", "b", "c"]).await;
    harness.route(&queue, 1).await;
    harness.commit("");
    harness.reserve(&queue, 1, run(1, 10, 8)).await;
    harness.stores.queues.ack(&queue, 1, &[], 1);
    harness.restart().await;
    assert_eq!(harness.open(&queue, 1).await.sent_below, 1, "nothing was sent so far");
    // All three are sent now, and nobody gets to say so.
    harness.crash().await;
    harness.restart().await;
    assert!(harness.open(&queue, 1).await.sent_below >= 4);
}

/// Which queues there are is decided in one order with everything else, crash or not.
pub async fn opens_and_removals_survive_in_order(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let (kept, gone) = (client("kept"), client("gone"));
    harness.open(&kept, 1).await;
    harness.open(&gone, 1).await;
    harness.publish(&["for the first"]).await;
    harness.route(&kept, 1).await;
    harness.open(&kept, 2).await;
    harness.stores.queues.remove(&gone, 1);
    harness.publish(&["for the second"]).await;
    harness.route(&kept, 2).await;
    for round in 0..3 {
        harness.append(&["filler"], Durability::Relaxed);
        harness.crash().await;
        let state = harness.open(&kept, 2).await;
        assert_eq!(state.incarnation, 2, "round {round}");
        // The replay brings the first message, too: its incarnation is over.
        let mut second = false;
        while !second {
            let batch = harness.next().await;
            for (source, message) in super::kit::messages(&batch) {
                let text = text(&message);
                let incarnation = if text == "for the first" { 1 } else { 2 };
                second |= text == "for the second";
                let entries = vec![super::kit::entry(source, message)];
                if text != "filler" {
                    harness.enqueue(&kept, incarnation, entries).await;
                }
            }
        }
        let found = harness.queue(&kept, 2).await;
        assert_eq!(found, [(1, "for the second".to_owned())], "round {round}");
        assert_eq!(harness.stores.queues.depth(&gone), 0, "round {round}");
        let read = harness.stores.queues.read(&gone, 1, 0, 9, 9).await;
        assert!(read.is_err(), "round {round}");
    }
}
