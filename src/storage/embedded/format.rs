//! How the heads of log frames are written. Every head opens with a version; another one is
//! refused with a message that names it. Little endian throughout.

use std::sync::Arc;

use bytes::{BufMut, Bytes};

use crate::mqtt::{ClientId, Delivery, PacketId, QoS};
use crate::storage::ports::DirectCopy;
use crate::storage::{IdRun, Origin, Position, QueueKey, Row, Source, StorageError, Table, Taken};

const VERSION: u8 = 1;
const RELAXED: u8 = 1;
/// What a direct copy rests on, beside nothing (0) and an origin (1): where it moves from, and that
/// this is where the one before it did.
const MOVED: u8 = 2;
const MOVED_LIKEWISE: u8 = 3;

/// Reads fields one after the other and names what is damaged.
pub(super) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks the version that opens every record.
    pub(super) fn open(what: &'static str, bytes: &'a [u8]) -> Result<Self, StorageError> {
        let mut reader = Self { what, rest: bytes };
        match reader.u8()? {
            VERSION => Ok(reader),
            other => Err(reader.damaged(&format!("version {other} is not known, {VERSION} is"))),
        }
    }

    /// For a part of a record whose version was checked.
    pub(super) fn part(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    pub(super) fn damaged(&self, text: &str) -> StorageError {
        StorageError::Damaged(format!("{}: {text}", self.what))
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], StorageError> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.damaged("it ends in the middle of a field"));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StorageError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, StorageError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, StorageError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, StorageError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, StorageError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(super) fn packet_id(&mut self) -> Result<PacketId, StorageError> {
        PacketId::new(self.u16()?).ok_or_else(|| self.damaged("packet id 0"))
    }

    pub(super) fn delivery(&mut self) -> Result<Delivery, StorageError> {
        Ok(self.delivery_and_mark(0)?.0)
    }

    /// With a bit of the same byte that says something else.
    pub(super) fn delivery_and_mark(&mut self, mark: u8) -> Result<(Delivery, bool), StorageError> {
        let byte = self.u8()?;
        let qos = QoS::from_bits(byte & 3).ok_or_else(|| self.damaged("QoS 3"))?;
        Ok((Delivery { qos, retain: byte & 4 != 0 }, byte & mark != 0))
    }

    pub(super) fn ids(&mut self) -> Result<Arc<[u32]>, StorageError> {
        let count = self.u16()?;
        (0..count).map(|_| self.u32()).collect()
    }

    fn queue(&mut self) -> Result<(QueueKey, u64), StorageError> {
        let len = self.u32()? as usize;
        let bytes = self.take(len)?;
        Ok((read_key(bytes)?, self.u64()?))
    }

    fn table(&mut self) -> Result<Table, StorageError> {
        let number = self.u8()?;
        TABLES
            .into_iter()
            .find(|table| *table as u8 == number)
            .ok_or_else(|| self.damaged(&format!("table {number} is not known")))
    }

    /// What a direct copy rests on; `before`: the source that the last moved one named.
    fn origin(
        &mut self,
        before: &mut Option<Arc<Source>>,
    ) -> Result<(Option<Origin>, Option<Taken>), StorageError> {
        match self.u8()? {
            0 => Ok((None, None)),
            1 => {
                let position = Position { partition: 0, offset: self.u64()? };
                let (index, group) = (self.u32()?, self.u64()?);
                Ok((Some(Origin { position, index, group }), None))
            }
            mark @ (MOVED | MOVED_LIKEWISE) => {
                if mark == MOVED {
                    let (queue, incarnation) = self.queue()?;
                    let epoch = if self.u8()? == 1 { Some(self.u64()?) } else { None };
                    *before = Some(Arc::new(Source { queue, incarnation, epoch }));
                }
                let from = before.clone().ok_or_else(|| self.damaged("a copy from nowhere"))?;
                let (group, seq) = (self.u64()?, self.u64()?);
                Ok((Some(Origin::of_group(group)), Some(Taken { from, seq })))
            }
            other => Err(self.damaged(&format!("origin mark {other} is not known"))),
        }
    }

    pub(super) fn run(&mut self) -> Result<IdRun, StorageError> {
        Ok(IdRun { first_seq: self.u64()?, first_id: self.packet_id()?, count: self.u16()? })
    }
}

pub(super) const TABLES: [Table; 6] = [
    Table::Sessions,
    Table::Subscriptions,
    Table::Retained,
    Table::Credentials,
    Table::Blocked,
    Table::Settings,
];

pub(super) fn new_record(capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity);
    out.push(VERSION);
    out
}

pub(super) fn put_delivery(out: &mut Vec<u8>, delivery: Delivery) {
    out.push(delivery.qos.bits() | u8::from(delivery.retain) << 2);
}

pub(super) fn put_ids(out: &mut Vec<u8>, ids: &[u32]) {
    // A PUBLISH to one client cannot match more identifiers than this: each costs bytes in it.
    let count = ids.len().min(usize::from(u16::MAX));
    out.put_u16_le(count as u16);
    for id in &ids[..count] {
        out.put_u32_le(*id);
    }
}

