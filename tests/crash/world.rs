//! What publishers, subscribers and the one who kills share: where the broker is, what was sent,
//! and what was found to be wrong.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::link::{End, Link};
use crate::support::Connect;

/// How soon a client tries again.
const AGAIN: Duration = Duration::from_millis(3);

/// A numbered row of messages: who publishes it, and at which QoS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Row {
    pub(crate) publisher: usize,
    pub(crate) qos: u8,
}

impl Row {
    pub(crate) fn topic(self) -> String {
        format!("load/{}/{}", self.publisher, self.qos)
    }
}

/// The text of a message; what pads it makes frames of all sizes.
pub(crate) fn payload(row: Row, number: usize, padding: usize) -> String {
    format!("{}:{}:{number}:{}", row.publisher, row.qos, "x".repeat(padding))
}

pub(crate) fn read_payload(payload: &[u8]) -> Option<(Row, usize)> {
    let text = std::str::from_utf8(payload).ok()?;
    let mut parts = text.splitn(4, ':');
    let publisher = parts.next()?.parse().ok()?;
    let qos = parts.next()?.parse().ok()?;
    let number = parts.next()?.parse().ok()?;
    parts.next()?.bytes().all(|byte| byte == b'x').then_some((Row { publisher, qos }, number))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everybody works.
    Load,
    /// Publishers finish what they have begun.
    Finish,
    /// Everybody leaves.
    End,
}

#[derive(Default)]
pub(crate) struct World {
    /// Where a broker can be reached: one, or the nodes of one.
    addresses: Mutex<Vec<SocketAddrV4>>,
    turn: AtomicUsize,
    phase: AtomicU8,
    /// How often each message of a row was sent, by its number (from 0 on).
    sent: Mutex<BTreeMap<Row, Vec<u32>>>,
    faults: Mutex<Vec<String>>,
}

impl World {
    #[allow(dead_code, reason = "the tests of several nodes have several")]
    pub(crate) fn set_address(&self, address: Option<SocketAddrV4>) {
        self.set_addresses(address.into_iter().collect());
    }

    pub(crate) fn set_addresses(&self, addresses: Vec<SocketAddrV4>) {
        *self.addresses.lock() = addresses;
    }

    /// The next address, in turn.
    fn address(&self) -> Option<SocketAddrV4> {
        let addresses = self.addresses.lock();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        addresses.get(turn % addresses.len().max(1)).copied()
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Load,
            1 => Phase::Finish,
            _ => Phase::End,
        }
    }

    /// A first fault ends the run: what follows it may only be its consequence.
    pub(crate) fn fault(&self, text: String) {
        self.faults.lock().push(text);
        self.set_phase(Phase::End);
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.lock().clone()
    }

    pub(crate) fn sent(&self, row: Row, number: usize) {
        let mut sent = self.sent.lock();
        let numbers = sent.entry(row).or_default();
        if number == numbers.len() {
            numbers.push(0);
        }
        numbers[number] += 1;
    }

    pub(crate) fn sends(&self, row: Row, number: usize) -> u32 {
        let sent = self.sent.lock();
        sent.get(&row).and_then(|numbers| numbers.get(number)).copied().unwrap_or(0)
    }

    pub(crate) fn all_sent(&self) -> BTreeMap<Row, Vec<u32>> {
        self.sent.lock().clone()
    }

    /// Whether a client whose connection ended so is to come again; if not, that was a fault.
    pub(crate) fn goes_on(&self, who: &str, end: End) -> bool {
        let fault = match end {
            End::Gone => None,
            End::Unavailable if self.addresses.lock().len() > 1 => {
                std::thread::sleep(Duration::from_millis(100));
                None
            }
            End::Unavailable => Some("it is unavailable".to_owned()),
            End::Malformed(what) => Some(what),
        };
        let Some(what) = fault else {
            std::thread::sleep(AGAIN);
            return true;
        };
        self.fault(format!("{who}: {what}"));
        false
    }

    /// Connects as soon as the broker can be reached; none when it is time to leave. A node may be
    /// busy with the death of another one; a broker alone may not.
    pub(crate) fn connect(&self, who: &str, connect: &Connect) -> Option<Link> {
        loop {
            if self.phase() == Phase::End {
                return None;
            }
            match self.address().map(|address| Link::connect(address, connect)) {
                Some(Ok(link)) => return Some(link),
                Some(Err(end)) => _ = self.goes_on(who, end),
                None => std::thread::sleep(AGAIN),
            }
        }
    }
}
