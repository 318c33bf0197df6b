//! One order, group commit, segments, reading back.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::storage::embedded::wal::{SimOp, SyncMode};

/// Invariant 1: the trace shows a sync between the write of a durable frame and its settlement.
#[tokio::test(start_paused = true)]
async fn a_durable_frame_settles_after_its_sync() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk);
    wal.start(Box::new(Applied::default()), Driver::Task);
    turn().await;
    let before = disk.trace().len();
    let sink = Outcomes::on(&disk);
    submit(&wal, &sink, 1, 100, Durability::Durable);
    submit(&wal, &sink, 2, 100, Durability::Relaxed);
    turn().await;
    let trace = disk.trace().split_off(before);
    let marks = [SimOp::Sync, SimOp::Mark(1), SimOp::Mark(2)];
    assert!(matches!(trace[0], SimOp::Write { .. }), "{trace:?}");
    assert_eq!(trace[1..], marks, "one write, one sync, then both");
}

#[tokio::test(start_paused = true)]
async fn a_group_of_relaxed_frames_is_not_synced() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk);
    wal.start(Box::new(Applied::default()), Driver::Task);
    let (before, sink) = (disk.syncs(), Outcomes::on(&disk));
    submit(&wal, &sink, 1, 100, Durability::Relaxed);
    turn().await;
    assert_eq!((sink.len(), disk.syncs()), (1, before));
    wal.stop();
    assert_eq!(disk.syncs(), before + 1, "a stop in peace loses nothing");
}

#[tokio::test(start_paused = true)]
async fn without_syncing_nothing_is_synced_and_a_restart_of_the_program_loses_nothing() {
    let disk = SimDisk::new(1);
    let config = WalConfig { sync: SyncMode::Never, ..small() };
    let (wal, _) = open_at(&disk.disk(), config.clone(), 0).expect("opens");
    wal.start(Box::new(Applied::default()), Driver::Task);
    let (before, sink) = (disk.syncs(), Outcomes::on(&disk));
    store(&wal, &sink, 0..20, 100).await;
    assert_eq!((sink.len(), disk.syncs()), (20, before), "within the first segment");
    store(&wal, &sink, 20..60, 100).await;
    let (_wal, replayed) = open_at(&disk.disk(), config, 0).expect("opens");
    assert_eq!(replayed.len(), 60);
}

#[tokio::test(start_paused = true)]
async fn everything_is_read_back_and_replayed_from_any_offset_over_many_segments() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk);
    let applied = Applied::default();
    wal.start(Box::new(applied.clone()), Driver::Task);
    let sink = Outcomes::on(&disk);
    // Larger than a segment, larger than the probe of a read, empty, and in between.
    let lens = [10, 9000, 0, 300, 3900, 4100, 1000];
    for ticket in 0..50 {
        submit(&wal, &sink, ticket, lens[ticket as usize % 7], Durability::Durable);
        if ticket % 3 == 0 {
            turn().await;
        }
    }
    turn().await;
    assert!(wal.segments().len() > 10);
    let offsets: Vec<u64> = (0..50).map(|ticket| sink.offset(ticket)).collect();
    assert!(offsets.is_sorted() && *offsets.last().expect("some") < wal.end());
    let applied_at: Vec<u64> = applied.frames.lock().iter().map(|(offset, _)| *offset).collect();
    assert_eq!((&applied_at, *applied.end.lock()), (&offsets, wal.end()));
    let read_all = |wal: &Wal| {
        for (ticket, &offset) in offsets.iter().enumerate() {
            let (kind, head, body) = wal.read(offset).expect("reads");
            assert_same(&(offset, kind, head, body), ticket as u64, offset, lens[ticket % 7]);
            assert!(wal.read(offset + 8).is_err(), "no frame starts there");
        }
    };
    read_all(&wal);
    let scan_all = |wal: &Wal| {
        let mut found = Vec::new();
        let end = wal.scan(0, wal.end(), &mut |offset, _, head, _| {
            found.push((ticket_of(head), offset));
            Ok(true)
        });
        assert!(end.is_ok_and(|end| end >= wal.end()));
        assert!(found.iter().map(|one| one.1).eq(offsets.iter().copied()), "{found:?}");
    };
    scan_all(&wal);
    assert!(wal.read(wal.end()).is_err() && wal.read(0).is_err());
    for from in 0..50 {
        let (again, replayed) = open_at(&disk.crash().disk(), small(), offsets[from]).expect("ok");
        let found: Vec<u64> = replayed.iter().map(|entry| entry.0).collect();
        assert_eq!(found, offsets[from..]);
        read_all(&again);
        scan_all(&again);
        assert_eq!(again.incarnation(), 7);
    }
    let between = open_at(&disk.crash().disk(), small(), offsets[9] + 8);
    assert!(matches!(between, Err(StorageError::Damaged(_))), "no frame begins there");
}

