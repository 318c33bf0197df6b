//! The same on a real folder, with the driver on its thread.

use std::path::Path;

use super::*;
use crate::storage::embedded::wal::{FolderLock, RealDisk};

fn config() -> WalConfig {
    let retry_after = Duration::from_millis(20);
    WalConfig { segment_bytes: 64 << 10, retry_after, ..WalConfig::default() }
}

fn open_real(folder: &Path) -> Result<(Wal, Replayed), StorageError> {
    open_at(&RealDisk::open(folder)?, config(), 0)
}

#[test]
fn many_threads_write_one_order_that_a_restart_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("not/there/yet");
    let (wal, replayed) = open_real(&inner).expect("makes the folder");
    assert!(replayed.is_empty());
    wal.start(Box::new(Applied::default()), Driver::Thread);
    let sink = Arc::new(Outcomes::default());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (wal, sink) = (wal.clone(), &sink);
            scope.spawn(move || {
                for ticket in thread * 1000..thread * 1000 + 250 {
                    submit(&wal, sink, ticket, (ticket * 37 % 6000) as usize, Durability::Durable);
                }
            });
        }
    });
    sink.wait(1000);
    assert!(wal.segments().len() > 20, "it went through many segments");
    let incarnation = wal.incarnation();
    drop(wal);
    let (wal, replayed) = open_real(&inner).expect("opens again");
    assert_eq!((replayed.len(), wal.incarnation()), (1000, incarnation));
    let mut last = [None; 4];
    for entry in &replayed {
        let ticket = ticket_of(&entry.2);
        let of_thread = &mut last[ticket as usize / 1000];
        assert!(Some(ticket) > *of_thread, "a thread's frames stay in its order");
        *of_thread = Some(ticket);
        assert_same(entry, ticket, sink.offset(ticket), (ticket * 37 % 6000) as usize);
        let (kind, head, body) = wal.read(entry.0).expect("reads");
        assert_same(&(entry.0, kind, head, body), ticket, entry.0, (ticket * 37 % 6000) as usize);
    }
    wal.remove_before(wal.end()).expect("removes");
    assert!(wal.segments().len() <= 2);
}

#[test]
fn a_second_opener_is_refused_by_the_name_of_the_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let (wal, _) = open_real(folder.path()).expect("opens");
    let name = folder.path().display().to_string();
    match open_real(folder.path()) {
        Err(StorageError::Unavailable(text)) => {
            assert!(text.contains(&name) && text.contains("in use"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert!(FolderLock::take(folder.path()).is_err());
    drop(wal);
    let lock = FolderLock::take(folder.path()).expect("free again");
    drop(lock);
    open_real(folder.path()).expect("free again");
}

#[test]
fn a_folder_that_cannot_be_made_is_a_clear_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, b"").expect("writes");
    match open_real(&file.join("wal")) {
        Err(StorageError::Unavailable(text)) => {
            assert!(text.contains(&file.display().to_string()), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_folder_without_room_is_a_clear_error_and_leaves_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = RealDisk::open_limited(folder.path(), 10_000).expect("opens");
    let error = open_at(&disk, config(), 0).expect_err("no room for a segment");
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    assert_eq!(disk.list().expect("lists"), ["LOCK"]);
}

/// A frame that is too large for the medium is refused alone; smaller ones go on.
#[test]
fn a_frame_without_room_is_refused_and_smaller_ones_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = RealDisk::open_limited(folder.path(), 100_000).expect("opens");
    let (wal, _) = open_at(&disk, config(), 0).expect("opens");
    wal.start(Box::new(Applied::default()), Driver::Thread);
    let sink = Arc::new(Outcomes::default());
    submit(&wal, &sink, 0, 1000, Durability::Durable);
    submit(&wal, &sink, 1, 200_000, Durability::Durable);
    submit(&wal, &sink, 2, 1000, Durability::Durable);
    sink.wait(3);
    assert_eq!(sink.of(1), Some(AppendOutcome::NotStored));
    assert!(sink.offset(0) < sink.offset(2));
    while wal.trouble().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((wal, disk));
    assert_eq!(open_real(folder.path()).expect("opens").1.len(), 2);
}
