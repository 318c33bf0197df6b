//! A publisher: numbered messages, resent on a resumed session, and acknowledgements held to their
//! order.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::{Duration, Instant, sleep_until};

use crate::client::{Gone, Wire, open};
use crate::dice::Dice;
use crate::ledger::Outcome;
use crate::run::{Phase, Sim};
use crate::wire::{AckKind, Connect, Level, Packet, wire};

/// One message that is not done with.
struct Pending {
    number: u32,
    id: u16,
    topic: String,
    flags: u8,
    payload: Vec<u8>,
    /// PUBREC came: PUBREL is what has to be sent.
    received: bool,
    releases: u32,
}

pub(crate) struct Publisher {
    sim: Arc<Sim>,
    number: u32,
    name: String,
    level: Level,
    persistent: bool,
    dice: Dice,
    sent: u32,
    next_id: u16,
    pending: VecDeque<Pending>,
    had_session: bool,
    window: usize,
    /// The acknowledgements that this connection owes us, in order.
    owed: VecDeque<(AckKind, u16)>,
}

/// How a connection ends from our side.
enum Leave {
    Done,
    Vanish,
    Linger,
    Goodbye,
    Gone(Gone),
}

impl Publisher {
    pub(crate) fn new(sim: &Arc<Sim>, number: u32, mut dice: Dice) -> Self {
        let level = *dice.pick(&[Level::V311, Level::V5]);
        // The first one retains, so it must be certain what became of each message.
        let persistent = number == 0 || dice.chance(700);
        let window = dice.between(1, 12) as usize;
        Publisher {
            sim: Arc::clone(sim),
            number,
            name: format!("p{number}"),
            level,
            persistent,
            dice,
            sent: 0,
            next_id: 0,
            pending: VecDeque::new(),
            had_session: false,
            window,
            owed: VecDeque::new(),
        }
    }

    fn violate(&self, what: impl std::fmt::Display) {
        self.sim.trace.violate(&self.name, what);
    }

    pub(crate) async fn run(mut self) {
        self.sim.subscribed().await;
        loop {
            let connect = Connect::new(self.level, &self.name);
            let connect = if self.persistent { connect.persistent() } else { connect };
            let sim = Arc::clone(&self.sim);
            let (mut wire, present, maximum) =
                open(&sim, &self.name, &connect, &mut self.dice).await;
            self.begin(&mut wire, present);
            let leave = self.connected(&mut wire, maximum).await;
            match leave {
                Leave::Done => {
                    wire.disconnect(&sim, &self.name).await;
                    sim.publisher_done();
                    return;
                }
                Leave::Goodbye => drop(wire.disconnect(&sim, &self.name).await),
                Leave::Vanish => drop(wire),
                Leave::Linger => sim.keep(wire, self.dice.ms(10, 3000)),
                Leave::Gone(gone) => {
                    if !sim.may_fail() {
                        self.violate(format_args!("{gone:?} without a reason: {:?}", wire.told));
                    }
                }
            }
            self.sim.trace.note(&self.name, "away");
            if sim.phase() == Phase::Run {
                tokio::time::sleep(self.dice.ms(0, 1500)).await;
            }
        }
    }

    /// What is owed from earlier connections goes first.
    fn begin(&mut self, wire: &mut Wire, present: bool) {
        if present != (self.had_session && self.persistent) {
            // A claim whose CONNACK was lost may have made the session.
            if !(present && self.persistent) {
                self.violate(format_args!("session present {present}"));
            }
        }
        self.had_session = true;
        self.owed.clear();
        if !present {
            for lost in std::mem::take(&mut self.pending) {
                let key = (self.number, lost.number);
                self.sim.ledger.lock().ends(key, Outcome::Unknown);
            }
        }
        for at in 0..self.pending.len() {
            self.send(wire, at, true);
        }
    }

    fn send(&mut self, wire: &mut Wire, at: usize, again: bool) {
        let pending = &mut self.pending[at];
        let (id, qos) = (pending.id, pending.flags >> 1 & 3);
        if pending.received {
            pending.releases += 1;
            wire.send(&wire::ack(6, id));
            self.owed.push_back((AckKind::Pubcomp, id));
            self.sim.trace.note(&self.name, format_args!("PUBREL {id}"));
            return;
        }
        let flags = pending.flags | if again && qos > 0 { 8 } else { 0 };
        let bytes = wire::publish(self.level, flags, &pending.topic, id, &[], &pending.payload);
        wire.send(&bytes);
        self.sim.ledger.lock().attempt((self.number, pending.number));
        let (number, topic) = (pending.number, &pending.topic);
        let length = bytes.len();
        self.sim.trace.note(
            &self.name,
            format_args!("PUBLISH {number} id {id} to {topic}, flags {flags:#x}, {length} bytes"),
        );
        match qos {
            0 => {}
            1 => self.owed.push_back((AckKind::Puback, id)),
            _ => self.owed.push_back((AckKind::Pubrec, id)),
        }
    }

