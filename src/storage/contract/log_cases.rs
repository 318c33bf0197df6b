//! `PublishLog` and `LogConsumer`.

use std::sync::Arc;
use std::time::Duration;

use super::kit::{QOS1, batch_of, client, messages, row, text};
use super::{Factory, Harness};
use crate::storage::{DirectCopy, Durability, LogItem, Origin, QueueKey, Source, Table, Taken};

/// Long enough to show that nothing comes, short enough to wait for.
const MOMENT: Duration = Duration::from_millis(30);

/// IN-1, IN-2: appends of one publisher are stored, settled and consumed in the order of the
/// calls; every append settles exactly once; what is settled lies below the end.
pub async fn appends_settle_and_are_consumed_in_order(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let texts: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let tickets: Vec<u64> =
        texts.iter().map(|one| harness.append(&[one], Durability::Durable)).collect();
    let mut last = None;
    for ticket in &tickets {
        let position = harness.inbox.stored(*ticket).await;
        assert!(Some(position) > last, "positions rise in the order of the calls");
        last = Some(position);
        assert!(position < harness.stores.log.end(0), "what settled lies below the end");
    }
    let told: Vec<u64> = harness.inbox.told().iter().map(|told| told.0).collect();
    assert_eq!(told, tickets, "each settles once, in the order of the calls");
    let (mut got, mut at) = (Vec::new(), None);
    while got.len() < texts.len() {
        let batch = harness.next().await;
        for (position, _) in &batch.items {
            assert!(Some(*position) > at, "positions rise in and between batches");
            at = Some(*position);
        }
        assert!(batch.end > batch.items[batch.items.len() - 1].0);
        got.extend(messages(&batch).iter().map(|(_, message)| text(message)));
    }
    assert_eq!(got, texts);
}

