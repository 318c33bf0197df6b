//! Shared subscriptions (MQTT 5 section 4.8.2): groups of members, of which one gets each message.
//!
//! A group is named by its whole filter, `$share/<name>/<filter>`, byte for byte. It knows nothing
//! of the plain subscriptions of the same session (SHR-12): the index holds a group's number where
//! it would hold a client's (`Trie<GroupId, ()>`), and the members live here.
//!
//! **Who gets a message** (SHR-1, SHR-2), decided by [`Group::pick`] from what the caller says of
//! each member: if any member is usable, the next connected member in turn, or the one that the
//! group's [`Choice`] prefers; it may be a congested one, whose own rules then apply (its queue
//! keeps the copy, or the copy is dropped and counted).
//! If nobody is usable, nothing is lost silently: a member whose own queue keeps the message takes
//! it, connected members before absent ones, in turn. Only if there is no such member either is
//! the message dropped, and the caller counts it.
//!
//! Pure: no Tokio, no clock, no lock.

use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::RandomState;
use hashbrown::HashTable;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::id_table::IdTable;
use super::slab::Slab;
use super::subscribers::Subscriber;
use crate::mqtt::TopicFilter;

/// A group's number: valid until its last member has left, then used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(u32);

/// How a member stands to the message at hand. `keeps`: its own durable queue would take it
/// (persistent session, and QoS 1 or 2 after both QoS are reckoned).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Connected, and on another node or with a writable channel.
    Usable,
    /// Connected here, not writable.
    Congested { keeps: bool },
    /// Not connected.
    Away { keeps: bool },
}

/// `mqtt.shared-subscriptions.skip-non-writable`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// The next connected member, writable or not.
    #[default]
    NextConnected,
    /// Non-writable local members are passed over.
    NextUsable,
}

/// `mqtt.shared-subscriptions.processing-type`, or the group's own: which of the members that may
/// get a message does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    #[default]
    RoundRobin,
    /// One member as long as it is usable, then the next.
    Sticky,
    /// By the publisher's client id: one publisher's messages go to one member.
    HashClient,
    /// By the topic.
    HashTopic,
    /// Who has the fewest messages that it has not acknowledged.
    LeastInflight,
}

impl Policy {
    /// All of them, under their names.
    pub const NAMES: [(&'static str, Policy); 5] = [
        ("ROUND_ROBIN", Policy::RoundRobin),
        ("STICKY", Policy::Sticky),
        ("HASH_CLIENT", Policy::HashClient),
        ("HASH_TOPIC", Policy::HashTopic),
        ("LEAST_INFLIGHT", Policy::LeastInflight),
    ];

    pub fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, policy)| *policy == self);
        named.map_or("", |(name, _)| name)
    }

    /// The policy of a name, in capitals or not, with dashes or underscores.
    pub fn parse(text: &str) -> Option<Self> {
        let wanted = text.trim().to_ascii_uppercase().replace('-', "_");
        Self::NAMES.into_iter().find(|(name, _)| *name == wanted).map(|(_, policy)| policy)
    }
}

/// A policy, with what it asks of members.
pub enum Choice<'a, K, E> {
    Turn,
    Sticky,
    /// The member with the highest score; equals take turns. With a hash of member and key, a
    /// member that comes or goes moves its own part of the keys and no other (rendezvous).
    Highest(&'a dyn Fn(&Subscriber<K, E>) -> u64),
    /// The member with the least load; equals take turns. Whose load is not known here counts as
    /// the least loaded of the others: it is neither starved nor given everything.
    Least(&'a dyn Fn(&Subscriber<K, E>) -> Option<u64>),
}

impl<K, E> std::fmt::Debug for Choice<'_, K, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Choice::Turn => "Turn",
            Choice::Sticky => "Sticky",
            Choice::Highest(_) => "Highest",
            Choice::Least(_) => "Least",
        })
    }
}

/// The score by which rendezvous chooses a member for a key.
pub fn rendezvous(member: &str, key: &str) -> u64 {
    xxh3_64_with_seed(member.as_bytes(), xxh3_64(key.as_bytes()))
}

/// The best of those that stand alike: of equals the first that was met.
struct Best<'a, K, E>(Option<(u64, usize, &'a Subscriber<K, E>)>);

impl<'a, K, E> Best<'a, K, E> {
    fn meet(&mut self, score: u64, place: usize, member: &'a Subscriber<K, E>) {
        if self.0.is_none_or(|(best, ..)| score > best) {
            self.0 = Some((score, place, member));
        }
    }
}

