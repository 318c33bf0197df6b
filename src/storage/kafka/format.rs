//! What stands in Kafka: a mark in a header tells version, kind, writer and number of a record; the
//! payload is the batch as it is, or one of the forms below.
//!
//! ```text
//! mark (header `sluice`): version u8 · kind u8 · writer u64 · number u64, little endian
//! Publishes: the batch                       number: the writer's how-manieth append
//! Retaining: how many u32 · which messages of it are retained u32 … · the batch    likewise
//! Direct:    head length u32 · head · batch  likewise
//! Moved:     likewise, each copy from where  likewise
//! Rows:      all rows of one put             the writer's how-manieth put
//! Relaxed:   likewise, to be forgotten       likewise
//! TableRow:  version u8 · value, or nothing  number: the row's position in the log
//! State:     version u8 · fields
//! Word:      version u8 · fields             what a node says of itself or another
//! ```

use std::sync::Arc;

use bytes::Bytes;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use serde::{Deserialize, Serialize};

use crate::cluster::Members;
use crate::mqtt::{ClientId, Delivery, QoS};
use crate::storage::{
    Batch, DirectCopy, LogItem, MessageRef, Origin, Position, QueueKey, Row, Source, StorageError,
    Table, Taken, retained_row,
};

/// The only version there is of each kind; another one is refused.
const VERSION: u8 = 1;
const HEADER: &str = "sluice";
const MARK: usize = 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    Publishes = 1,
    Direct = 2,
    Rows = 3,
    TableRow = 4,
    State = 5,
    /// Rows that may be forgotten: applied, and never written behind.
    Relaxed = 6,
    Word = 7,
    /// Publishes that set or delete what is retained.
    Retaining = 8,
    /// Direct copies that move from other queues.
    Moved = 9,
}

/// What every record of ours carries in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) kind: RecordKind,
    /// The run of a program that wrote it.
    pub(super) writer: u64,
    pub(super) number: u64,
}

impl Mark {
    pub(super) fn headers(&self) -> OwnedHeaders {
        let mut bytes = [0_u8; MARK];
        bytes[0] = VERSION;
        bytes[1] = self.kind as u8;
        bytes[2..10].copy_from_slice(&self.writer.to_le_bytes());
        bytes[10..].copy_from_slice(&self.number.to_le_bytes());
        let header = Header { key: HEADER, value: Some(&bytes) };
        OwnedHeaders::new_with_capacity(1).insert(header)
    }

    /// `None`: somebody else's record.
    pub(super) fn of<M: Message>(message: &M) -> Result<Option<Self>, StorageError> {
        let Some(headers) = message.headers() else { return Ok(None) };
        let found = headers.iter().find(|header| header.key == HEADER);
        let Some(value) = found.and_then(|header| header.value) else { return Ok(None) };
        Self::decode(value).map(Some)
    }

