//! Media that are damaged, full, failing, or taken.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::rig::{Rig, numbers, settings};
use crate::storage::contract::{Inbox, batch_of, client};
use crate::storage::embedded::projection::{Changes, Projection, Space};
use crate::storage::embedded::records::CHECKPOINT_KEY;
use crate::storage::{AppendOutcome, Durability, Embedded, EmbeddedSettings, IdRun, Row, Table};

async fn filled(path: &Path) {
    let (embedded, stores) = Embedded::open(path, EmbeddedSettings::default()).expect("opens");
    let inbox = Arc::new(Inbox::default());
    let sink = Arc::<Inbox>::clone(&inbox);
    stores.log.append(batch_of("p", &["one"], None), Durability::Durable, sink, 1);
    inbox.stored(1).await;
    stores.queues.open(&client("c"), 1).await.expect("opens");
    embedded.stop().expect("stops");
}

fn refused(path: &Path) -> String {
    match Embedded::open(path, EmbeddedSettings::default()) {
        Ok(_) => panic!("the folder was opened"),
        Err(error) => error.to_string(),
    }
}

/// STO-09: a second process on one data folder is refused, and the first goes on.
#[tokio::test]
async fn a_second_opening_of_the_folder_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = Embedded::open(folder.path(), EmbeddedSettings::default()).expect("opens");
    let text = refused(folder.path());
    let place = folder.path().display().to_string();
    assert!(text.contains(&place) && text.contains("in use"), "{text}");
    first.0.stop().expect("stops");
    drop(first);
    Embedded::open(folder.path(), EmbeddedSettings::default()).expect("opens again");
}

/// STO-03: a data folder of which a part is gone is refused, never taken for an empty one.
#[tokio::test]
async fn a_missing_part_of_the_folder_is_refused() {
    for (part, says) in [("state", "there is no state"), ("log", "segment files are missing")] {
        let folder = tempfile::tempdir().expect("a folder");
        filled(folder.path()).await;
        fs::remove_dir_all(folder.path().join(part)).expect("removes");
        for _ in 0..2 {
            let text = refused(folder.path());
            assert!(text.contains(says), "without {part}: {text}");
        }
    }
}

