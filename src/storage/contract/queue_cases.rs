//! `DeviceQueues` and `TokenBucket`, without a crash.

use std::sync::Arc;

use super::kit::{client, entry, messages, run, text};
use super::{Factory, Harness, Options};
use crate::storage::{Appended, QueueAppend, QueueEntry, QueueKey, StorageError};
use crate::telemetry::{Direction, DropReason, dropped_so_far};

async fn filled(harness: &mut Harness, queue: &QueueKey, texts: &[&str]) -> Vec<QueueEntry> {
    harness.open(queue, 1).await;
    harness.publish(texts).await;
    let mut entries: Vec<QueueEntry> = Vec::new();
    while entries.len() < texts.len() {
        let batch = harness.next().await;
        entries.extend(messages(&batch).into_iter().map(|(source, one)| entry(source, one)));
    }
    harness.enqueue(queue, 1, entries.clone()).await;
    entries
}

fn seqs(queue: &[(u64, String)]) -> Vec<u64> {
    queue.iter().map(|one| one.0).collect()
}

/// DEV-8: sequences start at 1 and rise by one; what was appended is visible at once, whole.
pub async fn entries_get_rising_sequences_and_read_back(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let (queue, group) = (client("c"), QueueKey::Group(Arc::from("g")));
    let state = harness.open(&queue, 1).await;
    assert_eq!((state.incarnation, state.next_seq, state.runs.len()), (1, 1, 0));
    assert!(state.sent_below <= 1, "nothing was sent");
    harness.open(&group, 1).await;
    harness.publish(&["a", "b"]).await;
    let answers = harness.route(&queue, 1).await;
    assert_eq!(answers[0], Appended::Taken { first_seq: 1, skipped: 0 });
    harness.publish(&["c"]).await;
    let entries: Vec<QueueEntry> =
        messages(&harness.next().await).into_iter().map(|(s, m)| entry(s, m)).collect();
    let run = |queue: &QueueKey| QueueAppend {
        queue: queue.clone(),
        incarnation: 1,
        entries: entries.clone(),
    };
    let appends = vec![run(&queue), run(&client("nobody")), run(&group)];
    let answers = harness.stores.queues.append(appends).await.expect("a healthy backend appends");
    let expected = [
        Appended::Taken { first_seq: 3, skipped: 0 },
        Appended::NoQueue,
        Appended::Taken { first_seq: 1, skipped: 0 },
    ];
    assert_eq!(answers, expected, "answers stand in the order of the runs");
    let page = harness.page(&queue, 1, 0, 10).await;
    assert_eq!(page.next_seq, 4);
    let found: Vec<(u64, String)> =
        page.messages.iter().map(|one| (one.seq, text(&one.message))).collect();
    assert_eq!(found, [(1, "a".into()), (2, "b".into()), (3, "c".into())]);
    let (one, was) = (&page.messages[2], &entries[0]);
    assert_eq!((one.delivery, one.received), (was.delivery, false));
    assert_eq!(one.subscription_ids, was.subscription_ids);
    assert_eq!(harness.queue(&group, 1).await, [(1, "c".to_owned())]);
    let depths = [&queue, &group, &client("nobody")].map(|key| harness.stores.queues.depth(key));
    assert_eq!(depths, [3, 1, 0]);
}

/// DEV-8: a source identity is taken once, also in part of a run.
pub async fn a_source_is_taken_once(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    let entries = filled(&mut harness, &queue, &["a", "b", "c"]).await;
    let again = harness.enqueue(&queue, 1, entries.clone()).await;
    assert_eq!(again, Appended::Taken { first_seq: 4, skipped: 3 });
    harness.publish(&["d"]).await;
    let fresh = messages(&harness.next().await).into_iter().map(|(s, m)| entry(s, m));
    let overlap: Vec<QueueEntry> = entries[1..].iter().cloned().chain(fresh).collect();
    let taken = harness.enqueue(&queue, 1, overlap).await;
    assert_eq!(taken, Appended::Taken { first_seq: 4, skipped: 2 });
    // An acknowledged entry does not come back either.
    harness.stores.queues.ack(&queue, 1, &[1, 2, 3, 4], 5);
    harness.enqueue(&queue, 1, entries).await;
    assert!(harness.queue(&queue, 1).await.is_empty());
    assert_eq!(harness.stores.queues.depth(&queue), 0);
}

