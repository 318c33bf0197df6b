//! Whose queue it is, and of which kind.

use std::fmt;
use std::sync::Arc;

use crate::mqtt::ClientId;

/// Names a queue: a client's or a shared group's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueKey {
    /// A persistent DEVICE session's, bounded by a number of messages (DEV-5).
    Client(ClientId),
    /// What waits for the members of a DEVICE group, bounded likewise (SHR-3).
    Group(Arc<str>),
    /// A persistent APPLICATION session's log, bounded by its retention alone (APP-3).
    Application(ClientId),
    /// The log of an APPLICATION group, bounded by its retention, too (SHR-4): what waits for its
    /// members. The name is the group's whole filter, `$share/…` included.
    Shared(Arc<str>),
}

impl QueueKey {
    /// The queue of a persistent session.
    pub fn of(client_id: &ClientId, application: bool) -> Self {
        match application {
            true => QueueKey::Application(client_id.clone()),
            false => QueueKey::Client(client_id.clone()),
        }
    }

    /// Whose queue it is, if it is a client's.
    pub fn client(&self) -> Option<&ClientId> {
        match self {
            QueueKey::Client(id) | QueueKey::Application(id) => Some(id),
            QueueKey::Group(_) | QueueKey::Shared(_) => None,
        }
    }

    /// The client's or the group's name.
    pub fn name(&self) -> &str {
        match self {
            QueueKey::Client(id) | QueueKey::Application(id) => id.as_str(),
            QueueKey::Group(name) | QueueKey::Shared(name) => name,
        }
    }

    /// The whole filter of the group whose room it is.
    pub fn room(&self) -> Option<&Arc<str>> {
        match self {
            QueueKey::Group(filter) | QueueKey::Shared(filter) => Some(filter),
            QueueKey::Client(_) | QueueKey::Application(_) => None,
        }
    }

    /// Whether it is a log: bounded by its retention alone, and in Kafka where there is one.
    pub fn is_application(&self) -> bool {
        matches!(self, QueueKey::Application(_) | QueueKey::Shared(_))
    }
}

impl fmt::Display for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueKey::Client(id) => write!(f, "client {id}"),
            QueueKey::Group(name) => write!(f, "group {name}"),
            QueueKey::Application(id) => write!(f, "application {id}"),
            QueueKey::Shared(name) => write!(f, "application group {name}"),
        }
    }
}