pub(super) fn put_run(out: &mut Vec<u8>, run: &IdRun) {
    out.put_u64_le(run.first_seq);
    out.put_u16_le(run.first_id.get());
    out.put_u16_le(run.count);
}

/// A queue's key as bytes: also its key in the projection.
pub(super) fn key_bytes(key: &QueueKey) -> Vec<u8> {
    let (kind, name) = match key {
        QueueKey::Client(id) => (b'c', id.as_str()),
        QueueKey::Group(name) => (b'g', &**name),
        QueueKey::Application(id) => (b'a', id.as_str()),
        QueueKey::Shared(name) => (b's', &**name),
    };
    let mut out = Vec::with_capacity(1 + name.len());
    out.push(kind);
    out.extend_from_slice(name.as_bytes());
    out
}

pub(super) fn read_key(bytes: &[u8]) -> Result<QueueKey, StorageError> {
    let damaged = |text: &str| StorageError::Damaged(format!("queue key: {text}"));
    let (kind, name) = bytes.split_first().ok_or_else(|| damaged("empty"))?;
    let name = std::str::from_utf8(name).map_err(|_| damaged("not UTF-8"))?;
    match kind {
        b'c' => Ok(QueueKey::Client(ClientId::new(name))),
        b'g' => Ok(QueueKey::Group(Arc::from(name))),
        b'a' => Ok(QueueKey::Application(ClientId::new(name))),
        b's' => Ok(QueueKey::Shared(Arc::from(name))),
        other => Err(damaged(&format!("kind {other} is not known"))),
    }
}

fn queue_head(key: &QueueKey, incarnation: u64, more: usize) -> Vec<u8> {
    let key = key_bytes(key);
    let mut out = new_record(16 + key.len() + more);
    out.put_u32_le(key.len() as u32);
    out.extend_from_slice(&key);
    out.put_u64_le(incarnation);
    out
}

// === queue opens and removals ===

pub(super) fn queue_frame(key: &QueueKey, incarnation: u64) -> Bytes {
    queue_head(key, incarnation, 0).into()
}

pub(super) fn read_queue_frame(head: &[u8]) -> Result<(QueueKey, u64), StorageError> {
    Reader::open("queue frame", head)?.queue()
}

// === received ===

pub(super) fn received_frame(key: &QueueKey, incarnation: u64, seqs: &[u64]) -> Bytes {
    let mut out = queue_head(key, incarnation, 8 * seqs.len());
    seqs.iter().for_each(|seq| out.put_u64_le(*seq));
    out.into()
}

pub(super) fn read_received_frame(head: &[u8]) -> Result<(QueueKey, u64, Vec<u64>), StorageError> {
    let mut reader = Reader::open("received frame", head)?;
    let (key, incarnation) = reader.queue()?;
    let mut seqs = Vec::with_capacity(reader.rest.len() / 8);
    while !reader.rest.is_empty() {
        seqs.push(reader.u64()?);
    }
    Ok((key, incarnation, seqs))
}

// === id runs ===

pub(super) fn run_frame(key: &QueueKey, incarnation: u64, run: &IdRun) -> Bytes {
    let mut out = queue_head(key, incarnation, 12);
    put_run(&mut out, run);
    out.into()
}

pub(super) fn read_run_frame(head: &[u8]) -> Result<(QueueKey, u64, IdRun), StorageError> {
    let mut reader = Reader::open("id run frame", head)?;
    let (key, incarnation) = reader.queue()?;
    Ok((key, incarnation, reader.run()?))
}

// === direct copies ===

pub(super) fn direct_frame(to: &QueueKey, incarnation: u64, deliveries: &[DirectCopy]) -> Bytes {
    let mut out = queue_head(to, incarnation, 29 * deliveries.len());
    let mut before: Option<&Arc<Source>> = None;
    for copy in deliveries {
        put_delivery(&mut out, copy.delivery);
        put_ids(&mut out, &copy.subscription_ids);
        match (&copy.origin, &copy.taken) {
            (None, _) => out.push(0),
            (Some(Origin { position, index, group }), None) => {
                out.push(1);
                out.put_u64_le(position.offset);
                out.put_u32_le(*index);
                out.put_u64_le(*group);
            }
            (Some(Origin { group, .. }), Some(Taken { from, seq })) => {
                let likewise = before.is_some_and(|before| before == from);
                out.push(if likewise { MOVED_LIKEWISE } else { MOVED });
                if !likewise {
                    put_source(&mut out, from);
                }
                before = Some(from);
                out.put_u64_le(*group);
                out.put_u64_le(*seq);
            }
        }
    }
    out.into()
}

fn put_source(out: &mut Vec<u8>, from: &Source) {
    let key = key_bytes(&from.queue);
    out.put_u32_le(key.len() as u32);
    out.extend_from_slice(&key);
    out.put_u64_le(from.incarnation);
    out.push(u8::from(from.epoch.is_some()));
    if let Some(epoch) = from.epoch {
        out.put_u64_le(epoch);
    }
}

pub(super) type DirectHead = (QueueKey, u64, Arc<[DirectCopy]>);

