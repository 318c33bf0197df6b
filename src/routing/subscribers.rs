//! Who subscribed to one filter: from nobody to a million. Read as one contiguous slice; insert
//! and remove by key never scan a long list.

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::HashTable;

/// One subscription: who, and what the index keeps for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscriber<K, E> {
    pub key: K,
    pub entry: E,
}

/// Most filters have one subscriber, which then needs no allocation of its own.
#[derive(Debug)]
pub(super) enum Subscribers<K, E> {
    Nobody,
    One(Subscriber<K, E>),
    Few(Vec<Subscriber<K, E>>),
    Many(Box<Crowd<K, E>>),
}

/// Up to here a scan beats a hash table; the way back is at half, so that nothing flaps.
const FEW: usize = 32;

/// A long list, and where in it each key stands.
#[derive(Debug)]
pub(super) struct Crowd<K, E> {
    list: Vec<Subscriber<K, E>>,
    places: HashTable<u32>,
    hasher: RandomState,
}

impl<K: Eq + Hash, E> Subscribers<K, E> {
    pub(super) fn as_slice(&self) -> &[Subscriber<K, E>] {
        match self {
            Subscribers::Nobody => &[],
            Subscribers::One(one) => std::slice::from_ref(one),
            Subscribers::Few(list) => list,
            Subscribers::Many(crowd) => &crowd.list,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Subscribers::Nobody)
    }

    pub(super) fn get(&self, key: &K) -> Option<&E> {
        if let Subscribers::Many(crowd) = self {
            let place = crowd.place(key)?;
            return Some(&crowd.list[place].entry);
        }
        self.as_slice().iter().find(|one| one.key == *key).map(|one| &one.entry)
    }

    /// Adds the key or replaces its entry, which is returned.
    pub(super) fn insert(&mut self, key: K, entry: E) -> Option<E> {
        match self {
            Subscribers::Nobody => {
                *self = Subscribers::One(Subscriber { key, entry });
                return None;
            }
            Subscribers::One(one) if one.key == key => {
                return Some(std::mem::replace(&mut one.entry, entry));
            }
            Subscribers::One(_) => {
                let old = std::mem::replace(self, Subscribers::Nobody);
                let Subscribers::One(one) = old else { unreachable!("matched above") };
                let mut list = Vec::with_capacity(4);
                list.extend([one, Subscriber { key, entry }]);
                *self = Subscribers::Few(list);
                return None;
            }
            Subscribers::Few(list) => {
                if let Some(one) = list.iter_mut().find(|one| one.key == key) {
                    return Some(std::mem::replace(&mut one.entry, entry));
                }
                list.push(Subscriber { key, entry });
            }
            Subscribers::Many(crowd) => return crowd.insert(key, entry),
        }
        self.resize();
        None
    }

    /// Takes the key out; the order of the others may change.
    pub(super) fn remove(&mut self, key: &K) -> Option<E> {
        let removed = match self {
            Subscribers::Nobody => return None,
            Subscribers::One(one) if one.key != *key => return None,
            Subscribers::One(_) => {
                let old = std::mem::replace(self, Subscribers::Nobody);
                let Subscribers::One(one) = old else { unreachable!("matched above") };
                return Some(one.entry);
            }
            Subscribers::Few(list) => {
                let place = list.iter().position(|one| one.key == *key)?;
                let removed = list.swap_remove(place);
                if list.len() < list.capacity() / 4 {
                    list.shrink_to(list.len() * 2);
                }
                removed
            }
            Subscribers::Many(crowd) => crowd.remove(key)?,
        };
        self.resize();
        Some(removed.entry)
    }

