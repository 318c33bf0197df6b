//! A slab of values under small ids that gives memory back. Values live in chunks; the lowest
//! chunk with room is filled first, so that high chunks run empty and are freed.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

/// "No id": what a link holds when it leads nowhere.
pub(super) const NIL: u32 = u32::MAX;

/// Values per chunk. Growth allocates one chunk and copies nothing, which a doubling vector would:
/// no subscribe pays for moving a million others.
const CHUNK: usize = 256;

#[derive(Debug)]
enum Slot<T> {
    /// The next free slot of the chunk, or `NIL`.
    Free(u32),
    Used(T),
}

#[derive(Debug)]
struct Chunk<T> {
    /// No allocation while the chunk is empty.
    slots: Vec<Slot<T>>,
    free: u32,
    used: usize,
}

/// Ids are reused after `remove`: whoever holds an id must drop it when its value goes.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks with room, lowest first.
    open: BTreeSet<usize>,
    len: usize,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), open: BTreeSet::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let number = match self.open.first() {
            Some(&number) => number,
            None => {
                self.chunks.push(Chunk { slots: Vec::new(), free: NIL, used: 0 });
                self.open.insert(self.chunks.len() - 1);
                self.chunks.len() - 1
            }
        };
        let chunk = &mut self.chunks[number];
        let at = if chunk.free == NIL {
            if chunk.slots.is_empty() {
                chunk.slots.reserve_exact(CHUNK);
            }
            chunk.slots.push(Slot::Used(value));
            chunk.slots.len() - 1
        } else {
            let at = chunk.free as usize;
            let Slot::Free(next) = std::mem::replace(&mut chunk.slots[at], Slot::Used(value))
            else {
                unreachable!("the free list names only free slots");
            };
            chunk.free = next;
            at
        };
        chunk.used += 1;
        if chunk.used == CHUNK {
            self.open.remove(&number);
        }
        self.len += 1;
        let id = u32::try_from(number * CHUNK + at).unwrap_or(NIL);
        assert!(id != NIL, "a slab holds fewer than 2^32 values: memory ends long before");
        id
    }

    pub(super) fn remove(&mut self, id: u32) -> T {
        let (number, at) = split(id);
        let chunk = &mut self.chunks[number];
        let slot = std::mem::replace(&mut chunk.slots[at], Slot::Free(chunk.free));
        let Slot::Used(value) = slot else { unreachable!("an id is removed once") };
        chunk.free = at as u32;
        chunk.used -= 1;
        self.len -= 1;
        self.open.insert(number);
        if chunk.used == 0 {
            chunk.slots = Vec::new();
            chunk.free = NIL;
            self.drop_empty_tail();
        }
        value
    }

    fn drop_empty_tail(&mut self) {
        while self.chunks.last().is_some_and(|chunk| chunk.used == 0) {
            self.chunks.pop();
            self.open.remove(&self.chunks.len());
        }
        if self.chunks.len() < self.chunks.capacity() / 4 {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| &chunk.slots).filter_map(|slot| match slot {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        })
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        let (number, at) = split(id);
        match self.chunks.get(number)?.slots.get(at)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let (number, at) = split(id);
        match self.chunks.get_mut(number)?.slots.get_mut(at)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }
}

fn split(id: u32) -> (usize, usize) {
    (id as usize / CHUNK, id as usize % CHUNK)
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        self.get(id).expect("a link leads to a live value")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.get_mut(id).expect("a link leads to a live value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_valid_and_empty_chunks_are_freed() {
        let mut slab = Slab::new();
        let ids: Vec<u32> = (0..CHUNK * 4).map(|n| slab.insert(n)).collect();
        for &id in &ids[CHUNK..] {
            slab.remove(id);
        }
        assert_eq!(slab.chunks.len(), 1);
        assert!((0..CHUNK).all(|n| slab[ids[n]] == n));
        assert_eq!(slab.get(ids[CHUNK]), None);
        // The lowest free place is taken first.
        slab.remove(ids[7]);
        assert_eq!(slab.insert(700), ids[7]);
        assert_eq!(slab.len(), CHUNK);
    }
}
