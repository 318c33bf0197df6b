//! What can be judged only at the end of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;

use crate::client::open;
use crate::dice::Dice;
use crate::ledger::{Key, Ledger, Message, Outcome, SHARED_TOPICS, Session, WILLS_FROM, matches};
use crate::mortal::Fate;
use crate::run::Sim;
use crate::subscriber::{SHARED, key_of};
use crate::wire::{Connect, Level, Packet, wire};

const WHO: &str = "end";
/// So long after a Will was due, the node may still lose that it was.
const WILL_SETTLES_MS: u64 = 3000;

pub(crate) async fn judge(sim: &Sim, dropped: u64, dice: Dice) {
    received(sim);
    shared(sim);
    wills(sim);
    if !sim.plan.temper.rude {
        counted(sim, dropped);
    }
    retained(sim, dice).await;
}

/// INV-2: what was acknowledged reached every session that was owed it; what was refused nobody.
fn received(sim: &Sim) {
    let ledger = sim.ledger.lock();
    for session in &ledger.sessions {
        for (key, message) in &ledger.messages {
            let count = session.counts.get(key).map_or(0, |count| count.all);
            let owed = !session.over && session.persistent && owes(session, message);
            if owed && message.outcome == Outcome::Acknowledged && count == 0 {
                let text = format!("{} never got {key:?}: {message:?}", session.name);
                sim.trace.violate(WHO, text);
            }
            if message.outcome == Outcome::Refused && count > 0 {
                let text = format!("{} got {key:?}, which was refused", session.name);
                sim.trace.violate(WHO, text);
            }
        }
    }
}

/// Whether one of the subscriptions that hold to the end began before the message was first sent.
fn owes(session: &Session, message: &Message) -> bool {
    let begun = |from: u64| message.attempts.first().is_some_and(|sent| from < *sent);
    session.granted.iter().any(|granted| {
        granted.until.is_none()
            && granted.qos.min(message.qos) > 0
            && begun(granted.from)
            && matches(&granted.filter, &message.topic)
    })
}

/// INV-2, SHR-2, SHR-5: each message of the shared subscription went to a member; to one only where
/// it is QoS 2 all the way. A session that ends takes with it what it was sent at QoS 2. A member
/// that does not last may lose what it has no room for.
fn shared(sim: &Sim) {
    if sim.plan.passing_members > 0 {
        return;
    }
    let ledger = sim.ledger.lock();
    let members: Vec<&Session> = ledger.sessions.iter().filter(|one| one.is_member()).collect();
    let forgot = members.iter().any(|member| member.persistent && member.over);
    let granted = members.iter().flat_map(|one| &one.granted);
    let exact = granted.filter(|one| one.filter == SHARED).all(|granted| granted.qos == 2);
    for (key, message) in &ledger.messages {
        if message.qos == 0 || !matches(SHARED_TOPICS, &message.topic) {
            continue;
        }
        let counts = members.iter().filter_map(|one| one.counts.get(key));
        let copies: u32 = counts.map(|count| count.all).sum();
        let ended = forgot && message.qos == 2;
        let lost = message.outcome == Outcome::Acknowledged && copies == 0 && !ended;
        let twice = exact && message.qos == 2 && copies > 1;
        if lost || twice {
            let text = format!("{copies} copies of {key:?} went to members: {message:?}");
            sim.trace.violate(WHO, text);
        }
    }
}

/// WIL-01, WIL-09: what was due went out once, and what was cancelled did not.
fn wills(sim: &Sim) {
    let ledger = sim.ledger.lock();
    let Some(collector) = ledger.sessions.iter().find(|session| session.name == "wills") else {
        return;
    };
    let outages = sim.outages.lock();
    for (key, fate, at_ms) in sim.deaths.lock().iter() {
        let disturbed = outages.iter().any(|out| (*at_ms..at_ms + WILL_SETTLES_MS).contains(out));
        let came = collector.counts.get(key).map_or(0, |count| count.all);
        let right = match fate {
            _ if disturbed => came <= 1,
            Fate::Due => came == 1,
            Fate::Cancelled => came == 0,
            Fate::Open => came <= 1,
        };
        if !right {
            let text = format!("Will {key:?}, {fate:?} at {at_ms} ms, came {came} times");
            sim.trace.violate(WHO, text);
        }
    }
}

/// INV-7: where no client goes away, the drop counters explain every copy that did not arrive.
fn counted(sim: &Sim, dropped: u64) {
    let ledger = sim.ledger.lock();
    let (mut due, mut came) = (0, 0);
    for session in &ledger.sessions {
        let matching = |message: &&Message| {
            let filters = &session.granted;
            filters.iter().any(|granted| matches(&granted.filter, &message.topic))
        };
        due += ledger.messages.values().filter(matching).count() as u64;
        came += session.counts.values().map(|count| u64::from(count.all)).sum::<u64>();
    }
    let of_group = |message: &&Message| matches(SHARED_TOPICS, &message.topic);
    due += ledger.messages.values().filter(of_group).count() as u64;
    sim.trace.note(WHO, format_args!("{due} copies due, {came} came, {dropped} counted as lost"));
    if due != came + dropped {
        let text = format!("{due} copies were due, {came} came, {dropped} were counted as lost");
        sim.trace.violate(WHO, text);
    }
}

/// The retained value of each topic is the last acknowledged one.
async fn retained(sim: &Sim, mut dice: Dice) {
    let connect = Connect::new(Level::V5, "auditor");
    let (mut wire, _, _) = open(sim, WHO, &connect, &mut dice).await;
    wire.send(&wire::subscribe(Level::V5, 1, &[], &[(b"r/#", 1)]));
    let mut found: BTreeMap<String, Key> = BTreeMap::new();
    while let Ok(Ok(packet)) = timeout(Duration::from_secs(5), wire.recv(sim, WHO)).await {
        let Packet::Publish(publish) = packet else { continue };
        let Some(key) = key_of(&publish.payload) else { continue };
        if publish.qos > 0 {
            wire.send(&wire::ack(4, publish.id));
        }
        if found.insert(publish.topic(), key).is_some() || !publish.retain {
            sim.trace.violate(WHO, format_args!("{} came twice, or live", publish.topic()));
        }
    }
    let ledger = sim.ledger.lock();
    for topic in ["r/0", "r/1", "r/2"] {
        let right = acceptable(&ledger, topic);
        let value = found.get(topic).copied();
        sim.trace.note(WHO, format_args!("{topic} holds {value:?}"));
        if !right.contains(&value) {
            let text = format!("{topic} holds {value:?}; it should be one of {right:?}");
            sim.trace.violate(WHO, text);
        }
    }
}

/// The last acknowledged value, and those after it that may have been stored.
fn acceptable(ledger: &Ledger, topic: &str) -> Vec<Option<Key>> {
    let mut right = Vec::new();
    let all = ledger.messages.iter().rev();
    let of_topic = all.filter(|(key, m)| key.0 < WILLS_FROM && m.retain && m.topic == topic);
    for (key, message) in of_topic {
        match message.outcome {
            Outcome::Acknowledged => {
                right.push(Some(*key));
                return right;
            }
            Outcome::Unknown | Outcome::Open => right.push(Some(*key)),
            Outcome::Refused => {}
        }
    }
    right.push(None);
    right
}
