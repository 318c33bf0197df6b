//! Shortens the log. A segment goes when the synced checkpoint is above it and no queue points
//! into it. When the log is over its bound, what queues still owe from the oldest segments is
//! copied into the projection first. What was not dispatched is never removed (IN-8).

use super::checkpoint::{BATCH_BYTES, Checkpointer};
use super::cold::{ColdPage, read_cold};
use super::projection::{Changes, Space};
use super::records::{EntryRecord, Stored, entry_key, entry_seq};
use super::wal::SegmentInfo;
use crate::storage::{QueueKey, StorageError};

/// A queue with entries that point below the offset in question.
struct Owing {
    key: QueueKey,
    number: u64,
    /// The first entry that the projection holds as owed. What was acknowledged since counts as
    /// owed here: a crash would bring it back.
    first: u64,
}

impl Checkpointer {
    fn over(&self, segments: &[SegmentInfo]) -> bool {
        segments.iter().map(|segment| segment.end - segment.base).sum::<u64>() > self.retain_bytes
    }

    pub(super) fn over_retention(&self) -> bool {
        self.over(&self.wal.segments())
    }

    /// Removes what nobody needs of the log below `floor`, which a synced checkpoint covers.
    pub(super) fn shorten(&self, floor: u64) -> Result<(), StorageError> {
        loop {
            let segments = self.wal.segments();
            let Some((last, others)) = segments.split_last() else { return Ok(()) };
            let bases = others.iter().skip(1).map(|segment| segment.base).chain([last.base]);
            // The last of the removable segments ends where the next one begins.
            let Some(end) = bases.take_while(|base| *base <= floor).next() else { return Ok(()) };
            let over = self.over(&segments);
            let owing = self.owing(end, !over)?;
            if !owing.is_empty() {
                if !over {
                    return Ok(());
                }
                for queue in &owing {
                    self.copy_out(queue, end)?;
                }
                self.projection.sync()?;
            }
            self.wal.remove_before(end)?;
            if self.wal.first() == segments[0].base {
                return Ok(());
            }
        }
    }

    /// The queues that point below `end`, or only one of them. A queue's floor only says that it
    /// might: looking costs a read of the projection.
    fn owing(&self, end: u64, one: bool) -> Result<Vec<Owing>, StorageError> {
        let mut suspects = Vec::new();
        for shard in self.queues.shards() {
            for (key, queue) in &shard.lock().queues {
                if queue.meta.pointer_floor < end {
                    let (number, first) = (queue.meta.number, queue.stored_floor());
                    suspects.push(Owing { key: key.clone(), number, first });
                }
            }
        }
        let mut owing = Vec::new();
        for suspect in suspects {
            let lowest = self.lowest_pointer(&suspect)?;
            self.raise_floor(&suspect, lowest);
            if lowest < end {
                owing.push(suspect);
                if one {
                    break;
                }
            }
        }
        Ok(owing)
    }

    fn lowest_pointer(&self, queue: &Owing) -> Result<u64, StorageError> {
        let (from, to) = (entry_key(queue.number, queue.first), entry_key(queue.number + 1, 0));
        let mut lowest = u64::MAX;
        self.projection.scan(Space::Entries, &from, &to, &mut |_, record| {
            // Sources rise in a queue, so the first pointer is the lowest.
            if let Stored::Pointer { offset, .. } = EntryRecord::decode(record)?.stored {
                lowest = offset;
            }
            Ok(lowest == u64::MAX)
        })?;
        Ok(lowest)
    }

    /// Only this thread stores entries, so nothing below the new floor can appear meanwhile.
    fn raise_floor(&self, queue: &Owing, lowest: u64) {
        let mut shard = self.queues.shard(&queue.key);
        let found = shard.queues.get_mut(&queue.key);
        if let Some(found) = found.filter(|found| found.meta.number == queue.number) {
            found.meta.pointer_floor = lowest;
        }
    }

    /// Replaces pointers below `end` by the messages themselves.
    fn copy_out(&self, queue: &Owing, end: u64) -> Result<(), StorageError> {
        let mut from = queue.first;
        loop {
            let (seqs, more) = self.pointers(queue.number, from, end)?;
            let Some(last) = seqs.last().copied() else { break };
            let mut changes = Changes::default();
            let page = ColdPage { number: queue.number, seqs: &seqs, max_bytes: BATCH_BYTES };
            let messages = read_cold(&self.wal, &*self.projection, page)?;
            from = messages.last().map_or(last, |message| message.seq) + 1;
            for message in messages {
                let record = EntryRecord {
                    stored: Stored::Inline(message.message.detached().batch().body().clone()),
                    delivery: message.delivery,
                    subscription_ids: message.subscription_ids,
                    expires_at_ms: message.expires_at_ms,
                    group: message.group,
                };
                let key = entry_key(queue.number, message.seq);
                changes.put(Space::Entries, key, record.encode());
            }
            self.projection.commit(changes)?;
            if !more && from > last {
                break;
            }
        }
        let lowest = self.lowest_pointer(queue)?;
        self.raise_floor(queue, lowest);
        Ok(())
    }

    /// Up to a page of entries that point below `end`, and whether there may be more.
    fn pointers(&self, number: u64, from: u64, end: u64) -> Result<(Vec<u64>, bool), StorageError> {
        const PAGE: usize = 1000;
        let (mut seqs, mut more) = (Vec::new(), false);
        let (from, to) = (entry_key(number, from), entry_key(number + 1, 0));
        self.projection.scan(Space::Entries, &from, &to, &mut |key, record| {
            if let Stored::Pointer { offset, .. } = EntryRecord::decode(record)?.stored {
                if offset >= end {
                    return Ok(false);
                }
                if seqs.len() == PAGE {
                    more = true;
                    return Ok(false);
                }
                seqs.push(entry_seq(key)?);
            }
            Ok(true)
        })?;
        Ok((seqs, more))
    }
}
