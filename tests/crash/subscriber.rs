//! A persistent subscriber that acknowledges as it goes and resumes after each end, and judges
//! what it gets: completeness, exactness, order, DUP.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::link::{End, Link};
use crate::support::{AckKind, Connect, Level, Packet, Publish, Random, prop, wire};
use crate::world::{Phase, Row, World, read_payload};

/// What came of one row.
#[derive(Default)]
struct Got {
    /// By number: how often it was delivered, and how often with DUP=0.
    counts: Vec<(u32, u32)>,
}

pub(crate) struct Subscriber {
    world: Arc<World>,
    name: String,
    connect: Connect,
    random: Random,
    qos: u8,
    got: BTreeMap<Row, Got>,
    /// QoS 2 exchanges that wait for PUBREL: id and payload. It outlives connections.
    held: HashMap<u16, Vec<u8>>,
    /// Acknowledgements that were not sent yet.
    owed: Vec<u8>,
    connections: usize,
    /// On this connection a PUBLISH with DUP=0 came.
    fresh_came: bool,
}

impl Subscriber {
    pub(crate) fn new(world: Arc<World>, level: Level, qos: u8, seed: u64) -> Subscriber {
        let name = format!("subscriber-{level:?}-qos{qos}");
        let mut connect = Connect::new(level, &name).persistent();
        if level.is_v5() {
            connect = connect.with(prop::receive_maximum(10 + 20 * u16::from(qos)));
        }
        Subscriber {
            world,
            name,
            connect,
            random: Random::seeded(seed),
            qos,
            got: BTreeMap::new(),
            held: HashMap::new(),
            owed: Vec::new(),
            connections: 0,
            fresh_came: false,
        }
    }

    /// Subscribes; back when SUBACK is there.
    pub(crate) fn subscribe(&mut self) -> bool {
        let Some(mut link) = self.world.connect(&self.name, &self.connect) else { return false };
        self.connections += 1;
        let subscribe = wire::subscribe(link.level, 1, &[], &[(b"load/#", self.qos)]);
        let answer = link.send(&subscribe).and_then(|()| link.recv(Duration::from_secs(10)));
        matches!(answer, Ok(Some(Packet::Suback { .. })))
    }

    /// Until it is time to leave; then judges.
    pub(crate) fn run(mut self) -> Self {
        while let Some(link) = self.world.connect(&self.name, &self.connect) {
            if !link.session_present {
                self.fault("its session was lost");
                break;
            }
            self.connections += 1;
            match self.serve(link) {
                Ok(()) => break,
                Err(end) if self.world.goes_on(&self.name, end.clone()) => {}
                Err(_) => break,
            }
        }
        self
    }

    fn fault(&self, what: &str) {
        self.world.fault(format!("{}: {what}", self.name));
    }

    fn serve(&mut self, mut link: Link) -> Result<(), End> {
        self.fresh_came = false;
        self.owed.clear();
        loop {
            match self.world.phase() {
                Phase::Load if self.random.below(400) == 0 => return Err(End::Gone),
                Phase::Load => {}
                Phase::Finish => {
                    if self.missing().is_none() && self.held.is_empty() {
                        // What would come twice now has this long to come.
                        if let Some(packet) = link.recv(Duration::from_millis(300))? {
                            self.take(&packet)?;
                            continue;
                        }
                        return link.send(&std::mem::take(&mut self.owed));
                    }
                }
                Phase::End => return Ok(()),
            }
            let lull = Duration::from_millis(1 + self.random.below(10) as u64);
            let mut came = 0;
            while let Some(packet) = link.recv(lull)? {
                self.take(&packet)?;
                came += 1;
                if came % (1 + self.random.below(20)) == 0 {
                    break;
                }
            }
            link.send(&std::mem::take(&mut self.owed))?;
        }
    }

    fn take(&mut self, packet: &Packet) -> Result<(), End> {
        match packet {
            Packet::Publish(publish) => self.publish(publish).map_err(|what| {
                let start = String::from_utf8_lossy(&publish.payload);
                let start: String = start.chars().take(20).collect();
                let (dup, qos, id) = (publish.dup, publish.qos, publish.id);
                End::Malformed(format!("{what}: {start} (DUP {dup}, QoS {qos}, id {id})"))
            }),
            Packet::Ack { kind: AckKind::Pubrel, id, .. } => {
                self.held.remove(id);
                self.owed.extend(wire::ack(7, *id));
                Ok(())
            }
            other => Err(End::Malformed(format!("unexpected {other:?}"))),
        }
    }

    fn publish(&mut self, publish: &Publish) -> Result<(), String> {
        let (row, number) = read_payload(&publish.payload).ok_or("a changed payload")?;
        if publish.topic() != row.topic() {
            return Err(format!("under topic {}", publish.topic()));
        }
        if publish.qos != self.qos.min(row.qos) {
            return Err("at another QoS than is due".to_owned());
        }
        // MQTT-4.4.0-1: what is sent again comes first, in its order; and it alone has DUP=1.
        if publish.dup && self.connections < 2 {
            return Err("DUP=1 on a session's first connection".to_owned());
        }
        if publish.dup && self.fresh_came {
            return Err("DUP=1 behind a first delivery".to_owned());
        }
        self.fresh_came |= !publish.dup;
        if publish.qos == 2 {
            self.owed.extend(wire::ack(5, publish.id));
            if let Some(payload) = self.held.get(&publish.id) {
                let same = *payload == publish.payload;
                let fine = same && publish.dup;
                return if fine { Ok(()) } else { Err("an id that is in use".to_owned()) };
            }
            self.held.insert(publish.id, publish.payload.clone());
        } else {
            self.owed.extend(wire::ack(4, publish.id));
        }
        self.count(row, number, publish)
    }

    fn count(&mut self, row: Row, number: usize, publish: &Publish) -> Result<(), String> {
        let counts = &mut self.got.entry(row).or_default().counts;
        // MQTT-4.6.0-5: first deliveries rise, and none is left out.
        if number > counts.len() {
            return Err(format!("the row has a hole: number {} is missing", counts.len()));
        }
        if number == counts.len() {
            counts.push((0, 0));
        } else if publish.qos == 2 {
            return Err("delivered twice at QoS 2".to_owned());
        }
        counts[number].0 += 1;
        counts[number].1 += u32::from(!publish.dup);
        // A copy without DUP is a message that its publisher sent once more, or a broken promise.
        let sends = self.world.sends(row, number);
        let due = if row.qos == 2 { sends.min(1) } else { sends };
        if counts[number].1 > due {
            return Err(format!("{} copies with DUP=0 of {due} messages", counts[number].1));
        }
        Ok(())
    }

    /// The first message that was sent and did not come.
    fn missing(&self) -> Option<String> {
        self.world.all_sent().into_iter().find_map(|(row, sent)| {
            let got = self.got.get(&row).map_or(0, |got| got.counts.len());
            (got < sent.len()).then(|| format!("{row:?}: {got} of {}", sent.len()))
        })
    }

    /// Everything that was acknowledged (by now: everything that was sent) has come.
    pub(crate) fn verdict(&self) -> Result<usize, String> {
        match self.missing() {
            Some(what) => Err(format!("{}: acknowledged messages are missing: {what}", self.name)),
            None => Ok(self.got.values().map(|got| got.counts.len()).sum()),
        }
    }

    /// How many copies came that had come before.
    pub(crate) fn repeats(&self) -> u32 {
        let counts = self.got.values().flat_map(|got| &got.counts);
        counts.map(|(all, _)| all.saturating_sub(1)).sum()
    }
}
