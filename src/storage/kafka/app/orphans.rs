//! Topics that are nobody's any more: their session ended while Kafka was away, or its node died in
//! that moment. Who they belong to is the caller's to say; here is which topics are such logs
//! at all, by names that nobody else gives.

use std::collections::HashSet;
use std::sync::Arc;

use super::log::blocking;
use super::{Inner, safe, telling};
use crate::mqtt::ClientId;
use crate::storage::redis::Claim;
use crate::storage::{QueueKey, StorageError};

/// A log that is in use: of this incarnation, or of any.
pub type Owned = (QueueKey, Option<u64>);

/// The topics of APPLICATION sessions and groups, for whoever clears up.
#[derive(Clone, Debug)]
pub struct AppTopics(pub(super) Arc<Inner>);

/// With what names begin: those of clients' logs, and those of groups'.
#[derive(Clone, Debug)]
struct Stems {
    clients: String,
    groups: String,
}

/// Whose log a topic is by its name: the part that stands for client or group, and the incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Log<'a> {
    Client(&'a str, u64),
    Group(&'a str, u64),
}

impl Stems {
    fn log<'a>(&self, topic: &'a str) -> Option<Log<'a>> {
        let parts = |stem: &str| {
            let (name, number) = topic.strip_prefix(stem)?.rsplit_once('.')?;
            let plain = !name.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            Some((name, number.parse().ok().filter(|_| plain)?))
        };
        let is_group = |name: &str| {
            let digits = name.rsplit_once('-').map_or("", |(_, digits)| digits);
            let safe = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            safe && digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if let Some((name, number)) = parts(&self.groups)
            && is_group(name)
        {
            return Some(Log::Group(name, number));
        }
        let (name, number) = parts(&self.clients)?;
        // What TBMQ calls the topic of a group whose filter is a number looks like a client's.
        let is_client = name != "shared" && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_client.then_some(Log::Client(name, number))
    }

    /// Those of the topics that are logs, and none of these.
    fn orphans(&self, topics: Vec<String>, owned: &[Owned]) -> Vec<String> {
        let (mut clients, mut groups) = (HashSet::new(), HashSet::new());
        for (queue, incarnation) in owned {
            match queue {
                QueueKey::Shared(filter) => drop(groups.insert((telling(filter), *incarnation))),
                QueueKey::Application(_) | QueueKey::Client(_) | QueueKey::Group(_) => {
                    clients.insert((safe(queue.name()), *incarnation));
                }
            }
        }
        let is_in = |owned: &HashSet<(String, Option<u64>)>, name: &str, incarnation: u64| {
            owned.contains(&(name.to_owned(), Some(incarnation)))
                || owned.contains(&(name.to_owned(), None))
        };
        let is_orphan = |topic: &String| match self.log(topic) {
            Some(Log::Client(name, incarnation)) => !is_in(&clients, name, incarnation),
            Some(Log::Group(name, incarnation)) => !is_in(&groups, name, incarnation),
            None => false,
        };
        topics.into_iter().filter(is_orphan).collect()
    }
}

impl AppTopics {
    fn stems(&self) -> Stems {
        let topics = &self.0.settings.config.topics;
        let stem = |topic| format!("{}.", self.0.settings.name(topic));
        Stems { clients: stem(&topics.application), groups: stem(&topics.application_shared) }
    }

    /// All topics that are such logs.
    pub async fn list(&self) -> Result<Vec<String>, StorageError> {
        let (all, stems) = (Arc::clone(&self.0), self.stems());
        let topics = blocking(move || all.writing.pool.topics()).await?;
        Ok(topics.into_iter().filter(|topic| stems.log(topic).is_some()).collect())
    }

    /// Those of a list that are nobody's.
    pub fn orphans(&self, listed: Vec<String>, owned: &[Owned]) -> Vec<String> {
        self.stems().orphans(listed, owned)
    }

    /// Deletes an orphan, and where its client stood.
    pub async fn remove(&self, topic: String) -> Result<(), StorageError> {
        if let Some(Log::Client(name, incarnation)) = self.stems().log(&topic) {
            // Of a hashed name nobody knows the client: its place stays, a hundred bytes.
            let queue = QueueKey::Application(ClientId::new(name));
            let claim = Claim { queue, incarnation, epoch: u64::MAX };
            self.0.writing.places.remove(&claim).await?;
        }
        let all = Arc::clone(&self.0);
        blocking(move || all.admin.remove(&topic)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-1: only what bears our kind of name, and is nobody's, is an orphan; topics of others
    /// under the same prefix, TBMQ's among them, are not.
    #[test]
    fn only_logs_of_nobody_are_orphans() {
        let stems =
            Stems { clients: "p.tbmq.msg.app.".into(), groups: "p.tbmq.msg.app.shared.".into() };
        let of = |queue: &QueueKey, incarnation: u64| match queue {
            QueueKey::Shared(filter) => {
                format!("{}{}.{incarnation}", stems.groups, telling(filter))
            }
            QueueKey::Application(_) | QueueKey::Client(_) | QueueKey::Group(_) => {
                format!("{}{}.{incarnation}", stems.clients, safe(queue.name()))
            }
        };
        let client = |id: &str| QueueKey::Application(ClientId::new(id));
        let group = |filter: &str| QueueKey::Shared(Arc::from(filter));
        let owned = [(client("a"), Some(5)), (client("ü"), Some(6)), (group("$share/g/t"), None)];
        let orphans = [
            of(&client("a"), 4),
            of(&client("b"), 5),
            of(&client("ü"), 7),
            of(&group("$share/h/t"), 5),
        ];
        let others = [
            of(&owned[0].0, 5),
            of(&owned[1].0, 6),
            of(&owned[2].0, 1),
            of(&owned[2].0, 2),
            "p.tbmq.msg.app.a".to_owned(),
            "p.tbmq.msg.app.5".to_owned(),
            "p.tbmq.msg.app.a.".to_owned(),
            "p.tbmq.msg.app.a.x5".to_owned(),
            "p.tbmq.msg.app.a-b.5".to_owned(),
            "p.tbmq.msg.app.shared.5".to_owned(),
            "p.tbmq.msg.app.shared.a.5".to_owned(),
            "p.tbmq.msg.app.shared.a-b.5".to_owned(),
            "p.tbmq.msg.all".to_owned(),
            "tbmq.msg.app.b.5".to_owned(),
            "q.tbmq.msg.app.b.5".to_owned(),
        ];
        let all = orphans.iter().chain(&others).cloned().collect();
        assert_eq!(stems.orphans(all, &owned), orphans);
        assert!(stems.orphans(others.to_vec(), &owned).is_empty());
    }
}
