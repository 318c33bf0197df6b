//! The checkpointed projection as a small port of this backend: an ordered store of keys with
//! atomic batches. On disk it is fjall; the simulation keeps it in memory, where a crash can throw
//! away batches that were not synced.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::Mutex;

use crate::storage::{StorageError, Table};

/// One ordered key space of the projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Space {
    /// What the checkpoint covers.
    Meta,
    /// One record a queue, by queue key.
    Queues,
    /// One record an entry, by queue number and sequence.
    Entries,
    Table(Table),
}

#[derive(Debug)]
pub(super) struct Change {
    pub(super) space: Space,
    pub(super) key: Vec<u8>,
    /// `None` deletes.
    pub(super) value: Option<Vec<u8>>,
}

/// Changes that become true together.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) list: Vec<Change>,
    bytes: usize,
}

impl Changes {
    pub(super) fn put(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) {
        self.bytes += key.len() + value.len();
        self.list.push(Change { space, key, value: Some(value) });
    }

    pub(super) fn delete(&mut self, space: Space, key: Vec<u8>) {
        self.bytes += key.len();
        self.list.push(Change { space, key, value: None });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Tells whether to go on.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool, StorageError>;

pub(super) trait Projection: Send + Sync + fmt::Debug {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// Keys in `from..to`, rising; `to` empty means "to the end".
    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        visit: Visit<'_>,
    ) -> Result<(), StorageError>;

    /// All or nothing, in order; durable only after `sync`.
    fn commit(&self, changes: Changes) -> Result<(), StorageError>;

    fn sync(&self) -> Result<(), StorageError>;

    /// Lets go of the medium; later calls are `Unavailable`.
    fn close(&self);
}

/// What a batch replaced, in its order.
type Undo = Vec<(Space, Vec<u8>, Option<Vec<u8>>)>;
type Image = BTreeMap<(Space, Vec<u8>), Vec<u8>>;

/// The projection in memory, for the simulation: what `sync` has not covered may be lost.
#[derive(Debug, Default)]
pub struct MemoryProjection {
    state: Mutex<MemoryState>,
}

#[derive(Debug, Default)]
struct MemoryState {
    image: Image,
    /// What each batch since the last sync replaced, to undo it.
    unsynced: Vec<Undo>,
    failing: bool,
}

impl MemoryProjection {
    /// The projection as a loss of power leaves it that kept the first `keep` batches written
    /// since the last sync: a new one. This one lives on, and disturbs nothing there.
    #[must_use]
    pub fn crash(&self, keep: usize) -> MemoryProjection {
        let state = self.state.lock();
        let mut image = state.image.clone();
        for undo in state.unsynced.iter().skip(keep).rev() {
            for (space, key, old) in undo.iter().rev() {
                match old {
                    Some(value) => image.insert((*space, key.clone()), value.clone()),
                    None => image.remove(&(*space, key.clone())),
                };
            }
        }
        MemoryProjection { state: Mutex::new(MemoryState { image, ..MemoryState::default() }) }
    }

    /// Batches that a loss of power may take.
    pub fn unsynced(&self) -> usize {
        self.state.lock().unsynced.len()
    }

    /// From here on commits and syncs fail, or work again.
    pub fn fail(&self, failing: bool) {
        self.state.lock().failing = failing;
    }
}

impl MemoryState {
    fn check(&self) -> Result<(), StorageError> {
        if self.failing {
            return Err(StorageError::Unavailable("the projection was told to fail".into()));
        }
        Ok(())
    }
}

impl Projection for MemoryProjection {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.state.lock().image.get(&(space, key.to_vec())).cloned())
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        visit: Visit<'_>,
    ) -> Result<(), StorageError> {
        let found: Vec<(Vec<u8>, Vec<u8>)> = {
            let state = self.state.lock();
            let all = state.image.range((space, from.to_vec())..);
            let within = |key: &(Space, Vec<u8>)| key.0 == space && (to.is_empty() || *key.1 < *to);
            all.take_while(|(key, _)| within(key)).map(|(k, v)| (k.1.clone(), v.clone())).collect()
        };
        for (key, value) in found {
            if !visit(&key, &value)? {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, changes: Changes) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.check()?;
        let mut undo = Vec::with_capacity(changes.list.len());
        for Change { space, key, value } in changes.list {
            let at = (space, key.clone());
            let old = match value {
                Some(value) => state.image.insert(at, value),
                None => state.image.remove(&at),
            };
            undo.push((space, key, old));
        }
        state.unsynced.push(undo);
        Ok(())
    }

    fn sync(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.check()?;
        state.unsynced.clear();
        Ok(())
    }

    fn close(&self) {}
}
