//! What administration sees of shared groups, and the entities that it makes for them.

use std::sync::Arc;

use super::Sessions;
use crate::mqtt::{ClientId, TopicFilter};
use crate::routing::{Policy, Share};
use crate::security::ClientType;
use crate::storage::{AppendOutcome, Durability, QueueKey, Row, once};
use crate::telemetry::clock;

/// Of a name and a filter, bytes. A filter in a packet can't be longer.
const NAME_BYTES: usize = 255;
/// More than a topic of Kafka should have.
const PARTITIONS: u64 = 1000;

/// An entity, as it is asked for.
#[derive(Clone, Debug, Default)]
pub struct ShareDraft {
    /// Of the one that is to be changed; none for a new one.
    pub id: Option<String>,
    pub name: String,
    pub filter: String,
    pub partitions: Option<u64>,
    /// A policy's name; none: as it is set for all.
    pub policy: Option<String>,
}

/// Why an entity is not made, changed or deleted.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    #[error("there is no such shared subscription")]
    NotFound,
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
    #[error("storage refuses")]
    Storage,
}

/// One member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    pub client_id: ClientId,
    /// To this node or another one.
    pub connected: bool,
    pub client_type: ClientType,
    pub qos: u8,
}

/// One shared group, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The whole filter, `$share/…` included.
    pub filter: TopicFilter,
    pub policy: Policy,
    pub entity: Option<Arc<Share>>,
    pub members: Vec<MemberView>,
    /// Messages that wait for the members, as far as this node knows.
    pub waiting: u64,
}

impl GroupView {
    /// Whether APPLICATION clients are in it.
    pub fn is_application(&self) -> bool {
        self.members.iter().any(|member| member.client_type == ClientType::Application)
    }
}

fn invalid<T>(text: impl Into<String>) -> Result<T, ShareError> {
    Err(ShareError::Invalid(text.into()))
}

impl ShareDraft {
    fn checked(&self) -> Result<Share, ShareError> {
        let name = self.name.trim();
        if name.is_empty() || name.len() > NAME_BYTES {
            return invalid(format!("name must have 1 to {NAME_BYTES} bytes"));
        }
        let filter = match TopicFilter::new(&self.filter) {
            Ok(filter) => filter,
            Err(fault) => return invalid(format!("topicFilter: {fault}")),
        };
        let partitions = self.partitions.unwrap_or(1);
        if !(1..=PARTITIONS).contains(&partitions) {
            return invalid(format!("partitions must be 1 to {PARTITIONS}"));
        }
        let policy = match self.policy.as_deref() {
            None | Some("") => None,
            Some(text) => match Policy::parse(text) {
                Some(policy) => Some(policy),
                None => {
                    let names = Policy::NAMES.map(|(name, _)| name).join(", ");
                    return invalid(format!("processingType must be one of {names}"));
                }
            },
        };
        Ok(Share {
            id: Share::id_of(&filter),
            name: name.to_owned(),
            filter,
            partitions: partitions as u32,
            policy,
            created_ms: clock::wall_ms(),
        })
    }
}

impl Sessions {
    /// The entities, in no order.
    pub fn shares(&self) -> Vec<Arc<Share>> {
        self.context.subscriptions.shares().all()
    }

    pub fn share(&self, id: &str) -> Option<Arc<Share>> {
        self.context.subscriptions.shares().get(id)
    }

    /// Makes an entity, or changes one: its name and policy. It acts on the next message.
    pub async fn save_share(&self, draft: ShareDraft) -> Result<Arc<Share>, ShareError> {
        let shares = self.context.subscriptions.shares();
        let _turn = shares.writes.lock().await;
        let mut share = draft.checked()?;
        let there = shares.get(&share.id);
        if let Some(id) = draft.id.as_deref().filter(|id| !id.is_empty()) {
            let old = shares.get(id).ok_or(ShareError::NotFound)?;
            if old.filter != share.filter {
                return invalid("topicFilter is fixed when a shared subscription is made");
            }
            if draft.partitions.is_some_and(|asked| asked != u64::from(old.partitions)) {
                let text = format!(
                    "partitions are fixed when a shared subscription is made: it has {}",
                    old.partitions
                );
                return invalid(text);
            }
            (share.partitions, share.created_ms) = (old.partitions, old.created_ms);
        } else if let Some(there) = there {
            let text = format!("there is a shared subscription of this topicFilter: {}", there.id);
            return Err(ShareError::Conflict(text));
        }
        self.put_share(share.row()).await?;
        shares.get(&share.id).ok_or(ShareError::Storage)
    }

    /// Deletes an entity that no group is about.
    pub async fn delete_share(&self, id: &str) -> Result<(), ShareError> {
        let shares = self.context.subscriptions.shares();
        let _turn = shares.writes.lock().await;
        let share = shares.get(id).ok_or(ShareError::NotFound)?;
        let groups = self.context.subscriptions.groups();
        let members: usize = groups
            .iter()
            .filter(|(filter, _)| share.is_of(filter))
            .map(|(_, members)| members.len())
            .sum();
        if members > 0 {
            let text = format!("{members} subscriptions rest on it: end them first");
            return Err(ShareError::Conflict(text));
        }
        self.put_share(Share::tombstone(id)).await
    }

    async fn put_share(&self, row: Row) -> Result<(), ShareError> {
        let (sink, mut settled) = once();
        self.context.tables.put(vec![row], Durability::Durable, sink, 0);
        let wait = tokio::time::timeout(self.context.config.append_timeout, settled.outcome());
        match wait.await {
            Ok(AppendOutcome::Stored(_)) => Ok(()),
            Ok(AppendOutcome::NotStored | AppendOutcome::InDoubt) | Err(_) => {
                Err(ShareError::Storage)
            }
        }
    }

    /// The shared groups of the cluster, with their members and what waits for them.
    pub fn groups(&self) -> Vec<GroupView> {
        let context = &self.context;
        let shares = context.subscriptions.shares();
        let groups = context.subscriptions.groups().into_iter();
        let view = |(filter, members): (TopicFilter, Vec<_>)| {
            let member = |(slot, entry): (_, crate::routing::Entry)| {
                let slot = context.slots.by_id(slot)?;
                let (view, qos) = (slot.view(), entry.options.qos.bits());
                let client_type = match view.application {
                    true => ClientType::Application,
                    false => ClientType::Device,
                };
                let connected = view.outbox.is_some() || slot.is_connected_elsewhere();
                Some(MemberView {
                    client_id: slot.client_id().clone(),
                    connected,
                    client_type,
                    qos,
                })
            };
            let name: Arc<str> = Arc::from(filter.as_str());
            let rooms = [QueueKey::Group(Arc::clone(&name)), QueueKey::Shared(name)];
            GroupView {
                policy: shares.policy(&filter),
                entity: shares.of(&filter),
                members: members.into_iter().filter_map(member).collect(),
                waiting: rooms.iter().map(|room| context.queues.depth(room)).sum(),
                filter,
            }
        };
        groups.map(view).collect()
    }
}
