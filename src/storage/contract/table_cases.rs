//! `ChangeLog` and `Follower`.

use std::sync::Arc;
use std::time::Duration;

use super::kit::row;
use super::{Factory, Harness, Seen};
use crate::storage::{AppendOutcome, Durability, Position, Row, Table};

const MOMENT: Duration = Duration::from_millis(30);

fn follow(harness: &Harness, table: Table) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    harness.stores.tables.follow(table, Arc::<Seen>::clone(&seen));
    seen
}

/// Whoever saw a put settle finds it applied.
pub async fn a_put_is_applied_before_it_settles(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let seen = follow(&harness, Table::Sessions);
    for (n, durability) in [Durability::Durable, Durability::Relaxed].into_iter().enumerate() {
        let value = n.to_string();
        let put = vec![row(Table::Sessions, "k", Some(&value))];
        let position = harness.put(put.clone(), durability).await;
        assert_eq!(seen.newest("k"), Some((position, put[0].clone())), "{durability:?}");
    }
    let at = harness.put(vec![row(Table::Sessions, "k", None)], Durability::Durable).await;
    assert_eq!(seen.newest("k"), Some((at, row(Table::Sessions, "k", None))));
}

/// Rows of one put are applied together, in order, each by its own table's follower.
pub async fn rows_of_one_put_stand_together(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let sessions = follow(&harness, Table::Sessions);
    let settings = follow(&harness, Table::Settings);
    let rows: Vec<Row> = vec![
        row(Table::Sessions, "a", Some("1")),
        row(Table::Settings, "s", Some("2")),
        row(Table::Sessions, "b", Some("3")),
        row(Table::Sessions, "a", Some("4")),
    ];
    let at = harness.put(rows.clone(), Durability::Durable).await;
    let of = |indexes: &[usize]| -> Vec<(Position, Row)> {
        indexes.iter().map(|index| (at, rows[*index].clone())).collect()
    };
    assert_eq!(sessions.rows(), of(&[0, 2, 3]));
    assert_eq!(settings.rows(), of(&[1]));
    harness.crash().await;
    assert_eq!(harness.load(Table::Sessions)["a"], (at, "4".to_owned()));
    assert_eq!(harness.load(Table::Settings)["s"], (at, "2".to_owned()));
}

/// `load` visits the newest live row of every key, with the position it was put at, whatever
/// ended the process.
pub async fn load_gives_the_newest_row_of_each_key(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let table = Table::Sessions;
    harness.put(vec![row(table, "a", Some("old"))], Durability::Durable).await;
    harness.put(vec![row(table, "gone", Some("x"))], Durability::Durable).await;
    let kept = harness.put(vec![row(table, "kept", Some("y"))], Durability::Durable).await;
    harness.restart().await;
    assert_eq!(harness.load(table).len(), 3);
    let new = harness.put(vec![row(table, "a", Some("new"))], Durability::Durable).await;
    harness.put(vec![row(table, "gone", None)], Durability::Durable).await;
    for round in 0..3 {
        match round {
            0 => {}
            1 => harness.crash().await,
            _ => harness.restart().await,
        }
        let found = harness.load(table);
        assert_eq!(found.len(), 2, "round {round}: a tombstone is no row");
        assert_eq!(found["a"], (new, "new".to_owned()), "round {round}");
        assert_eq!(found["kept"], (kept, "y".to_owned()), "round {round}");
        assert!(harness.load(Table::Credentials).is_empty(), "round {round}");
    }
}

