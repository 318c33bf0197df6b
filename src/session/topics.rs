//! Logs of APPLICATION clients and groups that nobody has any more, in Kafka: their session ended
//! while Kafka was away, or its node died in that moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Sessions;
use crate::routing::Share;
use crate::storage::{AppTopics, AppendOutcome, Durability, Owned, QueueKey, StorageError, once};

/// How often one node of the cluster looks for them.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// One goes when it has been seen for so long: there is no hurry, and somebody may be at it.
const GRACE: Duration = Duration::from_secs(600);

/// Since when which topic is known to be nobody's. Bounded by the topics that there are.
#[derive(Debug, Default)]
struct Suspects(HashMap<String, Instant>);

impl Suspects {
    /// Those that were among them for the whole grace.
    fn due(&mut self, orphans: Vec<String>, now: Instant) -> Vec<String> {
        let since = |topic: &String| *self.0.get(topic).unwrap_or(&now);
        self.0 = orphans.into_iter().map(|topic| (topic.clone(), since(&topic))).collect();
        let is_due = |(topic, since): (&String, &Instant)| {
            (now.duration_since(*since) >= GRACE).then(|| topic.clone())
        };
        self.0.iter().filter_map(is_due).collect()
    }
}

impl Sessions {
    /// Topics that are no session's and no group's. A session's claim stands in the log before its
    /// topic is made: so what was listed before the log was read up to some row, and belongs to
    /// no session of that time, is nobody's for ever.
    async fn orphan_topics(&self, topics: &AppTopics) -> Result<Vec<String>, StorageError> {
        let unknown = || StorageError::Unavailable("the log does not answer".into());
        let directory = self.context.directory.as_ref().ok_or_else(unknown)?;
        let listed = topics.list().await?;
        let (sink, mut settled) = once();
        // A row that changes nothing: it is read back behind all that stands before it.
        let row = Share::tombstone("nobody's");
        self.context.tables.put(vec![row], Durability::Durable, sink, 0);
        let wait = tokio::time::timeout(self.context.config.append_timeout, settled.outcome());
        let Ok(AppendOutcome::Stored(_)) = wait.await else { return Err(unknown()) };
        let session = |client_id| {
            let incarnation = directory.get(&client_id)?.incarnation;
            Some((QueueKey::Application(client_id), Some(incarnation)))
        };
        let groups = self.context.subscriptions.groups().into_iter();
        let group = |filter: &str| (QueueKey::Shared(Arc::from(filter)), None);
        let owned: Vec<Owned> = directory
            .clients()
            .into_iter()
            .filter_map(session)
            .chain(groups.map(|(filter, _)| group(filter.as_str())))
            .collect();
        Ok(topics.orphans(listed, &owned))
    }

    /// Deletes the topics that are nobody's, at once; which they were.
    pub async fn remove_orphan_topics(
        &self,
        topics: &AppTopics,
    ) -> Result<Vec<String>, StorageError> {
        let orphans = self.orphan_topics(topics).await?;
        remove(topics, &orphans).await?;
        Ok(orphans)
    }

    /// Deletes them as they come, on one node of the cluster, until the task is aborted.
    pub async fn keep_topics(self, topics: AppTopics) {
        let mut suspects = Suspects::default();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let keeps = self.context.directory.as_ref().is_some_and(|directory| {
                directory.peers.members().keeper() == Some(&**directory.peers.node())
            });
            if !keeps {
                suspects = Suspects::default();
                continue;
            }
            let done = match self.orphan_topics(&topics).await {
                Ok(orphans) => remove(&topics, &suspects.due(orphans, Instant::now())).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                tracing::info!(%error, "topics of ended sessions are looked for later");
            }
        }
    }
}

async fn remove(topics: &AppTopics, orphans: &[String]) -> Result<(), StorageError> {
    for topic in orphans {
        topics.remove(topic.clone()).await?;
        tracing::info!(topic, "the log of a session that has ended is deleted");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-1: a topic goes when it was nobody's for the whole grace, without a break.
    #[test]
    fn an_orphan_goes_after_its_grace() {
        let (mut suspects, begun) = (Suspects::default(), Instant::now());
        let mut due = |topics: &[&str], after: Duration| {
            let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
            let mut due = suspects.due(topics, begun + after);
            due.sort_unstable();
            due
        };
        assert!(due(&["a", "b"], Duration::ZERO).is_empty());
        assert!(due(&["a", "c"], GRACE / 2).is_empty());
        assert_eq!(due(&["a", "b", "c"], GRACE), ["a"]);
        assert_eq!(due(&["b", "c"], GRACE + GRACE / 2), ["c"]);
        assert_eq!(due(&["b"], GRACE * 2), ["b"]);
    }
}
