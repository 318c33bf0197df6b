//! What was published, acknowledged and received, as the clients saw it: the oracle. Each entry is
//! judged when it comes as far as it can be; `verdict` judges the rest at the end.

use std::collections::BTreeMap;

/// Publisher and number of a message.
pub(crate) type Key = (u32, u32);
/// Wills are messages of publishers from here on.
pub(crate) const WILLS_FROM: u32 = 1000;
/// What the members of the shared subscription share; none of them has another filter for these.
pub(crate) const SHARED_TOPICS: &str = "s/+";
/// Names one session of one subscriber.
pub(crate) type SessionNo = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Open,
    Acknowledged,
    /// The broker said that it is surely not stored, and it was sent once only.
    Refused,
    /// The client stopped asking.
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    /// When it was sent, each time, on the ledger's clock.
    pub(crate) attempts: Vec<u64>,
    pub(crate) outcome: Outcome,
}

/// A subscription as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) filter: String,
    pub(crate) qos: u8,
    /// SUBACK came.
    pub(crate) from: u64,
    /// UNSUBSCRIBE, or a change of QoS, was sent.
    pub(crate) until: Option<u64>,
}

/// What one session received.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) persistent: bool,
    pub(crate) over: bool,
    pub(crate) granted: Vec<Granted>,
    pub(crate) counts: BTreeMap<Key, Count>,
    /// First receipts by publisher, topic and QoS, in their order.
    firsts: BTreeMap<(u32, String, u8), Vec<u32>>,
}

impl Session {
    /// Of the shared subscription.
    pub(crate) fn is_member(&self) -> bool {
        self.name.starts_with(['g', 'h'])
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    /// Deliveries, resends of an exchange that the client knows left out.
    pub(crate) all: u32,
    /// Of them, those without DUP.
    pub(crate) fresh: u32,
}

/// One PUBLISH at a subscriber that is no resend of an exchange it knows.
#[derive(Clone, Debug)]
pub(crate) struct Receipt {
    pub(crate) key: Key,
    pub(crate) topic: String,
    pub(crate) qos: u8,
    pub(crate) dup: bool,
    pub(crate) retain: bool,
}

#[derive(Default)]
pub(crate) struct Ledger {
    clock: u64,
    pub(crate) messages: BTreeMap<Key, Message>,
    pub(crate) sessions: Vec<Session>,
    /// Simulated time of the last receipt or acknowledgement.
    pub(crate) active_ms: u64,
}

impl Ledger {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn publish(&mut self, key: Key, topic: &str, qos: u8, retain: bool) {
        let (topic, attempts, outcome) = (topic.to_owned(), Vec::new(), Outcome::Open);
        self.messages.insert(key, Message { topic, qos, retain, attempts, outcome });
    }

    pub(crate) fn attempt(&mut self, key: Key) {
        let now = self.tick();
        if let Some(message) = self.messages.get_mut(&key) {
            message.attempts.push(now);
        }
    }

    pub(crate) fn ends(&mut self, key: Key, outcome: Outcome) {
        if let Some(message) = self.messages.get_mut(&key) {
            let again = message.attempts.len() > 1;
            let unsure = outcome == Outcome::Refused && again;
            message.outcome = if unsure { Outcome::Unknown } else { outcome };
        }
    }

    pub(crate) fn open_session(&mut self, name: &str, persistent: bool) -> SessionNo {
        self.sessions.push(Session {
            name: name.to_owned(),
            persistent,
            over: false,
            granted: Vec::new(),
            counts: BTreeMap::new(),
            firsts: BTreeMap::new(),
        });
        self.sessions.len() - 1
    }

    pub(crate) fn session_over(&mut self, session: SessionNo) {
        self.sessions[session].over = true;
    }

    pub(crate) fn granted(&mut self, session: SessionNo, filter: &str, qos: u8) {
        let from = self.tick();
        let granted = Granted { filter: filter.to_owned(), qos, from, until: None };
        self.sessions[session].granted.push(granted);
    }

    /// Whatever holds for the filter holds no longer.
    pub(crate) fn leaving(&mut self, session: SessionNo, filter: &str) {
        let now = self.tick();
        let granted = &mut self.sessions[session].granted;
        let holding = granted.iter_mut().filter(|g| g.until.is_none() && g.filter == filter);
        holding.for_each(|granted| granted.until = Some(now));
    }

    pub(crate) fn received(&mut self, session: SessionNo, got: &Receipt) -> Result<(), String> {
        self.tick();
        let Some(message) = self.messages.get(&got.key) else {
            return Err(format!("{:?} was never published", got.key));
        };
        if message.topic != got.topic {
            return Err(format!("{:?} came with topic {}", got.key, got.topic));
        }
        if message.outcome == Outcome::Refused {
            return Err(format!("{:?} was refused as not stored, and came", got.key));
        }
        if got.qos > message.qos {
            return Err(format!("{:?} came with QoS {}", got.key, got.qos));
        }
        let session = &mut self.sessions[session];
        if got.retain {
            let fits = message.retain;
            return if fits { Ok(()) } else { Err(format!("{:?} is not retained", got.key)) };
        }
        // Turns of a shared subscription owe no order to each other (MQTT-4.6.0-6).
        let turn = session.is_member() && matches(SHARED_TOPICS, &got.topic);
        let count = session.counts.entry(got.key).or_default();
        count.all += 1;
        count.fresh += u32::from(!got.dup);
        let most = if message.qos == 1 { message.attempts.len() as u32 } else { 1 };
        let once = got.qos != 1 && message.qos != 1;
        if count.fresh > most || once && count.all > 1 {
            return Err(format!("{:?} came too often: {count:?}, {message:?}", got.key));
        }
        // Wills of different lives owe no order to each other.
        if count.all > 1 || got.key.0 >= WILLS_FROM || turn {
            return Ok(());
        }
        let place = (got.key.0, got.topic.clone(), got.qos);
        let before = session.firsts.entry(place).or_default();
        let first = |number: u32| self.messages.get(&(got.key.0, number));
        for number in before.iter().filter(|number| **number > got.key.1) {
            let Some(later) = first(*number) else { continue };
            // Attempts that overlap may end in any order.
            if message.attempts.last() < later.attempts.first() {
                return Err(format!("{:?} came after {number}, which was sent later", got.key));
            }
        }
        before.push(got.key.1);
        Ok(())
    }
}

/// MQTT's matching for the few filters that the clients use.
pub(crate) fn matches(filter: &str, topic: &str) -> bool {
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(f), Some(t)) if f == t => {}
            _ => return false,
        }
    }
}
