//! The QoS 2 ids a client has open with us (MQTT 5 section 4.3.3, receiver's side).

use std::collections::HashMap;

use crate::mqtt::PacketId;

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum OpenId {
    /// PUBLISH is on its way to the log. A repeat, which a new connection may bring before that is
    /// settled, is stored again: the judge lets one of them through.
    Storing,
    /// An attempt to store it ended in doubt: it may not be refused any more, and a repeat is
    /// stored again.
    InDoubt,
    /// PUBLISH is in the log for good, with its retained row: a repeat is answered PUBREC and not stored.
    Received,
}

/// Bounded by Receive Maximum (v5: ours; v3.x: 65 535 ids).
#[derive(Debug, Default)]
pub(in crate::session) struct OpenIds(HashMap<PacketId, OpenId, ahash::RandomState>);

impl OpenIds {
    pub(in crate::session) fn get(&self, id: PacketId) -> Option<OpenId> {
        self.0.get(&id).copied()
    }

    /// An attempt to store the PUBLISH begins; what is known of earlier ones stays.
    pub(in crate::session) fn begin(&mut self, id: PacketId) {
        self.0.entry(id).or_insert(OpenId::Storing);
    }

    pub(in crate::session) fn set(&mut self, id: PacketId, state: OpenId) {
        self.0.insert(id, state);
    }

    pub(in crate::session) fn remove(&mut self, id: PacketId) {
        self.0.remove(&id);
        if self.0.is_empty() {
            self.0 = HashMap::default();
        }
    }

    pub(in crate::session) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::session) fn ids(&self) -> Vec<PacketId> {
        let mut ids: Vec<PacketId> = self.0.keys().copied().collect();
        // In order, so that what is made of them is the same every time.
        ids.sort_unstable();
        ids
    }
}