pub async fn pages_obey_their_bounds(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    let large = "x".repeat(1000);
    filled(&mut harness, &queue, &[&large, &large, "y"]).await;
    let page = harness.page(&queue, 1, 1, 1).await;
    assert_eq!(page.messages.iter().map(|one| one.seq).collect::<Vec<_>>(), [2]);
    let queues = &harness.stores.queues;
    let page = queues.read(&queue, 1, 0, 10, 1).await.expect("reads");
    assert_eq!(page.messages.len(), 1, "at least one message");
    let page = queues.read(&queue, 1, 0, 10, 2500).await.expect("reads");
    assert!((2..=3).contains(&page.messages.len()), "about as many bytes as asked for");
    let page = queues.read(&queue, 1, 3, 10, 2500).await.expect("reads");
    assert!(page.messages.is_empty() && page.next_seq == 4);
}

pub async fn acks_forget_in_any_order(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    filled(&mut harness, &queue, &["a", "b", "c", "d", "e"]).await;
    harness.stores.queues.ack(&queue, 1, &[4, 2], 5);
    assert_eq!(seqs(&harness.queue(&queue, 1).await), [1, 3, 5]);
    harness.stores.queues.ack(&queue, 1, &[2, 77, 1], 5);
    assert_eq!(seqs(&harness.queue(&queue, 1).await), [3, 5]);
    assert_eq!(harness.stores.queues.depth(&queue), 2);
    let state = harness.open(&queue, 1).await;
    assert_eq!((state.next_seq, state.sent_below), (6, 5), "the cursor is kept for DUP");
}

/// A call for another incarnation changes nothing.
pub async fn calls_for_another_incarnation_change_nothing(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    let entries = filled(&mut harness, &queue, &["a", "b"]).await;
    harness.publish(&["c"]).await;
    let fresh = messages(&harness.next().await).into_iter().map(|(s, m)| entry(s, m)).collect();
    assert_eq!(harness.enqueue(&queue, 2, fresh).await, Appended::NoQueue);
    assert_eq!(harness.enqueue(&client("d"), 1, entries).await, Appended::NoQueue);
    harness.stores.queues.ack(&queue, 2, &[1], 9);
    harness.stores.queues.remove(&queue, 2);
    harness.receive(&queue, 2, &[1]).await;
    harness.reserve(&queue, 2, run(1, 1, 9)).await;
    let read = harness.stores.queues.read(&queue, 2, 0, 9, 9999).await;
    assert!(matches!(read, Err(StorageError::Fenced)), "another incarnation's reader is told");
    let state = harness.open(&queue, 1).await;
    assert_eq!((state.next_seq, state.runs.len()), (3, 0));
    let page = harness.page(&queue, 1, 0, 9).await;
    assert_eq!(page.messages.iter().map(|one| one.received).collect::<Vec<_>>(), [false, false]);
}

/// DEV-8: a clean start empties the queue and counts what it held as `Session ended`.
pub async fn a_new_incarnation_empties_the_queue(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    filled(&mut harness, &queue, &["a", "b"]).await;
    let before = dropped_so_far(DropReason::SessionEnded, Direction::Outbound);
    let state = harness.open(&queue, 2).await;
    assert_eq!((state.incarnation, state.next_seq), (2, 1));
    assert!(dropped_so_far(DropReason::SessionEnded, Direction::Outbound) >= before + 2);
    assert!(harness.queue(&queue, 2).await.is_empty());
    harness.publish(&["c"]).await;
    harness.route(&queue, 2).await;
    assert_eq!(harness.queue(&queue, 2).await, [(1, "c".to_owned())]);
    assert_eq!(harness.open(&queue, 2).await.next_seq, 2, "the same incarnation goes on");
}

