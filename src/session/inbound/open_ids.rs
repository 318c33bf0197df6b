//! The QoS 2 ids a client has open with us (MQTT 5 section 4.3.3, receiver's side).

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};

use crate::mqtt::PacketId;

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum OpenId {
    /// PUBLISH is in the log or on its way: a repeat is answered PUBREC and not stored.
    Received,
    /// PUBREL is on its way to the log: a repeat is answered PUBCOMP behind it.
    Releasing,
}

/// What connections of one session hand on to each other on the way in.
///
/// The fence says which of them may still append. A claim raises it before its own row enters the
/// log, so nothing of an earlier connection can come behind the claim: no late publish, no retained
/// value over a newer one, no QoS 2 id that is answered before its record is durable.
#[derive(Debug, Default)]
pub(in crate::session) struct Exchanges {
    owner: Mutex<u64>,
    open: Mutex<OpenIds>,
}

impl Exchanges {
    /// From here on, only the connection of this epoch appends.
    pub(in crate::session) fn own(&self, epoch: u64) {
        *self.owner.lock() = epoch;
    }

    /// Keeps the fence where it is, for one append; `None`: it is another connection's turn.
    /// Whoever holds it may lock anything else, and nobody who holds anything else waits for it.
    pub(in crate::session) fn pass(&self, epoch: u64) -> Option<MutexGuard<'_, u64>> {
        let owner = self.owner.lock();
        (*owner == epoch).then_some(owner)
    }

    /// The QoS 2 ids in use.
    pub(in crate::session) fn lock(&self) -> MutexGuard<'_, OpenIds> {
        self.open.lock()
    }
}

/// Bounded by Receive Maximum (v5: ours; v3.x: 65 535 ids).
#[derive(Debug, Default)]
pub(in crate::session) struct OpenIds(Option<Box<Ids>>);

type Ids = HashMap<PacketId, OpenId, ahash::RandomState>;

/// A table of this size stays when its last id goes: a busy publisher needs it again at once.
const KEEP: usize = 256;

impl OpenIds {
    pub(in crate::session) fn get(&self, id: PacketId) -> Option<OpenId> {
        self.0.as_ref()?.get(&id).copied()
    }

    pub(in crate::session) fn set(&mut self, id: PacketId, state: OpenId) {
        self.0.get_or_insert_default().insert(id, state);
    }

    pub(in crate::session) fn remove(&mut self, id: PacketId) {
        let Some(ids) = &mut self.0 else { return };
        ids.remove(&id);
        if ids.is_empty() && ids.capacity() > KEEP {
            self.0 = None;
        }
    }

    /// A PUBREL came to nothing: the client's next one is recorded again.
    pub(in crate::session) fn reopen(&mut self, id: PacketId) {
        if let Some(state) = self.0.as_mut().and_then(|ids| ids.get_mut(&id)) {
            *state = OpenId::Received;
        }
    }

    pub(in crate::session) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |ids| ids.len())
    }

    pub(in crate::session) fn ids(&self) -> Vec<PacketId> {
        self.0.iter().flat_map(|ids| ids.keys()).copied().collect()
    }
}
