//! A hash table of slab ids. The keys stay where they are (in the slab); an entry is eight bytes:
//! 32 bits of the hash and the id. With the hash at hand, growing the table reads no key; being
//! cut into shards, it grows a piece at a time: at a million entries, no insert waits for more
//! than one shard's move.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    id: u32,
}

#[derive(Debug, Default)]
pub(super) struct IdTable {
    shards: [HashTable<Slot>; SHARDS],
}

const SHARDS: usize = 32;

/// The top bits choose the shard.
fn shard(hash: u32) -> usize {
    hash as usize / (1 << 27) % SHARDS
}

/// A shard takes its bucket from the low bits and its tag from the high ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl IdTable {
    pub(super) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let shard = &self.shards[shard(hash)];
        let slot = shard.find(spread(hash), |slot| slot.hash == hash && is_it(slot.id))?;
        Some(slot.id)
    }

    /// The caller has looked: no equal key is present.
    pub(super) fn insert(&mut self, hash: u32, id: u32) {
        let shard = &mut self.shards[shard(hash)];
        shard.insert_unique(spread(hash), Slot { hash, id }, |slot| spread(slot.hash));
    }

    pub(super) fn replace(&mut self, hash: u32, old: u32, new: u32) {
        let shard = &mut self.shards[shard(hash)];
        let found = shard.find_mut(spread(hash), |slot| slot.id == old);
        found.expect("the id to replace is in the table").id = new;
    }

    pub(super) fn remove(&mut self, hash: u32, id: u32) {
        let shard = &mut self.shards[shard(hash)];
        let entry = shard.entry(spread(hash), |s| s.id == id, |s| spread(s.hash));
        if let Entry::Occupied(entry) = entry {
            entry.remove();
        }
        // Memory returns; the factor of eight keeps a table that breathes from being rebuilt often.
        if shard.len() < shard.capacity() / 8 {
            shard.shrink_to(shard.len() * 2, |slot| spread(slot.hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl IdTable {
        fn capacity(&self) -> usize {
            self.shards.iter().map(HashTable::capacity).sum()
        }
    }

    #[test]
    fn equal_hashes_are_told_apart_and_the_table_shrinks() {
        // Two ids to a hash, spread over all shards.
        let hash = |id: u32| (id / 2).wrapping_mul(0x9E37_79B1);
        let mut table = IdTable::default();
        for id in 0..10_000 {
            table.insert(hash(id), id);
        }
        assert_eq!(table.find(hash(8), |id| id == 9), Some(9));
        assert_eq!(table.find(hash(8), |id| id == 10), None);
        table.replace(hash(8), 9, 77);
        assert_eq!(table.find(hash(8), |id| id == 77), Some(77));
        let full = table.capacity();
        for id in 10..10_000 {
            table.remove(hash(id), id);
        }
        assert!(table.capacity() < full / 50);
        assert_eq!(table.find(hash(4), |id| id == 5), Some(5));
    }
}