pub(super) fn read_direct_frame(head: &[u8]) -> Result<DirectHead, StorageError> {
    let mut reader = Reader::open("direct frame", head)?;
    let (key, incarnation) = reader.queue()?;
    let (mut copies, mut before) = (Vec::new(), None);
    while !reader.rest.is_empty() {
        let (delivery, subscription_ids) = (reader.delivery()?, reader.ids()?);
        let (origin, taken) = reader.origin(&mut before)?;
        copies.push(DirectCopy { delivery, subscription_ids, origin, taken });
    }
    Ok((key, incarnation, copies.into()))
}

// === rows ===

/// Head and body of a put.
pub(super) fn rows_frame(rows: &[Row], relaxed: bool) -> (Bytes, Bytes) {
    let mut head = new_record(2);
    head.push(if relaxed { RELAXED } else { 0 });
    let size = |row: &Row| 10 + row.key.len() + row.value.as_ref().map_or(0, Bytes::len);
    let mut body = Vec::with_capacity(rows.iter().map(size).sum());
    for row in rows {
        body.push(row.table as u8);
        body.put_u32_le(row.key.len() as u32);
        body.extend_from_slice(&row.key);
        match &row.value {
            Some(value) => {
                body.push(1);
                body.put_u32_le(value.len() as u32);
                body.extend_from_slice(value);
            }
            None => body.push(0),
        }
    }
    (head.into(), body.into())
}

/// Whether the put was `Relaxed`: such rows die with the process.
pub(super) fn rows_relaxed(head: &[u8]) -> Result<bool, StorageError> {
    let mut reader = Reader::open("rows frame", head)?;
    match reader.u8()? {
        0 => Ok(false),
        RELAXED => Ok(true),
        other => Err(reader.damaged(&format!("flags {other} are not known"))),
    }
}

pub(super) fn read_rows(body: &Bytes) -> Result<Vec<Row>, StorageError> {
    let mut reader = Reader::part("rows frame", body);
    let mut rows = Vec::new();
    while !reader.rest.is_empty() {
        let table = reader.table()?;
        let len = reader.u32()? as usize;
        let key = body.slice_ref(reader.take(len)?);
        let value = match reader.u8()? {
            0 => None,
            1 => {
                let len = reader.u32()? as usize;
                Some(body.slice_ref(reader.take(len)?))
            }
            other => return Err(reader.damaged(&format!("value mark {other} is not known"))),
        };
        rows.push(Row { table, key, value });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> QueueKey {
        QueueKey::Client(ClientId::new("c/ü"))
    }

    #[test]
    fn heads_read_back_as_they_were_written() {
        let seqs = [1, 5, u64::MAX];
        let read = read_received_frame(&received_frame(&client(), 7, &seqs)).expect("reads");
        assert_eq!(read, (client(), 7, seqs.to_vec()));
        let run = IdRun { first_seq: 9, first_id: PacketId::MAX, count: 64 };
        let read = read_run_frame(&run_frame(&client(), 8, &run)).expect("reads");
        assert_eq!(read, (client(), 8, run));
        let delivery = Delivery { qos: QoS::ExactlyOnce, retain: true };
        let position = Position { partition: 0, offset: 1 << 40 };
        let ids = Arc::from([1, 268_435_455]);
        let source = |epoch| Arc::new(Source { queue: client(), incarnation: 4, epoch });
        let taken = |from: &Arc<Source>, seq| Some(Taken { from: Arc::clone(from), seq });
        let (one, other) = (source(None), source(Some(u64::MAX)));
        let moved = Some(Origin::of_group(9));
        let copies = [
            (None, None),
            (Some(Origin { position, index: 7, group: u64::MAX }), None),
            (moved, taken(&one, 1)),
            (moved, taken(&one, 2)),
            (moved, taken(&other, u64::MAX)),
        ];
        let copies = copies.map(|(origin, taken)| DirectCopy {
            delivery,
            subscription_ids: Arc::clone(&ids),
            origin,
            taken,
        });
        let group = QueueKey::Group(Arc::from("g"));
        let read = read_direct_frame(&direct_frame(&group, 3, &copies)).expect("reads");
        assert_eq!(read, (group, 3, Arc::from(copies)));
        let rows = [
            Row { table: Table::Settings, key: Bytes::from("k"), value: Some(Bytes::new()) },
            Row { table: Table::Retained, key: Bytes::new(), value: None },
        ];
        let (head, body) = rows_frame(&rows, true);
        assert!(rows_relaxed(&head).expect("reads"));
        assert_eq!(read_rows(&body).expect("reads"), rows);
    }

    /// STO-11: an unknown version is refused, and the message names what was found.
    #[test]
    fn an_unknown_version_is_refused_by_name() {
        let mut head = queue_frame(&client(), 7).to_vec();
        head[0] = 9;
        let refused = read_queue_frame(&head).expect_err("refused").to_string();
        assert!(refused.contains("queue frame: version 9"), "{refused}");
        for len in 0..head.len() {
            assert!(read_queue_frame(&queue_frame(&client(), 7)[..len]).is_err(), "cut at {len}");
        }
    }
}
