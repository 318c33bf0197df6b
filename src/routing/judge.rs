//! One judge of inbound QoS 2 (design decision 9) and of Wills: it sees every record of a
//! partition once, in order, and says which copies count.

use std::collections::{HashMap, HashSet, VecDeque};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::rows::{decode_row, encode_row};
use crate::mqtt::{ClientId, PacketId};
use crate::storage::{Publisher, StorageError};

/// Wills remembered against a second copy: those that a crash could make fire again. The oldest
/// is forgotten when it is full.
const WILLS_MAX: usize = 10_000;

/// The open QoS 2 exchanges of publishers, and the Wills that were fired. Bounded by Receive
/// Maximum per session; an entry goes with its last open id or with the session.
#[derive(Debug, Default)]
pub struct Judge {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    open: HashMap<ClientId, Open, ahash::RandomState>,
    wills: VecDeque<(ClientId, u64)>,
    fired: HashSet<(ClientId, u64), ahash::RandomState>,
}

#[derive(Debug)]
struct Open {
    incarnation: u64,
    epoch: u64,
    ids: HashSet<PacketId, ahash::RandomState>,
}

#[derive(Serialize, Deserialize)]
struct State<'a> {
    #[serde(borrow)]
    open: Vec<(&'a str, u64, u64, Vec<u16>)>,
    #[serde(borrow)]
    wills: Vec<(&'a str, u64)>,
}

impl Judge {
    /// Whether a QoS 2 PUBLISH is the first copy of its exchange; opens the exchange if so.
    pub fn admit(&self, publisher: &Publisher, id: PacketId) -> bool {
        let mut inner = self.inner.lock();
        let fresh = || Open {
            incarnation: publisher.incarnation,
            epoch: publisher.epoch,
            ids: HashSet::default(),
        };
        let open = inner.open.entry(publisher.client_id.clone()).or_insert_with(fresh);
        if open.incarnation != publisher.incarnation {
            if open.epoch > publisher.epoch {
                return false;
            }
            *open = fresh();
        }
        // A copy of an earlier connection that comes after one of a later connection.
        if open.epoch > publisher.epoch {
            return false;
        }
        open.epoch = publisher.epoch;
        open.ids.insert(id)
    }

    /// PUBREL was recorded: the id may be used for another message.
    pub fn release(&self, publisher: &Publisher, id: PacketId) {
        let mut inner = self.inner.lock();
        let Some(open) = inner.open.get_mut(&publisher.client_id) else { return };
        if open.incarnation != publisher.incarnation {
            return;
        }
        open.ids.remove(&id);
        if open.ids.is_empty() {
            inner.open.remove(&publisher.client_id);
        }
    }

    /// The session has ended, and its open exchanges with it.
    pub fn forget(&self, client_id: &ClientId, incarnation: u64) {
        let mut inner = self.inner.lock();
        if inner.open.get(client_id).is_some_and(|open| open.incarnation <= incarnation) {
            inner.open.remove(client_id);
        }
    }

    /// Whether this is the first copy of the connection's Will.
    pub fn fire(&self, publisher: &Publisher) -> bool {
        let mut inner = self.inner.lock();
        let will = (publisher.client_id.clone(), publisher.epoch);
        if !inner.fired.insert(will.clone()) {
            return false;
        }
        inner.wills.push_back(will);
        if inner.wills.len() > WILLS_MAX
            && let Some(oldest) = inner.wills.pop_front()
        {
            inner.fired.remove(&oldest);
        }
        true
    }

    /// The open ids of each client: what sessions know again after a restart.
    pub fn open_ids(&self) -> Vec<(ClientId, u64, Vec<PacketId>)> {
        let inner = self.inner.lock();
        let ids = |open: &Open| open.ids.iter().copied().collect();
        inner.open.iter().map(|(id, open)| (id.clone(), open.incarnation, ids(open))).collect()
    }

    /// Those of one client's session.
    pub fn open_ids_of(&self, client_id: &ClientId, incarnation: u64) -> Vec<PacketId> {
        let inner = self.inner.lock();
        let open = inner.open.get(client_id).filter(|open| open.incarnation == incarnation);
        open.map(|open| open.ids.iter().copied().collect()).unwrap_or_default()
    }

    pub fn encode(&self) -> Vec<u8> {
        let inner = self.inner.lock();
        let ids = |open: &Open| open.ids.iter().map(|id| id.get()).collect();
        let open = inner.open.iter();
        let open = open.map(|(id, o)| (id.as_str(), o.incarnation, o.epoch, ids(o))).collect();
        let wills = inner.wills.iter().map(|(id, epoch)| (id.as_str(), *epoch)).collect();
        encode_row(&State { open, wills }).to_vec()
    }

    /// What an earlier run left with its commit; empty at the first start.
    pub fn decode(bytes: &[u8]) -> Result<Self, StorageError> {
        let judge = Self::default();
        if bytes.is_empty() {
            return Ok(judge);
        }
        let state: State<'_> = decode_row(bytes, "dispatcher state")?;
        let mut inner = judge.inner.lock();
        for (client_id, incarnation, epoch, ids) in state.open {
            let ids = ids.into_iter().filter_map(PacketId::new).collect();
            inner.open.insert(ClientId::new(client_id), Open { incarnation, epoch, ids });
        }
        for (client_id, epoch) in state.wills {
            let will = (ClientId::new(client_id), epoch);
            inner.fired.insert(will.clone());
            inner.wills.push_back(will);
        }
        drop(inner);
        Ok(judge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publisher(incarnation: u64, epoch: u64) -> Publisher {
        Publisher { client_id: ClientId::new("p"), incarnation, epoch }
    }

    const ID: PacketId = PacketId::MIN;

    /// QOS-01: a second copy before the release is dropped, after it it is a new message; also
    /// across the restart of the dispatcher.
    #[test]
    fn one_delivery_per_exchange() {
        let judge = Judge::default();
        assert!(judge.admit(&publisher(1, 1), ID));
        assert!(!judge.admit(&publisher(1, 2), ID));
        let judge = Judge::decode(&judge.encode()).expect("reads back");
        assert!(!judge.admit(&publisher(1, 3), ID));
        assert_eq!(judge.open_ids(), [(ClientId::new("p"), 1, vec![ID])]);
        judge.release(&publisher(1, 3), ID);
        assert!(judge.admit(&publisher(1, 3), ID));
    }

    /// QOS-13, MQTT-3.1.2-4: nothing is kept of finished flows, or of a session that has ended.
    #[test]
    fn nothing_is_left_behind() {
        let judge = Judge::default();
        assert!(judge.admit(&publisher(1, 1), ID));
        judge.release(&publisher(1, 1), ID);
        assert!(judge.open_ids().is_empty());
        assert!(judge.admit(&publisher(1, 1), ID));
        judge.forget(&ClientId::new("p"), 1);
        assert!(judge.open_ids().is_empty());
    }

    /// A new session may use an id that the one before left open; a late copy of the old
    /// connection counts for nothing.
    #[test]
    fn a_new_session_starts_afresh() {
        let judge = Judge::default();
        assert!(judge.admit(&publisher(1, 1), ID));
        assert!(judge.admit(&publisher(5, 5), ID));
        assert!(!judge.admit(&publisher(1, 1), ID));
    }

    /// WIL-01: exactly once, also after a restart.
    #[test]
    fn a_will_is_fired_once() {
        let judge = Judge::default();
        assert!(judge.fire(&publisher(1, 4)));
        let judge = Judge::decode(&judge.encode()).expect("reads back");
        assert!(!judge.fire(&publisher(1, 4)));
        assert!(judge.fire(&publisher(1, 5)));
    }
}
