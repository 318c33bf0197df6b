//! The subscription index: which subscriptions match a topic (MQTT 5 section 4.7).
//!
//! Filters without wildcards live in one hash table by their whole text: with no wildcard filter
//! about, a lookup is one hash and one compare. Wildcard filters live in a trie of levels whose
//! single-child chains are folded into one node, so a filter adds at most two nodes and its own
//! bytes, however many levels it has (TOP-09). All literal edges share one hash table, keyed by
//! (node, level). Nothing recurses: the depth of a topic costs time, never stack.
//!
//! Pure: no Tokio, no clock, no lock. A lookup takes `&self` and allocates nothing unless more
//! than sixteen branches wait at once.

use std::hash::Hash;

use ahash::RandomState;

use super::id_table::IdTable;
use super::label::{Label, common_levels, level_at, level_end};
use super::slab::{NIL, Slab};
use super::subscribers::{Subscriber, Subscribers};

/// A filter without wildcards.
#[derive(Debug)]
struct Exact<K, E> {
    filter: Box<str>,
    subscribers: Subscribers<K, E>,
}

/// A place in the trie. Every node but the root ends a filter or has two children or more.
#[derive(Debug)]
struct Node<K, E> {
    /// The levels between the parent and here: one or more, wildcards included.
    label: Label,
    parent: u32,
    /// The child whose label begins with `+`.
    plus: u32,
    /// The child whose label is `#`; it has no children.
    multi: u32,
    /// How many children begin with a literal level; the edge table finds them.
    literals: u32,
    /// All their ids, xored: names the last one when only one is left.
    literal_xor: u32,
    subscribers: Subscribers<K, E>,
}

/// Subscriptions by filter and key. `K` tells subscribers apart (a session's slot or a shared
/// group's number), `E` is what the index keeps for one (options and so on).
///
/// Filters are plain ones ([`crate::mqtt::TopicFilter::plain`]): checked, without `$share/`.
#[derive(Debug)]
pub struct Trie<K, E> {
    exact: Slab<Exact<K, E>>,
    exact_by_text: IdTable,
    nodes: Slab<Node<K, E>>,
    edges: IdTable,
    /// Keyed at random per process: topics come from strangers.
    hasher: RandomState,
    len: usize,
}

const ROOT: u32 = 0;

