//! How the projection's records are written: queues, entries, rows, and the checkpoint itself.
//! Every record opens with a version; another one is refused by name.

use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes};

use super::format::{Reader, new_record, put_delivery, put_ids, put_run};
use super::queue::{Mark, QueueMeta, pointer};
use super::ranges::Ranges;
use crate::mqtt::Delivery;
use crate::storage::{Position, QueueEntry, SourceId, StorageError};

pub(super) const CHECKPOINT_KEY: &[u8] = b"checkpoint";

/// What the projection covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checkpoint {
    /// Of which log.
    pub(super) log: u64,
    /// Rows and queue frames below it are in the projection.
    pub(super) applied: u64,
    /// The consumer's commit, and the dispatcher's state at it.
    pub(super) committed: u64,
    pub(super) state: Vec<u8>,
    /// Written by an orderly stop: nothing was sent after it.
    pub(super) clean: bool,
}

impl Checkpoint {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = new_record(32 + self.state.len());
        out.put_u64_le(self.log);
        out.put_u64_le(self.applied);
        out.put_u64_le(self.committed);
        out.push(u8::from(self.clean));
        out.extend_from_slice(&self.state);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StorageError> {
        let mut reader = Reader::open("checkpoint record", bytes)?;
        Ok(Self {
            log: reader.u64()?,
            applied: reader.u64()?,
            committed: reader.u64()?,
            clean: reader.u8()? == 1,
            state: reader.rest().to_vec(),
        })
    }
}

// === rows ===

pub(super) fn row_record(position: u64, value: &[u8]) -> Vec<u8> {
    let mut out = new_record(9 + value.len());
    out.put_u64_le(position);
    out.extend_from_slice(value);
    out
}

pub(super) fn read_row(bytes: &[u8]) -> Result<(u64, &[u8]), StorageError> {
    let mut reader = Reader::open("table row", bytes)?;
    Ok((reader.u64()?, reader.rest()))
}

// === queues ===

pub(super) fn queue_record(meta: &QueueMeta) -> Vec<u8> {
    let mut out = new_record(96);
    out.put_u64_le(meta.number);
    out.put_u64_le(meta.incarnation);
    out.put_u64_le(meta.next_seq);
    out.put_u64_le(meta.told);
    out.push(u8::from(meta.exact));
    out.put_u64_le(meta.pointer_floor);
    out.put_u32_le(meta.marks.len() as u32);
    for Mark { last } in &meta.marks {
        out.put_u64_le(last.incarnation);
        out.put_u32_le(last.position.partition);
        out.put_u64_le(last.position.offset);
        out.put_u32_le(last.index);
    }
    out.put_u32_le(meta.runs.len() as u32);
    meta.runs.iter().for_each(|run| put_run(&mut out, run));
    out.put_u32_le(meta.live.iter().count() as u32);
    for (start, end) in meta.live.iter() {
        out.put_u64_le(start);
        out.put_u64_le(end);
    }
    out.put_u32_le(meta.received.len() as u32);
    meta.received.iter().for_each(|seq| out.put_u64_le(*seq));
    for (end, bytes) in meta.extents.iter() {
        out.put_u64_le(end);
        out.put_u64_le(bytes);
    }
    out
}

pub(super) fn read_queue(bytes: &[u8]) -> Result<QueueMeta, StorageError> {
    let mut reader = Reader::open("queue record", bytes)?;
    let mut meta = QueueMeta {
        number: reader.u64()?,
        incarnation: reader.u64()?,
        next_seq: reader.u64()?,
        told: reader.u64()?,
        exact: reader.u8()? == 1,
        pointer_floor: reader.u64()?,
        ..QueueMeta::default()
    };
    for _ in 0..reader.u32()? {
        let incarnation = reader.u64()?;
        let position = Position { partition: reader.u32()?, offset: reader.u64()? };
        meta.marks.push(Mark { last: SourceId { incarnation, position, index: reader.u32()? } });
    }
    for _ in 0..reader.u32()? {
        meta.runs.push_back(reader.run()?);
    }
    let mut live = Ranges::default();
    let mut last = 0;
    for _ in 0..reader.u32()? {
        let (start, end) = (reader.u64()?, reader.u64()?);
        if start < last || end <= start || end > meta.next_seq {
            return Err(reader.damaged("its sequences are not in order"));
        }
        live.extend(start, end - start);
        last = end;
    }
    meta.live = live;
    for _ in 0..reader.u32()? {
        meta.received.insert(reader.u64()?);
    }
    while !reader.is_empty() {
        meta.extents.push(reader.u64()?, reader.u64()?);
    }
    Ok(meta)
}