/// STO-11: an unknown version of any record is refused, and the message names what was found.
#[tokio::test]
async fn unknown_record_versions_are_refused_by_name() {
    for (space, key, says) in [
        (Space::Meta, CHECKPOINT_KEY.to_vec(), "checkpoint record: version 9"),
        (Space::Queues, b"cc".to_vec(), "queue record: version 9"),
    ] {
        let rig = Rig::new(settings());
        rig.open().await;
        rig.checkpoint();
        let projection = Arc::clone(&rig.projection);
        let mut record = projection.get(space, &key).expect("reads").expect("is there");
        record[0] = 9;
        let mut changes = Changes::default();
        changes.put(space, key, record);
        projection.commit(changes).expect("commits");
        let opened = Embedded::simulated(rig.disk.crash().disk(), projection, settings());
        let error = opened.expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// IN-2, IN-8: while the projection fails, nothing that was promised is forgotten, `trouble` says
/// so, and it ends without a restart.
#[tokio::test]
async fn failing_checkpoints_are_told_and_made_up_for() {
    let mut rig = Rig::new(settings());
    rig.open().await;
    rig.publish(&["1"]).await;
    rig.route().await;
    rig.checkpoint();
    rig.projection.fail(true);
    rig.publish(&["2"]).await;
    rig.route().await;
    rig.stores.queues.ack(&rig.queue, 1, &[1], 2);
    assert!(rig.embedded.checkpoint().is_err());
    let trouble = rig.stores.log.trouble().expect("there is trouble");
    assert!(trouble.contains("checkpoints fail"), "{trouble}");
    rig.publish(&["3"]).await;
    rig.route().await;
    assert!(rig.embedded.checkpoint().is_err());
    assert_eq!(rig.read().await, numbers(2..4));
    rig.projection.fail(false);
    rig.checkpoint();
    rig.checkpoint();
    assert_eq!(rig.stores.log.trouble(), None);
    assert_eq!(rig.read().await, numbers(2..4));
    assert_eq!(rig.stored_entries(), 2, "what was acknowledged meanwhile is deleted, too");
    let rig = rig.crash();
    assert_eq!(rig.read().await, numbers(2..4));
}

/// Invariant 5: rows that can't be written behind are bounded; above it puts are refused.
#[tokio::test]
async fn puts_are_refused_while_too_many_rows_wait_for_a_checkpoint() {
    let mut settings = settings();
    settings.row_bytes = 10_000;
    let rig = Rig::new(settings);
    rig.projection.fail(true);
    let put = |ticket: u64| {
        let row = Row {
            table: Table::Settings,
            key: ticket.to_string().into(),
            value: Some("v".repeat(500).into()),
        };
        let sink = Arc::<Inbox>::clone(&rig.inbox);
        rig.stores.tables.put(vec![row], Durability::Durable, sink, ticket);
    };
    let mut ticket = 0;
    loop {
        ticket += 1;
        put(ticket);
        if rig.inbox.outcome(ticket).await == AppendOutcome::NotStored {
            break;
        }
        assert!(ticket < 50, "the bound is not held");
    }
    assert!(rig.embedded.checkpoint().is_err());
    put(100);
    assert_eq!(rig.inbox.outcome(100).await, AppendOutcome::NotStored);
    rig.projection.fail(false);
    rig.checkpoint();
    put(101);
    rig.inbox.stored(101).await;
}

/// IN-2: a full disk is told, nothing is acknowledged falsely, and it ends without a restart.
#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_and_recovers_by_itself() {
    let mut rig = Rig::new(settings());
    rig.disk.limit(Some(40 << 10));
    let text = "x".repeat(900);
    let mut stored = 0;
    while let AppendOutcome::Stored(_) = rig.append(&[&text]).await {
        stored += 1;
        assert!(stored < 100, "the disk never got full");
    }
    assert_eq!(rig.append(&[&text]).await, AppendOutcome::NotStored);
    let trouble = rig.stores.log.trouble().expect("there is trouble");
    assert!(trouble.contains("full"), "{trouble}");
    rig.disk.limit(None);
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    rig.publish(&["after"]).await;
    assert_eq!(rig.stores.log.trouble(), None);
    let mut got = 0;
    while got <= stored {
        got += rig.next().await.items.len();
    }
}

/// IN-2, decision 16: what a failed sync covered is in doubt; the next appends are safe again.
#[tokio::test]
async fn a_failed_sync_leaves_doubt_and_no_more() {
    let mut rig = Rig::new(settings());
    rig.publish(&["before"]).await;
    rig.disk.fail_syncs(1);
    assert_eq!(rig.append(&["doubt"]).await, AppendOutcome::InDoubt);
    rig.publish(&["after"]).await;
    let mut rig = rig.crash();
    let mut texts = Vec::new();
    while texts.last().is_none_or(|last| last != "after") {
        for (_, item) in rig.next().await.items {
            let crate::storage::LogItem::Publishes(batch) = item else { continue };
            texts.push(String::from_utf8_lossy(batch.view(0).payload).into_owned());
        }
    }
    assert!(texts == ["before", "after"] || texts == ["before", "doubt", "after"], "{texts:?}");
}

/// MQTT-3.3.1-1: a cursor told before the last checkpoint says nothing about what was sent between
/// it and the crash: everything in a reserved run carries DUP=1. After an orderly stop it counts.
#[tokio::test]
async fn a_cursor_is_not_trusted_after_a_crash() {
    let mut rig = Rig::new(settings());
    rig.open().await;
    rig.publish(&["1", "2", "3"]).await;
    rig.route().await;
    let run = IdRun { first_seq: 1, first_id: crate::mqtt::PacketId::MIN, count: 9 };
    let sink = Arc::<Inbox>::clone(&rig.inbox);
    rig.stores.queues.reserve_ids(&rig.queue, 1, run, sink, 100);
    rig.inbox.stored(100).await;
    rig.stores.queues.ack(&rig.queue, 1, &[], 2);
    rig.checkpoint();
    let state = rig.stores.queues.open(&rig.queue, 1).await.expect("opens");
    assert_eq!(state.sent_below, 2);
    let rig = rig.crash();
    let state = rig.stores.queues.open(&rig.queue, 1).await.expect("opens");
    assert_eq!(state.sent_below, 10, "ids up to sequence 9 were reserved");
}
