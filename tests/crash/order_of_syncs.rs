//! INV-1 seen from below: what the broker does to its files and sockets, in order.

use std::path::Path;

use crate::journal::{Change, Entry};
use crate::lost_writes::{Disk, on_lossy_disk};
use crate::support::{AckKind, Client, Connect, Start, Will, wire};

fn find(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// Asserts that the message is written, that write synced, and only then the answer sent.
#[track_caller]
fn assert_synced_before(journal: &[Entry], text: &[u8], answer: &[u8]) {
    let written = journal.iter().find_map(|entry| match &entry.change {
        Change::Written(written) if find(&written.new, text) => {
            Some((entry.sequence, written.inode))
        }
        _ => None,
    });
    let (written, file) = written.expect("the message is written to a file");
    let synced = journal.iter().find_map(|entry| match entry.change {
        Change::Synced { inode, through } if inode == file && through >= written => {
            Some(entry.sequence)
        }
        _ => None,
    });
    let synced = synced.expect("the file is synced");
    let sent = journal.iter().find_map(|entry| match &entry.change {
        Change::Sent { bytes, .. } if find(bytes, answer) => Some(entry.sequence),
        _ => None,
    });
    let sent = sent.expect("the answer goes to the socket");
    assert!(written < synced && synced < sent, "write {written}, sync {synced}, answer {sent}");
}

/// INV-1, MQTT-4.3.2-4, MQTT-4.3.3-8: the log's fdatasync returns before PUBACK and PUBREC are
/// written to the socket; the same for PUBREL's record before PUBCOMP.
#[test]
fn the_log_is_synced_before_the_acknowledgement_leaves() {
    let Some(start) = on_lossy_disk(Start::new().env("LOST_WRITES_SYNC_WAIT_US", 3000)) else {
        return;
    };
    let broker = start.start();
    let disk = Disk::of(&broker);
    let mut publisher = Client::connect(&broker, &Connect::v311("traced"));
    disk.trace();
    let before = disk.syncs();
    publisher.send(&wire::publish(publisher.level, 2, "t", 0x4142, &[], "the first message"));
    publisher.acknowledged(AckKind::Puback, 0x4142);
    assert!(disk.syncs() > before, "the shim sees the log's fdatasync");
    publisher.send(&wire::publish(publisher.level, 4, "t", 0x4344, &[], "the second message"));
    publisher.acknowledged(AckKind::Pubrec, 0x4344);
    let released = disk.journal().len();
    publisher.send(&wire::ack(6, 0x4344));
    publisher.acknowledged(AckKind::Pubcomp, 0x4344);

    let journal = disk.journal();
    assert_synced_before(&journal, b"the first message", &[0x40, 2, 0x41, 0x42]);
    assert_synced_before(&journal, b"the second message", &[0x50, 2, 0x43, 0x44]);
    let rest = &journal[released..];
    let synced = rest.iter().position(|entry| matches!(entry.change, Change::Synced { .. }));
    let answered = rest.iter().position(|entry| {
        matches!(&entry.change, Change::Sent { bytes, .. } if find(bytes, &[0x70, 2, 0x43, 0x44]))
    });
    assert!(synced.is_some() && synced < answered, "PUBCOMP before the release is durable");
}

/// IN-1: whatever is delivered was written to the log before: also QoS 0, and a Will.
#[test]
fn what_is_delivered_was_in_the_log_before() {
    let Some(start) = on_lossy_disk(Start::new()) else { return };
    let broker = start.start();
    let disk = Disk::of(&broker);
    let mut sub = Client::connect(&broker, &Connect::v311("sub"));
    sub.subscribe("t", 0);
    let will = Will::new("t", "the last will");
    let mut publisher = Client::connect(&broker, &Connect::v311("pub").will(will));
    disk.trace();
    // The Will stands in the session's row already.
    let before = disk.journal().len();
    publisher.publish("t", "at most once", 0);
    assert_eq!(sub.take().payload(), "at most once");
    publisher.reset();
    assert_eq!(sub.take().payload(), "the last will");
    let journal = &disk.journal()[before..];
    for text in ["at most once", "the last will"] {
        let text = text.as_bytes();
        let written = journal.iter().position(
            |entry| matches!(&entry.change, Change::Written(written) if find(&written.new, text)),
        );
        let sent = journal.iter().position(
            |entry| matches!(&entry.change, Change::Sent { bytes, .. } if find(bytes, text)),
        );
        assert!(written.is_some() && written < sent, "written {written:?}, sent {sent:?}");
    }
}

/// Everything durable goes through the shim: the log's segments and the state database's files,
/// their names and their syncs. Without this the crash test would lose nothing.
#[test]
fn the_shim_sees_the_log_and_the_state() {
    let Some(start) = on_lossy_disk(Start::new()) else { return };
    let mut broker = start.start();
    let disk = Disk::of(&broker);
    let mut client = Client::connect(&broker, &Connect::v5("seen").persistent());
    client.subscribe("t", 1);
    client.publish("t", "x", 1);
    client.disconnect();
    broker.stop();
    let journal = disk.journal();
    let data = broker.folder().join("data");
    let made = |below: &Path| {
        let inodes = journal.iter().filter_map(|entry| match &entry.change {
            Change::Created { path, inode } if path.starts_with(below) => Some(*inode),
            _ => None,
        });
        inodes.collect::<Vec<u64>>()
    };
    for folder in ["log", "state"] {
        let files = made(&data.join(folder));
        assert!(!files.is_empty(), "no file was made in {folder}");
        let of_these = |entry: &&Entry| match &entry.change {
            Change::Written(written) => files.contains(&written.inode),
            _ => false,
        };
        assert!(journal.iter().filter(of_these).count() > 0, "no write to {folder}");
        let synced = |entry: &&Entry| match &entry.change {
            Change::Synced { inode, .. } => files.contains(inode),
            _ => false,
        };
        assert!(journal.iter().filter(synced).count() > 0, "no sync of {folder}");
        let named = |entry: &&Entry| match &entry.change {
            Change::FolderSynced { path, .. } => path.starts_with(data.join(folder)),
            _ => false,
        };
        assert!(journal.iter().filter(named).count() > 0, "no sync of the folder {folder}");
    }
    // What is on the disk was all written through the shim: an inode it never saw is a hole.
    let mut unseen = Vec::new();
    let mut folders = vec![data];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.metadata().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.metadata().unwrap().len() > 0 {
                let inode = std::os::unix::fs::MetadataExt::ino(&entry.metadata().unwrap());
                let seen = journal.iter().any(|entry| match &entry.change {
                    Change::Written(written) => written.inode == inode,
                    _ => false,
                });
                if !seen {
                    unseen.push(entry.path());
                }
            }
        }
    }
    assert!(unseen.is_empty(), "written past the shim: {unseen:?}");
}
