//! What administrators have settled about shared subscriptions: entities, each for one group or
//! for all groups of one filter, as rows of the settings table; and what holds without one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use xxhash_rust::xxh3::xxh3_128;

use super::shared_group::Policy;
use crate::mqtt::TopicFilter;
use crate::storage::{Follower, Position, Row, StorageError, Table};

const VERSION: u8 = 1;
const KEY: &str = "shared-subscription/";

/// TBMQ's application shared subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Made out of the filter, so that there is one for each.
    pub id: Arc<str>,
    pub name: String,
    /// A group's whole filter, `$share/…` included; or a plain one, TBMQ's form, which stands for
    /// all groups of that filter.
    pub filter: TopicFilter,
    /// As it was asked for. A group has one log here, which any number of members shares.
    pub partitions: u32,
    /// `None`: as it is set for all.
    pub policy: Option<Policy>,
    pub created_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct Fields {
    name: String,
    filter: String,
    partitions: u32,
    policy: Option<u8>,
    created_ms: u64,
}

impl Share {
    /// The id of the entity of a filter.
    pub fn id_of(filter: &TopicFilter) -> Arc<str> {
        Arc::from(format!("{:032x}", xxh3_128(filter.as_str().as_bytes())))
    }

    pub fn row(&self) -> Row {
        let number = |policy: Policy| {
            Policy::NAMES.iter().position(|(_, one)| *one == policy).unwrap_or(0) as u8
        };
        let fields = Fields {
            name: self.name.clone(),
            filter: self.filter.as_str().to_owned(),
            partitions: self.partitions,
            policy: self.policy.map(number),
            created_ms: self.created_ms,
        };
        // Writing into memory fails for no type that rows are made of.
        let value = postcard::to_extend(&fields, vec![VERSION]).unwrap_or_default();
        Row { value: Some(Bytes::from(value)), ..Self::tombstone(&self.id) }
    }

    pub fn tombstone(id: &str) -> Row {
        let key = Bytes::from(format!("{KEY}{id}").into_bytes());
        Row { table: Table::Settings, key, value: None }
    }

    fn decode(id: &str, value: &[u8]) -> Result<Self, StorageError> {
        let bad = |text: &str| StorageError::Damaged(format!("a shared subscription: {text}"));
        let (version, fields) = value.split_first().ok_or_else(|| bad("its row is empty"))?;
        if *version != VERSION {
            return Err(bad(&format!("version {version} is not known, {VERSION} is")));
        }
        let fields: Fields = postcard::from_bytes(fields).map_err(|_| bad("it is cut short"))?;
        let filter = TopicFilter::new(&fields.filter).map_err(|_| bad("its filter is none"))?;
        // A later version's policy is none of ours: what is set for all holds.
        let named = |number: u8| Policy::NAMES.get(usize::from(number)).map(|(_, one)| *one);
        Ok(Self {
            id: Arc::from(id),
            name: fields.name,
            filter,
            partitions: fields.partitions,
            policy: fields.policy.and_then(named),
            created_ms: fields.created_ms,
        })
    }

    /// Whether it is about this group.
    pub fn is_of(&self, group: &TopicFilter) -> bool {
        let wanted = if self.filter.is_shared() { group.as_str() } else { group.plain() };
        group.is_shared() && self.filter.as_str() == wanted
    }
}

/// The entities in force. Bounded by the administrator, who makes them one by one.
#[derive(Debug, Default)]
pub struct Shares {
    default: Policy,
    app_leaves: bool,
    inner: RwLock<Inner>,
    /// Changes by REST come one after another: none is made on what another just replaced.
    pub writes: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: BTreeMap<Arc<str>, Arc<Share>>,
    by_filter: HashMap<TopicFilter, Arc<Share>, ahash::RandomState>,
}

impl Shares {
    /// `default`: of groups whose entity says nothing else, or that have none.
    pub fn new(default: Policy) -> Self {
        Self { default, ..Self::default() }
    }

    /// `mqtt.shared-subscriptions.app-leave-when-non-writable`: an APPLICATION member that is not
    /// writable is out of its groups until it is (SHR-4, the older document's form).
    #[must_use]
    pub fn app_leave(self, app_leaves: bool) -> Self {
        Self { app_leaves, ..self }
    }