impl<K: Eq + Hash, E> Default for Trie<K, E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Eq + Hash, E> Trie<K, E> {
    pub fn new() -> Self {
        let mut nodes = Slab::new();
        let root = nodes.insert(Node::new(b"", NIL));
        debug_assert_eq!(root, ROOT);
        Self {
            exact: Slab::new(),
            exact_by_text: IdTable::default(),
            nodes,
            edges: IdTable::default(),
            hasher: RandomState::new(),
            len: 0,
        }
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many places the filters take: distinct exact filters and trie nodes. 0 when empty.
    pub fn nodes(&self) -> usize {
        self.exact.len() + self.nodes.len() - 1
    }

    /// Adds a subscription; one that exists is replaced and its entry returned (MQTT-3.8.4-3).
    pub fn insert(&mut self, filter: &str, key: K, entry: E) -> Option<E> {
        let old = if is_exact(filter) {
            let hash = self.hash_text(filter);
            let id = self.find_exact(filter, hash).unwrap_or_else(|| {
                let subscribers = Subscribers::Nobody;
                let id = self.exact.insert(Exact { filter: filter.into(), subscribers });
                self.exact_by_text.insert(hash, id);
                id
            });
            self.exact[id].subscribers.insert(key, entry)
        } else {
            let id = self.make_node(filter.as_bytes());
            self.nodes[id].subscribers.insert(key, entry)
        };
        self.len += usize::from(old.is_none());
        old
    }

    /// Takes a subscription out and frees what only it needed.
    pub fn remove(&mut self, filter: &str, key: &K) -> Option<E> {
        let removed = if is_exact(filter) {
            let hash = self.hash_text(filter);
            let id = self.find_exact(filter, hash)?;
            let subscribers = &mut self.exact[id].subscribers;
            let removed = subscribers.remove(key)?;
            if subscribers.is_empty() {
                self.exact_by_text.remove(hash, id);
                self.exact.remove(id);
            }
            removed
        } else {
            let id = self.find_node(filter.as_bytes())?;
            let subscribers = &mut self.nodes[id].subscribers;
            let removed = subscribers.remove(key)?;
            if subscribers.is_empty() {
                self.prune(id);
            }
            removed
        };
        self.len -= 1;
        Some(removed)
    }

    /// The entry of one subscription.
    pub fn get(&self, filter: &str, key: &K) -> Option<&E> {
        if is_exact(filter) {
            let id = self.find_exact(filter, self.hash_text(filter))?;
            return self.exact[id].subscribers.get(key);
        }
        self.nodes[self.find_node(filter.as_bytes())?].subscribers.get(key)
    }

    /// Visits every subscription whose filter matches `topic`, each once. A key with several
    /// matching filters is visited once for each: merging them is the caller's.
    pub fn matches(&self, topic: &str, visit: &mut impl FnMut(&Subscriber<K, E>)) {
        self.matching_filters(topic, &mut |subscribers| subscribers.iter().for_each(&mut *visit));
    }

    /// As [`Self::matches`], one call for each matching filter, with all its subscribers.
    pub fn matching_filters(&self, topic: &str, visit: &mut impl FnMut(&[Subscriber<K, E>])) {
        if self.exact.len() > 0
            && let Some(id) = self.find_exact(topic, self.hash_text(topic))
        {
            visit(self.exact[id].subscribers.as_slice());
        }
        if self.nodes.len() > 1 {
            self.walk(topic.as_bytes(), visit);
        }
    }

    /// Each node is entered at most once, so a lookup costs no more than the nodes whose path the
    /// topic can take.
    fn walk(&self, topic: &[u8], visit: &mut impl FnMut(&[Subscriber<K, E>])) {
        // A leading wildcard never matches a topic that begins with `$` (MQTT-4.7.2-1).
        let hidden = topic.first() == Some(&b'$');
        let mut pending = Pending::new();
        let mut here = Some((ROOT, 0));
        while let Some((id, at)) = here {
            let node = &self.nodes[id];
            let wild = !(hidden && id == ROOT);
            if wild && node.multi != NIL {
                visit(self.nodes[node.multi].subscribers.as_slice());
            }
            if at <= topic.len() {
                if wild && node.plus != NIL {
                    self.enter(node.plus, topic, at, &mut pending, visit);
                }
                if node.literals > 0
                    && let Some(child) = self.literal(id, level_at(topic, at))
                {
                    self.enter(child, topic, at, &mut pending, visit);
                }
            }
            here = pending.pop();
        }
    }

    /// Follows the topic along a child's label; visits the child if a filter ends there.
    fn enter(
        &self,
        child: u32,
        topic: &[u8],
        at: usize,
        pending: &mut Pending,
        visit: &mut impl FnMut(&[Subscriber<K, E>]),
    ) {
        let node = &self.nodes[child];
        match follow(&node.label, topic, at) {
            Followed::No => {}
            Followed::Everything => visit(node.subscribers.as_slice()),
            Followed::To(next) => {
                if next > topic.len() && !node.subscribers.is_empty() {
                    visit(node.subscribers.as_slice());
                }
                if node.children() > 0 {
                    pending.push((child, next));
                }
            }
        }
    }

    fn hash_text(&self, text: &str) -> u32 {
        self.hasher.hash_one(text) as u32
    }

    fn hash_edge(&self, parent: u32, level: &[u8]) -> u32 {
        self.hasher.hash_one((parent, level)) as u32
    }

    fn find_exact(&self, filter: &str, hash: u32) -> Option<u32> {
        self.exact_by_text.find(hash, |id| &*self.exact[id].filter == filter)
    }

    fn literal(&self, parent: u32, level: &[u8]) -> Option<u32> {
        self.edges.find(self.hash_edge(parent, level), |id| {
            let node = &self.nodes[id];
            node.parent == parent && level_at(&node.label, 0) == level
        })
    }

    fn child(&self, parent: u32, level: &[u8]) -> Option<u32> {
        let id = match level {
            b"+" => self.nodes[parent].plus,
            b"#" => self.nodes[parent].multi,
            _ => return self.literal(parent, level),
        };
        (id != NIL).then_some(id)
    }

    fn find_node(&self, filter: &[u8]) -> Option<u32> {
        let (mut id, mut at) = (ROOT, 0);
        while at <= filter.len() {
            id = self.child(id, level_at(filter, at))?;
            let label = &self.nodes[id].label;
            if common_levels(label, &filter[at..]) < label.len() {
                return None;
            }
            at += label.len() + 1;
        }
        Some(id)
    }

    /// Finds or makes the node at which a wildcard filter ends.
    fn make_node(&mut self, filter: &[u8]) -> u32 {
        let (mut id, mut at) = (ROOT, 0);
        while at <= filter.len() {
            let rest = &filter[at..];
            let Some(child) = self.child(id, level_at(rest, 0)) else {
                let leaf = self.nodes.insert(Node::new(rest, id));
                self.link(leaf);
                return leaf;
            };
            let label = &self.nodes[child].label;
            let common = common_levels(label, rest);
            id = if common < label.len() { self.split(child, common) } else { child };
            at += common + 1;
        }
        id
    }

    /// Cuts a node's label behind its first `common` bytes; returns the new node in between.
    fn split(&mut self, lower: u32, common: usize) -> u32 {
        let node = &mut self.nodes[lower];
        let parent = node.parent;
        let rest = Label::new(&node.label[common + 1..]);
        let label = std::mem::replace(&mut node.label, rest);
        let upper = self.nodes.insert(Node::new(&label[..common], parent));
        self.relink(parent, lower, upper);
        self.nodes[lower].parent = upper;
        self.link(lower);
        upper
    }

    /// Frees a node at which no filter ends any more, or folds it into its only child.
    fn prune(&mut self, id: u32) {
        if id == ROOT {
            return;
        }
        match self.nodes[id].children() {
            0 => {
                self.unlink(id);
                let parent = self.nodes.remove(id).parent;
                let above = &self.nodes[parent];
                if above.children() == 1 && above.subscribers.is_empty() {
                    self.fold(parent);
                }
            }
            1 => self.fold(id),
            2.. => {}
        }
    }

    /// Joins a node that ends no filter and its only child; the child keeps its id and children.
    fn fold(&mut self, upper: u32) {
        if upper == ROOT {
            return;
        }
        let node = &self.nodes[upper];
        let parent = node.parent;
        let lower = [node.plus, node.multi].into_iter().find(|&id| id != NIL);
        let lower = lower.unwrap_or(node.literal_xor);
        self.unlink(lower);
        // The new label begins as the upper one's: it stands at the same edge of the parent.
        let label = [&*self.nodes[upper].label, &*self.nodes[lower].label].join(&b'/');
        self.relink(parent, upper, lower);
        self.nodes.remove(upper);
        let node = &mut self.nodes[lower];
        node.parent = parent;
        node.label = Label::new(&label);
    }

    /// Makes a node known to the parent it names.
    fn link(&mut self, id: u32) {
        let node = &self.nodes[id];
        let parent = node.parent;
        match level_at(&node.label, 0) {
            b"+" => self.nodes[parent].plus = id,
            b"#" => self.nodes[parent].multi = id,
            level => {
                self.edges.insert(self.hash_edge(parent, level), id);
                let above = &mut self.nodes[parent];
                above.literals += 1;
                above.literal_xor ^= id;
            }
        }
    }

    fn unlink(&mut self, id: u32) {
        let node = &self.nodes[id];
        let parent = node.parent;
        match level_at(&node.label, 0) {
            b"+" => self.nodes[parent].plus = NIL,
            b"#" => self.nodes[parent].multi = NIL,
            level => {
                self.edges.remove(self.hash_edge(parent, level), id);
                let above = &mut self.nodes[parent];
                above.literals -= 1;
                above.literal_xor ^= id;
            }
        }
    }

    /// Puts `new` at the edge of `parent` at which `old` stood. The level of that edge is read
    /// from whichever of the two holds it: `split` has already cut the old node's label.
    fn relink(&mut self, parent: u32, old: u32, new: u32) {
        let above = &mut self.nodes[parent];
        if above.plus == old {
            above.plus = new;
        } else if above.multi == old {
            above.multi = new;
        } else {
            above.literal_xor ^= old ^ new;
            // In a split the upper node is the new one, in a fold the old one; only its parent is
            // `parent` and its label begins with the level.
            let upper = if self.nodes[new].parent == parent { new } else { old };
            let hash = self.hash_edge(parent, level_at(&self.nodes[upper].label, 0));
            self.edges.replace(hash, old, new);
        }
    }
}

impl<K, E> Node<K, E> {
    fn new(label: &[u8], parent: u32) -> Self {
        Self {
            label: Label::new(label),
            parent,
            plus: NIL,
            multi: NIL,
            literals: 0,
            literal_xor: 0,
            subscribers: Subscribers::Nobody,
        }
    }