    /// Takes the form that fits the number of subscribers.
    fn resize(&mut self) {
        let old = match self {
            Subscribers::Few(list) if list.len() == 1 || list.len() > FEW => {
                std::mem::replace(self, Subscribers::Nobody)
            }
            Subscribers::Many(crowd) if crowd.list.len() <= FEW / 2 => {
                std::mem::replace(self, Subscribers::Nobody)
            }
            Subscribers::Nobody
            | Subscribers::One(_)
            | Subscribers::Few(_)
            | Subscribers::Many(_) => return,
        };
        *self = match old {
            Subscribers::Few(mut list) if list.len() == 1 => {
                list.pop().map_or(Subscribers::Nobody, Subscribers::One)
            }
            Subscribers::Few(list) => Subscribers::Many(Box::new(Crowd::new(list))),
            Subscribers::Many(crowd) => {
                let mut list = crowd.list;
                list.shrink_to_fit();
                Subscribers::Few(list)
            }
            Subscribers::Nobody | Subscribers::One(_) => old,
        };
    }
}

impl<K: Eq + Hash, E> Crowd<K, E> {
    fn new(list: Vec<Subscriber<K, E>>) -> Self {
        let hasher = RandomState::new();
        let mut places = HashTable::with_capacity(list.len() * 2);
        for (place, one) in list.iter().enumerate() {
            places.insert_unique(hasher.hash_one(&one.key), place as u32, |&p: &u32| {
                hasher.hash_one(&list[p as usize].key)
            });
        }
        Self { list, places, hasher }
    }

    fn place(&self, key: &K) -> Option<usize> {
        let hash = self.hasher.hash_one(key);
        self.places.find(hash, |&p| self.list[p as usize].key == *key).map(|&p| p as usize)
    }

    fn insert(&mut self, key: K, entry: E) -> Option<E> {
        if let Some(place) = self.place(&key) {
            return Some(std::mem::replace(&mut self.list[place].entry, entry));
        }
        let (hasher, hash) = (&self.hasher, self.hasher.hash_one(&key));
        self.list.push(Subscriber { key, entry });
        let list = &self.list;
        self.places.insert_unique(hash, (list.len() - 1) as u32, |&p| {
            hasher.hash_one(&list[p as usize].key)
        });
        None
    }

    fn remove(&mut self, key: &K) -> Option<Subscriber<K, E>> {
        let hash = self.hasher.hash_one(key);
        let list = &self.list;
        let found = self.places.find_entry(hash, |&p| list[p as usize].key == *key).ok()?;
        let place = found.remove().0;
        let last = self.list.len() - 1;
        if place as usize != last {
            let moved = self.hasher.hash_one(&self.list[last].key);
            let slot = self.places.find_mut(moved, |&p| p as usize == last);
            *slot.expect("every listed key has its place") = place;
        }
        let removed = self.list.swap_remove(place as usize);
        if self.list.len() < self.list.capacity() / 4 {
            let room = self.list.len() * 2;
            self.list.shrink_to(room);
            let (list, hasher) = (&self.list, &self.hasher);
            self.places.shrink_to(room, |&p| hasher.hash_one(&list[p as usize].key));
        }
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// SUB: whatever its form, the list holds each key once, with its newest entry.
    #[test]
    fn the_list_is_a_map_through_all_its_forms() {
        let mut list = Subscribers::Nobody;
        let mut model = HashMap::new();
        let mut seed = 7_u64;
        for round in 0..60_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The number of keys swings, so that all forms are entered from both sides.
            let keys = [1, 3, 30, 40, 500][(round / 3000 % 5) as usize];
            let key = (seed >> 33) % keys;
            if seed >> 63 == 0 {
                assert_eq!(list.insert(key, round), model.insert(key, round));
            } else {
                assert_eq!(list.remove(&key), model.remove(&key));
            }
            assert_eq!(list.get(&key), model.get(&key));
            assert_eq!(list.as_slice().len(), model.len());
            assert_eq!(list.is_empty(), model.is_empty());
        }
        for one in list.as_slice() {
            assert_eq!(model.get(&one.key), Some(&one.entry));
        }
    }
}