    fn decode(value: &[u8]) -> Result<Self, StorageError> {
        let bytes: &[u8; MARK] =
            value.try_into().map_err(|_| damaged("a record's mark has the wrong size"))?;
        if bytes[0] != VERSION {
            return Err(damaged(&format!("a record of version {} is not known", bytes[0])));
        }
        let kind = match bytes[1] {
            1 => RecordKind::Publishes,
            2 => RecordKind::Direct,
            3 => RecordKind::Rows,
            4 => RecordKind::TableRow,
            5 => RecordKind::State,
            6 => RecordKind::Relaxed,
            7 => RecordKind::Word,
            8 => RecordKind::Retaining,
            9 => RecordKind::Moved,
            other => return Err(damaged(&format!("a record of kind {other} is not known"))),
        };
        let number = |at: usize| {
            let mut eight = [0_u8; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        Ok(Self { kind, writer: number(2), number: number(10) })
    }
}

// === direct copies ===

#[derive(Serialize, Deserialize)]
struct DirectHead<'a> {
    /// 0: a DEVICE client's, 1: a group's, 2: an APPLICATION client's.
    kind: u8,
    queue: &'a str,
    incarnation: u64,
    copies: Vec<CopyFields>,
}

/// QoS, RETAIN, subscription ids; of an origin: offset, index, group.
type CopyFields = (u8, bool, Vec<u32>, Option<(u64, u32, u64)>);

/// What a record of moved copies has beside the head of a direct one.
#[derive(Serialize, Deserialize)]
struct MovedHead<'a> {
    #[serde(borrow)]
    direct: DirectHead<'a>,
    /// Kind, queue, incarnation, epoch.
    #[serde(borrow)]
    sources: Vec<(u8, &'a str, u64, Option<u64>)>,
    /// Of each copy: which of the sources, and the sequence there.
    taken: Vec<Option<(u32, u64)>>,
}

fn kind_of(queue: &QueueKey) -> u8 {
    match queue {
        QueueKey::Client(_) => 0,
        QueueKey::Group(_) => 1,
        QueueKey::Application(_) => 2,
        QueueKey::Shared(_) => 3,
    }
}

fn queue_of(kind: u8, name: &str) -> Result<QueueKey, StorageError> {
    match kind {
        0 => Ok(QueueKey::Client(ClientId::new(name))),
        1 => Ok(QueueKey::Group(Arc::from(name))),
        2 => Ok(QueueKey::Application(ClientId::new(name))),
        3 => Ok(QueueKey::Shared(Arc::from(name))),
        other => Err(damaged(&format!("a queue of kind {other} is not known"))),
    }
}

/// The payload, and of which kind the record is.
pub(super) fn encode_direct(
    to: &QueueKey,
    incarnation: u64,
    batch: &Batch,
    deliveries: &[DirectCopy],
) -> (RecordKind, Vec<u8>) {
    let (kind, queue) = (kind_of(to), to.name());
    let copy = |copy: &DirectCopy| {
        let Delivery { qos, retain } = copy.delivery;
        let origin = copy.origin.map(|one| (one.position.offset, one.index, one.group));
        (qos.bits(), retain, copy.subscription_ids.to_vec(), origin)
    };
    let copies = deliveries.iter().map(copy).collect();
    let direct = DirectHead { kind, queue, incarnation, copies };
    let moved = deliveries.iter().any(|copy| copy.taken.is_some());
    let (kind, head) = match moved {
        true => (RecordKind::Moved, encode(&moved_head(direct, deliveries))),
        false => (RecordKind::Direct, encode(&direct)),
    };
    let mut record = Vec::with_capacity(4 + head.len() + batch.body().len());
    record.extend_from_slice(&(head.len() as u32).to_le_bytes());
    record.extend_from_slice(&head);
    record.extend_from_slice(batch.body());
    (kind, record)
}

fn moved_head<'a>(direct: DirectHead<'a>, deliveries: &'a [DirectCopy]) -> MovedHead<'a> {
    let mut sources: Vec<&Source> = Vec::new();
    let mut taken = Vec::with_capacity(deliveries.len());
    for copy in deliveries {
        taken.push(copy.taken.as_ref().map(|one| {
            let known = sources.iter().position(|known| **known == *one.from);
            let at = known.unwrap_or_else(|| {
                sources.push(&one.from);
                sources.len() - 1
            });
            (at as u32, one.seq)
        }));
    }
    let fields =
        |one: &&'a Source| (kind_of(&one.queue), one.queue.name(), one.incarnation, one.epoch);
    MovedHead { direct, sources: sources.iter().map(fields).collect(), taken }
}

fn taken_of(head: &MovedHead<'_>) -> Result<Vec<Option<Taken>>, StorageError> {
    let source = |(kind, name, incarnation, epoch): &(u8, &str, u64, Option<u64>)| {
        let (incarnation, epoch) = (*incarnation, *epoch);
        Ok(Arc::new(Source { queue: queue_of(*kind, name)?, incarnation, epoch }))
    };
    let sources: Vec<Arc<Source>> =
        head.sources.iter().map(source).collect::<Result<_, StorageError>>()?;
    let one = |taken: &Option<(u32, u64)>| match taken {
        None => Ok(None),
        Some((at, seq)) => {
            let from = sources.get(*at as usize).cloned();
            let from = from.ok_or_else(|| damaged("a copy moves from nowhere"))?;
            Ok(Some(Taken { from, seq: *seq }))
        }
    };
    head.taken.iter().map(one).collect()
}

fn decode_direct(payload: &[u8], moved: bool) -> Result<LogItem, StorageError> {
    let bad = || damaged("a direct record ends in the middle of its head");
    let (len, rest) = payload.split_first_chunk::<4>().ok_or_else(bad)?;
    let len = u32::from_le_bytes(*len) as usize;
    let (head, body) = rest.split_at_checked(len).ok_or_else(bad)?;
    let (head, taken) = if moved {
        let head: MovedHead<'_> = decode(head, "a record of moved copies")?;
        let taken = taken_of(&head)?;
        (head.direct, taken)
    } else {
        (decode(head, "a direct record")?, Vec::new())
    };
    let mut taken = taken.into_iter();
    let mut deliveries = Vec::new();
    for (qos, retain, ids, origin) in head.copies {
        let qos = QoS::from_bits(qos).ok_or_else(|| damaged("a direct copy's QoS is none"))?;
        let delivery = Delivery { qos, retain };
        let origin = origin.map(|(offset, index, group)| Origin {
            position: Position { partition: 0, offset },
            index,
            group,
        });
        let (subscription_ids, taken) = (Arc::from(ids), taken.next().flatten());
        deliveries.push(DirectCopy { delivery, subscription_ids, origin, taken });
    }
    let to = queue_of(head.kind, head.queue)?;
    let batch = Arc::new(Batch::parse(Bytes::copy_from_slice(body))?);
    if batch.len() != deliveries.len() {
        return Err(damaged("a direct record has not as many deliveries as messages"));
    }
    let deliveries = Arc::from(deliveries);
    Ok(LogItem::Direct { to, incarnation: head.incarnation, batch, deliveries })
}

/// What a consumer is given for a record of messages.
pub(super) fn log_item(kind: RecordKind, payload: &[u8]) -> Result<LogItem, StorageError> {
    if matches!(kind, RecordKind::Direct | RecordKind::Moved) {
        return decode_direct(payload, kind == RecordKind::Moved);
    }
    let is_retaining = kind == RecordKind::Retaining;
    let payload = if is_retaining { split_retained(payload)?.1 } else { payload };
    Ok(LogItem::Publishes(Arc::new(Batch::parse(Bytes::copy_from_slice(payload))?)))
}

// === publishes that are retained ===

pub(super) fn encode_retaining(retained: &[u32], batch: &Batch) -> Vec<u8> {
    let mut record = Vec::with_capacity(4 + 4 * retained.len() + batch.body().len());
    record.extend_from_slice(&(retained.len() as u32).to_le_bytes());
    retained.iter().for_each(|index| record.extend_from_slice(&index.to_le_bytes()));
    record.extend_from_slice(batch.body());
    record
}

/// The indices, and the batch.
fn split_retained(payload: &[u8]) -> Result<(&[[u8; 4]], &[u8]), StorageError> {
    let bad = || damaged("a record of retained messages ends too early");
    let (count, rest) = payload.split_first_chunk::<4>().ok_or_else(bad)?;
    let count = u32::from_le_bytes(*count) as usize;
    let (indices, body) = rest.split_at_checked(count.saturating_mul(4)).ok_or_else(bad)?;
    Ok((indices.as_chunks::<4>().0, body))
}

/// What a record sets or deletes, in its order.
pub(super) fn retained_rows(payload: &[u8], batch: &Arc<Batch>) -> Result<Vec<Row>, StorageError> {
    let (indices, _) = split_retained(payload)?;
    let row = |index: &[u8; 4]| {
        let index = u32::from_le_bytes(*index) as usize;
        let message = (index < batch.len()).then(|| MessageRef::new(Arc::clone(batch), index));
        let message = message.ok_or_else(|| damaged("a retained message that is not there"))?;
        Ok(retained_row(&message))
    };
    indices.iter().map(row).collect()
}

// === rows ===

/// Table, key, value.
type RowFields<'a> = (u8, &'a [u8], Option<&'a [u8]>);

pub(super) fn encode_rows(rows: &[Row]) -> Vec<u8> {
    encode(&rows.iter().map(fields).collect::<Vec<_>>())
}

fn fields(row: &Row) -> RowFields<'_> {
    (row.table as u8, &row.key, row.value.as_deref())
}