/// Who gets the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick<'a, K, E> {
    /// A connected member, the next in turn.
    Deliver(&'a Subscriber<K, E>),
    /// Nobody is usable; this member's own queue keeps it.
    Keep(&'a Subscriber<K, E>),
    /// Nobody can take it: dropped, and the caller counts it.
    Nobody,
}

/// The members of one shared subscription, in the order in which they joined.
#[derive(Debug)]
pub struct Group<K, E> {
    filter: TopicFilter,
    number: u64,
    /// A member that left leaves a gap, so that the others keep their order and places.
    slots: Vec<Option<Subscriber<K, E>>>,
    members: usize,
    /// Key to slot; filled only above [`SCAN`] slots.
    places: HashTable<u32>,
    /// The slot whose turn is next. Atomic because matching holds the index for reading only; two
    /// dispatchers that pick at once may pick the same member, which costs evenness, not messages.
    next: AtomicUsize,
}

/// Up to here a scan for a key beats a table.
const SCAN: usize = 16;

impl<K: Eq + Hash, E> Group<K, E> {
    fn new(filter: TopicFilter) -> Self {
        Self {
            number: xxh3_64(filter.as_str().as_bytes()),
            filter,
            slots: Vec::new(),
            members: 0,
            places: HashTable::new(),
            next: AtomicUsize::new(0),
        }
    }

    /// The whole filter, `$share/…` included: the group's identity.
    pub fn filter(&self) -> &TopicFilter {
        &self.filter
    }

    /// The filter's hash: what decisions name the group by, over restarts.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn len(&self) -> usize {
        self.members
    }

    pub fn is_empty(&self) -> bool {
        self.members == 0
    }

    pub fn members(&self) -> impl Iterator<Item = &Subscriber<K, E>> {
        self.slots.iter().flatten()
    }

    pub fn has(&self, key: K) -> bool {
        self.members().any(|member| member.key == key)
    }

    /// Chooses who gets one message, and moves the turn behind the chosen one. Where the turn
    /// decides, it asks `standing` until the first usable member; else, and if there is none, it
    /// asks all members.
    pub fn pick(
        &self,
        turn: Turn,
        choice: &Choice<'_, K, E>,
        standing: impl Fn(&Subscriber<K, E>) -> Standing,
    ) -> Pick<'_, K, E> {
        let least = match choice {
            Choice::Least(load) => self.members().filter_map(load).min().unwrap_or(0),
            Choice::Turn | Choice::Sticky | Choice::Highest(_) => 0,
        };
        let score = |member: &Subscriber<K, E>| match choice {
            Choice::Turn | Choice::Sticky => 0,
            Choice::Highest(score) => score(member),
            Choice::Least(load) => u64::MAX - load(member).unwrap_or(least),
        };
        let first_will_do = matches!(choice, Choice::Turn | Choice::Sticky);
        let start = self.next.load(Ordering::Relaxed);
        let (mut usable, mut connected) = (Best(None), Best(None));
        let (mut queued, mut parked) = (Best(None), Best(None));
        let later = start.min(self.slots.len())..self.slots.len();
        for place in later.chain(0..start.min(self.slots.len())) {
            let Some(member) = &self.slots[place] else { continue };
            let (standing, score) = (standing(member), score(member));
            match standing {
                Standing::Usable => {
                    usable.meet(score, place, member);
                    connected.meet(score, place, member);
                    if first_will_do {
                        break;
                    }
                }
                Standing::Congested { keeps } => {
                    connected.meet(score, place, member);
                    if keeps {
                        queued.meet(score, place, member);
                    }
                }
                Standing::Away { keeps: true } => parked.meet(score, place, member),
                Standing::Away { keeps: false } => {}
            }
        }
        let sticky = matches!(choice, Choice::Sticky);
        let is_any = usable.0.is_some();
        let chosen = match (is_any, turn) {
            (true, Turn::NextConnected) if !sticky => connected.0,
            (true, Turn::NextConnected | Turn::NextUsable) => usable.0,
            (false, _) => queued.0.or(parked.0),
        };
        let Some((_, place, member)) = chosen else { return Pick::Nobody };
        self.next.store(if sticky { place } else { place + 1 }, Ordering::Relaxed);
        if is_any { Pick::Deliver(member) } else { Pick::Keep(member) }
    }

    fn place(&self, key: &K, hasher: &RandomState) -> Option<usize> {
        let is_it = |slot: &Option<Subscriber<K, E>>| slot.as_ref().is_some_and(|m| m.key == *key);
        if self.places.is_empty() {
            return self.slots.iter().position(is_it);
        }
        let found = self.places.find(hasher.hash_one(key), |&p| is_it(&self.slots[p as usize]));
        found.map(|&place| place as usize)
    }

    /// A member that joins again keeps its place; its old entry is returned (MQTT-3.8.4-3).
    fn join(&mut self, key: K, entry: E, hasher: &RandomState) -> Option<E> {
        if let Some(place) = self.place(&key, hasher) {
            let member = self.slots[place].as_mut().expect("a key's place is not a gap");
            return Some(std::mem::replace(&mut member.entry, entry));
        }
        let hash = hasher.hash_one(&key);
        self.slots.push(Some(Subscriber { key, entry }));
        self.members += 1;
        if self.places.is_empty() {
            if self.slots.len() > SCAN {
                self.index(hasher);
            }
        } else {
            let slots = &self.slots;
            let place = slots.len() as u32 - 1;
            self.places.insert_unique(hash, place, |&p| hash_of(slots, p, hasher));
        }
        None
    }

    fn leave(&mut self, key: &K, hasher: &RandomState) -> Option<E> {
        let place = self.place(key, hasher)?;
        let is_it = |&p: &u32| p as usize == place;
        if let Ok(found) = self.places.find_entry(hasher.hash_one(key), is_it) {
            found.remove();
        }
        let member = self.slots[place].take()?;
        self.members -= 1;
        // When gaps outnumber members, the slots close ranks: constant cost per leave, on average.
        if self.slots.len() > self.members * 2 {
            let next = *self.next.get_mut();
            *self.next.get_mut() = self.slots.iter().take(next).flatten().count();
            self.slots.retain(Option::is_some);
            self.slots.shrink_to(self.members * 2);
            self.index(hasher);
        }
        Some(member.entry)
    }

    fn index(&mut self, hasher: &RandomState) {
        self.places = HashTable::new();
        if self.slots.len() <= SCAN {
            return;
        }
        let slots = &self.slots;
        self.places.reserve(self.members, |&p| hash_of(slots, p, hasher));
        for (place, member) in slots.iter().enumerate() {
            if let Some(member) = member {
                let hash = hasher.hash_one(&member.key);
                self.places.insert_unique(hash, place as u32, |&p| hash_of(slots, p, hasher));
            }
        }
    }
}

