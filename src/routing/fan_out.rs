//! How many recipients are charged with a message at admission (QUO-2).

use super::subscriptions::Subscriptions;
use crate::mqtt::{ClientId, QoS};

impl Subscriptions {
    /// Changes with every change of the answers of [`Self::fan_out`]: whoever keeps one compares.
    pub fn version(&self) -> u64 {
        self.version.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Persistent sessions whose queues the message will enter, on-line or not, and shared groups.
    /// Any other copy is charged when it is sent (QUO-4).
    pub fn fan_out(&self, topic: &str, qos: QoS, publisher: &ClientId) -> u64 {
        let inner = self.read();
        let (mut groups, mut queues) = (0, Vec::new());
        let mut group = |_: &_| groups += 1;
        if !qos.is_acknowledged() {
            inner.index.matches_groups(topic, &mut group);
            return groups;
        }
        inner.index.matches(
            topic,
            &mut |one| {
                if one.entry.options.qos.is_acknowledged() {
                    queues.push((one.key, one.entry.options.no_local));
                }
            },
            &mut group,
        );
        drop(inner);
        queues.retain(|(slot, no_local)| {
            let slot = self.slots.by_id(*slot);
            slot.is_some_and(|slot| {
                slot.is_persistent() && !(*no_local && slot.client_id() == publisher)
            })
        });
        // Overlapping filters of one session are one copy.
        queues.sort_unstable_by_key(|(slot, _)| *slot);
        queues.dedup_by_key(|(slot, _)| *slot);
        groups + queues.len() as u64
    }
}
