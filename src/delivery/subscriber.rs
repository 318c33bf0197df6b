//! Who can receive: one slot per session, from its first subscription or connection to its end.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::Outbox;
use crate::mqtt::{ByClientId, ClientId, HasClientId};

/// A dense number for a slot, used again after the session has ended: what the trie stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// One session as routing sees it.
#[derive(Debug)]
pub struct Slot {
    id: SlotId,
    client_id: ClientId,
    state: Mutex<SlotView>,
    /// Its copies are another node's to deliver, as of what was routed.
    elsewhere: AtomicBool,
    /// It is connected to another node.
    connected_elsewhere: AtomicBool,
    /// Which node claimed it, and where in the log, as of what was routed; kept where there are
    /// several nodes.
    home: Mutex<Option<Box<Home>>>,
}

type Home = (Arc<str>, u64);

/// What routing needs to know at one moment.
#[derive(Clone, Debug, Default)]
pub struct SlotView {
    /// The session's incarnation.
    pub incarnation: u64,
    /// QoS 1 and 2 go into the client's queue.
    pub persistent: bool,
    /// Its queue is an APPLICATION client's log.
    pub application: bool,
    /// Connected to this node.
    pub outbox: Option<Arc<Outbox>>,
}

impl Slot {
    pub fn id(&self) -> SlotId {
        self.id
    }

    pub fn client_id(&self) -> &ClientId {
        &self.client_id
    }

    pub fn view(&self) -> SlotView {
        self.state.lock().clone()
    }

    pub fn is_persistent(&self) -> bool {
        self.state.lock().persistent
    }

    pub fn is_connected(&self) -> bool {
        self.state.lock().outbox.is_some()
    }

    pub fn is_elsewhere(&self) -> bool {
        self.elsewhere.load(Ordering::Relaxed)
    }

    pub fn set_elsewhere(&self, elsewhere: bool) {
        self.elsewhere.store(elsewhere, Ordering::Relaxed);
    }

    pub fn is_connected_elsewhere(&self) -> bool {
        self.connected_elsewhere.load(Ordering::Relaxed)
    }

    pub fn set_connected_elsewhere(&self, connected: bool) {
        self.connected_elsewhere.store(connected, Ordering::Relaxed);
    }

    pub fn home(&self) -> Option<Home> {
        self.home.lock().as_deref().cloned()
    }

    pub fn set_home(&self, node: &Arc<str>, claimed: u64) {
        *self.home.lock() = Some(Box::new((Arc::clone(node), claimed)));
    }

    pub fn set(&self, view: SlotView) {
        *self.state.lock() = view;
    }

    /// Attaches the outbox of a connection of this session; `false`: it is another one's by now.
    pub fn attach(&self, incarnation: u64, outbox: Arc<Outbox>) -> bool {
        let mut state = self.state.lock();
        let ours = state.incarnation == incarnation;
        if ours {
            state.outbox = Some(outbox);
        }
        ours
    }

    /// Takes `outbox` off the slot, if it is still the one that is attached (TKO-02).
    pub fn detach(&self, outbox: &Arc<Outbox>) {
        let mut state = self.state.lock();
        if state.outbox.as_ref().is_some_and(|attached| Arc::ptr_eq(attached, outbox)) {
            state.outbox = None;
        }
    }
}

/// All slots of this node, by client id and by number. Bounded by the number of sessions.
#[derive(Debug, Default)]
pub struct Slots {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_client: HashSet<ByClientId<Arc<Slot>>, ahash::RandomState>,
    by_id: Vec<Option<Arc<Slot>>>,
    free: Vec<u32>,
}

impl HasClientId for Arc<Slot> {
    fn client_id(&self) -> &ClientId {
        &self.client_id
    }
}

impl Slots {
    /// The client's slot, made if there is none.
    pub fn ensure(&self, client_id: &ClientId) -> Arc<Slot> {
        if let Some(slot) = self.by_client(client_id.as_str()) {
            return slot;
        }
        let mut inner = self.inner.write();
        if let Some(slot) = inner.by_client.get(client_id.as_str()) {
            return Arc::clone(&slot.0);
        }
        let number = inner.free.pop().unwrap_or(inner.by_id.len() as u32);
        let slot = Arc::new(Slot {
            id: SlotId(number),
            client_id: client_id.clone(),
            state: Mutex::default(),
            elsewhere: AtomicBool::new(false),
            connected_elsewhere: AtomicBool::new(false),
            home: Mutex::default(),
        });
        inner.by_client.insert(ByClientId(Arc::clone(&slot)));
        if number as usize == inner.by_id.len() {
            inner.by_id.push(None);
        }
        inner.by_id[number as usize] = Some(Arc::clone(&slot));
        slot
    }

    pub fn by_client(&self, client_id: &str) -> Option<Arc<Slot>> {
        self.inner.read().by_client.get(client_id).map(|slot| Arc::clone(&slot.0))
    }

    pub fn by_id(&self, id: SlotId) -> Option<Arc<Slot>> {
        self.inner.read().by_id.get(id.0 as usize)?.clone()
    }

    /// Visits every slot; nothing is locked meanwhile.
    pub fn each(&self, visit: impl FnMut(&Arc<Slot>)) {
        let slots: Vec<Arc<Slot>> = self.inner.read().by_id.iter().flatten().cloned().collect();
        slots.iter().for_each(visit);
    }

    /// One past the largest number in use.
    pub fn id_end(&self) -> usize {
        self.inner.read().by_id.len()
    }

    /// The session has ended. Its subscriptions were removed before, so that nobody can meet the
    /// number in the trie when it is used again.
    pub fn remove(&self, slot: &Arc<Slot>) {
        let mut inner = self.inner.write();
        let current = inner.by_id.get(slot.id.0 as usize).and_then(Option::as_ref);
        if current.is_some_and(|current| Arc::ptr_eq(current, slot)) {
            inner.by_id[slot.id.0 as usize] = None;
            inner.by_client.remove(slot.client_id.as_str());
            inner.free.push(slot.id.0);
        }
    }

    pub fn len(&self) -> usize {
        self.inner.read().by_client.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
