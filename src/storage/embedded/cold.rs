//! Reads entries back that only the projection has. Blocks on the medium.

use std::sync::Arc;

use super::projection::{Projection, Space};
use super::records::{EntryRecord, Stored, entry_key, entry_seq};
use super::wal::{FrameKind, Wal};
use crate::storage::{Batch, MessageRef, QueuedMessage, StorageError};

/// A message that takes less than this share of its batch gets a batch of its own, so that a
/// small message does not hold a large batch in a session's memory.
const SHARE: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct ColdPage<'a> {
    pub(super) number: u64,
    /// Rising, not empty.
    pub(super) seqs: &'a [u64],
    pub(super) max_bytes: usize,
}

/// Neighbouring pointers mostly lead into the same frame: it is read and parsed once.
#[derive(Default)]
struct LastFrame(Option<(u64, Arc<Batch>)>);

impl LastFrame {
    fn message(&mut self, wal: &Wal, offset: u64, index: u32) -> Result<MessageRef, StorageError> {
        let batch = match &self.0 {
            Some((at, batch)) if *at == offset => Arc::clone(batch),
            Some(_) | None => {
                let (kind, _, body) = wal.read(offset)?;
                if !matches!(kind, FrameKind::Publishes | FrameKind::Direct) {
                    let text = format!("a queue entry points to a {kind:?} frame at {offset}");
                    return Err(StorageError::Damaged(text));
                }
                let batch = Arc::new(Batch::parse(body)?);
                self.0 = Some((offset, Arc::clone(&batch)));
                batch
            }
        };
        let index = index as usize;
        if index >= batch.len() {
            let text = format!("a queue entry points to message {index} at {offset}");
            return Err(StorageError::Damaged(text));
        }
        let whole = batch.body().len();
        let message = MessageRef::new(batch, index);
        let view = message.view();
        let size = view.topic.len() + view.properties.len() + view.payload.len();
        Ok(if size * SHARE < whole { message.detached() } else { message })
    }
}

/// The entries of the page that the projection has, sequences rising.
pub(super) fn read_cold(
    wal: &Wal,
    projection: &dyn Projection,
    page: ColdPage<'_>,
) -> Result<Vec<QueuedMessage>, StorageError> {
    match try_read(wal, projection, page) {
        // The segment may have gone between the two reads; then the entry was copied out before.
        Err(_) => try_read(wal, projection, page),
        found => found,
    }
}

fn try_read(
    wal: &Wal,
    projection: &dyn Projection,
    page: ColdPage<'_>,
) -> Result<Vec<QueuedMessage>, StorageError> {
    let (Some(first), Some(last)) = (page.seqs.first(), page.seqs.last()) else {
        return Ok(Vec::new());
    };
    let (from, to) = (entry_key(page.number, *first), entry_key(page.number, last + 1));
    let mut wanted = page.seqs.iter().copied().peekable();
    let (mut found, mut bytes, mut frame) = (Vec::new(), 0, LastFrame::default());
    projection.scan(Space::Entries, &from, &to, &mut |key, record| {
        let seq = entry_seq(key)?;
        while wanted.next_if(|wanted| *wanted < seq).is_some() {}
        if wanted.peek() != Some(&seq) {
            return Ok(wanted.peek().is_some());
        }
        let message = message(wal, &mut frame, seq, record)?;
        let view = message.message.view();
        bytes += view.topic.len() + view.properties.len() + view.payload.len();
        if bytes > page.max_bytes && !found.is_empty() {
            return Ok(false);
        }
        found.push(message);
        Ok(true)
    })?;
    Ok(found)
}

fn message(
    wal: &Wal,
    frame: &mut LastFrame,
    seq: u64,
    record: &[u8],
) -> Result<QueuedMessage, StorageError> {
    let EntryRecord { stored, delivery, subscription_ids, expires_at_ms, group } =
        EntryRecord::decode(record)?;
    let message = match stored {
        Stored::Pointer { offset, index } => frame.message(wal, offset, index)?,
        Stored::Inline(body) => MessageRef::new(Arc::new(Batch::parse(body)?), 0),
    };
    let received = false;
    Ok(QueuedMessage { seq, message, delivery, subscription_ids, expires_at_ms, group, received })
}
