//! All subscriptions of this node in one value: plain ones in a trie by client, shared ones in a
//! second trie by group. Two tries, so that neither kind can be taken for the other (SHR-12) and
//! a node without shared subscriptions pays nothing for them.

use std::hash::Hash;

use super::shared_group::{Group, GroupId, Groups};
use super::subscribers::Subscriber;
use super::trie::Trie;
use crate::mqtt::TopicFilter;

/// `K` names a session, `E` is what is kept for one subscription.
#[derive(Debug)]
pub struct SubscriptionIndex<K, E> {
    plain: Trie<K, E>,
    shared: Trie<GroupId, ()>,
    groups: Groups<K, E>,
    /// Memberships of shared groups.
    members: usize,
}

impl<K: Eq + Hash, E> Default for SubscriptionIndex<K, E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Eq + Hash, E> SubscriptionIndex<K, E> {
    pub fn new() -> Self {
        Self { plain: Trie::new(), shared: Trie::new(), groups: Groups::new(), members: 0 }
    }

    /// Subscriptions, shared ones counted once per member.
    pub fn len(&self) -> usize {
        self.plain.len() + self.members
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Places taken by distinct filters: 0 when the last subscription has gone.
    pub fn nodes(&self) -> usize {
        self.plain.nodes() + self.shared.nodes() + self.groups.len()
    }

    pub fn groups(&self) -> &Groups<K, E> {
        &self.groups
    }

    /// Adds a subscription; one that exists is replaced and its entry returned (MQTT-3.8.4-3).
    pub fn subscribe(&mut self, filter: &TopicFilter, key: K, entry: E) -> Option<E> {
        if !filter.is_shared() {
            return self.plain.insert(filter.as_str(), key, entry);
        }
        let joined = self.groups.join(filter, key, entry);
        if joined.created {
            self.shared.insert(filter.plain(), joined.group, ());
        }
        self.members += usize::from(joined.replaced.is_none());
        joined.replaced
    }

    /// Takes out the subscription with exactly this filter (MQTT-3.10.4-1).
    pub fn unsubscribe(&mut self, filter: &TopicFilter, key: &K) -> Option<E> {
        if !filter.is_shared() {
            return self.plain.remove(filter.as_str(), key);
        }
        let left = self.groups.leave(filter.as_str(), key)?;
        if left.emptied {
            self.shared.remove(filter.plain(), &left.group);
        }
        self.members -= 1;
        Some(left.entry)
    }

    pub fn get(&self, filter: &TopicFilter, key: &K) -> Option<&E> {
        if filter.is_shared() {
            return self.groups.member(filter.as_str(), key);
        }
        self.plain.get(filter.as_str(), key)
    }

    /// Visits each matching group once.
    pub fn matches_groups(&self, topic: &str, shared: &mut impl FnMut(&Group<K, E>)) {
        if self.members > 0 {
            self.shared.matches(topic, &mut |one| {
                let group = self.groups.get(one.key);
                shared(group.expect("a group leaves the trie with its last member"));
            });
        }
    }

    /// Visits each matching plain subscription once, then each matching group once.
    pub fn matches(
        &self,
        topic: &str,
        plain: &mut impl FnMut(&Subscriber<K, E>),
        shared: &mut impl FnMut(&Group<K, E>),
    ) {
        self.plain.matches(topic, plain);
        self.matches_groups(topic, shared);
    }
}
