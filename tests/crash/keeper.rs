//! A client that changes retained messages and subscriptions one by one, and after each crash
//! looks whether every change that was acknowledged is still there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::link::{End, Link};
use crate::support::{AckKind, Connect, Level, Packet, Publish, Random, wire};
use crate::world::{Phase, World};

const TOPICS: usize = 6;
const ANSWER: Duration = Duration::from_secs(10);

/// A change that was asked for and not yet acknowledged.
#[derive(Clone, Debug)]
enum Wish {
    Retain { topic: usize, value: usize },
    Clear { topic: usize },
    Subscribe { filter: usize },
    Unsubscribe { filter: usize },
}

pub(crate) struct Keeper {
    world: Arc<World>,
    random: Random,
    connect: Connect,
    next_id: u16,
    next_value: usize,
    /// What was acknowledged.
    retained: BTreeMap<usize, usize>,
    filters: BTreeSet<usize>,
    /// The last change, if nobody knows whether it was made.
    open: Option<Wish>,
    inbox: Vec<Publish>,
    /// Crashes after which all was looked at.
    pub(crate) checks: usize,
}

impl Keeper {
    pub(crate) fn new(world: Arc<World>, seed: u64) -> Keeper {
        Keeper {
            world,
            random: Random::seeded(seed),
            connect: Connect::v5("keeper").persistent(),
            next_id: 0,
            next_value: 0,
            retained: BTreeMap::new(),
            filters: BTreeSet::new(),
            open: None,
            inbox: Vec::new(),
            checks: 0,
        }
    }

    pub(crate) fn run(mut self) -> Self {
        let mut known = false;
        while let Some(link) = self.world.connect("keeper", &self.connect) {
            if known && !link.session_present {
                self.world.fault("keeper: its session was lost".to_owned());
                break;
            }
            match self.serve(link, known) {
                Ok(()) => break,
                Err(end) if self.world.goes_on("keeper", end.clone()) => {}
                Err(_) => break,
            }
            known = true;
        }
        self
    }

    fn serve(&mut self, mut link: Link, known: bool) -> Result<(), End> {
        if known {
            self.check_retained(&mut link)?;
            self.check_filters(&mut link)?;
            self.checks += 1;
        } else {
            self.ask(&mut link, |id| wire::subscribe(Level::V5, id, &[], &[(b"end", 1)]))?;
        }
        while self.world.phase() == Phase::Load {
            let wish = self.open.clone().unwrap_or_else(|| self.think());
            self.make(&mut link, wish)?;
        }
        Ok(())
    }

    fn think(&mut self) -> Wish {
        let at = self.random.below(TOPICS);
        match self.random.below(5) {
            0 | 1 => {
                self.next_value += 1;
                Wish::Retain { topic: at, value: self.next_value }
            }
            2 => Wish::Clear { topic: at },
            3 => Wish::Subscribe { filter: at },
            _ => Wish::Unsubscribe { filter: at },
        }
    }

    fn make(&mut self, link: &mut Link, wish: Wish) -> Result<(), End> {
        self.open = Some(wish.clone());
        match &wish {
            Wish::Retain { topic, value } => {
                self.publish(link, 1, &format!("kept/{topic}"), &value.to_string())?;
                self.retained.insert(*topic, *value);
            }
            Wish::Clear { topic } => {
                self.publish(link, 1, &format!("kept/{topic}"), "")?;
                self.retained.remove(topic);
            }
            Wish::Subscribe { filter } => {
                let name = format!("churn/{filter}");
                self.ask(link, |id| wire::subscribe(Level::V5, id, &[], &[(name.as_bytes(), 1)]))?;
                self.filters.insert(*filter);
            }
            Wish::Unsubscribe { filter } => {
                let name = format!("churn/{filter}");
                self.ask(link, |id| wire::unsubscribe(Level::V5, id, &[name.as_bytes()]))?;
                self.filters.remove(filter);
            }
        }
        self.open = None;
        Ok(())
    }

    fn publish(&mut self, link: &mut Link, retain: u8, topic: &str, text: &str) -> Result<(), End> {
        self.ask(link, |id| wire::publish(Level::V5, 2 | retain, topic, id, &[], text))
    }