    fn children(&self) -> u32 {
        self.literals + u32::from(self.plus != NIL) + u32::from(self.multi != NIL)
    }
}

fn is_exact(filter: &str) -> bool {
    !filter.bytes().any(|byte| byte == b'+' || byte == b'#')
}

enum Followed {
    No,
    /// The label ended in `#`.
    Everything,
    /// The label is used up; the topic's next level begins here (beyond its length: none).
    To(usize),
}

fn follow(label: &[u8], topic: &[u8], mut at: usize) -> Followed {
    let mut from = 0;
    while from <= label.len() {
        let level = level_at(label, from);
        if level == b"#" {
            return Followed::Everything;
        }
        if at > topic.len() {
            return Followed::No;
        }
        let end = level_end(topic, at);
        if level != b"+" && level != &topic[at..end] {
            return Followed::No;
        }
        from += level.len() + 1;
        at = end + 1;
    }
    Followed::To(at)
}

/// Branches a lookup has yet to take. The first ones need no allocation.
struct Pending {
    inline: [(u32, usize); Self::INLINE],
    used: usize,
    more: Vec<(u32, usize)>,
}

impl Pending {
    const INLINE: usize = 16;

    fn new() -> Self {
        Self { inline: [(NIL, 0); Self::INLINE], used: 0, more: Vec::new() }
    }

    fn push(&mut self, branch: (u32, usize)) {
        if self.used < Self::INLINE {
            self.inline[self.used] = branch;
            self.used += 1;
        } else {
            self.more.push(branch);
        }
    }

    fn pop(&mut self) -> Option<(u32, usize)> {
        if let Some(branch) = self.more.pop() {
            return Some(branch);
        }
        self.used = self.used.checked_sub(1)?;
        Some(self.inline[self.used])
    }
}
