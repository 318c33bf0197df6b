//! What is bounded, and what is kept whatever its size.

use std::sync::Arc;

use super::rig::{Rig, numbers, settings};
use crate::storage::contract::{Seen, batch_of};
use crate::storage::{Durability, IdRun, LogItem, Row, Table};
use crate::telemetry::{Direction, DropReason, dropped_so_far};

/// IN-8, invariant 5: however far a consumer lags, memory holds a bounded tail, and everything
/// comes, in order, retained rows included, from the log where memory let go.
#[tokio::test]
async fn a_lagging_consumer_reads_back_what_memory_let_go() {
    let mut settings = settings();
    (settings.feed_bytes, settings.feed_items) = (4096, 1000);
    settings.batch_bytes = 2000;
    let mut rig = Rig::new(settings);
    let seen = Arc::new(Seen::default());
    rig.stores.tables.follow(Table::Retained, Arc::<Seen>::clone(&seen));
    for n in 0..500_u64 {
        rig.publish(&[&n.to_string()]).await;
        if n % 50 == 0 {
            let (key, value) = ("t".into(), Some(n.to_string().into()));
            let rows = vec![Row { table: Table::Retained, key, value }];
            rig.tickets += 1;
            let sink = Arc::<crate::storage::contract::Inbox>::clone(&rig.inbox);
            rig.stores.tables.put(rows, Durability::Durable, sink, rig.tickets);
            rig.inbox.stored(rig.tickets).await;
        }
        let (bytes, items) = rig.embedded.checkpointer.feed.held();
        assert!(bytes <= 4096 && items <= 1000, "{bytes} bytes, {items} items in memory");
    }
    assert!(rig.stores.log.lag().0 > 20_000);
    let mut got = 0_u64;
    while got < 500 {
        for (_, item) in rig.next().await.items {
            let LogItem::Publishes(batch) = item else { panic!("only publishes were appended") };
            assert_eq!(batch.view(0).payload, got.to_string().as_bytes());
            let applied = seen.rows().len() as u64;
            assert!(applied <= got.div_ceil(50), "a row came before message {got} was dealt with");
            assert!(applied + 1 >= got.div_ceil(50), "a row before message {got} is late");
            got += 1;
        }
    }
}

/// Invariant 5: messages of queues leave memory when checkpoints have stored them; an offline
/// client's queue costs memory only until then.
#[tokio::test]
async fn stored_entries_leave_memory_and_read_back() {
    let mut rig = Rig::new(settings());
    rig.open().await;
    for n in 1..=300_u64 {
        rig.publish(&[&n.to_string()]).await;
    }
    rig.route().await;
    let queues = Arc::clone(&rig.embedded.checkpointer.queues);
    assert!(queues.hot_bytes() > 10_000);
    rig.checkpoint();
    assert!(queues.hot_bytes() > 10_000, "what is fresh stays for the reader that follows");
    rig.checkpoint();
    assert_eq!(queues.hot_bytes(), 0);
    assert_eq!(rig.read().await, numbers(1..301));
    rig.stores.queues.ack(&rig.queue, 1, &[7, 1, 2], 8);
    rig.publish(&["301"]).await;
    rig.route().await;
    let expected: Vec<_> =
        numbers(1..302).into_iter().filter(|one| ![1, 2, 7].contains(&one.0)).collect();
    assert_eq!(rig.read().await, expected, "cold entries and hot ones");
    rig.checkpoint();
    assert_eq!(rig.stored_entries(), 298);
}

/// Over the bound of memory a checkpoint comes by itself, and appends wait for it.
#[tokio::test]
async fn appends_wait_while_memory_is_short() {
    let mut settings = settings();
    settings.hot_bytes = 5_000;
    let mut rig = Rig::new(settings);
    rig.open().await;
    for n in 1..=400_u64 {
        rig.publish(&[&n.to_string()]).await;
        rig.route().await;
        assert!(rig.embedded.checkpointer.queues.hot_bytes() <= 2 * 5_000);
    }
    assert_eq!(rig.read().await, numbers(1..401));
}

/// What is acknowledged before a checkpoint is never written into the projection.
#[tokio::test]
async fn acknowledged_entries_never_reach_the_projection() {
    let mut rig = Rig::new(settings());
    rig.open().await;
    for n in 1..=10_u64 {
        rig.publish(&[&n.to_string()]).await;
    }
    rig.route().await;
    rig.stores.queues.ack(&rig.queue, 1, &(1..=9).collect::<Vec<_>>(), 10);
    rig.checkpoint();
    assert_eq!(rig.stored_entries(), 1);
    rig.stores.queues.ack(&rig.queue, 1, &[10], 11);
    rig.checkpoint();
    assert_eq!(rig.stored_entries(), 0);
}

