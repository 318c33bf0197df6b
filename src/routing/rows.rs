//! The rows of the tables that this room follows: a version byte, then the fields.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::mqtt::{ClientId, SubscriptionOptions, TopicFilter};
use crate::storage::{Row, StorageError, Table};

const VERSION: u8 = 1;
/// What stands for the version in a row that deletes.
const GONE: u8 = 0xFF;

/// One subscription. Key: client id and filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRow {
    pub options: SubscriptionOptions,
    /// The session's incarnation: a row of another one is not in force.
    pub incarnation: u64,
    /// Where a subscription that this row replaces began; `None`: it begins with this row.
    pub since: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct SubscriptionFields {
    options: u8,
    subscription_id: Option<u32>,
    incarnation: u64,
    since: Option<u64>,
}

impl SubscriptionRow {
    pub fn key(client_id: &ClientId, filter: &TopicFilter) -> Bytes {
        let (client, filter) = (client_id.as_str().as_bytes(), filter.as_str().as_bytes());
        let mut key = Vec::with_capacity(2 + client.len() + filter.len());
        key.extend_from_slice(&(client.len() as u16).to_be_bytes());
        key.extend_from_slice(client);
        key.extend_from_slice(filter);
        Bytes::from(key)
    }

    /// The reverse of [`Self::key`].
    pub fn parse_key(key: &[u8]) -> Result<(ClientId, TopicFilter), StorageError> {
        let bad = || StorageError::Damaged("a subscription's key doesn't parse".into());
        let (len, rest) = key.split_at_checked(2).ok_or_else(bad)?;
        let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
        let (client, filter) = rest.split_at_checked(len).ok_or_else(bad)?;
        let client = std::str::from_utf8(client).map_err(|_| bad())?;
        let filter = std::str::from_utf8(filter).map_err(|_| bad())?;
        Ok((ClientId::new(client), TopicFilter::new(filter).map_err(|_| bad())?))
    }

    /// The row that deletes the subscription, if it is still that session's.
    pub fn gone(client_id: &ClientId, filter: &TopicFilter, incarnation: u64) -> Row {
        let value = [&[GONE], &incarnation.to_le_bytes()[..]].concat();
        let key = Self::key(client_id, filter);
        Row { table: Table::Subscriptions, key, value: Some(Bytes::from(value)) }
    }

    /// Whose subscription it deletes; `None`: it does not.
    pub fn gone_of(value: &[u8]) -> Option<u64> {
        let (&GONE, number) = value.split_first()? else { return None };
        Some(u64::from_le_bytes(number.try_into().ok()?))
    }

    pub fn encode(&self) -> Bytes {
        encode_row(&SubscriptionFields {
            options: self.options.to_byte(),
            subscription_id: self.options.subscription_id,
            incarnation: self.incarnation,
            since: self.since,
        })
    }

    pub fn decode(value: &[u8]) -> Result<Self, StorageError> {
        let fields: SubscriptionFields = decode_row(value, "subscription")?;
        let options = SubscriptionOptions::from_byte(fields.options, fields.subscription_id)
            .ok_or_else(|| StorageError::Damaged("a subscription's options are no such".into()))?;
        Ok(Self { options, incarnation: fields.incarnation, since: fields.since })
    }
}

/// Encodes a row: the version, then the fields.
pub fn encode_row(fields: &impl Serialize) -> Bytes {
    // Writing into memory fails for no type that rows are made of.
    let encoded = postcard::to_extend(fields, vec![VERSION]).unwrap_or_default();
    Bytes::from(encoded)
}

/// Decodes a row; `what` names it in the error.
pub fn decode_row<'a, T: Deserialize<'a>>(value: &'a [u8], what: &str) -> Result<T, StorageError> {
    match value.split_first() {
        Some((&VERSION, fields)) => postcard::from_bytes(fields)
            .map_err(|error| StorageError::Damaged(format!("a {what} row: {error}"))),
        Some((version, _)) => {
            Err(StorageError::Damaged(format!("a {what} row of unknown version {version}")))
        }
        None => Err(StorageError::Damaged(format!("a {what} row is empty"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::QoS;

    #[test]
    fn rows_and_keys_read_back() {
        let row = SubscriptionRow {
            options: SubscriptionOptions {
                no_local: true,
                subscription_id: Some(268_435_455),
                ..SubscriptionOptions::v3(QoS::ExactlyOnce)
            },
            incarnation: 7,
            since: Some(9),
        };
        assert_eq!(SubscriptionRow::decode(&row.encode()).expect("reads back"), row);
        let (client, filter) = (ClientId::new("a/b"), TopicFilter::new("c/#").expect("valid"));
        let key = SubscriptionRow::key(&client, &filter);
        assert_eq!(SubscriptionRow::parse_key(&key).expect("reads back"), (client, filter));
    }

    /// TOP-11: keys of two clients never meet, wherever the border between id and filter is.
    #[test]
    fn keys_do_not_collide() {
        let key = |client: &str, filter: &str| {
            SubscriptionRow::key(&ClientId::new(client), &TopicFilter::new(filter).expect("valid"))
        };
        assert_ne!(key("a", "b/c"), key("a/b", "c"));
        assert_ne!(key("a", "ba"), key("ab", "a"));
    }

    #[test]
    fn an_unknown_version_is_refused() {
        let mut value = encode_row(&1_u64).to_vec();
        value[0] = 9;
        assert!(decode_row::<u64>(&value, "test").is_err());
        assert!(decode_row::<u64>(&[], "test").is_err());
    }
}
