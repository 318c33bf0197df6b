//! A publisher that does what MQTT asks of one: after each end of its connection it resumes its
//! session and sends again what was not acknowledged, with the same ids, in the same order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::link::{End, Link};
use crate::support::{AckKind, Connect, Level, Packet, Random, wire};
use crate::world::{Phase, Row, World, payload};

/// Messages it has open at most.
const WINDOW: usize = 40;

struct Open {
    id: u16,
    row: Row,
    number: usize,
    padding: usize,
    /// PUBREC was there: PUBREL is due.
    received: bool,
}

pub(crate) struct Publisher {
    world: Arc<World>,
    name: String,
    level: Level,
    random: Random,
    index: usize,
    /// The next number at QoS 1 and at QoS 2.
    next: [usize; 2],
    next_id: u16,
    open: VecDeque<Open>,
    /// On this connection, how many of `open` were sent.
    sent: usize,
}

impl Publisher {
    pub(crate) fn new(world: Arc<World>, index: usize, seed: u64) -> Publisher {
        let level = Level::ALL[(index + 1) % 3];
        Publisher {
            world,
            name: format!("publisher{index}"),
            level,
            random: Random::seeded(seed),
            index,
            next: [0; 2],
            next_id: 0,
            open: VecDeque::new(),
            sent: 0,
        }
    }

    /// Until everything that it began is acknowledged.
    pub(crate) fn run(mut self) {
        let connect = Connect::new(self.level, &self.name).persistent();
        let mut known = false;
        while let Some(link) = self.world.connect(&self.name, &connect) {
            // CONNACK of MQTT 3.1 doesn't tell.
            if known && !link.session_present && self.level != Level::V31 {
                return self.fault("its session was lost");
            }
            known = true;
            match self.serve(link) {
                Ok(()) => return,
                Err(end) if self.world.goes_on(&self.name, end.clone()) => {}
                Err(_) => return,
            }
        }
    }

    fn fault(&self, what: &str) {
        self.world.fault(format!("{}: {what}", self.name));
    }

    fn serve(&mut self, mut link: Link) -> Result<(), End> {
        self.sent = 0;
        let again = self.open.len();
        self.send(&mut link, again, true)?;
        loop {
            match self.world.phase() {
                Phase::Load => self.begin(&mut link)?,
                Phase::Finish if self.open.is_empty() => return link.send(&wire::DISCONNECT),
                Phase::Finish => {}
                Phase::End => return Ok(()),
            }
            let patience = Duration::from_millis(1 + self.random.below(8) as u64);
            while let Some(packet) = link.recv(patience)? {
                self.take(&mut link, &packet)?;
            }
        }
    }

    /// Begins a few messages, in one write.
    fn begin(&mut self, link: &mut Link) -> Result<(), End> {
        let room = WINDOW.saturating_sub(self.open.len());
        let count = self.random.below(8).min(room);
        for _ in 0..count {
            let qos = 1 + self.random.below(2) as u8;
            let row = Row { publisher: self.index, qos };
            let number = self.next[usize::from(qos) - 1];
            self.next[usize::from(qos) - 1] += 1;
            self.next_id = self.next_id % u16::MAX + 1;
            let padding = *self.random.pick(&[0, 3, 100, 450, 1500]);
            self.open.push_back(Open { id: self.next_id, row, number, padding, received: false });
        }
        self.send(link, count, false)
    }

    /// Sends the next `count` of what is open.
    fn send(&mut self, link: &mut Link, count: usize, again: bool) -> Result<(), End> {
        let mut bytes = Vec::new();
        for open in self.open.iter().skip(self.sent).take(count) {
            if open.received {
                bytes.extend(wire::ack(6, open.id));
                continue;
            }
            // Noted before it leaves: what the ledger doesn't know was surely never sent.
            self.world.sent(open.row, open.number);
            let flags = u8::from(again) << 3 | open.row.qos << 1;
            let text = payload(open.row, open.number, open.padding);
            let topic = open.row.topic();
            bytes.extend(wire::publish(self.level, flags, topic, open.id, &[], text));
        }
        self.sent += count;
        if bytes.is_empty() { Ok(()) } else { link.send(&bytes) }
    }

    fn take(&mut self, link: &mut Link, packet: &Packet) -> Result<(), End> {
        let Packet::Ack { kind, id, code, .. } = packet else {
            return Err(End::Malformed(format!("unexpected {packet:?}")));
        };
        let wrong = |what: &str| Err(End::Malformed(format!("{what}: {packet:?}")));
        if *code >= 0x80 && *kind != AckKind::Pubcomp {
            return wrong("a message was refused");
        }
        let Some(at) = self.open.iter().position(|open| open.id == *id) else {
            return wrong("nothing of this id is open");
        };
        let qos = self.open[at].row.qos;
        match kind {
            AckKind::Puback | AckKind::Pubrec => {
                if (*kind == AckKind::Puback) != (qos == 1) || self.open[at].received {
                    return wrong("not the acknowledgement that is due");
                }
                // INV-3: in the order of the packets.
                if self.open.iter().take(at).any(|open| !open.received) {
                    return wrong("acknowledged before an earlier one");
                }
                if qos == 1 {
                    self.forget(at);
                    return Ok(());
                }
                self.open[at].received = true;
                link.send(&wire::ack(6, *id))
            }
            AckKind::Pubcomp if self.open[at].received => {
                self.forget(at);
                Ok(())
            }
            AckKind::Pubcomp | AckKind::Pubrel => wrong("not the acknowledgement that is due"),
        }
    }

    fn forget(&mut self, at: usize) {
        self.open.remove(at);
        self.sent -= 1;
    }
}
