//! A hash table of slab ids. The keys stay where they are (in the slab); an entry is eight bytes:
//! 32 bits of the hash and the id. With the hash at hand, growing the table reads no key.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    id: u32,
}

#[derive(Debug, Default)]
pub(super) struct IdTable {
    slots: HashTable<Slot>,
}

/// The table takes its bucket from the low bits and its tag from the high ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl IdTable {
    pub(super) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let slot = self.slots.find(spread(hash), |slot| slot.hash == hash && is_it(slot.id))?;
        Some(slot.id)
    }

    /// The caller has looked: no equal key is present.
    pub(super) fn insert(&mut self, hash: u32, id: u32) {
        self.slots.insert_unique(spread(hash), Slot { hash, id }, |slot| spread(slot.hash));
    }

    pub(super) fn replace(&mut self, hash: u32, old: u32, new: u32) {
        let found = self.slots.find_mut(spread(hash), |slot| slot.id == old);
        found.expect("the id to replace is in the table").id = new;
    }

    pub(super) fn remove(&mut self, hash: u32, id: u32) {
        let entry = self.slots.entry(spread(hash), |s| s.id == id, |s| spread(s.hash));
        if let Entry::Occupied(entry) = entry {
            entry.remove();
        }
        // Memory returns; the factor of eight keeps a table that breathes from being rebuilt often.
        if self.slots.len() < self.slots.capacity() / 8 {
            self.slots.shrink_to(self.slots.len() * 2, |slot| spread(slot.hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_hashes_are_told_apart_and_the_table_shrinks() {
        let mut table = IdTable::default();
        for id in 0..10_000 {
            table.insert(id / 2, id);
        }
        assert_eq!(table.find(4, |id| id == 9), Some(9));
        assert_eq!(table.find(4, |id| id == 10), None);
        table.replace(4, 9, 77);
        assert_eq!(table.find(4, |id| id == 77), Some(77));
        let full = table.slots.capacity();
        for id in 10..10_000 {
            table.remove(id / 2, id);
        }
        assert!(table.slots.capacity() < full / 50);
        assert_eq!(table.find(2, |id| id == 5), Some(5));
    }
}