    async fn connected(&mut self, wire: &mut Wire, maximum: usize) -> Leave {
        let window = self.window.min(maximum);
        let mut next_at = Instant::now() + self.dice.ms(0, 50);
        let sim = Arc::clone(&self.sim);
        loop {
            let running = sim.phase() == Phase::Run;
            let more = running && self.sent < sim.plan.messages;
            if !more && self.pending.is_empty() {
                return Leave::Done;
            }
            let may_send = more && self.pending.len() < window && !wire.is_clogged();
            tokio::select! {
                biased;
                packet = wire.recv(&sim, &self.name) => match packet {
                    Ok(packet) => self.hear(wire, &packet),
                    Err(gone) => return Leave::Gone(gone),
                },
                () = sleep_until(next_at), if may_send => {
                    if sim.plan.temper.rude && self.dice.chance(60) {
                        return match self.dice.below(3) {
                            0 => Leave::Vanish,
                            1 => Leave::Linger,
                            _ => Leave::Goodbye,
                        };
                    }
                    for _ in 0..self.dice.between(1, 4) {
                        if self.sent < sim.plan.messages && self.pending.len() < window {
                            self.publish(wire);
                        }
                    }
                    next_at = Instant::now() + self.dice.ms(0, 400);
                    if sim.plan.temper.rude && self.dice.chance(20) {
                        // It neither reads nor writes for a while.
                        tokio::time::sleep(self.dice.ms(100, 3000)).await;
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
            }
        }
    }

    fn publish(&mut self, wire: &mut Wire) {
        let number = self.sent;
        self.sent += 1;
        let retains = self.number == 0 && self.dice.chance(300);
        let qos = if retains { self.dice.between(1, 2) } else { self.dice.below(3) } as u8;
        let topic = match self.dice.below(5) {
            _ if retains => format!("r/{}", self.dice.below(3)),
            0 | 1 => format!("c/{}", self.dice.below(2)),
            _ => format!("s/{}", self.dice.below(3)),
        };
        let filler = if self.dice.chance(100) { 3000 } else { self.dice.below(200) };
        let mut payload = format!("{}/{number}/", self.number).into_bytes();
        payload.resize(payload.len() + filler as usize, b'.');
        let id = if qos == 0 { 0 } else { self.fresh_id() };
        let key = (self.number, number);
        self.sim.ledger.lock().publish(key, &topic, qos, retains);
        let flags = qos << 1 | u8::from(retains);
        let (received, releases) = (false, 0);
        let pending = Pending { number, id, topic, flags, payload, received, releases };
        self.pending.push_back(pending);
        self.send(wire, self.pending.len() - 1, false);
        if qos == 0 {
            self.pending.pop_back();
        }
    }

    /// Ids come again soon, so that one that was freed too early is met.
    fn fresh_id(&mut self) -> u16 {
        loop {
            self.next_id = self.next_id % 40 + 1;
            if self.pending.iter().all(|pending| pending.id != self.next_id) {
                return self.next_id;
            }
        }
    }

    fn hear(&mut self, wire: &mut Wire, packet: &Packet) {
        let (kind, id, code) = match packet {
            Packet::Ack { kind, id, code, .. } => (*kind, *id, *code),
            Packet::Disconnect { code, .. } => {
                self.sim.trace.note(&self.name, format_args!("DISCONNECT {code:#x}"));
                return;
            }
            other => return self.violate(format_args!("a publisher was sent {other:?}")),
        };
        self.sim.trace.note(&self.name, format_args!("{kind:?} {id} {code:#x}"));
        self.sim.active();
        // INV-3.
        if self.owed.pop_front() != Some((kind, id)) {
            return self.violate(format_args!("{kind:?} {id} out of order; owed: {:?}", self.owed));
        }
        let Some(at) = self.pending.iter().position(|pending| pending.id == id) else {
            return self.violate(format_args!("{kind:?} for {id}, which is done with"));
        };
        let key = (self.number, self.pending[at].number);
        match (kind, code) {
            (AckKind::Pubrec, 0 | 0x10) => {
                self.pending[at].received = true;
                self.sim.ledger.lock().ends(key, Outcome::Acknowledged);
                self.send(wire, at, false);
            }
            (AckKind::Puback, 0 | 0x10) => {
                self.sim.ledger.lock().ends(key, Outcome::Acknowledged);
                self.pending.remove(at);
            }
            (AckKind::Puback | AckKind::Pubrec, 0x80..) if self.sim.plan.temper.refusals => {
                self.sim.ledger.lock().ends(key, Outcome::Refused);
                self.pending.remove(at);
            }
            (AckKind::Pubcomp, 0) => drop(self.pending.remove(at)),
            (AckKind::Pubcomp, 0x92) if self.pending[at].releases > 1 => {
                self.pending.remove(at);
            }
            _ => self.violate(format_args!("{kind:?} {id} with code {code:#x}")),
        }
    }
}
