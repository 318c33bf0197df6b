//! A medium that fails, is full, or gives back what was not written.

use std::io::IoSlice;

use super::*;
use crate::storage::embedded::wal::format::{self, FrameHeader};

async fn started(disk: &SimDisk) -> (Wal, Arc<Outcomes>) {
    let (wal, _) = open(disk);
    wal.start(Box::new(Applied::default()), Driver::Task);
    turn().await;
    (wal, Outcomes::on(disk))
}

fn tickets(replayed: &Replayed) -> Vec<u64> {
    replayed.iter().map(|entry| ticket_of(&entry.2)).collect()
}

/// IN-2: refused is surely not stored, and the log goes on in a new segment by itself.
#[tokio::test(start_paused = true)]
async fn a_failed_write_is_not_stored_and_heals() {
    let disk = SimDisk::new(1);
    let (wal, sink) = started(&disk).await;
    store(&wal, &sink, 0..2, 100).await;
    disk.fail_writes(1);
    store(&wal, &sink, 2..4, 100).await;
    assert_eq!(sink.of(2), Some(AppendOutcome::NotStored));
    assert_eq!(sink.of(3), Some(AppendOutcome::NotStored));
    store(&wal, &sink, 4..5, 100).await;
    assert!(sink.offset(4) >= wal.segments()[1].base, "in another segment");
    assert_eq!(wal.trouble(), None);
    for image in [disk.crash(), disk.crash(), disk.crash()] {
        assert_eq!(tickets(&open(&image).1), [0, 1, 4]);
    }
}

/// Design decision 16: a write that failed half way may be found again by nobody knows whom.
#[tokio::test(start_paused = true)]
async fn a_write_that_failed_half_way_is_in_doubt_and_then_gone() {
    let disk = SimDisk::new(1);
    let (wal, sink) = started(&disk).await;
    store(&wal, &sink, 0..1, 100).await;
    disk.fail_write_after(200);
    store(&wal, &sink, 1..4, 100).await;
    assert!((1..4).all(|ticket| sink.of(ticket) == Some(AppendOutcome::InDoubt)));
    store(&wal, &sink, 4..5, 100).await;
    assert_eq!(tickets(&open(&disk).1), [0, 4], "once the log went on, they are cut");
}

