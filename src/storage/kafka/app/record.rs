//! One message in an APPLICATION client's log.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::mqtt::{Delivery, QoS};
use crate::storage::kafka::format::{damaged, decode_state, encode_state};
use crate::storage::{
    Batch, MessageRef, Position, QueueEntry, QueuedMessage, SourceId, StorageError,
};

/// Beside the QoS: the number of a shared group stands behind everything else.
const OF_GROUP: u8 = 0x80;

#[derive(Serialize, Deserialize)]
struct Written<'a> {
    source: (u64, u32, u64, u32),
    qos: u8,
    retain: bool,
    ids: Vec<u32>,
    expires_at_ms: Option<u64>,
    /// A batch of one.
    batch: &'a [u8],
}

pub(super) fn encode(entry: &QueueEntry) -> Vec<u8> {
    let SourceId { incarnation, position, index } = entry.source;
    let alone = entry.message.detached();
    let of_group = if entry.group.is_some() { OF_GROUP } else { 0 };
    let mut record = encode_state(&Written {
        source: (incarnation, position.partition, position.offset, index),
        qos: entry.delivery.qos.bits() | of_group,
        retain: entry.delivery.retain,
        ids: entry.subscription_ids.to_vec(),
        expires_at_ms: entry.expires_at_ms,
        batch: alone.batch().body(),
    });
    record.extend(entry.group.iter().flat_map(|group| group.to_le_bytes()));
    record
}

/// The message as it waits for its client, and where it comes from.
pub(super) fn decode(seq: u64, payload: &[u8]) -> Result<(SourceId, QueuedMessage), StorageError> {
    let written: Written<'_> = decode_state(payload)?;
    let (incarnation, partition, offset, index) = written.source;
    let source = SourceId { incarnation, position: Position { partition, offset }, index };
    let group = match (written.qos & OF_GROUP, payload.last_chunk::<8>()) {
        (OF_GROUP, Some(group)) => Some(u64::from_le_bytes(*group)),
        _ => None,
    };
    let qos =
        QoS::from_bits(written.qos & !OF_GROUP).ok_or_else(|| damaged("a copy's QoS is none"))?;
    let batch = Batch::parse(Bytes::copy_from_slice(written.batch))?;
    if batch.len() != 1 {
        return Err(damaged("a copy is not one message"));
    }
    let message = QueuedMessage {
        seq,
        message: MessageRef::new(Arc::new(batch), 0),
        delivery: Delivery { qos, retain: written.retain },
        subscription_ids: Arc::from(written.ids),
        expires_at_ms: written.expires_at_ms,
        group,
        received: false,
    };
    Ok((source, message))
}
