//! What each node has lost, as rows in a hash of its own, for the others to read: they are not in
//! the log, since nothing rests on them. The rows are the caller's; here they are bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{Cmd, Pipeline, Value};

use super::key::slot;
use super::link::unavailable;
use super::shards::{Purpose, Shards};
use crate::storage::StorageError;

/// Rows in one command.
const CHUNK: usize = 500;
/// Nobody reads what is older.
const KEEP_S: u64 = 7 * 24 * 3600;
/// No deletion is known yet.
const UNKNOWN: u64 = u64::MAX;

/// A row: its name, and what there is of it.
pub type LossRow = (Vec<u8>, Vec<u8>);

/// The rows of all nodes.
#[derive(Debug)]
pub struct NodeLosses {
    shards: Arc<Shards>,
    node: String,
    /// How often somebody has deleted all rows, as far as is known here.
    deletions: AtomicU64,
}

impl NodeLosses {
    pub(super) fn new(shards: Arc<Shards>, node: &str) -> Self {
        Self { shards, node: node.to_owned(), deletions: AtomicU64::new(UNKNOWN) }
    }

    /// Replaces rows of this node, or with `whole` all of them. The answer: somebody else has
    /// deleted everybody's rows meanwhile.
    pub async fn put(&self, whole: bool, rows: &[LossRow]) -> Result<bool, StorageError> {
        let own = self.key(&format!("dropped:{}", self.node));
        let mut pipe = vec![command("GET", &self.key("dropped-deletions"))];
        if whole {
            pipe.push(command("DEL", &own));
        }
        for chunk in rows.chunks(CHUNK) {
            let mut put = command("HSET", &own);
            chunk.iter().for_each(|(name, value)| _ = put.arg(name).arg(value));
            pipe.push(put);
        }
        if pipe.len() > 1 {
            let mut known = command("SADD", &self.key("dropped-nodes"));
            known.arg(&self.node);
            let mut expire = command("EXPIRE", &own);
            expire.arg(KEEP_S);
            pipe.extend([known, expire]);
        }
        let answers = self.ask(pipe).await?;
        let now = answers.first().map_or(0, number);
        let before = self.deletions.swap(now, Ordering::Relaxed);
        Ok(before != UNKNOWN && before != now)
    }

    /// The rows of all other nodes.
    pub async fn others(&self) -> Result<Vec<LossRow>, StorageError> {
        let nodes = self.ask(vec![command("SMEMBERS", &self.key("dropped-nodes"))]).await?;
        let mut rows = Vec::new();
        for node in texts(nodes.into_iter().next()) {
            if node == self.node.as_bytes() {
                continue;
            }
            let key = self.key(&format!("dropped:{}", String::from_utf8_lossy(&node)));
            let mut cursor = b"0".to_vec();
            loop {
                let mut scan = command("HSCAN", &key);
                scan.arg(&cursor).arg("COUNT").arg(CHUNK);
                let answer = self.ask(vec![scan]).await?.into_iter().next();
                let Some(Value::Array(mut page)) = answer else { break };
                let mut found = texts(page.pop()).into_iter();
                while let (Some(name), Some(value)) = (found.next(), found.next()) {
                    rows.push((name, value));
                }
                let Some(Value::BulkString(next)) = page.pop() else { break };
                if next == b"0" {
                    break;
                }
                cursor = next;
            }
        }
        Ok(rows)
    }

    /// Deletes the rows of all nodes, and tells them; this one's are deleted by the caller.
    pub async fn delete(&self) -> Result<(), StorageError> {
        let nodes = self.ask(vec![command("SMEMBERS", &self.key("dropped-nodes"))]).await?;
        let mut pipe = vec![command("INCR", &self.key("dropped-deletions"))];
        for node in texts(nodes.into_iter().next()) {
            let node = String::from_utf8_lossy(&node);
            pipe.push(command("DEL", &self.key(&format!("dropped:{node}"))));
        }
        let answers = self.ask(pipe).await?;
        self.deletions.store(answers.first().map_or(0, number), Ordering::Relaxed);
        Ok(())
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{{sluice}}{name}", self.shards.settings.prefix).into_bytes()
    }

    async fn ask(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, StorageError> {
        let shard = self.shards.of_slot(slot(b"sluice"));
        let link = self.shards.link(&shard, Purpose::Session).await?;
        let (mut pipe, count) = (Pipeline::new(), commands.len());
        commands.into_iter().for_each(|command| _ = pipe.add_command(command));
        let answers = match link.run(pipe.ignore_errors(), count).await {
            Ok(answers) => answers,
            Err(error) => {
                shard.give_up(Purpose::Session, &link);
                return Err(error);
            }
        };
        if let Some(error) = answers.iter().find(|one| matches!(one, Value::ServerError(_))) {
            self.shards.refresh().await;
            return Err(unavailable(format!("Redis says {error:?}")));
        }
        Ok(answers)
    }
}

fn command(name: &str, key: &[u8]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(key);
    command
}

fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).unwrap_or(0),
        Value::BulkString(text) => {
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
        }
        _ => 0,
    }
}

fn texts(value: Option<Value>) -> Vec<Vec<u8>> {
    let values = match value {
        Some(Value::Array(values) | Value::Set(values)) => values,
        Some(_) | None => Vec::new(),
    };
    let text = |value| match value {
        Value::BulkString(text) => Some(text),
        _ => None,
    };
    values.into_iter().filter_map(text).collect()
}