/// IN-8: a record stays until nobody needs it; then its segment goes.
#[tokio::test(start_paused = true)]
async fn only_whole_segments_that_nobody_needs_are_removed() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk);
    wal.start(Box::new(Applied::default()), Driver::Task);
    let sink = Outcomes::on(&disk);
    store(&wal, &sink, 0..60, 400).await;
    assert_eq!(sink.len(), 60);
    let before = wal.segments();
    wal.remove_before(before[2].base - 8).expect("removes");
    assert_eq!(wal.segments(), before[1..], "the segment of that offset stays");
    wal.remove_before(sink.offset(59)).expect("removes");
    let left = wal.segments();
    assert!(left.len() <= 2 && left[0].base == wal.first(), "{left:?}");
    assert!(wal.read(sink.offset(0)).is_err());
    let found = wal.read(sink.offset(59));
    assert_eq!(ticket_of(&found.expect("is kept").1), 59);
    let (_again, replayed) =
        open_at(&disk.crash().disk(), small(), sink.offset(59)).expect("opens");
    assert_eq!(replayed.len(), 1);
    let too_early = open_at(&disk.crash().disk(), small(), sink.offset(3));
    assert!(matches!(too_early, Err(StorageError::Damaged(_))), "that was removed");
    wal.remove_before(u64::MAX).expect("removes");
    assert_eq!(wal.segments().len(), 1, "the one being written stays");
}

#[tokio::test(start_paused = true)]
async fn starts_without_traffic_leave_no_files_behind() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk);
    wal.start(Box::new(Applied::default()), Driver::Task);
    let sink = Outcomes::on(&disk);
    store(&wal, &sink, 0..3, 100).await;
    drop(wal);
    let mut bases = Vec::new();
    for round in 0..10 {
        let (wal, replayed) = open(&disk);
        assert_eq!(replayed.len(), 3);
        if round % 2 == 0 {
            wal.start(Box::new(Applied::default()), Driver::Task);
            turn().await;
        }
        bases.extend(wal.segments().last().map(|segment| segment.base));
        drop(wal);
    }
    assert_eq!(disk.disk().list().expect("lists").len(), 2);
    assert!(bases.is_sorted_by(|one, next| one < next), "and no offset comes twice: {bases:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_settles_what_waits_and_later_submissions_are_not_stored() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk);
    let sink = Outcomes::on(&disk);
    submit(&wal, &sink, 1, 10, Durability::Durable);
    assert!(wal.pending_bytes() > 10 && sink.len() == 0, "it waits for the start");
    wal.start(Box::new(Applied::default()), Driver::Task);
    submit(&wal, &sink, 2, 10, Durability::Durable);
    wal.stop();
    submit(&wal, &sink, 3, 10, Durability::Durable);
    assert!(sink.offset(1) < sink.offset(2));
    assert_eq!(sink.of(3), Some(AppendOutcome::NotStored));
    assert_eq!(wal.pending_bytes(), 0);
    let (wal, replayed) = open(&disk);
    assert_eq!(replayed.len(), 2);
    submit(&wal, &sink, 4, 10, Durability::Durable);
    drop(wal);
    assert_eq!(sink.of(4), Some(AppendOutcome::NotStored), "it was never started");
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_refuses_stops_the_start() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk);
    wal.start(Box::new(Applied::default()), Driver::Task);
    store(&wal, &Outcomes::on(&disk), 0..3, 10).await;
    drop(wal);
    let refused = Wal::open(disk.disk(), small(), 0, &mut |_, _, _, _| Err(StorageError::Fenced));
    assert!(matches!(refused, Err(StorageError::Fenced)));
}

struct Panics(Arc<AtomicBool>);

impl Applier for Panics {
    fn apply(&mut self, _offset: u64, _frame: &Frame) {
        assert!(!self.0.load(Ordering::Relaxed), "as the test wants it");
    }

    fn group_end(&mut self, _end: u64) {}
}

/// The same with the driver as a task, and when its runtime goes before the log does.
#[test]
fn a_task_that_ends_early_leaves_nobody_waiting() {
    for panic in [false, true] {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build().expect("a runtime");
        let disk = SimDisk::new(1);
        let (wal, _) = open(&disk);
        let sink = Outcomes::on(&disk);
        runtime.block_on(async {
            let panics = Arc::new(AtomicBool::new(panic));
            wal.start(Box::new(Panics(panics)), Driver::Task);
            submit(&wal, &sink, 0, 10, Durability::Durable);
            submit(&wal, &sink, 1, 10, Durability::Relaxed);
            turn().await;
        });
        let wrote = sink.of(1).expect("settled");
        assert_eq!(wrote == AppendOutcome::InDoubt, panic);
        submit(&wal, &sink, 2, 10, Durability::Durable);
        drop(runtime);
        assert_eq!(sink.of(2), Some(AppendOutcome::NotStored));
        wal.stop();
        assert_eq!(open(&disk).1.len(), 2, "they were written");
    }
}

/// "Settles exactly once" holds even when the program above the log has a fault.
#[test]
fn a_panic_in_the_applier_leaves_nobody_waiting() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk);
    let panics = Arc::new(AtomicBool::new(false));
    wal.start(Box::new(Panics(Arc::clone(&panics))), Driver::Thread);
    let sink = Outcomes::on(&disk);
    submit(&wal, &sink, 0, 10, Durability::Durable);
    sink.wait(1);
    panics.store(true, Ordering::Relaxed);
    for ticket in 1..100 {
        submit(&wal, &sink, ticket, 10, Durability::Durable);
    }
    sink.wait(100);
    assert_eq!(sink.of(1), Some(AppendOutcome::InDoubt));
    wal.stop();
    assert!(wal.trouble().is_some());
}