    /// Sends a packet and waits for its acknowledgement.
    fn ask(&mut self, link: &mut Link, packet: impl Fn(u16) -> Vec<u8>) -> Result<(), End> {
        self.next_id = self.next_id % u16::MAX + 1;
        link.send(&packet(self.next_id))?;
        match self.recv(link, ANSWER)? {
            Some(
                Packet::Ack { kind: AckKind::Puback, id, code: 0 | 0x10, .. }
                | Packet::Suback { id, .. }
                | Packet::Unsuback { id, .. },
            ) if id == self.next_id => Ok(()),
            Some(other) => Err(End::Malformed(format!("unexpected {other:?}"))),
            None => Err(End::Malformed("no answer".to_owned())),
        }
    }

    /// The next packet that is no PUBLISH; those go to the inbox.
    fn recv(&mut self, link: &mut Link, time: Duration) -> Result<Option<Packet>, End> {
        loop {
            match link.recv(time)? {
                Some(Packet::Publish(publish)) => {
                    if publish.qos == 1 {
                        link.send(&wire::ack(4, publish.id))?;
                    }
                    self.inbox.push(publish);
                }
                other => return Ok(other),
            }
        }
    }

    /// The retained values that a topic may have; `None` stands for no message.
    fn allowed(&self, topic: usize) -> Vec<Option<String>> {
        let mut allowed = vec![self.retained.get(&topic).copied()];
        match self.open {
            Some(Wish::Retain { topic: open, value }) if open == topic => allowed.push(Some(value)),
            Some(Wish::Clear { topic: open }) if open == topic => allowed.push(None),
            Some(_) | None => {}
        }
        allowed.into_iter().map(|value| value.map(|value| value.to_string())).collect()
    }

    fn check_retained(&mut self, link: &mut Link) -> Result<(), End> {
        self.inbox.clear();
        self.ask(link, |id| wire::subscribe(Level::V5, id, &[], &[(b"kept/#", 0)]))?;
        let due = (0..TOPICS).filter(|topic| !self.allowed(*topic).contains(&None)).count();
        let deadline = Instant::now() + ANSWER;
        let quiet = Duration::from_millis(20);
        loop {
            let before = self.inbox.len();
            let packet = self.recv(link, quiet)?;
            let retained = self.inbox.iter().filter(|publish| publish.retain).count();
            let enough = self.inbox.len() == before && retained >= due;
            if packet.is_none() && (enough || Instant::now() > deadline) {
                break;
            }
        }
        for topic in 0..TOPICS {
            let name = format!("kept/{topic}");
            let mut found = self.inbox.iter().filter(|publish| publish.topic() == name);
            let value = found.next().map(Publish::payload);
            let allowed = self.allowed(topic);
            if !allowed.contains(&value) || found.next().is_some() {
                let what = format!("retained {name} is {value:?}, due is one of {allowed:?}");
                return Err(End::Malformed(what));
            }
        }
        self.ask(link, |id| wire::unsubscribe(Level::V5, id, &[b"kept/#"]))
    }

    fn check_filters(&mut self, link: &mut Link) -> Result<(), End> {
        self.next_value += 1;
        let nonce = self.next_value.to_string();
        self.inbox.clear();
        for filter in 0..TOPICS {
            self.publish(link, 0, &format!("churn/{filter}"), &nonce)?;
        }
        self.publish(link, 0, "end", &nonce)?;
        let deadline = Instant::now() + ANSWER;
        let is_end = |publish: &Publish| publish.topic() == "end" && publish.payload() == nonce;
        while !self.inbox.iter().any(is_end) && Instant::now() < deadline {
            self.recv(link, Duration::from_millis(20))?;
        }
        for filter in 0..TOPICS {
            let name = format!("churn/{filter}");
            let mine = |publish: &&Publish| publish.topic() == name && publish.payload() == nonce;
            let came = self.inbox.iter().filter(mine).count();
            let mut allowed = vec![usize::from(self.filters.contains(&filter))];
            match self.open {
                Some(Wish::Subscribe { filter: open }) if open == filter => allowed.push(1),
                Some(Wish::Unsubscribe { filter: open }) if open == filter => allowed.push(0),
                Some(_) | None => {}
            }
            if !allowed.contains(&came) {
                let what = format!("{name}: {came} copies came, due is one of {allowed:?}");
                return Err(End::Malformed(what));
            }
        }
        Ok(())
    }
}