/// INV-2: what the consumer gets again is routed as it was the first time. `load` gives the
/// subscriptions of its commit, and a follower is told what came behind it, in order.
pub async fn subscriptions_are_found_as_the_commit_left_them(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let table = Table::Subscriptions;
    let rows =
        [("a", Some("1")), ("b", Some("2")), ("a", Some("3")), ("b", None), ("a", Some("4"))];
    let mut puts: Vec<(Position, Row)> = Vec::new();
    for (n, (key, value)) in rows.into_iter().enumerate() {
        let put = row(table, key, value);
        puts.push((harness.put(vec![put.clone()], Durability::Durable).await, put));
        harness.publish(&["between the rows"]).await;
        if n % 2 == 1 {
            harness.drain().await;
            harness.commit("");
        }
        match n {
            0 | 3 => harness.restart().await,
            _ => harness.crash().await,
        }
        let commit = harness.committed.position;
        let found = harness.load(table);
        let (before, behind): (Vec<_>, Vec<_>) = puts.iter().cloned().partition(|p| p.0 < commit);
        for key in ["a", "b"] {
            let newest = before.iter().rev().find(|(_, row)| row.key == key.as_bytes());
            let newest = newest.filter(|(_, row)| row.value.is_some());
            let at = found.get(key).map(|(position, _)| *position);
            assert_eq!(at, newest.map(|(position, _)| *position), "{key} in round {n}");
        }
        assert_eq!(follow(&harness, table).rows(), behind, "round {n}");
    }
}

/// Positions are total per key and rise over restarts: they are fencing epochs.
pub async fn row_positions_rise_over_restarts(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let mut last = Position::default();
    for n in 0..8 {
        let durability = if n % 2 == 0 { Durability::Durable } else { Durability::Relaxed };
        let put = vec![row(Table::Sessions, "k", Some("claim"))];
        let position = harness.put(put, durability).await;
        assert!(position > last, "put {n}: {position:?} after {last:?}");
        last = position;
        match n {
            3 => harness.crash().await,
            5 => harness.restart().await,
            _ => {}
        }
    }
}

/// Rows of a key settle and are applied in the order of the puts, durable or not.
pub async fn relaxed_and_durable_rows_of_a_key_keep_their_order(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let seen = follow(&harness, Table::Sessions);
    let mut last = 0;
    for n in 0..40 {
        let durability = if n % 3 == 0 { Durability::Durable } else { Durability::Relaxed };
        let put = vec![row(Table::Sessions, "k", Some(&n.to_string()))];
        last = harness.ticket();
        harness.stores.tables.put(put, durability, harness.sink(), last);
    }
    let newest = harness.inbox.stored(last).await;
    let rows = seen.rows();
    let values: Vec<String> = rows
        .iter()
        .filter_map(|(_, row)| row.value.as_ref())
        .map(|value| String::from_utf8_lossy(value).into_owned())
        .collect();
    assert_eq!(values, (0..40).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "positions rise");
    assert_eq!(rows[39].0, newest);
    let told = harness.inbox.told();
    assert!(told.iter().all(|(_, outcome)| matches!(outcome, AppendOutcome::Stored(_))));
    assert!(told.windows(2).all(|pair| pair[0].0 < pair[1].0), "rows settle in order");
}

/// RET: a retained row reaches its follower when the consumer has dealt with what precedes it,
/// so live copies and the retained store never contradict each other.
pub async fn retained_rows_wait_for_the_consumer(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    let seen = follow(&harness, Table::Retained);
    harness.publish(&["before"]).await;
    let at = harness.put(vec![row(Table::Retained, "t", Some("v"))], Durability::Durable).await;
    harness.publish(&["after"]).await;
    assert!(seen.rows().is_empty(), "the publish before it was not dispatched yet");
    harness.next().await;
    assert!(seen.rows().is_empty(), "what precedes it is being dispatched");
    harness.drain().await;
    assert!(harness.next_within(MOMENT).await.is_none());
    assert_eq!(seen.rows(), [(at, row(Table::Retained, "t", Some("v")))]);
    let at = harness.put(vec![row(Table::Retained, "t", None)], Durability::Durable).await;
    assert!(harness.next_within(MOMENT).await.is_none());
    assert_eq!(seen.newest("t"), Some((at, row(Table::Retained, "t", None))));
}
