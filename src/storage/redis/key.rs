//! Names in Redis: every queue has a tag of 128 bits, which is its slot and its keys.
//!
//! The id itself never becomes part of a key: braces, spaces and 65 535 bytes are all the same. It
//! is kept beside the queue, and compared in every script, so that two ids never share a queue.

use sha2::{Digest, Sha256};

use crate::storage::QueueKey;
use crate::telemetry::{Direction, DropReason, dropped_of};

/// Longer ids are compared by their whole digest, so that no script moves kilobytes.
const ID_INLINE: usize = 64;
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// 128 bits, six a digit.
const TAG_DIGITS: usize = 22;
pub(super) const SLOTS: u16 = 16_384;

/// What scripts know a queue by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) tag: u128,
    pub(super) slot: u16,
    /// Up to the closing brace.
    stem: Vec<u8>,
    /// The kind and the id, or the id's digest when it is long.
    pub(super) identity: Vec<u8>,
    /// The id, when `identity` is only its digest.
    pub(super) long_id: Option<Vec<u8>>,
}

/// A key of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Meta,
    List,
    Parked,
    Id,
}

impl Part {
    fn letter(self) -> u8 {
        match self {
            Part::Meta => b'm',
            Part::List => b'l',
            Part::Parked => b'p',
            Part::Id => b'i',
        }
    }
}

impl Names {
    pub(super) fn of(prefix: &str, queue: &QueueKey) -> Self {
        let (short, long, id) = match queue {
            QueueKey::Client(id) => (b'c', b'C', id.as_str().as_bytes()),
            QueueKey::Group(name) => (b'g', b'G', name.as_bytes()),
            QueueKey::Application(id) => (b'a', b'A', id.as_str().as_bytes()),
            QueueKey::Shared(name) => (b's', b'S', name.as_bytes()),
        };
        let mut hash = Sha256::new();
        hash.update([short]);
        hash.update(id);
        let digest: [u8; 32] = hash.finalize().into();
        let (identity, long_id) = match id.len() <= ID_INLINE {
            true => ([&[short], id].concat(), None),
            false => ([&[long], &digest[..]].concat(), Some(id.to_vec())),
        };
        let mut half = [0; 16];
        half.copy_from_slice(&digest[..16]);
        let tag = u128::from_be_bytes(half);
        let digits = digits(tag);
        let slot = slot(&digits);
        let mut stem = Vec::with_capacity(prefix.len() + TAG_DIGITS + 3);
        stem.extend_from_slice(prefix.as_bytes());
        stem.push(b'{');
        stem.extend_from_slice(&digits);
        stem.push(b'}');
        Self { tag, slot, stem, identity, long_id }
    }

    /// What a queue lost, under its owner's name.
    pub(super) fn dropped(&self, reason: DropReason, lost: u64) {
        let id = self.long_id.as_deref().unwrap_or(&self.identity[1..]);
        dropped_of(reason, Direction::Outbound, &String::from_utf8_lossy(id), "", lost);
    }

    pub(super) fn key(&self, part: Part) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.stem.len() + 1);
        key.extend_from_slice(&self.stem);
        key.push(part.letter());
        key
    }
}

fn digits(tag: u128) -> [u8; TAG_DIGITS] {
    let mut digits = [0; TAG_DIGITS];
    for (at, digit) in digits.iter_mut().enumerate() {
        *digit = DIGITS[(tag >> (6 * at)) as usize & 63];
    }
    digits
}

/// The slot of a hash tag: CRC16 (XMODEM) of it, modulo 16 384.
pub(super) fn slot(tag: &[u8]) -> u16 {
    let mut crc: u16 = 0;
    for byte in tag {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
        }
    }
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;
    use crate::mqtt::ClientId;

    /// TOP-11: ids that differ in anything have queues of their own, whatever is in them.
    #[test]
    fn odd_ids_never_share_a_queue() {
        let long = "x".repeat(65_535);
        let longer = format!("{}y", &long[1..]);
        let ids = [
            "", " ", "a", "A", "a b", "a{b}", "{a}b", "{}", "a{", "}", "a:b", "a%2Fb", "../x", "é",
            "e\u{301}", "a\u{0}", "c", "ca", &long, &longer,
        ];
        let mut seen = HashSet::new();
        for id in ids {
            let client = Names::of("p", &QueueKey::Client(ClientId::new(id)));
            let group = Names::of("p", &QueueKey::Group(Arc::from(id)));
            let application = Names::of("p", &QueueKey::Application(ClientId::new(id)));
            let shared = Names::of("p", &QueueKey::Shared(Arc::from(id)));
            for names in [client, group, application, shared] {
                let key = names.key(Part::Meta);
                assert_eq!(key.len(), 26);
                assert!(names.identity.len() <= 1 + ID_INLINE);
                let inner = &key[2..24];
                assert!(inner.iter().all(|byte| DIGITS.contains(byte)));
                assert_eq!(names.slot, slot(inner));
                assert!(seen.insert(key), "{id:?} has the queue of another");
            }
        }
    }

    /// The values are those of the Redis Cluster specification.
    #[test]
    fn slots_are_redis() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"user1000"), 3443);
    }
}
