//! Whether a PUBLISH is within the limits by rate: its client's windows (LIM-1), then the quota,
//! charged with the whole fan-out (QUO-2).

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use crate::codec::Publish;
use crate::limits::RateKey;
use crate::mqtt::{ClientId, QoS};
use crate::routing::{Limits, Subscriptions};
use crate::storage::{Attempt, Charge};
use crate::telemetry::metrics;

/// Topics whose fan-out a connection remembers: a publisher has few, and keeps to them.
const REMEMBERED: usize = 4;

/// What the limits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    Admitted(Charge),
    Refused,
    /// The quota has to be asked: [`Gate::settle`], then the same packet again.
    Wait,
}

/// A packet that waits for the quota.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    cost: u64,
    answer: Option<Option<Charge>>,
}

/// The answer of a fan-out lookup, valid while the subscriptions are the same.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    topic: u64,
    version: u64,
    fan_out: u64,
}

/// One connection's side of the limits. Nothing of it costs memory while they are off.
#[derive(Debug)]
pub struct Gate {
    key: Option<RateKey>,
    waiting: Option<Waiting>,
    known: Option<Box<[Known; REMEMBERED]>>,
    /// DUP=1 resends that are not refused any more: what a resumed session had in flight comes
    /// first, and may be stored already (design decision 9).
    resends: u16,
}

impl Gate {
    /// `resends`: how many exchanges the session may have had open when it was resumed.
    pub fn new(limits: &Limits, client_id: &ClientId, resends: u16) -> Self {
        let key = limits.incoming.as_ref().map(|table| table.key(client_id.as_str()));
        Self { key, waiting: None, known: None, resends }
    }

    /// Judges the packet at hand. `begun`: it repeats one that may be stored.
    pub fn judge(
        &mut self,
        limits: &Limits,
        subscriptions: &Subscriptions,
        publisher: &ClientId,
        (topic, publish): (&str, &Publish<'_>),
        begun: bool,
    ) -> Ruling {
        if let Some(Waiting { answer: Some(answer), .. }) = self.waiting.take() {
            return answer.map_or_else(refused_by_quota, Ruling::Admitted);
        }
        let must_pass = begun || self.is_resend(publish);
        let bytes = topic.len() + publish.properties.len() + publish.payload.len();
        if let (Some(table), Some(key)) = (&limits.incoming, self.key)
            && !table.take(key, bytes)
            && !must_pass
        {
            metrics::LIMITED_INCOMING.inc();
            return Ruling::Refused;
        }
        let Some(quota) = &limits.throughput else { return Ruling::Admitted(Charge::default()) };
        let cost = 1 + self.fan_out(subscriptions, topic, publish.qos, publisher);
        if must_pass {
            return Ruling::Admitted(quota.charge(cost));
        }
        match quota.attempt(cost) {
            Attempt::Admitted(charge) => Ruling::Admitted(charge),
            Attempt::Refused => refused_by_quota(),
            Attempt::Wait => {
                self.waiting = Some(Waiting { cost, answer: None });
                Ruling::Wait
            }
        }
    }

    /// Asks the quota for the packet that waits. Cancel safe: yes.
    pub async fn settle(&mut self, limits: &Limits) {
        if let (Some(waiting), Some(quota)) = (&mut self.waiting, &limits.throughput)
            && waiting.answer.is_none()
        {
            waiting.answer = Some(quota.take(waiting.cost).await);
        }
    }

    /// The packet that waits will not come again.
    pub(super) fn abandon(&mut self) -> Charge {
        self.waiting.take().and_then(|waiting| waiting.answer.flatten()).unwrap_or_default()
    }

    fn is_resend(&mut self, publish: &Publish<'_>) -> bool {
        if publish.packet_id.is_none() {
            return false;
        }
        let resend = publish.dup && self.resends > 0;
        // Resends come in their order, before anything new (MQTT-4.6.0-1).
        self.resends = if resend { self.resends - 1 } else { 0 };
        resend
    }

    fn fan_out(
        &mut self,
        subscriptions: &Subscriptions,
        topic: &str,
        qos: QoS,
        publisher: &ClientId,
    ) -> u64 {
        // Read before the lookup: a change in between makes the answer look old, never new.
        let version = subscriptions.version() + 1;
        let hash = hasher().hash_one((topic, qos.is_acknowledged()));
        let known = self.known.get_or_insert_default();
        let place = &mut known[hash as usize % REMEMBERED];
        if (place.topic, place.version) != (hash, version) {
            let fan_out = subscriptions.fan_out(topic, qos, publisher);
            *place = Known { topic: hash, version, fan_out };
        }
        place.fan_out
    }
}

fn refused_by_quota() -> Ruling {
    metrics::LIMITED_TOTAL.inc();
    Ruling::Refused
}

/// Keyed, so that nobody can choose topics that look alike.
fn hasher() -> &'static ahash::RandomState {
    static HASHER: OnceLock<ahash::RandomState> = OnceLock::new();
    HASHER.get_or_init(|| ahash::RandomState::with_seed(RandomState::new().hash_one(0) as usize))
}
