//! What happens to the machine: power cuts, stops, bad media.

use std::sync::Arc;
use std::time::Duration;

use sluice::storage::memory::Faults;
use tokio::time::{sleep, timeout};

use crate::dice::Dice;
use crate::machine::{Backend, Media, Running, blank};
use crate::run::{Phase, Sim};

const WHO: &str = "node";

/// Runs the node until the end of the simulation.
pub(crate) async fn operate(sim: Arc<Sim>, mut dice: Dice) {
    let media = blank(&sim.plan, &mut dice);
    let mut running = sim.machine.start(&sim.plan, media, &mut dice).await;
    sim.trace.note(WHO, "runs");
    sim.subscribed().await;
    while sim.phase() == Phase::Run {
        let quiet = sleep(dice.ms(50, 1500));
        let soon = dice.ms(0, 150);
        let doomed = tokio::select! {
            biased;
            () = running.power.went() => true,
            () = sim.doom.notified(), if sim.plan.temper.crashes => {
                drop(timeout(soon, running.power.went()).await);
                true
            }
            () = quiet => sim.plan.temper.crashes && dice.chance(300),
        };
        if doomed {
            running = restart(&sim, running, &mut dice).await;
        } else {
            disturb(&sim, &running, &mut dice).await;
        }
    }
    heal(&running.backend);
    sim.trace.note(WHO, "is healed");
    if running.power.is_gone() {
        running = restart(&sim, running, &mut dice).await;
    }
    sim.ended().await;
    drop(running);
}

/// Down, by loss of power or in order, and up again.
async fn restart(sim: &Sim, running: Running, dice: &mut Dice) -> Running {
    sim.outage();
    let orderly = !running.power.is_gone() && dice.chance(250);
    let media = if orderly {
        sim.trace.note(WHO, "stops");
        sim.machine.stop(running).await
    } else {
        sim.trace.note(WHO, "loses its power");
        sim.machine.crash(running)
    };
    sleep(dice.ms(0, 2000)).await;
    if let Media::Memory(memory) = &media {
        memory.set_faults(Faults { rollback: true, ..Faults::default() });
    }
    sim.outage();
    let running = sim.machine.start(&sim.plan, media, dice).await;
    sim.trace.note(WHO, "runs again");
    running
}

/// A bad time for the medium, as far as the plan allows it.
async fn disturb(sim: &Sim, running: &Running, dice: &mut Dice) {
    let temper = sim.plan.temper;
    match &running.backend {
        Backend::Memory(memory) => {
            let delay = *dice.pick(&[0, 1, 20, 200]);
            let (not_stored, in_doubt) = match temper.refusals {
                true => (*dice.pick(&[0, 0, 50, 300]), *dice.pick(&[0, 0, 50, 300])),
                false => (0, 0),
            };
            let (delay, rollback) = (Duration::from_millis(delay), temper.crashes);
            let faults = Faults { delay, not_stored, in_doubt, rollback, ..Faults::default() };
            sim.trace.note(WHO, format_args!("{faults:?}"));
            memory.set_faults(faults);
        }
        Backend::Disk(disk, _) if temper.refusals || temper.crashes => {
            let kind = match (temper.refusals, temper.crashes) {
                (true, true) => dice.below(6),
                (true, false) => dice.below(5),
                (false, _) => 5,
            };
            let bad_time = dice.ms(10, 1000);
            sim.trace.note(WHO, format_args!("disk fault {kind} for {bad_time:?}"));
            match kind {
                0 => disk.sim().fail_writes(dice.between(1, 5)),
                1 => disk.sim().fail_syncs(dice.between(1, 3)),
                2 => disk.sim().fail_write_after(dice.below(4000)),
                3 => {
                    disk.sim().limit(Some(0));
                    drop(timeout(bad_time, running.power.went()).await);
                    disk.sim().limit(None);
                }
                4 => {
                    disk.projection().fail(true);
                    drop(timeout(bad_time, running.power.went()).await);
                    disk.projection().fail(false);
                }
                _ => disk.cut_in(dice.below(40)),
            }
        }
        Backend::Disk(..) => {}
    }
}

fn heal(backend: &Backend) {
    match backend {
        Backend::Disk(disk, _) => disk.heal(),
        Backend::Memory(memory) => memory.set_faults(Faults::default()),
    }
}
