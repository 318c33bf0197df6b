//! Blocked clients: by client id, user name, address, or an expression over one of them. A block
//! acts before any provider is asked, and on connections that are there already.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::credential::{decode, encode, whole_match};
use crate::limits;
use crate::storage::{Follower, Position, Row, StorageError, Table};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum BlockType {
    ClientId,
    Username,
    IpAddress,
    Regex,
}

/// What an expression is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MatchTarget {
    ByClientId,
    ByUsername,
    ByIpAddress,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub kind: BlockType,
    pub value: String,
    /// For expressions only.
    pub target: Option<MatchTarget>,
    pub description: Option<String>,
    /// `None`: for ever.
    pub expires_at_ms: Option<u64>,
    pub created_ms: u64,
}

impl Block {
    /// What is wrong with it; `None`: nothing.
    pub fn fault(&self) -> Option<String> {
        if self.value.is_empty() || self.encode().len() > limits::ENTITY_BYTES {
            return Some("value must not be empty or very long".into());
        }
        match (self.kind, self.target) {
            (BlockType::IpAddress, _) if self.value.parse::<IpAddr>().is_err() => {
                Some(format!("{:?} is no IP address", self.value))
            }
            (BlockType::Regex, None) => Some("regexMatchTarget is needed for REGEX".into()),
            (BlockType::Regex, Some(_)) => whole_match(&self.value).err(),
            (BlockType::ClientId | BlockType::Username | BlockType::IpAddress, _) => None,
        }
    }

    pub fn is_over(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|end_ms| end_ms <= now_ms)
    }

    /// The name under which it stands in the table: its kind, and what it blocks.
    pub(super) fn id(&self) -> String {
        block_id(self.kind, self.target, &self.value)
    }

    fn encode(&self) -> Bytes {
        encode(self)
    }

    pub(super) fn row(&self) -> Row {
        let key = Bytes::from(self.id().into_bytes());
        Row { table: Table::Blocked, key, value: Some(self.encode()) }
    }
}

fn block_id(kind: BlockType, target: Option<MatchTarget>, value: &str) -> String {
    let target = target.filter(|_| kind == BlockType::Regex);
    format!("{kind:?}|{target:?}|{value}")
}

/// The blocks in force, as a follower of their table.
#[derive(Debug, Default)]
pub(super) struct Blocked {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    all: BTreeMap<String, Arc<Block>>,
    exact: HashMap<(BlockType, String), Arc<Block>, ahash::RandomState>,
    addresses: HashMap<IpAddr, Arc<Block>, ahash::RandomState>,
    expressions: Arc<Vec<(Regex, Arc<Block>)>>,
}

impl Blocked {
    pub(super) fn load(&self, value: &[u8]) -> Result<(), StorageError> {
        self.set(Arc::new(decode(value, "blocked client")?));
        Ok(())
    }

    fn set(&self, block: Arc<Block>) {
        let id = block.id();
        self.remove(&id);
        let expression = match block.kind {
            BlockType::Regex => whole_match(&block.value).ok(),
            BlockType::ClientId | BlockType::Username | BlockType::IpAddress => None,
        };
        let mut inner = self.inner.write();
        match block.kind {
            BlockType::ClientId | BlockType::Username => {
                inner.exact.insert((block.kind, block.value.clone()), Arc::clone(&block));
            }
            BlockType::IpAddress => {
                if let Ok(address) = block.value.parse::<IpAddr>() {
                    inner.addresses.insert(address.to_canonical(), Arc::clone(&block));
                }
            }
            BlockType::Regex => {
                if let Some(expression) = expression {
                    let expressions = Arc::make_mut(&mut inner.expressions);
                    expressions.push((expression, Arc::clone(&block)));
                }
            }
        }
        inner.all.insert(id, block);
    }

    fn remove(&self, id: &str) {
        let mut inner = self.inner.write();
        let Some(old) = inner.all.remove(id) else { return };
        match old.kind {
            BlockType::ClientId | BlockType::Username => {
                inner.exact.remove(&(old.kind, old.value.clone()));
            }
            BlockType::IpAddress => inner.addresses.retain(|_, block| !Arc::ptr_eq(block, &old)),
            BlockType::Regex => {
                Arc::make_mut(&mut inner.expressions).retain(|(_, block)| block.id() != *id);
            }
        }
    }

    /// The block that keeps this client out, in TBMQ's order: id, user name, address, expression.
    pub(super) fn find(
        &self,
        client_id: &str,
        username: Option<&str>,
        address: Option<IpAddr>,
        now_ms: u64,
    ) -> Option<Arc<Block>> {
        let address = address.map(|address| address.to_canonical());
        let holds = |block: &&Arc<Block>| !block.is_over(now_ms);
        let inner = self.inner.read();
        if inner.all.is_empty() {
            return None;
        }
        let exact = |kind, value: &str| inner.exact.get(&(kind, value.to_owned())).filter(holds);
        let found = exact(BlockType::ClientId, client_id)
            .or_else(|| username.and_then(|name| exact(BlockType::Username, name)))
            .or_else(|| address.and_then(|at| inner.addresses.get(&at)).filter(holds));
        if let Some(found) = found {
            return Some(Arc::clone(found));
        }
        let expressions = Arc::clone(&inner.expressions);
        drop(inner);
        if expressions.is_empty() {
            return None;
        }
        let address = address.map(|address| address.to_string());
        let text = |target| match target {
            Some(MatchTarget::ByUsername) => username,
            Some(MatchTarget::ByIpAddress) => address.as_deref(),
            Some(MatchTarget::ByClientId) | None => Some(client_id),
        };
        let fits = |(expression, block): &&(Regex, Arc<Block>)| {
            holds(&block) && text(block.target).is_some_and(|text| expression.is_match(text))
        };
        expressions.iter().find(fits).map(|(_, block)| Arc::clone(block))
    }