/// DEV-8: the session ended: the queue is gone, and its name is free.
pub async fn removal_ends_the_queue(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    filled(&mut harness, &queue, &["a"]).await;
    let before = dropped_so_far(DropReason::SessionEnded, Direction::Outbound);
    harness.stores.queues.remove(&queue, 1);
    // An open that comes after it, of whatever incarnation, finds it done.
    let state = harness.open(&queue, 1).await;
    assert_eq!(state.next_seq, 1);
    assert!(dropped_so_far(DropReason::SessionEnded, Direction::Outbound) > before);
    assert_eq!(harness.stores.queues.depth(&queue), 0);
}

/// DEV-5: over the limit the oldest go first, counted as `Queue limit exceeded`.
pub async fn over_the_limit_the_oldest_go(factory: &dyn Factory) {
    let options = Options { queue_limit: 3, ..Options::default() };
    let mut harness = Harness::with(factory, options).await;
    let queue = client("c");
    let before = dropped_so_far(DropReason::QueueLimitExceeded, Direction::Outbound);
    filled(&mut harness, &queue, &["a", "b", "c", "d", "e"]).await;
    assert!(dropped_so_far(DropReason::QueueLimitExceeded, Direction::Outbound) >= before + 2);
    assert_eq!(seqs(&harness.queue(&queue, 1).await), [3, 4, 5]);
    harness.publish(&["f"]).await;
    harness.route(&queue, 1).await;
    assert_eq!(seqs(&harness.queue(&queue, 1).await), [4, 5, 6]);
    assert_eq!(harness.stores.queues.depth(&queue), 3);
}

/// DEV-5: an entry whose PUBREC came keeps its exchange.
pub async fn received_entries_are_never_trimmed(factory: &dyn Factory) {
    let options = Options { queue_limit: 3, ..Options::default() };
    let mut harness = Harness::with(factory, options).await;
    let queue = client("c");
    filled(&mut harness, &queue, &["a", "b", "c"]).await;
    harness.receive(&queue, 1, &[1]).await;
    harness.publish(&["d", "e"]).await;
    harness.route(&queue, 1).await;
    assert_eq!(seqs(&harness.queue(&queue, 1).await), [1, 4, 5]);
}

/// MQTT-4.3.3-8: PUBREL is owed once the mark has settled, until the entry is acknowledged.
pub async fn received_marks_show_once_settled(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    filled(&mut harness, &queue, &["a", "b", "c"]).await;
    harness.receive(&queue, 1, &[2, 99]).await;
    let page = harness.page(&queue, 1, 0, 9).await;
    let received: Vec<bool> = page.messages.iter().map(|one| one.received).collect();
    assert_eq!(received, [false, true, false]);
    harness.stores.queues.ack(&queue, 1, &[2], 3);
    assert_eq!(seqs(&harness.queue(&queue, 1).await), [1, 3]);
}

/// Design decision 4: a run shows as long as it covers something that is not acknowledged, or
/// that is still to come.
pub async fn reserved_runs_show_until_acknowledged(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    filled(&mut harness, &queue, &["a", "b", "c", "d"]).await;
    harness.reserve(&queue, 1, run(1, 65_535, 2)).await;
    harness.reserve(&queue, 1, run(3, 2, 4)).await;
    let state = harness.open(&queue, 1).await;
    assert_eq!(state.runs, [run(1, 65_535, 2), run(3, 2, 4)]);
    assert!(state.sent_below >= 5, "everything in a reserved run may have been sent");
    harness.stores.queues.ack(&queue, 1, &[1, 2], 4);
    assert_eq!(harness.open(&queue, 1).await.runs, [run(3, 2, 4)]);
    harness.stores.queues.ack(&queue, 1, &[3, 4], 5);
    assert_eq!(harness.open(&queue, 1).await.runs, [run(3, 2, 4)], "5 and 6 are to come");
}

