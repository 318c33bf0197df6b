//! What a subscriber's client keeps of its session: the exchanges that are open, and the rules
//! that a PUBLISH has to keep to.

use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::Key;
use crate::wire::Publish;

/// A message that came, by its packet id.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    key: Key,
    qos: u8,
    retain: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    /// Not acknowledged by us for good; outlives a connection.
    open: BTreeMap<u16, Open>,
    /// QoS 2 ids for which PUBREC was sent and PUBREL did not come; outlives a connection.
    held: BTreeSet<u16>,
    /// What was sent to us on this connection and holds a credit.
    in_flight: BTreeSet<u16>,
    /// Connections of this session so far.
    pub(crate) connections: u32,
}

/// What a PUBLISH is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    New,
    /// One that we know, on a later connection.
    Again,
}

impl Exchanges {
    pub(crate) fn connection(&mut self) {
        self.in_flight.clear();
        self.connections += 1;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.held.is_empty()
    }

    /// Judges a PUBLISH with QoS 1 or 2 against what is open.
    pub(crate) fn publish(
        &mut self,
        key: Key,
        publish: &Publish,
        receive_maximum: usize,
    ) -> Result<Arrival, String> {
        let Publish { id, qos, dup, retain, .. } = *publish;
        if publish.dup && self.connections < 2 {
            return Err(format!("DUP on the session's first connection: id {id}, {key:?}"));
        }
        if !self.in_flight.insert(id) {
            return Err(format!("id {id} was in flight, and came again with {key:?}"));
        }
        if self.in_flight.len() > receive_maximum {
            let held = self.in_flight.len();
            return Err(format!("{held} in flight; Receive Maximum is {receive_maximum}"));
        }
        if qos == 2 && self.held.contains(&id) && !self.open.contains_key(&id) {
            return Err(format!("id {id} is held, but nobody knows by what"));
        }
        let now = Open { key, qos, retain };
        match self.open.get(&id) {
            None => {
                self.open.insert(id, now);
                Ok(Arrival::New)
            }
            Some(open) if *open == now && dup => Ok(Arrival::Again),
            Some(open) => Err(format!("id {id} is open with {open:?}; dup {dup}, came {now:?}")),
        }
    }

    /// PUBACK leaves.
    pub(crate) fn puback(&mut self, id: u16) {
        self.open.remove(&id);
        self.in_flight.remove(&id);
    }

    /// PUBREC leaves.
    pub(crate) fn pubrec(&mut self, id: u16) {
        self.held.insert(id);
    }

    /// PUBREL came; PUBCOMP is to be sent.
    pub(crate) fn pubrel(&mut self, id: u16) {
        self.held.remove(&id);
        self.open.remove(&id);
    }

    /// PUBCOMP leaves.
    pub(crate) fn pubcomp(&mut self, id: u16) {
        self.in_flight.remove(&id);
    }
}