    pub(super) fn app_leaves(&self) -> bool {
        self.app_leaves
    }

    /// What is settled about a group.
    pub fn of(&self, group: &TopicFilter) -> Option<Arc<Share>> {
        let inner = self.inner.read();
        if inner.by_id.is_empty() {
            return None;
        }
        let found = inner.by_filter.get(group.as_str());
        found.or_else(|| inner.by_filter.get(group.plain())).cloned()
    }

    pub fn policy(&self, group: &TopicFilter) -> Policy {
        self.of(group).and_then(|share| share.policy).unwrap_or(self.default)
    }

    pub fn get(&self, id: &str) -> Option<Arc<Share>> {
        self.inner.read().by_id.get(id).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Share>> {
        self.inner.read().by_id.values().cloned().collect()
    }

    fn set(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), StorageError> {
        let key = String::from_utf8_lossy(key);
        // The table has other people's rows, too.
        let Some(id) = key.strip_prefix(KEY) else { return Ok(()) };
        let share = value.map(|value| Share::decode(id, value)).transpose()?;
        let mut inner = self.inner.write();
        if let Some(old) = inner.by_id.remove(id) {
            inner.by_filter.remove(old.filter.as_str());
        }
        if let Some(share) = share.map(Arc::new) {
            inner.by_id.insert(Arc::clone(&share.id), Arc::clone(&share));
            inner.by_filter.insert(share.filter.clone(), share);
        }
        Ok(())
    }
}

impl Follower for Shares {
    fn apply(&self, _position: Position, row: &Row) {
        if let Err(error) = self.set(&row.key, row.value.as_deref()) {
            tracing::error!(%error, "a shared subscription's row was not understood");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::new(text).expect("a good filter")
    }

    fn share(text: &str, policy: Option<Policy>) -> Share {
        let filter = filter(text);
        let (id, name) = (Share::id_of(&filter), "n".to_owned());
        Share { id, name, filter, partitions: 3, policy, created_ms: 7 }
    }

    /// SHR-4: an entity is for its group, or for all groups of its filter; the nearer one holds.
    #[test]
    fn an_entity_is_found_by_group_or_by_filter() {
        let shares = Shares::new(Policy::HashTopic);
        let at = Position::default();
        let all = share("a/+", Some(Policy::Sticky));
        let one = share("$share/g/a/+", Some(Policy::LeastInflight));
        let silent = share("b", None);
        for share in [&all, &one, &silent] {
            shares.apply(at, &share.row());
            assert_eq!(shares.get(&share.id).as_deref(), Some(share));
        }
        shares.apply(at, &Row { key: "account/x".into(), ..one.row() });
        assert_eq!(shares.all().len(), 3, "rows of others are theirs");
        let policy = |text: &str| shares.policy(&filter(text));
        assert_eq!(policy("$share/g/a/+"), Policy::LeastInflight);
        assert_eq!(policy("$share/h/a/+"), Policy::Sticky);
        assert_eq!(policy("$share/h/b"), Policy::HashTopic);
        assert!(all.is_of(&filter("$share/h/a/+")) && !all.is_of(&filter("a/+")));
        assert!(one.is_of(&filter("$share/g/a/+")) && !one.is_of(&filter("$share/h/a/+")));
        shares.apply(at, &Share::tombstone(&one.id));
        assert_eq!(policy("$share/g/a/+"), Policy::Sticky);
        assert!(shares.of(&filter("$share/g/c")).is_none());
    }

    /// STO-11: an unknown version is refused, and what is cut short, too.
    #[test]
    fn rows_of_other_versions_are_refused() {
        let one = share("a", Some(Policy::Sticky));
        let value = one.row().value.expect("a value");
        assert_eq!(Share::decode(&one.id, &value).expect("reads"), one);
        for len in 0..value.len() {
            assert!(Share::decode(&one.id, &value[..len]).is_err(), "cut at {len}");
        }
        assert!(Share::decode(&one.id, &[&[9], &value[1..]].concat()).is_err());
    }
}
