//! The row of a retained message: the topic is its key, the message alone its value.

use std::sync::Arc;

use bytes::Bytes;

use super::ports::{Row, StorageError, Table};
use super::record::{Batch, MessageRef};

const VERSION: u8 = 1;

/// The row that sets, or with an empty payload deletes, the retained message of a topic
/// (MQTT-3.3.1-5, -6).
pub fn retained_row(message: &MessageRef) -> Row {
    let view = message.view();
    let key = Bytes::copy_from_slice(view.topic.as_bytes());
    let value = (!view.payload.is_empty()).then(|| {
        let alone = message.detached();
        let body = alone.batch().body();
        let mut value = Vec::with_capacity(1 + body.len());
        value.push(VERSION);
        value.extend_from_slice(body);
        Bytes::from(value)
    });
    Row { table: Table::Retained, key, value }
}

/// What a row holds.
pub fn retained_message(value: &[u8]) -> Result<MessageRef, StorageError> {
    match value.split_first() {
        Some((&VERSION, body)) => {
            let batch = Batch::parse(Bytes::copy_from_slice(body))?;
            if batch.len() != 1 {
                return Err(StorageError::Damaged("a retained row holds not one message".into()));
            }
            Ok(MessageRef::new(Arc::new(batch), 0))
        }
        _ => Err(StorageError::Damaged("a retained row of unknown version".into())),
    }
}