/// Design decision 16: nobody knows what a failed sync kept; it is never tried over again.
#[tokio::test(start_paused = true)]
async fn a_failed_sync_is_in_doubt_and_its_segment_is_left() {
    let disk = SimDisk::new(1);
    let (wal, sink) = started(&disk).await;
    store(&wal, &sink, 0..2, 100).await;
    disk.fail_syncs(1);
    store(&wal, &sink, 2..4, 100).await;
    assert_eq!(sink.of(2), Some(AppendOutcome::InDoubt));
    assert_eq!(wal.trouble(), None, "a new segment has proven itself at once");
    store(&wal, &sink, 4..6, 100).await;
    assert!(sink.offset(4) >= wal.segments()[1].base);
    for seed in 0..20 {
        assert_eq!(tickets(&open(&disk.crash()).1), [0, 1, 4, 5], "crash {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_medium_that_goes_on_failing_is_tried_again_without_traffic() {
    let disk = SimDisk::new(1);
    let (wal, sink) = started(&disk).await;
    disk.fail_syncs(5);
    store(&wal, &sink, 0..1, 100).await;
    store(&wal, &sink, 1..2, 100).await;
    assert_eq!(sink.of(1), Some(AppendOutcome::NotStored), "the new segment is not proven");
    assert!(wal.trouble().is_some_and(|text| text.contains("simulated sync fault")));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(wal.trouble(), None);
    store(&wal, &sink, 2..3, 100).await;
    assert_eq!(tickets(&open(&disk.crash()).1).last(), Some(&2));
}

/// A full disk refuses new messages, says so, and needs no restart when there is room again.
#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_and_recovers_alone() {
    let disk = SimDisk::new(1);
    let (wal, sink) = started(&disk).await;
    store(&wal, &sink, 0..5, 1000).await;
    disk.limit(Some(4096 * 5));
    store(&wal, &sink, 5..20, 1000).await;
    assert_eq!(sink.of(19), Some(AppendOutcome::NotStored));
    let trouble = wal.trouble().expect("trouble");
    assert!(trouble.contains("the disk is full") && trouble.contains("simulated disk"));
    let stored = wal.end();
    disk.limit(None);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(wal.trouble(), None, "without any traffic");
    store(&wal, &sink, 20..21, 1000).await;
    assert!(sink.offset(20) >= stored);
}

/// What is found is not what was written, and what stands behind shows that it was durable.
#[tokio::test(start_paused = true)]
async fn damage_in_the_middle_is_refused_with_file_and_byte() {
    let disk = SimDisk::new(1);
    let (wal, sink) = started(&disk).await;
    for ticket in 0..30 {
        store(&wal, &sink, ticket..ticket + 1, 300).await;
    }
    let segments = wal.segments();
    assert!(segments.len() > 2);
    // In the header and in the body of a frame, in the first and in the last segment.
    for (ticket, byte) in [(0, 0), (3, 50), (5, 9), (28, 100)] {
        let offset = sink.offset(ticket);
        let home = segments.iter().rfind(|one| one.base <= offset).expect("a segment");
        let (name, at) = (format::file_name(home.base), offset - home.base + 4096);
        let image = disk.crash();
        image.damage(&name, at as usize + byte);
        match open_at(&image.disk(), small(), 0) {
            Err(StorageError::Damaged(text)) => {
                assert!(text.contains(&format!("{name} at byte {at} ")), "{text}");
            }
            other => panic!("ticket {ticket}: {:?}", other.map(|opened| tickets(&opened.1))),
        }
        let behind = sink.offset(29);
        let opened = open_at(&image.disk(), small(), behind);
        assert_eq!(opened.is_ok(), home.base < segments[segments.len() - 1].base);
    }
    // The very last frame has no witness: it counts as torn.
    let image = disk.crash();
    let last = &segments[segments.len() - 1];
    let at = sink.offset(29) - last.base + 4096;
    image.damage(&format::file_name(last.base), at as usize + 40);
    assert_eq!(open(&image).1.len(), 29);
    // After a stop in peace, it has.
    wal.stop();
    disk.damage(&format::file_name(last.base), at as usize + 40);
    assert!(open_at(&disk.disk(), small(), 0).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_missing_segment_is_refused_unless_it_is_not_needed() {
    let disk = SimDisk::new(1);
    let (wal, sink) = started(&disk).await;
    store(&wal, &sink, 0..40, 300).await;
    let segments = wal.segments();
    assert!(segments.len() > 3);
    let damaged = |image: &SimDisk, from: u64| match open_at(&image.disk(), small(), from) {
        Err(StorageError::Damaged(text)) => assert!(text.contains("missing"), "{text}"),
        other => panic!("{:?}", other.map(|opened| opened.1.len())),
    };
    for gone in 0..segments.len() {
        let image = disk.crash();
        image.disk().remove(&format::file_name(segments[gone].base)).expect("removes");
        let needed = open_at(&image.disk(), small(), 0);
        assert!(matches!(needed, Err(StorageError::Damaged(_))), "segment {gone}");
        if let Some(next) = segments.get(gone + 1) {
            open_at(&image.disk(), small(), next.base).expect("that is not needed");
        }
    }
    let image = disk.crash();
    for segment in &segments {
        image.disk().remove(&format::file_name(segment.base)).expect("removes");
    }
    damaged(&image, sink.offset(39));
    damaged(&SimDisk::new(2), 4096);
}

/// What a newer program wrote is refused, not guessed at.
#[tokio::test(start_paused = true)]
async fn an_unknown_version_or_kind_is_refused() {
    let disk = SimDisk::new(1);
    let (wal, sink) = started(&disk).await;
    store(&wal, &sink, 0..1, 16).await;
    let name = format::file_name(wal.first());
    let write = |disk: &SimDisk, bytes: &[u8], at: u64| {
        let file = disk.disk().open(&name).expect("opens");
        file.write_at(&[IoSlice::new(bytes)], at).expect("writes");
    };
    let refusal = |disk: &SimDisk| match open_at(&disk.disk(), small(), 0) {
        Err(StorageError::Damaged(text)) => text,
        other => panic!("{:?}", other.map(|opened| tickets(&opened.1))),
    };
    let image = disk.crash();
    write(&image, &9_u32.to_le_bytes(), 8);
    let text = refusal(&image);
    assert!(text.contains("version 9 is not known") && text.contains(&name), "{text}");
    let image = disk.crash();
    let (head_len, body_len) = (0, 0);
    let header = FrameHeader { data_crc: 0, synced: 0, head_len, body_len, kind: 77 };
    let end = wal.end();
    write(&image, &header.encode(end, 7), end - wal.first() + 4096);
    let text = refusal(&image);
    assert!(text.contains("frame kind 77 is not known") && text.contains(&name), "{text}");
    let image = disk.crash();
    image.damage(&name, 30);
    assert!(refusal(&image).contains("header is broken"));
}

/// Bytes that are a frame in every respect but stand elsewhere, or come from another log.
#[test]
fn a_frame_counts_only_at_its_own_place_and_in_its_own_log() {
    let header = FrameHeader { data_crc: 5, synced: 8, head_len: 3, body_len: 4, kind: 2 };
    let bytes = header.encode(4096, 7);
    assert_eq!(FrameHeader::decode(&bytes, 4096, 7), Some(header));
    assert_eq!(FrameHeader::decode(&bytes, 4104, 7), None);
    assert_eq!(FrameHeader::decode(&bytes, 4096, 8), None);
    for bit in 0..bytes.len() * 8 {
        let mut other = bytes;
        other[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(FrameHeader::decode(&other, 4096, 7), None, "bit {bit}");
    }
}
