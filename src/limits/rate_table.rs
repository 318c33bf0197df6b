//! Who has used how much of a limit that holds for each client or address by itself.

use std::net::IpAddr;

use ahash::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::windows::{Cells, Meter, RateWindows, ticks};

const SHARDS: usize = 64;
/// Shards that one sweep looks through: all of them within [`SHARDS`] / this sweeps.
const SWEPT_AT_ONCE: usize = 8;

/// Names a client or an address in a [`RateTable`]: 64 bits of a keyed hash. Two of a million
/// clients share one, and with it a limit, with a chance of less than one in ten million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateKey(u64);

/// Forty bytes in an open table of at least 7/16 load: less than 100 bytes a client.
#[derive(Debug)]
struct Entry {
    key: u64,
    cells: Cells,
}

/// Bounded by the clients that were active within the longest window: an entry that says nothing
/// any more is swept out.
#[derive(Debug)]
pub struct RateTable {
    meter: Meter,
    shards: [Mutex<HashTable<Entry>>; SHARDS],
    hasher: RandomState,
    began: Instant,
    swept: Mutex<usize>,
}

impl RateTable {
    pub fn new(windows: &RateWindows) -> Self {
        Self {
            meter: Meter::new(windows),
            shards: [const { Mutex::new(HashTable::new()) }; SHARDS],
            hasher: RandomState::new(),
            began: Instant::now(),
            swept: Mutex::new(0),
        }
    }

    pub fn key(&self, name: &str) -> RateKey {
        RateKey(self.hasher.hash_one(name))
    }

    /// One source: an IPv4 address, or the /64 that an IPv6 host chooses its addresses from.
    pub fn key_of_source(&self, address: IpAddr) -> RateKey {
        let source = match address.to_canonical() {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
        };
        RateKey(self.hasher.hash_one((address.is_ipv4(), source)))
    }

    /// Takes one message of so many bytes from all windows; `false`: one of them is used up, and
    /// nothing was taken.
    pub fn take(&self, key: RateKey, bytes: usize) -> bool {
        let now = self.now();
        let mut shard = self.shards[key.0 as usize % SHARDS].lock();
        // The low bits chose the shard; the table takes its own from the rest.
        let hash = key.0.rotate_right(6);
        let entry = shard.entry(hash, |entry| entry.key == key.0, |e| e.key.rotate_right(6));
        let mut entry = entry.or_insert_with(|| Entry { key: key.0, cells: Cells::default() });
        self.meter.take(&mut entry.get_mut().cells, now, bytes as u64)
    }

    /// Forgets who has used nothing for the longest window; some of the table at each call.
    pub fn sweep(&self) {
        let from = {
            let mut swept = self.swept.lock();
            *swept = (*swept + SWEPT_AT_ONCE) % SHARDS;
            *swept
        };
        let now = self.now();
        for shard in &self.shards[from..from + SWEPT_AT_ONCE] {
            let mut shard = shard.lock();
            shard.retain(|entry| !self.meter.is_whole(&entry.cells, now));
            if shard.len() < shard.capacity() / 4 {
                let room = shard.len() * 2;
                shard.shrink_to(room, |entry| entry.key.rotate_right(6));
            }
        }
    }

    /// Clients that are remembered.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the table holds.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().allocation_size()).sum()
    }

    fn now(&self) -> u64 {
        ticks(self.began.elapsed().as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn table(text: &str) -> RateTable {
        RateTable::new(&RateWindows::parse(text).expect("a good text"))
    }

    /// LIM-1: each client has windows of its own, and gets back what time gives.
    #[tokio::test(start_paused = true)]
    async fn clients_are_limited_one_by_one() {
        let table = table("3:1,5:60");
        let [a, b] = ["a", "b"].map(|name| table.key(name));
        assert_eq!((0..9).filter(|_| table.take(a, 0)).count(), 3);
        assert_eq!((0..9).filter(|_| table.take(b, 0)).count(), 3);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..9).filter(|_| table.take(a, 0)).count(), 2, "the longer window");
    }

    /// LIM-1: at most 100 bytes a limited client, whatever their number, and nothing for one that
    /// was idle for the longest window.
    #[tokio::test(start_paused = true)]
    async fn memory_follows_the_active_clients() {
        let table = table("3:1,5:60,bytes:9:1,bytes:9:2");
        let empty = table.bytes();
        for clients in [1000, 7000, 15_000, 30_000, 60_000] {
            for client in table.len()..clients {
                table.take(table.key(&client.to_string()), 1);
            }
            let each = (table.bytes() - empty) as f64 / clients as f64;
            assert!(each <= 100.0, "{each} bytes for each of {clients}");
        }
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(table.take(table.key("7"), 1));
        (0..SHARDS / SWEPT_AT_ONCE).for_each(|_| table.sweep());
        assert_eq!(table.len(), 1);
        assert!(table.bytes() < 10_000, "{} bytes for one client", table.bytes());
    }

    #[test]
    fn a_source_is_an_address_or_a_network_of_64_bits() {
        let table = table("1:1");
        let key = |text: &str| table.key_of_source(text.parse().expect("an address"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_ne!(key("10.0.0.1"), key("10.0.0.2"));
    }
}