// === entries ===

pub(super) fn entry_key(number: u64, seq: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(16);
    key.put_u64(number);
    key.put_u64(seq);
    key
}

pub(super) fn entry_seq(key: &[u8]) -> Result<u64, StorageError> {
    let seq = key.get(8..16).and_then(|seq| seq.try_into().ok()).map(u64::from_be_bytes);
    seq.ok_or_else(|| StorageError::Damaged("queue entry: its key is too short".into()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The message stands in the log.
    Pointer { offset: u64, index: u32 },
    /// The message itself: a batch of one.
    Inline(Bytes),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryRecord {
    pub(super) stored: Stored,
    pub(super) delivery: Delivery,
    pub(super) subscription_ids: Arc<[u32]>,
    pub(super) expires_at_ms: Option<u64>,
    pub(super) group: Option<u64>,
}

const POINTER: u8 = 0;
const INLINE: u8 = 1;
/// Beside QoS and RETAIN: the number of a shared group follows the identifiers.
const OF_GROUP: u8 = 8;

impl EntryRecord {
    /// As a pointer if this log holds the message, else whole.
    pub(super) fn of(entry: &QueueEntry, log: u64, held: &Range<u64>) -> Self {
        let stored = match pointer(&entry.source, log, held) {
            Some(at) => Stored::Pointer { offset: at.offset, index: entry.source.index },
            None => Stored::Inline(entry.message.detached().batch().body().clone()),
        };
        Self {
            stored,
            delivery: entry.delivery,
            subscription_ids: entry.subscription_ids.clone(),
            expires_at_ms: entry.expires_at_ms,
            group: entry.group,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let more = match &self.stored {
            Stored::Pointer { .. } => 12,
            Stored::Inline(body) => body.len(),
        };
        let mut out = new_record(16 + 4 * self.subscription_ids.len() + more);
        put_delivery(&mut out, self.delivery);
        if self.group.is_some()
            && let Some(delivery) = out.last_mut()
        {
            *delivery |= OF_GROUP;
        }
        out.put_u64_le(self.expires_at_ms.unwrap_or(0));
        put_ids(&mut out, &self.subscription_ids);
        if let Some(group) = self.group {
            out.put_u64_le(group);
        }
        match &self.stored {
            Stored::Pointer { offset, index } => {
                out.push(POINTER);
                out.put_u64_le(*offset);
                out.put_u32_le(*index);
            }
            Stored::Inline(body) => {
                out.push(INLINE);
                out.extend_from_slice(body);
            }
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StorageError> {
        let mut reader = Reader::open("queue entry", bytes)?;
        let (delivery, of_group) = reader.delivery_and_mark(OF_GROUP)?;
        let expires_at_ms = Some(reader.u64()?).filter(|at| *at != 0);
        let subscription_ids = reader.ids()?;
        let group = if of_group { Some(reader.u64()?) } else { None };
        let stored = match reader.u8()? {
            POINTER => Stored::Pointer { offset: reader.u64()?, index: reader.u32()? },
            INLINE => Stored::Inline(Bytes::copy_from_slice(reader.rest())),
            other => return Err(reader.damaged(&format!("form {other} is not known"))),
        };
        Ok(Self { stored, delivery, subscription_ids, expires_at_ms, group })
    }
}