pub(super) fn decode_rows(payload: &[u8]) -> Result<Vec<Row>, StorageError> {
    let rows: Vec<RowFields<'_>> = decode(payload, "a record of rows")?;
    let row = |(table, key, value): RowFields<'_>| {
        let table = TABLES.into_iter().find(|known| *known as u8 == table);
        let table = table.ok_or_else(|| damaged("a row of an unknown table"))?;
        let key = Bytes::copy_from_slice(key);
        Ok(Row { table, key, value: value.map(Bytes::copy_from_slice) })
    };
    rows.into_iter().map(row).collect()
}

pub(super) const TABLES: [Table; 6] = [
    Table::Sessions,
    Table::Subscriptions,
    Table::Retained,
    Table::Credentials,
    Table::Blocked,
    Table::Settings,
];

/// A live row's payload in its table's topic; a deleted one's has none.
pub(super) fn encode_value(value: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(1 + value.len());
    payload.push(VERSION);
    payload.extend_from_slice(value);
    payload
}

pub(super) fn decode_value(payload: &[u8]) -> Result<Bytes, StorageError> {
    match payload.split_first() {
        Some((&VERSION, value)) => Ok(Bytes::copy_from_slice(value)),
        _ => Err(damaged("a row of unknown version")),
    }
}

// === what the backend keeps of itself ===

/// Keys of the state's topic.
pub(super) const PINNED: &str = "pinned";

/// The first start's findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pinned {
    /// The log's incarnation.
    pub(super) incarnation: u64,
    /// Topics with the number of their partitions.
    pub(super) partitions: Vec<(String, u32)>,
}