fn hash_of<K: Hash, E>(
    slots: &[Option<Subscriber<K, E>>],
    place: u32,
    hasher: &RandomState,
) -> u64 {
    let member = slots[place as usize].as_ref().expect("a key's place is not a gap");
    hasher.hash_one(&member.key)
}

/// What joining did.
#[derive(Debug, PartialEq, Eq)]
pub struct Joined<E> {
    pub group: GroupId,
    /// The group is new: the index has to learn of it.
    pub created: bool,
    /// The member was in the group; this is what it had.
    pub replaced: Option<E>,
}

/// What leaving did.
#[derive(Debug, PartialEq, Eq)]
pub struct Left<E> {
    pub group: GroupId,
    /// The group is gone and its number free: the index has to forget it now.
    pub emptied: bool,
    pub entry: E,
}

/// All shared groups of this node.
#[derive(Debug)]
pub struct Groups<K, E> {
    groups: Slab<Group<K, E>>,
    by_filter: IdTable,
    hasher: RandomState,
}

impl<K: Eq + Hash, E> Default for Groups<K, E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Eq + Hash, E> Groups<K, E> {
    pub fn new() -> Self {
        Self { groups: Slab::new(), by_filter: IdTable::default(), hasher: RandomState::new() }
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    pub fn is_empty(&self) -> bool {
        self.groups.len() == 0
    }

    pub fn get(&self, group: GroupId) -> Option<&Group<K, E>> {
        self.groups.get(group.0)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Group<K, E>> {
        self.groups.iter()
    }

    /// The group of a number that a copy carries. Looks at each: for what is seldom asked.
    pub fn by_number(&self, number: u64) -> Option<&Group<K, E>> {
        self.groups.iter().find(|group| group.number == number)
    }

    /// The group of a whole filter, `$share/…` included.
    pub fn find(&self, filter: &str) -> Option<GroupId> {
        let hash = self.hasher.hash_one(filter) as u32;
        self.by_filter.find(hash, |id| self.groups[id].filter.as_str() == filter).map(GroupId)
    }

    /// The entry of one member.
    pub fn member(&self, filter: &str, key: &K) -> Option<&E> {
        let group = &self.groups[self.find(filter)?.0];
        let place = group.place(key, &self.hasher)?;
        group.slots[place].as_ref().map(|member| &member.entry)
    }

    pub fn join(&mut self, filter: &TopicFilter, key: K, entry: E) -> Joined<E> {
        let known = self.find(filter.as_str());
        let group = known.unwrap_or_else(|| {
            let id = self.groups.insert(Group::new(filter.clone()));
            self.by_filter.insert(self.hasher.hash_one(filter.as_str()) as u32, id);
            GroupId(id)
        });
        let replaced = self.groups[group.0].join(key, entry, &self.hasher);
        Joined { group, created: known.is_none(), replaced }
    }

    pub fn leave(&mut self, filter: &str, key: &K) -> Option<Left<E>> {
        let group = self.find(filter)?;
        let members = &mut self.groups[group.0];
        let entry = members.leave(key, &self.hasher)?;
        let emptied = members.is_empty();
        if emptied {
            self.by_filter.remove(self.hasher.hash_one(filter) as u32, group.0);
            self.groups.remove(group.0);
        }
        Some(Left { group, emptied, entry })
    }
}
