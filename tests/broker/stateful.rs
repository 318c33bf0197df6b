//! PAR-06: random legal and slightly illegal sequences on many connections, beside a model that
//! knows who must get what.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{Broker, Client, Connect, Level, Random, hex, matches, wire};

const CLIENTS: usize = 12;
const TOPICS: [&str; 5] = ["r", "r/a", "r/b", "r/a/x", "r/b/x"];
const FILTERS: [&str; 8] = ["r", "r/#", "r/+", "r/a", "r/+/x", "r/a/#", "#", "+/a/x"];
/// Each connects to one filter under one group.
const SHARED: [&str; 3] = ["$share/g1/r/#", "$share/g1/r/a", "$share/g2/r/+"];
/// What ends a connection, whatever was said before.
const ILLEGAL: [&str; 5] = ["20020000", "c00100", "360600016100016d", "80030001 00", "0000"];

struct Peer {
    client: Client,
    filters: Vec<String>,
    /// What the model says is due by the plain filters, and what came in all.
    due: Vec<String>,
    got: Vec<String>,
}

struct World {
    broker: Broker,
    random: Random,
    peers: Vec<Peer>,
    /// Per message: how many copies shared groups owe, over all their members.
    shared: BTreeMap<String, usize>,
    publisher: Client,
}

impl World {
    fn new(seed: u64) -> World {
        let broker = Broker::start();
        let peers = (0..CLIENTS).map(|number| Peer::connect(&broker, number)).collect();
        let publisher = Client::connect(&broker, &Connect::v5("publisher"));
        let random = Random::seeded(seed);
        World { broker, random, peers, shared: BTreeMap::new(), publisher }
    }

    fn step(&mut self, number: usize) {
        let at = self.random.below(CLIENTS);
        match self.random.below(20) {
            0..6 => self.subscribe(at),
            6..9 => self.unsubscribe(at),
            9..17 => self.publish(number),
            17 => self.reconnect(at, false),
            18 => self.reconnect(at, true),
            _ => self.peers[at].client.ping(),
        }
    }

    fn subscribe(&mut self, at: usize) {
        let all: Vec<&str> = FILTERS.iter().chain(&SHARED).copied().collect();
        let filter = (*self.random.pick(&all)).to_owned();
        let peer = &mut self.peers[at];
        assert!(peer.client.subscribe(&filter, 1) < 0x80, "{filter}");
        if !peer.filters.contains(&filter) {
            peer.filters.push(filter);
        }
    }

    /// A member leaves its group only when nothing is on its way to it.
    fn unsubscribe(&mut self, at: usize) {
        self.settle();
        let peer = &mut self.peers[at];
        if peer.filters.is_empty() {
            return;
        }
        let filter = peer.filters.swap_remove(self.random.below(peer.filters.len()));
        peer.client.unsubscribe(&[filter.as_bytes()]);
    }

    fn publish(&mut self, number: usize) {
        let topic = *self.random.pick(&TOPICS);
        let payload = format!("{number} {topic}");
        let mut groups: Vec<&str> = Vec::new();
        for peer in &mut self.peers {
            let plain = |filter: &String| !filter.starts_with('$') && matches(filter, topic);
            if peer.filters.iter().any(plain) {
                peer.due.push(payload.clone());
            }
            let owed = peer.filters.iter().filter(|filter| {
                let parts: Vec<&str> = filter.splitn(3, '/').collect();
                filter.starts_with('$') && matches(parts[2], topic)
            });
            groups.extend(owed.map(String::as_str));
        }
        groups.sort_unstable();
        groups.dedup();
        self.shared.insert(payload.clone(), groups.len());
        let qos = self.random.below(2) as u8 + 1;
        assert!(self.publisher.publish(topic, payload, qos) < 0x80);
    }

    /// Leaves, politely or after a breach of the protocol, and comes back with nothing.
    fn reconnect(&mut self, at: usize, rudely: bool) {
        self.settle();
        let peer = &mut self.peers[at];
        if rudely {
            peer.client.try_send(&hex(self.random.pick::<&str>(&ILLEGAL)));
            peer.client.expect_close();
        } else {
            peer.client.send(&wire::DISCONNECT);
            peer.client.expect_close();
        }
        peer.client = Client::connect(&self.broker, &Peer::options(at));
        peer.filters.clear();
    }

    /// Waits until every copy that is due has come, and compares.
    fn settle(&mut self) {
        let owed: usize = self.shared.values().sum::<usize>()
            + self.peers.iter().map(|peer| peer.due.len()).sum::<usize>();
        let mut quiet = 0;
        while self.peers.iter().map(|peer| peer.got.len()).sum::<usize>() < owed {
            let mut came = 0;
            for peer in &mut self.peers {
                let wait = Duration::from_millis(2);
                while let Some(publish) = peer.client.take_within(wait) {
                    peer.got.push(publish.payload());
                    came += 1;
                }
            }
            quiet = if came > 0 { 0 } else { quiet + 1 };
            assert!(quiet < 400, "copies are missing: {}", self.difference());
        }
        self.compare();
    }

    /// Every plain copy came; what came beyond them is exactly what the groups owed.
    fn compare(&mut self) {
        let mut beyond: BTreeMap<String, usize> = BTreeMap::new();
        let difference = self.difference();
        for peer in &mut self.peers {
            for due in peer.due.drain(..) {
                let at = peer.got.iter().position(|payload| *payload == due);
                let at = at.unwrap_or_else(|| panic!("{due} is missing: {difference}"));
                peer.got.swap_remove(at);
            }
            peer.got.drain(..).for_each(|payload| *beyond.entry(payload).or_default() += 1);
        }
        self.shared.retain(|_, count| *count > 0);
        assert_eq!(beyond, self.shared, "copies for shared groups: {difference}");
        self.shared.clear();
    }

    fn difference(&self) -> String {
        let line = |(number, peer): (usize, &Peer)| {
            format!("{number}: {:?} due {:?} got {:?}", peer.filters, peer.due, peer.got)
        };
        let lines: Vec<String> = self.peers.iter().enumerate().map(line).collect();
        format!("groups owe {:?}\n{}", self.shared, lines.join("\n"))
    }
}

impl Peer {
    fn options(number: usize) -> Connect {
        let level = [Level::V5, Level::V311, Level::V31][number % 3];
        Connect::new(level, format!("peer{number}"))
    }

    fn connect(broker: &Broker, number: usize) -> Peer {
        let client = Client::connect(broker, &Peer::options(number));
        Peer { client, filters: Vec::new(), due: Vec::new(), got: Vec::new() }
    }
}

/// PAR-06, SHR-1: deliveries equal the model's over random sequences, and nothing is left behind.
#[test]
fn random_sequences_equal_the_model() {
    for seed in [1, 2, 3] {
        eprintln!("seed {seed}");
        let mut world = World::new(seed);
        let before = world.broker.rss_kib();
        for number in 0..400 {
            world.step(number);
        }
        world.settle();
        for peer in &mut world.peers {
            peer.client.ping();
            peer.client.expect_silence(Duration::from_millis(5));
        }
        let grown = world.broker.rss_kib().saturating_sub(before);
        assert!(grown < 32 * 1024, "grown by {grown} KiB");
    }
}