    pub(super) fn all(&self) -> Vec<Arc<Block>> {
        self.inner.read().all.values().cloned().collect()
    }

    pub(super) fn find_value(&self, kind: BlockType, value: &str) -> Vec<Arc<Block>> {
        let is_it = |block: &&Arc<Block>| block.kind == kind && block.value == value;
        self.inner.read().all.values().filter(is_it).cloned().collect()
    }

    /// What is wrong with one more block; `None`: nothing.
    pub(super) fn full(&self, block: &Block) -> Option<&'static str> {
        let inner = self.inner.read();
        if inner.all.contains_key(&block.id()) {
            return None;
        }
        if inner.all.len() >= limits::BLOCKED_CLIENTS {
            return Some("there are too many blocked clients");
        }
        let expressions = inner.expressions.len();
        (block.kind == BlockType::Regex && expressions >= limits::BLOCKED_EXPRESSIONS)
            .then_some("there are too many blocked expressions")
    }

    /// Rows that delete what ended longer than `kept_ms` ago.
    pub(super) fn purge(&self, now_ms: u64, kept_ms: u64) -> Vec<Row> {
        let inner = self.inner.read();
        let old = |block: &&Arc<Block>| {
            block.expires_at_ms.is_some_and(|end_ms| end_ms.saturating_add(kept_ms) <= now_ms)
        };
        inner.all.values().filter(old).take(1000).map(|block| tombstone(&block.id())).collect()
    }
}

pub(super) fn tombstone(id: &str) -> Row {
    Row { table: Table::Blocked, key: Bytes::copy_from_slice(id.as_bytes()), value: None }
}

impl Follower for Blocked {
    fn apply(&self, _position: Position, row: &Row) {
        let Some(value) = &row.value else {
            return self.remove(&String::from_utf8_lossy(&row.key));
        };
        if let Err(error) = self.load(value) {
            tracing::error!(%error, "a blocked client's row was not understood");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: BlockType, value: &str, target: Option<MatchTarget>) -> Block {
        let (description, expires_at_ms) = (None, None);
        Block { kind, value: value.into(), target, description, expires_at_ms, created_ms: 1 }
    }

    #[test]
    fn blocks_are_found_by_what_they_name_until_they_end() {
        let blocked = Blocked::default();
        let of_target = |target| block(BlockType::Regex, "bad-.*", Some(target));
        let address = IpAddr::from([10, 1, 2, 3]);
        let all = [
            block(BlockType::ClientId, "c", None),
            block(BlockType::Username, "u", None),
            block(BlockType::IpAddress, "10.1.2.3", None),
            of_target(MatchTarget::ByUsername),
        ];
        for one in &all {
            assert_eq!(one.fault(), None);
            blocked.load(&one.encode()).expect("a good row");
        }
        let find = |id, user, from| blocked.find(id, user, from, 5).map(|block| block.kind);
        assert_eq!(find("c", None, None), Some(BlockType::ClientId));
        assert_eq!(find("x", Some("u"), None), Some(BlockType::Username));
        let mapped: IpAddr = "::ffff:10.1.2.3".parse().expect("an address");
        assert_eq!(find("x", None, Some(address)), Some(BlockType::IpAddress));
        assert_eq!(find("x", None, Some(mapped)), Some(BlockType::IpAddress));
        assert_eq!(find("x", Some("bad-1"), None), Some(BlockType::Regex));
        assert_eq!(find("bad-1", Some("bad"), None), None);
        let short = Block { expires_at_ms: Some(5), ..all[0].clone() };
        blocked.load(&short.encode()).expect("a good row");
        assert_eq!(find("c", None, None), None, "it is over");
        assert_eq!(blocked.purge(5 + 10, 11).len(), 0);
        assert_eq!(blocked.purge(5 + 10, 10), [tombstone(&short.id())]);
        for one in &all {
            blocked.remove(&one.id());
        }
        assert!(find("x", Some("bad-1"), Some(address)).is_none() && blocked.all().is_empty());
    }

    #[test]
    fn a_block_that_could_not_work_is_refused() {
        let bad = [
            block(BlockType::ClientId, "", None),
            block(BlockType::IpAddress, "10.0.0", None),
            block(BlockType::Regex, "a", None),
            block(BlockType::Regex, "a)|(b", Some(MatchTarget::ByClientId)),
            block(BlockType::Regex, "(?:a{1000}){1000}", Some(MatchTarget::ByClientId)),
        ];
        for block in bad {
            assert!(block.fault().is_some(), "{block:?}");
        }
    }
}
