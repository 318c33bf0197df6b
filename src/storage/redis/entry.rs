//! One entry of a queue as bytes, short because a million of them lie in memory.
//!
//! ```text
//! flags u8 · expires at ms u48 · received at ms u48 · subscription ids (count, ids) · [group u64]
//! · publisher (length, id) · message flags u8 · [expiry s u32] · topic (length, text)
//! · properties (length, bytes) · payload
//! ```
//! Little endian; lengths, counts and ids in seven bits a byte. The first bit of the flags is set
//! by the script that is told of a PUBREC. What only the dispatcher needs (packet id, epochs) is
//! left out.

use std::sync::Arc;

use crate::mqtt::{ClientId, Delivery, QoS};
use crate::storage::{
    BatchBuilder, Kind, MessageRef, MessageView, Publisher, QueueEntry, QueuedMessage, StorageError,
};

const RECEIVED: u8 = 1;
const QOS_AT: u8 = 1;
const RETAIN: u8 = 1 << 3;
/// Never an empty string, and a mark of the format.
const VERSION: u8 = 1 << 4;
const VERSION_BITS: u8 = 0b1101_0000;
/// The number of a shared group follows the subscription ids.
const OF_GROUP: u8 = 1 << 5;

const MESSAGE_RETAIN: u8 = 1 << 2;
const MESSAGE_WILL: u8 = 1 << 3;
const MESSAGE_EXPIRES: u8 = 1 << 4;

const U48: u64 = (1 << 48) - 1;

/// `expires_at_ms` is the entry's own or the default.
pub(super) fn encode(entry: &QueueEntry, expires_at_ms: u64) -> Vec<u8> {
    let view = entry.message.view();
    let batch = entry.message.batch();
    let publisher = batch.publisher().client_id.as_str().as_bytes();
    let size = view.topic.len() + view.properties.len() + view.payload.len() + publisher.len();
    let mut out = Vec::with_capacity(size + 32 + 5 * entry.subscription_ids.len());
    let retain = if entry.delivery.retain { RETAIN } else { 0 };
    let of_group = if entry.group.is_some() { OF_GROUP } else { 0 };
    out.push(VERSION | of_group | retain | entry.delivery.qos.bits() << QOS_AT);
    out.extend_from_slice(&expires_at_ms.min(U48).to_le_bytes()[..6]);
    out.extend_from_slice(&batch.received_at_ms().min(U48).to_le_bytes()[..6]);
    number(&mut out, entry.subscription_ids.len());
    entry.subscription_ids.iter().for_each(|id| number(&mut out, *id as usize));
    if let Some(group) = entry.group {
        out.extend_from_slice(&group.to_le_bytes());
    }
    bytes(&mut out, publisher);
    let mut flags = view.qos.bits();
    flags |= if view.retain { MESSAGE_RETAIN } else { 0 };
    flags |= if view.kind == Kind::Will { MESSAGE_WILL } else { 0 };
    flags |= if view.expiry_s.is_some() { MESSAGE_EXPIRES } else { 0 };
    out.push(flags);
    if let Some(expiry_s) = view.expiry_s {
        out.extend_from_slice(&expiry_s.to_le_bytes());
    }
    bytes(&mut out, view.topic.as_bytes());
    bytes(&mut out, view.properties);
    out.extend_from_slice(view.payload);
    out
}

fn number(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    number(out, value.len());
    out.extend_from_slice(value);
}

/// Reads entries of one page; consecutive ones of a publisher share its name.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    publisher: Option<Arc<Publisher>>,
    subscription_ids: Option<Arc<[u32]>>,
}

impl Decoder {
    pub(super) fn decode(&mut self, seq: u64, raw: &[u8]) -> Result<QueuedMessage, StorageError> {
        let mut at = Cursor(raw);
        let flags = at.u8()?;
        let qos = QoS::from_bits(flags >> QOS_AT & 3).ok_or_else(damaged)?;
        if flags & VERSION_BITS != VERSION {
            return Err(StorageError::Damaged("a queue entry of another format".into()));
        }
        let (expires_at_ms, received_at_ms) = (at.u48()?, at.u48()?);
        let subscription_ids = self.ids(&mut at)?;
        let group = match flags & OF_GROUP != 0 {
            true => Some(u64::from_le_bytes(at.array()?)),
            false => None,
        };
        let publisher = self.publisher(at.counted()?)?;
        let message_flags = at.u8()?;
        let expiry_s = match message_flags & MESSAGE_EXPIRES != 0 {
            true => Some(u32::from_le_bytes(at.array()?)),
            false => None,
        };
        let topic = std::str::from_utf8(at.counted()?).map_err(|_| damaged())?;
        let properties = at.counted()?;
        let view = MessageView {
            kind: if message_flags & MESSAGE_WILL != 0 { Kind::Will } else { Kind::Publish },
            qos: QoS::from_bits(message_flags & 3).ok_or_else(damaged)?,
            retain: message_flags & MESSAGE_RETAIN != 0,
            packet_id: None,
            expiry_s,
            topic,
            properties,
            payload: at.0,
        };
        let mut builder = BatchBuilder::new(publisher, received_at_ms);
        builder.reserve(topic.len() + properties.len() + view.payload.len() + 32, 1);
        builder.push(&view);
        Ok(QueuedMessage {
            seq,
            message: MessageRef::new(builder.finish(), 0),
            delivery: Delivery { qos, retain: flags & RETAIN != 0 },
            subscription_ids,
            expires_at_ms: Some(expires_at_ms),
            group,
            received: flags & RECEIVED != 0,
        })
    }

    fn ids(&mut self, at: &mut Cursor<'_>) -> Result<Arc<[u32]>, StorageError> {
        let count = at.number()?;
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(at.number()? as u32);
        }
        match &self.subscription_ids {
            Some(same) if **same == ids[..] => Ok(Arc::clone(same)),
            Some(_) | None => Ok(Arc::clone(self.subscription_ids.insert(Arc::from(ids)))),
        }
    }

    fn publisher(&mut self, id: &[u8]) -> Result<Arc<Publisher>, StorageError> {
        let known = self.publisher.as_ref();
        if let Some(known) = known.filter(|known| known.client_id.as_str().as_bytes() == id) {
            return Ok(Arc::clone(known));
        }
        let id = std::str::from_utf8(id).map_err(|_| damaged())?;
        let publisher = Publisher { client_id: ClientId::new(id), incarnation: 0, epoch: 0 };
        Ok(Arc::clone(self.publisher.insert(Arc::new(publisher))))
    }
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], StorageError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StorageError> {
        self.take(N)?.try_into().map_err(|_| damaged())
    }

    fn u8(&mut self) -> Result<u8, StorageError> {
        Ok(self.array::<1>()?[0])
    }

    fn u48(&mut self) -> Result<u64, StorageError> {
        let low: [u8; 6] = self.array()?;
        let mut all = [0; 8];
        all[..6].copy_from_slice(&low);
        Ok(u64::from_le_bytes(all))
    }

    fn number(&mut self) -> Result<usize, StorageError> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.u8()?;
            value |= usize::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(damaged())
    }

    fn counted(&mut self) -> Result<&'a [u8], StorageError> {
        let len = self.number()?;
        self.take(len)
    }
}

fn damaged() -> StorageError {
    StorageError::Damaged("a queue entry in Redis can't be read".into())
}