/// DEV-5 on entries that memory has let go of.
#[tokio::test]
async fn the_limit_trims_stored_entries_too() {
    let mut settings = settings();
    settings.queue_limit = 5;
    let mut rig = Rig::new(settings);
    rig.open().await;
    for n in 1..=5_u64 {
        rig.publish(&[&n.to_string()]).await;
    }
    rig.route().await;
    rig.checkpoint();
    rig.checkpoint();
    rig.publish(&["6", "7"]).await;
    rig.route().await;
    assert_eq!(rig.read().await, numbers(3..8));
    rig.checkpoint();
    assert_eq!(rig.stored_entries(), 5);
    let rig = rig.crash();
    assert_eq!(rig.read().await, numbers(3..8));
}

/// DEV-5: a trimmed entry that is in flight counts only when it can't be acknowledged any more.
#[tokio::test]
async fn a_trimmed_entry_in_flight_counts_only_if_it_is_never_acknowledged() {
    let count = || dropped_so_far(DropReason::QueueLimitExceeded, Direction::Outbound);
    let mut settings = settings();
    settings.queue_limit = 2;
    let mut rig = Rig::new(settings);
    rig.open().await;
    rig.publish(&["1", "2"]).await;
    rig.route().await;
    let first_id = crate::mqtt::PacketId::MIN;
    let run = IdRun { first_seq: 1, first_id, count: 2 };
    rig.tickets += 1;
    let sink = Arc::<crate::storage::contract::Inbox>::clone(&rig.inbox);
    rig.stores.queues.reserve_ids(&rig.queue, 1, run, sink, rig.tickets);
    rig.inbox.stored(rig.tickets).await;
    rig.publish(&["3", "4"]).await;
    rig.route().await;
    // No read here: one from the start would show that nothing is in flight.
    rig.stores.queues.ack(&rig.queue, 1, &[1], 3);
    // Other tests count, too, so only the lower bound is sure; `queue.rs` has the exact numbers.
    let before = count();
    rig.open().await;
    assert!(count() > before, "sequence 2 is lost now");
    assert_eq!(rig.read().await, numbers(3..5));
}

/// IN-8: what was not dispatched is never removed, whatever the bound says; then what queues owe
/// is copied out, and the segments go.
#[tokio::test]
async fn segments_go_when_nothing_in_them_is_missing_elsewhere() {
    let mut settings = settings();
    settings.retain_bytes = 20 << 10;
    let mut rig = Rig::new(settings);
    rig.open().await;
    let filler = "x".repeat(500);
    for n in 1..=200_u64 {
        rig.publish(&[&n.to_string(), &filler]).await;
    }
    let wal = rig.embedded.checkpointer.wal.clone();
    let first = wal.first();
    rig.checkpoint();
    rig.checkpoint();
    assert_eq!(wal.first(), first, "nothing was dispatched, so nothing goes");
    assert!(wal.segments().len() > 5);
    rig.route().await;
    // The fillers are acknowledged, so that the copies are not as large as the log.
    rig.stores.queues.ack(&rig.queue, 1, &(1..=200).map(|n| 2 * n).collect::<Vec<_>>(), 1);
    rig.checkpoint();
    assert!(wal.segments().len() <= 3, "{} segments are left", wal.segments().len());
    let expected: Vec<_> = (1..=200_u64).map(|n| (2 * n - 1, n.to_string())).collect();
    assert_eq!(rig.read().await, expected, "hot");
    rig.checkpoint();
    assert_eq!(rig.read().await, expected, "cold");
    let rig = rig.crash();
    assert_eq!(rig.read().await, expected, "after a crash");
}

/// A log of rows alone is shortened, too: the consumer has nothing there to wait for.
#[tokio::test]
async fn a_log_of_rows_alone_is_shortened() {
    let mut rig = Rig::new(settings());
    rig.publish(&["one"]).await;
    rig.route().await;
    for n in 0..200_u64 {
        let value = Some("v".repeat(500).into());
        let rows = vec![Row { table: Table::Settings, key: n.to_string().into(), value }];
        rig.tickets += 1;
        let sink = Arc::<crate::storage::contract::Inbox>::clone(&rig.inbox);
        rig.stores.tables.put(rows, Durability::Durable, sink, rig.tickets);
        rig.inbox.stored(rig.tickets).await;
    }
    assert!(rig.embedded.checkpointer.wal.segments().len() > 5);
    rig.checkpoint();
    assert_eq!(rig.embedded.checkpointer.wal.segments().len(), 1);
    let mut rows = 0;
    let rig = rig.crash();
    rig.stores.tables.load(Table::Settings, &mut |_, _, _| rows += 1).expect("loads");
    assert_eq!(rows, 200);
}

/// A queue may be given entries whose source is not in this log: they are kept whole.
#[tokio::test]
async fn entries_from_elsewhere_are_kept_whole() {
    let mut rig = Rig::new(settings());
    rig.open().await;
    rig.publish(&["here"]).await;
    let mut batch = rig.next().await;
    while batch.items.is_empty() {
        batch = rig.next().await;
    }
    batch.incarnation += 1;
    batch.items[0].1 = LogItem::Publishes(batch_of("far", &["elsewhere"], None));
    rig.enqueue(&batch).await;
    rig.checkpoint();
    rig.checkpoint();
    assert_eq!(rig.read().await, [(1, "elsewhere".to_owned())]);
}