/// What a consumer leaves behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Commit {
    pub(super) position: u64,
    /// Rows below it stand in their tables' topics.
    pub(super) tables: u64,
    /// The nodes as of the position.
    pub(super) members: Members,
    pub(super) state: Vec<u8>,
}

pub(super) fn encode_state<T: Serialize>(state: &T) -> Vec<u8> {
    encode_value(&encode(state))
}

pub(super) fn decode_state<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, StorageError> {
    match payload.split_first() {
        Some((&VERSION, fields)) => decode(fields, "a state record"),
        _ => Err(damaged("a state record of unknown version")),
    }
}

fn encode<T: Serialize>(fields: &T) -> Vec<u8> {
    postcard::to_stdvec(fields).expect("plain fields always encode into memory")
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, StorageError> {
    postcard::from_bytes(bytes).map_err(|error| damaged(&format!("{what} doesn't parse: {error}")))
}

pub(super) fn damaged(text: &str) -> StorageError {
    StorageError::Damaged(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::contract::batch_of;

    #[test]
    fn records_read_back_as_they_were_written() {
        let to = QueueKey::Client(ClientId::new("{ö} "));
        let delivery = Delivery { qos: QoS::ExactlyOnce, retain: true };
        let position = Position { partition: 0, offset: u64::MAX };
        let origin = Some(Origin { position, index: 3, group: u64::MAX });
        let subscription_ids: Arc<[u32]> = Arc::from([1_u32, 268_435_455]);
        let from =
            Source { queue: QueueKey::Group(Arc::from("g")), incarnation: 4, epoch: Some(8) };
        let taken = Some(Taken { from: Arc::new(from), seq: u64::MAX });
        let batch = batch_of("node", &["a"], Some(9));
        for (taken, is) in [(None, RecordKind::Direct), (taken, RecordKind::Moved)] {
            let subscription_ids = Arc::clone(&subscription_ids);
            let deliveries: Arc<[DirectCopy]> =
                Arc::from([DirectCopy { delivery, subscription_ids, origin, taken }]);
            let (kind, payload) = encode_direct(&to, 7, &batch, &deliveries);
            assert_eq!(kind, is);
            let item = log_item(kind, &payload).expect("reads back");
            let LogItem::Direct { to: found, incarnation, batch: read, deliveries: copies } = item
            else {
                panic!("{item:?} is no direct record");
            };
            assert_eq!((found, incarnation, copies), (to.clone(), 7, deliveries));
            assert_eq!(read.body(), batch.body());
            for cut in 0..payload.len() - batch.body().len() {
                assert!(log_item(kind, &payload[..cut]).is_err(), "cut at {cut}");
            }
        }
        let row = |value: Option<&'static [u8]>| Row {
            table: Table::Retained,
            key: Bytes::from_static(b"k\0"),
            value: value.map(Bytes::from_static),
        };
        let rows = vec![row(None), row(Some(b"")), row(Some(b"v"))];
        assert_eq!(decode_rows(&encode_rows(&rows)).expect("reads back"), rows);
    }

    /// RET: what a publish retains is found in its own record.
    #[test]
    fn a_record_says_what_it_retains() {
        let batch = batch_of("p", &["a", "b", "c"], None);
        let payload = encode_retaining(&[0, 2], &batch);
        let LogItem::Publishes(read) = log_item(RecordKind::Retaining, &payload).expect("reads")
        else {
            panic!("these are publishes");
        };
        assert_eq!(read.body(), batch.body());
        let row = |index| retained_row(&MessageRef::new(Arc::clone(&batch), index));
        assert_eq!(retained_rows(&payload, &read).expect("reads"), [row(0), row(2)]);
        for cut in 0..12 {
            assert!(log_item(RecordKind::Retaining, &payload[..cut]).is_err(), "cut at {cut}");
        }
        assert!(retained_rows(&encode_retaining(&[3], &batch), &read).is_err());
    }

    /// An unknown version or kind stops us rather than being guessed at.
    #[test]
    fn what_is_not_known_is_refused() {
        let mark = Mark { kind: RecordKind::Rows, writer: 1, number: u64::MAX };
        let headers = mark.headers();
        let bytes = headers.get(0).value.expect("a value").to_vec();
        assert_eq!(Mark::decode(&bytes).expect("reads back"), mark);
        for (at, value) in [(0, 2), (0, 0), (1, 0), (1, 10)] {
            let mut other = bytes.clone();
            other[at] = value;
            assert!(Mark::decode(&other).is_err());
        }
        assert!(Mark::decode(&bytes[1..]).is_err());
        assert!(decode_value(&[9, 9]).is_err() && decode_value(&[]).is_err());
    }
}