/// A sender that tells its cursor when it lets go spares what it never sent the DUP flag.
pub async fn an_exact_cursor_spares_the_dup_flag(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    filled(&mut harness, &queue, &["a", "b", "c", "d"]).await;
    harness.reserve(&queue, 1, run(1, 1, 4)).await;
    harness.stores.queues.ack(&queue, 1, &[1], 3);
    harness.stores.queues.ack(&queue, 1, &[], 3);
    assert_eq!(harness.open(&queue, 1).await.sent_below, 3);
}

/// SHR-5: an entry says of which group it is; what is in another queue by now leaves this one,
/// whoever has it, and the sender's cursor stays as it was.
pub async fn what_moves_leaves_its_queue_alone(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let queue = client("c");
    harness.open(&queue, 1).await;
    harness.publish(&["a", "b", "c", "d", "e"]).await;
    let mut entries: Vec<QueueEntry> = Vec::new();
    while entries.len() < 5 {
        let batch = harness.next().await;
        entries.extend(messages(&batch).into_iter().map(|(source, one)| entry(source, one)));
    }
    entries[2].group = Some(u64::MAX - 7);
    harness.enqueue(&queue, 1, entries.clone()).await;
    harness.reserve(&queue, 1, run(1, 1, 8)).await;
    harness.stores.queues.ack(&queue, 1, &[], 3);
    let page = harness.page(&queue, 1, 0, 9).await;
    let groups: Vec<Option<u64>> = page.messages.iter().map(|one| one.group).collect();
    assert_eq!(groups, [None, None, Some(u64::MAX - 7), None, None]);
    let queues = Arc::clone(&harness.stores.queues);
    queues.take_out(&queue, 2, &[1]).await.expect("another session's: ignored");
    queues.take_out(&queue, 1, &[3, 4, 77]).await.expect("a healthy backend takes out");
    assert_eq!(seqs(&harness.queue(&queue, 1).await), [1, 2, 5]);
    assert_eq!(queues.depth(&queue), 3);
    // Neither does a replay bring it back.
    harness.enqueue(&queue, 1, entries).await;
    assert_eq!(seqs(&harness.queue(&queue, 1).await), [1, 2, 5]);
    let state = harness.open(&queue, 1).await;
    assert_eq!((state.sent_below, state.next_seq), (3, 6), "what was sent is known exactly");
    queues.take_out(&queue, 1, &[1, 2, 5]).await.expect("a healthy backend takes out");
    assert_eq!(harness.queue(&queue, 1).await, []);
}

/// DEV-6: the publisher's expiry, else the configured time to live, from the time of receipt.
pub async fn expiry_is_the_publishers_or_the_default(factory: &dyn Factory) {
    let options = Options { queue_ttl_ms: 5_000, ..Options::default() };
    let mut harness = Harness::with(factory, options).await;
    let queue = client("c");
    harness.open(&queue, 1).await;
    harness.publish(&["a", "b"]).await;
    let mut entries: Vec<QueueEntry> =
        messages(&harness.next().await).into_iter().map(|(s, m)| entry(s, m)).collect();
    entries[1].expires_at_ms = Some(77);
    harness.enqueue(&queue, 1, entries).await;
    let page = harness.page(&queue, 1, 0, 9).await;
    let expiries: Vec<Option<u64>> = page.messages.iter().map(|one| one.expires_at_ms).collect();
    assert_eq!(expiries, [Some(1_005_000), Some(77)]);
}

/// QUO-1: a draw gives as many tokens as there are; what comes back never exceeds the capacity.
pub async fn the_bucket_gives_what_it_has(factory: &dyn Factory) {
    let options = Options { tokens: 10, ..Options::default() };
    let harness = Harness::with(factory, options).await;
    let bucket = &harness.stores.bucket;
    assert_eq!(bucket.draw(4).await.expect("draws"), 4);
    assert_eq!(bucket.draw(100).await.expect("draws"), 6);
    assert_eq!(bucket.draw(1).await.expect("draws"), 0);
    bucket.give_back(3).await.expect("takes them");
    assert_eq!(bucket.draw(100).await.expect("draws"), 3);
    bucket.give_back(1000).await.expect("takes them");
    assert_eq!(bucket.draw(1000).await.expect("draws"), 10);
}