/// QoS 0 settles when it has its place in the same order.
pub async fn relaxed_appends_keep_the_order_too(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let mut last = 0;
    for n in 0..20 {
        let durability = if n % 3 == 0 { Durability::Durable } else { Durability::Relaxed };
        last = harness.append(&[&n.to_string()], durability);
    }
    harness.inbox.stored(last).await;
    let mut got = Vec::new();
    while got.len() < 20 {
        got.extend(messages(&harness.next().await).iter().map(|(_, message)| text(message)));
    }
    assert_eq!(got, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// A `Durable` record that settled as `Stored` is there after a crash, batch by batch.
pub async fn durable_records_survive_a_crash(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    harness.publish(&["one", "two"]).await;
    harness.publish(&["three"]).await;
    harness.crash().await;
    assert_eq!(harness.drain().await, ["one", "two", "three"]);
    harness.crash().await;
    harness.publish(&["four"]).await;
    assert_eq!(harness.drain().await, ["one", "two", "three", "four"]);
}

/// An offset is never used twice, not even one that a crash cut off.
pub async fn positions_rise_over_crashes(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let mut last = harness.publish(&["0"]).await;
    for n in 1..5 {
        harness.append(&["may be lost"], Durability::Relaxed);
        let end = harness.stores.log.end(0);
        harness.crash().await;
        assert!(harness.stores.log.end(0) >= end, "the end never goes back");
        let position = harness.publish(&[&n.to_string()]).await;
        assert!(position > last && position >= end, "{position:?} after {last:?}, {end:?}");
        last = position;
    }
}

/// A consumer starts behind what was last committed, with the state it left there.
pub async fn a_consumer_goes_on_behind_its_commit(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    assert!(harness.committed.state.is_empty(), "the first start finds no state");
    harness.publish(&["one"]).await;
    harness.drain().await;
    harness.commit("after one");
    harness.publish(&["two"]).await;
    harness.drain().await;
    harness.commit("after two");
    let at = harness.read;
    harness.restart().await;
    assert_eq!(harness.committed.state, b"after two");
    assert!(harness.committed.position >= at);
    harness.publish(&["three"]).await;
    assert_eq!(harness.drain().await, ["three"]);
}

/// Before a commit a crash brings everything again, under the same identity.
pub async fn what_was_not_committed_comes_again_under_the_same_identity(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    harness.publish(&["one", "two"]).await;
    let first = messages(&harness.next().await);
    harness.crash().await;
    let again = messages(&harness.next().await);
    let sources = |all: &[(_, _)]| all.iter().map(|one| one.0).collect::<Vec<_>>();
    assert_eq!(sources(&first), sources(&again));
    assert_eq!(text(&again[1].1), "two");
}

/// Direct copies come in log order with their address and their deliveries, crash or not.
pub async fn direct_copies_come_back_whole(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let copy = |ids: &[u32]| DirectCopy {
        delivery: QOS1,
        subscription_ids: Arc::from(ids),
        origin: None,
        taken: None,
    };
    // One that is picked, and one that moves.
    let from = Source { queue: QueueKey::Group(Arc::from("g/+")), incarnation: 9, epoch: Some(3) };
    let moved = DirectCopy {
        origin: Some(Origin::of_group(u64::MAX)),
        taken: Some(Taken { from: Arc::new(from), seq: 1 << 40 }),
        ..copy(&[1, 268_435_455])
    };
    let deliveries: Arc<[DirectCopy]> = Arc::from([copy(&[]), moved]);
    let before = harness.append(&["before"], Durability::Durable);
    let ticket = harness.ticket();
    let batch = batch_of("node", &["a", "b"], Some(9));
    let (to, sink) = (client("c"), harness.sink());
    harness.stores.log.append_direct(to, 5, batch, Arc::clone(&deliveries), sink, ticket);
    harness.inbox.stored(ticket).await;
    harness.inbox.stored(before).await;
    for round in 0..2 {
        let mut items = Vec::new();
        while items.len() < 2 {
            items.extend(harness.next().await.items);
        }
        assert!(matches!(items[0].1, LogItem::Publishes(_)));
        let LogItem::Direct { to, incarnation, batch, deliveries: found } = &items[1].1 else {
            panic!("round {round}: {:?} is no direct copy", items[1].1);
        };
        assert_eq!((to, *incarnation, found), (&client("c"), 5, &deliveries));
        let payloads: Vec<&[u8]> = batch.views().map(|view| view.payload).collect();
        assert_eq!(payloads, [b"a", b"b"]);
        harness.crash().await;
    }
}

/// What was decided about messages behind the commit is told when the consumer is opened, with the
/// places of the copies; what the commit covers is not.
pub async fn decisions_behind_the_commit_are_told(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    assert_eq!(harness.committed.decided, []);
    let first = harness.publish(&["a", "b"]).await;
    let mut places = Vec::new();
    for index in 0..2 {
        let origin = Origin { position: first, index, group: u64::MAX - u64::from(index) };
        let ids = Arc::from([]);
        let copies = [DirectCopy {
            delivery: QOS1,
            subscription_ids: ids,
            origin: Some(origin),
            taken: None,
        }];
        let (ticket, batch) = (harness.ticket(), batch_of("publisher", &["copy"], None));
        let (to, sink) = (client("c"), harness.sink());
        harness.stores.log.append_direct(to, 5, batch, Arc::from(copies), sink, ticket);
        places.push((harness.inbox.stored(ticket).await, origin));
    }
    harness.crash().await;
    assert_eq!(harness.committed.decided, places);
    while harness.read <= places[1].0 {
        harness.any_next().await;
    }
    harness.commit("all of it");
    harness.restart().await;
    assert_eq!(harness.committed.decided, []);
}

pub async fn a_second_consumer_of_a_partition_panics(factory: &dyn Factory) {
    let harness = Harness::new(factory).await;
    let log = Arc::clone(&harness.stores.log);
    let second = std::panic::AssertUnwindSafe(|| drop(log.consumer(0)));
    assert!(std::panic::catch_unwind(second).is_err());
}

/// IN-8's measure: what is appended waits until it was dealt with.
pub async fn lag_counts_what_waits(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    assert_eq!(harness.stores.log.lag().0, 0);
    harness.publish(&["one"]).await;
    assert!(harness.stores.log.lag().0 > 0, "a record that was not consumed waits");
    harness.drain().await;
    assert!(harness.stores.log.lag().0 > 0, "a record that was not committed waits");
    harness.commit("");
    assert_eq!(harness.stores.log.lag().0, 0);
    assert_eq!(harness.stores.log.trouble(), None);
}

/// `next` is cancel safe: also while rows arrive, which it handles itself.
pub async fn a_cancelled_next_loses_nothing(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    assert!(harness.next_within(MOMENT).await.is_none());
    harness.put(vec![row(Table::Retained, "t", Some("v"))], Durability::Durable).await;
    assert!(harness.next_within(MOMENT).await.is_none());
    harness.publish(&["one"]).await;
    assert_eq!(harness.drain().await, ["one"]);
}

/// SUB, RET: who waits until the dispatcher has passed a row need not wait for a publish.
pub async fn the_consumer_is_told_how_far_the_log_goes(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    for crashed in [false, true] {
        let table = if crashed { Table::Retained } else { Table::Subscriptions };
        harness.put(vec![row(table, "k", Some("v"))], Durability::Durable).await;
        if crashed {
            harness.crash().await;
        }
        let end = harness.stores.log.end(0);
        while harness.read < end {
            assert!(harness.any_next().await.items.is_empty());
        }
    }
}
