//! One run: everything that a seed stands for, from the blank medium to the verdict.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice::limits::CONTROL_LANE_BYTES;
use sluice::telemetry::{Direction, DropReason, clock, dropped_so_far, metrics, task};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::client::Wire;
use crate::dice::Dice;
use crate::ledger::{Key, Ledger};
use crate::machine::Machine;
use crate::mortal::{self, Fate};
use crate::operator;
use crate::plan::{PACKET_MAX, Plan};
use crate::publisher::Publisher;
use crate::subscriber::Subscriber;
use crate::trace::Trace;
use crate::verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Subscriptions are made; nothing fails.
    Setup,
    Run,
    /// Nothing fails any more; what is open is finished.
    Drain,
    End,
}

const PHASES: [Phase; 4] = [Phase::Setup, Phase::Run, Phase::Drain, Phase::End];
/// The longest time in which things go wrong.
const RUN_MAX_MS: u64 = 40_000;
/// Longer than the grace after which Wills of a crashed node go out.
const QUIET_MS: u64 = 15_000;
/// When things don't come to rest by then, something is stuck.
const END_MAX_MS: u64 = 600_000;

/// What everybody in a run shares.
pub(crate) struct Sim {
    pub(crate) plan: Plan,
    pub(crate) trace: Trace,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) machine: Machine,
    pub(crate) deaths: Mutex<Vec<(Key, Fate, u64)>>,
    pub(crate) outages: Mutex<Vec<u64>>,
    /// Somebody has done what a crash soon after may undo in part.
    pub(crate) doom: Notify,
    phase: AtomicU8,
    moved: Notify,
    ready: AtomicU32,
    done: AtomicU32,
}

impl Sim {
    pub(crate) fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::Relaxed))]
    }

    fn enter(&self, phase: Phase) {
        self.trace.note("sim", format_args!("{phase:?}"));
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.moved.notify_waiters();
    }

    async fn reached(&self, phase: Phase) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.phase() >= phase {
                return;
            }
            moved.await;
        }
    }

    /// Waits until all first subscriptions are made.
    pub(crate) async fn subscribed(&self) {
        self.reached(Phase::Run).await;
    }

    pub(crate) async fn ended(&self) {
        self.reached(Phase::End).await;
    }

    /// Whether the node may close a connection without the client's fault.
    pub(crate) fn may_fail(&self) -> bool {
        self.plan.temper.crashes || self.plan.temper.refusals
    }

    pub(crate) fn subscriber_ready(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn publisher_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn active(&self) {
        self.ledger.lock().active_ms = self.trace.now_ms();
    }

    pub(crate) fn died(&self, key: Key, fate: Fate) {
        self.deaths.lock().push((key, fate, self.trace.now_ms()));
    }

    pub(crate) fn outage(&self) {
        self.outages.lock().push(self.trace.now_ms());
    }

    /// Keeps a connection half open: nobody reads or writes, and it closes later.
    pub(crate) fn keep(&self, wire: Wire, time: Duration) {
        task::spawn("half open", async move {
            sleep(time).await;
            drop(wire);
        });
    }
}

/// Runs a seed; its fingerprint, or how to run it again.
pub(crate) fn run(seed: u64, print: bool) -> (u64, u64) {
    let judged = catch_unwind(AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O can be built");
        runtime.block_on(simulate(seed, print))
    }));
    let fault = match judged {
        Ok(Ok(fingerprint)) => return fingerprint,
        Ok(Err(violation)) => violation,
        Err(panic) => format!("panicked: {}", text_of(&*panic)),
    };
    panic!(
        "seed {seed}: {fault}\n\
         run it again: SLUICE_SIMULATION_SEED={seed} cargo test --test simulation seeds"
    );
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

fn dropped_copies() -> u64 {
    DropReason::ALL.iter().map(|reason| dropped_so_far(*reason, Direction::Outbound)).sum()
}

