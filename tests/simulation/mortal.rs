//! A client with a Will, which dies in many ways.

use std::sync::Arc;

use tokio::time::{sleep, timeout};

use crate::client::{Gone, open};
use crate::dice::Dice;
use crate::ledger::WILLS_FROM;
use crate::run::{Phase, Sim};
use crate::wire::{Connect, Level, Will};

/// How a life ended, and so what is to become of its Will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It surely goes out.
    Due,
    /// It surely does not.
    Cancelled,
    /// Either.
    Open,
}

pub(crate) async fn run(sim: Arc<Sim>, number: u32, mut dice: Dice) {
    let name = format!("m{number}");
    let level = *dice.pick(&[Level::V311, Level::V5]);
    let persistent = dice.chance(500);
    let publisher = WILLS_FROM + number;
    let mut life = 0;
    let mut before: Option<(u32, usize)> = None;
    sim.subscribed().await;
    while sim.phase() == Phase::Run {
        life += 1;
        let topic = format!("w/{name}");
        let payload = format!("{publisher}/{life}/");
        let will = Will::new(&topic, &payload).qos(2);
        let connect = Connect::new(level, &name).will(will);
        let connect = if persistent { connect.persistent() } else { connect };
        let key = (publisher, life);
        sim.ledger.lock().publish(key, &topic, 2, false);
        sim.ledger.lock().attempt(key);
        let (mut wire, _, _) = open(&sim, &name, &connect, &mut dice).await;
        // Who is taken over by this connection has died by it.
        if let Some((before, outages)) = before.take() {
            let alone = sim.outages.lock().len() == outages;
            sim.died((publisher, before), if alone { Fate::Due } else { Fate::Open });
        }
        let alive = timeout(dice.ms(10, 2000), wire.recv(&sim, &name)).await;
        if let Ok(end) = alive {
            let gone = matches!(end, Err(Gone::Power | Gone::Closed));
            sim.trace.note(&name, format_args!("cut, gone {gone}"));
            if !sim.may_fail() {
                sim.trace.violate(&name, format_args!("{end:?} without a reason"));
            }
            sim.died(key, Fate::Open);
            continue;
        }
        match dice.below(3) {
            0 => {
                drop(wire);
                sim.trace.note(&name, "vanishes");
                sim.died(key, Fate::Due);
            }
            1 => {
                let read = wire.disconnect(&sim, &name).await;
                sim.trace.note(&name, "said good-bye");
                sim.died(key, if read { Fate::Cancelled } else { Fate::Open });
            }
            _ => {
                sim.keep(wire, dice.ms(3000, 5000));
                sim.trace.note(&name, "is taken over");
                before = Some((life, sim.outages.lock().len()));
            }
        }
        sleep(dice.ms(0, 1500)).await;
    }
    sim.trace.note(&name, "ended");
}
