//! A subscriber: it reads and acknowledges at its own pace, goes and comes back.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::{Duration, Instant, sleep, sleep_until};

use crate::client::{Gone, Wire, open};
use crate::dice::Dice;
use crate::exchanges::{Arrival, Exchanges};
use crate::ledger::{Key, Receipt, SessionNo};
use crate::run::{Phase, Sim};
use crate::wire::{AckKind, Connect, Level, Packet, Publish, prop, wire};

/// The shared subscription of the members.
pub(crate) const SHARED: &str = "$share/g/s/+";

/// The filter that comes and goes; no other one matches its topics.
const CHANGING: &str = "c/+";

pub(crate) struct Subscriber {
    sim: Arc<Sim>,
    name: String,
    level: Level,
    persistent: bool,
    rude: bool,
    dice: Dice,
    receive_maximum: usize,
    steady: Vec<(&'static str, u8)>,
    session: SessionNo,
    exchanges: Exchanges,
    had_session: bool,
    ready: bool,
    /// How long an acknowledgement may take.
    slowness: u64,
    acks: VecDeque<(Instant, u8, u16)>,
    /// SUBSCRIBE and UNSUBSCRIBE that wait for their answer.
    asked: Option<Asked>,
    /// Steady filters that are granted in this session.
    settled: bool,
    /// Not before then it asks again for what was refused.
    ask_at: Instant,
    /// Its next connection begins a new session, and ends the one before.
    forgets: bool,
}

struct Asked {
    id: u16,
    filters: Vec<(&'static str, u8)>,
    leaves: bool,
}

enum Leave {
    Vanish,
    Linger,
    Goodbye,
    Gone(Gone),
    End,
}

impl Subscriber {
    pub(crate) fn new(sim: &Arc<Sim>, name: String, persistent: bool, mut dice: Dice) -> Self {
        let level = *dice.pick(&[Level::V311, Level::V5]);
        let all: [&[&'static str]; 5] =
            [&["s/#"], &["s/+", "r/+"], &["s/0", "s/1"], &["s/#", "s/1", "r/#"], &["r/1", "s/2"]];
        let filters = *dice.pick(&all);
        let steady = filters.iter().map(|filter| (*filter, dice.below(3) as u8)).collect();
        let rude = sim.plan.temper.rude;
        let slowness = *dice.pick(&[0, 20, 200, 800]);
        let v3 = usize::from(sim.plan.config.delivery.v3_receive_maximum);
        let receive_maximum = if level.is_v5() { dice.between(1, 12) as usize } else { v3 };
        Subscriber {
            sim: Arc::clone(sim),
            name,
            level,
            persistent,
            rude,
            dice,
            receive_maximum,
            steady,
            session: 0,
            exchanges: Exchanges::default(),
            had_session: false,
            ready: false,
            slowness,
            acks: VecDeque::new(),
            asked: None,
            settled: false,
            ask_at: Instant::now(),
            forgets: false,
        }
    }

    /// The one that collects Wills: everything, once, and quickly.
    pub(crate) fn collector(sim: &Arc<Sim>, dice: Dice) -> Self {
        let mut collector = Self::new(sim, "wills".into(), true, dice);
        collector.steady = vec![("w/#", 2)];
        collector.rude = false;
        collector.slowness = 0;
        collector
    }

    /// A member of the shared subscription, which has subscriptions of its own beside it.
    pub(crate) fn member(sim: &Arc<Sim>, number: u32, persistent: bool, mut dice: Dice) -> Self {
        let qos = dice.between(1, 2) as u8;
        let own = dice.below(3) as u8;
        let name = if persistent { format!("g{number}") } else { format!("h{number}") };
        let mut member = Self::new(sim, name, persistent, dice);
        member.steady = vec![(SHARED, qos), ("r/+", own)];
        member
    }

    /// A member whose sessions outlive connections, on the level that can end them by name.
    fn is_shared(&self) -> bool {
        self.persistent && self.level.is_v5() && self.steady.iter().any(|(f, _)| *f == SHARED)
    }

    fn violate(&self, what: impl std::fmt::Display) {
        self.sim.trace.violate(&self.name, what);
    }

    pub(crate) async fn run(mut self) {
        let sim = Arc::clone(&self.sim);
        loop {
            let mut connect = Connect::new(self.level, &self.name);
            if self.forgets {
                sim.ledger.lock().session_over(self.session);
                sim.trace.note(&self.name, "forgets its session");
                connect = connect.expiry(300);
            } else if self.persistent {
                connect = connect.persistent();
            }
            if self.level.is_v5() {
                connect = connect.with(prop::receive_maximum(self.receive_maximum as u16));
            }
            let (mut wire, present, _) = open(&sim, &self.name, &connect, &mut self.dice).await;
            self.begin(present);
            match self.connected(&mut wire).await {
                Leave::Goodbye => drop(wire.disconnect(&sim, &self.name).await),
                Leave::Vanish => drop(wire),
                Leave::Linger => sim.keep(wire, self.dice.ms(10, 5000)),
                Leave::Gone(gone) => {
                    if !sim.may_fail() {
                        self.violate(format_args!("{gone:?} without a reason: {:?}", wire.told));
                    }
                }
                Leave::End => {
                    if self.persistent && !self.exchanges.is_idle() {
                        self.violate(format_args!("never finished: {:?}", self.exchanges));
                    }
                    return;
                }
            }
            sim.trace.note(&self.name, "away");
            if !self.persistent {
                sim.ledger.lock().session_over(self.session);
            }
            if sim.phase() == Phase::Run {
                sleep(self.dice.ms(0, 3000)).await;
            }
        }
    }

    fn begin(&mut self, present: bool) {
        let forgot = std::mem::take(&mut self.forgets);
        let expected = self.had_session && self.persistent && !forgot;
        if forgot && present {
            self.violate("a session outlives a clean start");
        }
        if present != expected && !(present && self.persistent) {
            self.violate(format_args!("session present {present}"));
        }
        if !present || !self.had_session {
            self.session = self.sim.ledger.lock().open_session(&self.name, self.persistent);
            self.exchanges = Exchanges::default();
            self.settled = false;
            // A claim without its CONNACK was a connection of this session, too.
            self.exchanges.connections = u32::from(present);
        }
        self.had_session = true;
        self.exchanges.connection();
        self.acks.clear();
        self.asked = None;
    }

    async fn connected(&mut self, wire: &mut Wire) -> Leave {
        let sim = Arc::clone(&self.sim);
        let mut mood_at = Instant::now() + self.dice.ms(50, 2000);
        if !self.settled {
            self.subscribe(wire, self.steady.clone());
        }
        loop {
            if sim.phase() == Phase::End && self.acks.is_empty() {
                return Leave::End;
            }
            let gentle = sim.phase() != Phase::Run;
            let due = self.acks.front().map(|(at, _, _)| if gentle { Instant::now() } else { *at });
            let (ack_at, has_ack) = (due.unwrap_or_else(Instant::now), due.is_some());
            tokio::select! {
                biased;
                packet = wire.recv(&sim, &self.name) => match packet {
                    Ok(packet) => self.hear(packet),
                    Err(gone) => return Leave::Gone(gone),
                },
                () = sleep_until(ack_at), if has_ack => self.acknowledge(wire),
                () = sleep_until(mood_at), if !gentle => {
                    if let Some(leave) = self.mood(wire).await {
                        return leave;
                    }
                    mood_at = Instant::now() + self.dice.ms(50, 2000);
                }
                () = sleep(Duration::from_millis(200)) => {}
            }
            if !self.settled && self.asked.is_none() && Instant::now() >= self.ask_at {
                self.subscribe(wire, self.steady.clone());
            }
        }
    }

    /// What it does now and then, besides receiving.
    async fn mood(&mut self, wire: &mut Wire) -> Option<Leave> {
        let stall = self.dice.ms(200, 4000);
        match self.dice.below(10) {
            // It stops reading.
            0 | 1 => sleep(stall).await,
            2 if self.rude => return Some(Leave::Vanish),
            3 if self.rude => return Some(Leave::Linger),
            4 if self.rude => return Some(Leave::Goodbye),
            5 | 6 if self.rude && self.asked.is_none() && self.settled => self.change(wire),
            // Again, and with it what is retained.
            8 if self.rude && self.is_shared() && self.dice.chance(500) => {
                self.forgets = true;
                return Some(Leave::Vanish);
            }
            7 if self.rude && self.asked.is_none() => self.subscribe(wire, self.steady.clone()),
            _ => {}
        }
        None
    }

    fn subscribe(&mut self, wire: &mut Wire, filters: Vec<(&'static str, u8)>) {
        let id = self.dice.between(1, 65_535) as u16;
        let list: Vec<(&[u8], u8)> = filters.iter().map(|(f, q)| (f.as_bytes(), *q)).collect();
        wire.send(&wire::subscribe(self.level, id, &[], &list));
        self.sim.trace.note(&self.name, format_args!("SUBSCRIBE {filters:?}"));
        self.asked = Some(Asked { id, filters, leaves: false });
    }

    /// Takes the changing filter, with another QoS, or leaves it.
    fn change(&mut self, wire: &mut Wire) {
        self.sim.ledger.lock().leaving(self.session, CHANGING);
        if self.dice.chance(300) {
            self.sim.doom.notify_one();
        }
        if self.dice.chance(500) {
            let qos = self.dice.below(3) as u8;
            return self.subscribe(wire, vec![(CHANGING, qos)]);
        }
        let id = self.dice.between(1, 65_535) as u16;
        wire.send(&wire::unsubscribe(self.level, id, &[CHANGING.as_bytes()]));
        self.sim.trace.note(&self.name, "UNSUBSCRIBE");
        self.asked = Some(Asked { id, filters: vec![], leaves: true });
    }

    fn hear(&mut self, packet: Packet) {
        match packet {
            Packet::Publish(publish) => self.receive(&publish),
            Packet::Ack { kind: AckKind::Pubrel, id, code, .. } => {
                self.sim.trace.note(&self.name, format_args!("PUBREL {id} {code:#x}"));
                self.sim.active();
                self.exchanges.pubrel(id);
                self.owe(7, id);
            }
            Packet::Suback { id, codes, .. } => self.answered(id, &codes, false),
            Packet::Unsuback { id, codes, .. } => self.answered(id, &codes, true),
            Packet::Disconnect { code, .. } => {
                self.sim.trace.note(&self.name, format_args!("DISCONNECT {code:#x}"));
            }
            other => self.violate(format_args!("a subscriber was sent {other:?}")),
        }
    }

    fn answered(&mut self, id: u16, codes: &[u8], leaves: bool) {
        let asked = self.asked.take().filter(|asked| asked.id == id && asked.leaves == leaves);
        let Some(asked) = asked else {
            return self.violate(format_args!("an answer {id} that was not asked for"));
        };
        self.sim.trace.note(&self.name, format_args!("answered {codes:02x?}"));
        if codes.iter().any(|code| *code >= 0x80) {
            if !self.sim.plan.temper.refusals {
                self.violate("a subscription was refused");
            }
            self.ask_at = Instant::now() + self.dice.ms(10, 500);
            return;
        }
        for (filter, qos) in &asked.filters {
            self.sim.ledger.lock().granted(self.session, filter, *qos);
        }
        self.settled |= asked.filters == self.steady;
        if self.settled && !self.ready {
            self.ready = true;
            self.sim.subscriber_ready();
        }
    }

    fn receive(&mut self, publish: &Publish) {
        let Some(key) = key_of(&publish.payload) else {
            return self.violate(format_args!("an unknown payload on {}", publish.topic()));
        };
        let Publish { id, qos, dup, retain, .. } = *publish;
        self.sim.active();
        self.sim.trace.note(
            &self.name,
            format_args!("got {key:?} id {id} QoS {qos} dup {dup} retain {retain}"),
        );
        if qos > 0 {
            self.owe(if qos == 1 { 4 } else { 5 }, id);
            match self.exchanges.publish(key, publish, self.receive_maximum) {
                Ok(Arrival::New) => {}
                Ok(Arrival::Again) => return,
                Err(fault) => return self.violate(fault),
            }
        }
        let receipt = Receipt { key, topic: publish.topic(), qos, dup, retain };
        let judged = self.sim.ledger.lock().received(self.session, &receipt);
        if let Err(fault) = judged {
            self.violate(fault);
        }
    }

    /// Acknowledgements leave in the order of what they answer (MQTT-4.6.0-2).
    fn owe(&mut self, kind: u8, id: u16) {
        let at = Instant::now() + self.dice.ms(0, self.slowness);
        self.acks.push_back((at, kind, id));
    }

    fn acknowledge(&mut self, wire: &mut Wire) {
        let Some((_, kind, id)) = self.acks.pop_front() else { return };
        wire.send(&wire::ack(kind, id));
        self.sim.trace.note(&self.name, format_args!("ack {kind} for {id}"));
        match kind {
            4 => self.exchanges.puback(id),
            5 => self.exchanges.pubrec(id),
            _ => self.exchanges.pubcomp(id),
        }
    }
}

/// The publisher and number that a payload begins with.
pub(crate) fn key_of(payload: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(payload).ok()?;
    let mut parts = text.split('/');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