async fn simulate(seed: u64, print: bool) -> Result<(u64, u64), String> {
    clock::follow_tokio();
    let mut dice = Dice::new(seed);
    let plan = Plan::new(&mut dice);
    let (panics, dropped) = (metrics::TASK_PANICS.get(), dropped_copies());
    let sim = Arc::new(Sim {
        plan,
        trace: Trace::new(print),
        ledger: Mutex::default(),
        machine: Machine::default(),
        deaths: Mutex::default(),
        outages: Mutex::default(),
        doom: Notify::new(),
        phase: AtomicU8::new(0),
        moved: Notify::new(),
        ready: AtomicU32::new(0),
        done: AtomicU32::new(0),
    });
    let Plan { medium, temper, .. } = sim.plan;
    sim.trace.note("sim", format_args!("seed {seed}: {medium:?}, {temper:?}"));
    spawn_all(&sim, &mut dice);
    let ended = drive(&sim).await;
    if ended && sim.trace.violation().is_none() {
        let lost = dropped_copies() - dropped;
        verdict::judge(&sim, lost, dice.fork()).await;
        sim.enter(Phase::End);
        // Subscribers look whether they are owed anything.
        sleep(Duration::from_secs(2)).await;
    }
    if metrics::TASK_PANICS.get() > panics {
        sim.trace.violate("sim", "a task panicked");
    }
    match sim.trace.violation() {
        None => Ok(sim.trace.fingerprint()),
        Some(violation) => Err(violation),
    }
}

fn spawn_all(sim: &Arc<Sim>, dice: &mut Dice) {
    let plan = &sim.plan;
    task::spawn("operator", operator::operate(Arc::clone(sim), dice.fork()));
    for number in 0..plan.keepers {
        let subscriber = Subscriber::new(sim, format!("k{number}"), true, dice.fork());
        task::spawn("keeper", subscriber.run());
    }
    for number in 0..plan.passers {
        let subscriber = Subscriber::new(sim, format!("q{number}"), false, dice.fork());
        task::spawn("passer", subscriber.run());
    }
    for number in 0..plan.members + plan.passing_members {
        let persistent = number < plan.members;
        let member = Subscriber::member(sim, number, persistent, dice.fork());
        task::spawn("member", member.run());
    }
    task::spawn("collector", Subscriber::collector(sim, dice.fork()).run());
    for number in 0..plan.publishers {
        task::spawn("publisher", Publisher::new(sim, number, dice.fork()).run());
    }
    for number in 0..plan.mortals {
        task::spawn("mortal", mortal::run(Arc::clone(sim), number, dice.fork()));
    }
    task::spawn("probe", probe(Arc::clone(sim)));
}

/// Leads through the phases; `false` when a violation cut the run short.
async fn drive(sim: &Sim) -> bool {
    let members = sim.plan.members + sim.plan.passing_members;
    let subscribers = sim.plan.keepers + sim.plan.passers + members + 1;
    let mut run_until = RUN_MAX_MS;
    loop {
        sleep(Duration::from_millis(100)).await;
        let now_ms = sim.trace.now_ms();
        let done = sim.done.load(Ordering::Relaxed) == sim.plan.publishers;
        match sim.phase() {
            Phase::Setup if sim.ready.load(Ordering::Relaxed) >= subscribers => {
                run_until = now_ms + RUN_MAX_MS;
                sim.enter(Phase::Run);
            }
            Phase::Run if done || now_ms > run_until => sim.enter(Phase::Drain),
            Phase::Drain if done && now_ms > sim.ledger.lock().active_ms + QUIET_MS => return true,
            Phase::Setup | Phase::Run | Phase::Drain | Phase::End => {}
        }
        if now_ms > END_MAX_MS {
            sim.trace.violate("sim", format_args!("no end in {:?}", sim.phase()));
        }
        if sim.trace.violation().is_some() {
            return false;
        }
    }
}

/// INV-6: looks at what every connection has buffered.
async fn probe(sim: Arc<Sim>) {
    let bound = sim.plan.high_bytes + PACKET_MAX + CONTROL_LANE_BYTES;
    let subscribers = (0..sim.plan.keepers).map(|n| format!("k{n}"));
    let subscribers = subscribers.chain((0..sim.plan.passers).map(|n| format!("q{n}")));
    let names: Vec<String> =
        subscribers.chain((0..sim.plan.publishers).map(|n| format!("p{n}"))).collect();
    while sim.phase() < Phase::End {
        sleep(Duration::from_millis(20)).await;
        let Some(slots) = sim.machine.slots() else { continue };
        for name in &names {
            let outbox = slots.by_client(name).and_then(|slot| slot.view().outbox);
            let buffered = outbox.map_or(0, |outbox| outbox.buffered());
            if buffered > bound {
                sim.trace.violate(name, format_args!("{buffered} bytes are buffered"));
            }
        }
    }
}
