//! Leads the threads through a run: connect, warm up, measure, drain, stop.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::Pattern;
use super::process::Watched;
use super::run_state::RunState;
use super::tally::{Latencies, Tally, Timeline};
use super::worker::Worker;

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// More than the longest nap of a thread, so that all start together.
const START_AFTER_NS: u64 = 50_000_000;
/// A handshake phase without any progress for so long is given up.
const STALL_NS: u64 = 15_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The run in numbers, before anything is computed from them.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) total: Tally,
    pub(super) latencies: Latencies,
    pub(super) watched: Vec<Watched>,
    pub(super) connect_secs: f64,
    pub(super) drain_secs: f64,
}

/// Runs the threads and leads them.
pub(super) fn conduct(run: &RunState) -> Result<Outcome, String> {
    let own = std::process::id();
    let pids = run.plan.args.pids.iter().copied().chain([own]);
    let mut watched = pids.map(Watched::new).collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..u32::from(run.plan.args.threads))
            .map(|index| scope.spawn(move || work(run, index)))
            .collect();
        let led = lead(run, &mut watched);
        run.stop();
        let mut latencies = Latencies::new();
        for thread in threads {
            latencies.add(&thread.join().map_err(|_| "a generator thread panicked".to_owned())?);
        }
        let (connect_secs, drain_secs) = led?;
        let total = run.sum();
        Ok(Outcome { total, latencies, watched, connect_secs, drain_secs })
    })
}

/// One thread, from its event loop's creation on; one that can't work stops the run.
fn work(run: &RunState, index: u32) -> Latencies {
    match Worker::new(run, index) {
        Ok(worker) => worker.work(),
        Err(error) => {
            run.fault(|| format!("event loop: {error}"));
            run.stop();
            Latencies::new()
        }
    }
}

fn lead(run: &RunState, watched: &mut [Watched]) -> Result<(f64, f64), String> {
    let args = &run.plan.args;
    let bar = progress_bar(args.json);
    let connect_ns = await_connections(run, &bar)?;
    if args.pattern == Pattern::Idle {
        // What the broker still does for the last connections is not part of holding them.
        thread::sleep(Duration::from_secs(args.warm.min(1)));
    }
    let start_ns = run.now_ns() + START_AFTER_NS;
    let window_from_ns = start_ns + args.warm * SECOND_NS;
    let window_to_ns = window_from_ns + args.secs * SECOND_NS;
    let timeline = Timeline { start_ns, window_from_ns, window_to_ns };
    run.timeline.set(timeline).map_err(|_| "the run was started twice")?;
    watch_until(run, watched, &bar, window_from_ns, "warming up");
    for process in &mut *watched {
        process.from = process.look();
        process.to = process.from;
    }
    watch_until(run, watched, &bar, window_to_ns, "measuring");
    for process in &mut *watched {
        process.to = process.look();
    }
    let drained_ns = drain(run, &bar, window_to_ns);
    bar.finish_and_clear();
    Ok((connect_ns as f64 / 1e9, drained_ns as f64 / 1e9))
}

fn progress_bar(quiet: bool) -> ProgressBar {
    if quiet || !io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {prefix:12} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}

/// How long it took until all connections stood.
fn await_connections(run: &RunState, bar: &ProgressBar) -> Result<u64, String> {
    let wanted = run.plan.connections();
    let began_ns = run.now_ns();
    let (mut last, mut moved_ns) = (0, began_ns);
    bar.set_prefix("connecting");
    loop {
        let now_ns = run.now_ns();
        let sum = run.sum();
        let done = sum.ready + sum.failed;
        if sum.failed > 0 && run.plan.args.pattern != Pattern::Idle {
            let why = run.first_fault().unwrap_or_default();
            return Err(format!("{} of {wanted} connections failed: {why}", sum.failed));
        }
        if run.stopped() {
            return Err(run.first_fault().unwrap_or_default());
        }
        if done >= wanted {
            if sum.ready == 0 && wanted > 0 {
                let why = run.first_fault().unwrap_or_default();
                return Err(format!("none of {wanted} connections was made: {why}"));
            }
            return Ok(now_ns - began_ns);
        }
        if done > last {
            (last, moved_ns) = (done, now_ns);
        } else if now_ns - moved_ns > STALL_NS {
            return Err(format!("only {done} of {wanted} connections were made"));
        }
        bar.set_message(format!("{done} of {wanted}"));
        bar.tick();
        thread::sleep(Duration::from_millis(5));
    }
}

fn watch_until(
    run: &RunState,
    watched: &mut [Watched],
    bar: &ProgressBar,
    until_ns: u64,
    what: &'static str,
) {
    bar.set_prefix(what);
    let (mut before, mut before_ns) = (run.sum(), run.now_ns());
    loop {
        let now_ns = run.now_ns();
        if now_ns >= until_ns {
            return;
        }
        let left = Duration::from_nanos(until_ns - now_ns);
        thread::sleep(left.min(LOOK_EVERY));
        for process in &mut *watched {
            process.look();
        }
        let (sum, now_ns) = (run.sum(), run.now_ns());
        let span = (now_ns - before_ns) as f64 / 1e9;
        if span > 0.09 {
            let rate = |now: u64, then: u64| ((now - then) as f64 / span).round();
            bar.set_message(format!(
                "in {}/s  out {}/s  behind {}",
                rate(sum.sent, before.sent),
                rate(sum.received, before.received),
                expected(run, &sum).saturating_sub(sum.received),
            ));
            bar.tick();
            (before, before_ns) = (sum, now_ns);
        }
    }
}

/// Copies that subscribers should see, of what was sent so far.
pub(super) fn expected(run: &RunState, sum: &Tally) -> u64 {
    sum.sent.saturating_sub(sum.refused) * run.plan.copies()
}

/// Waits for what is on its way; how long after the window that took.
fn drain(run: &RunState, bar: &ProgressBar, window_to_ns: u64) -> u64 {
    bar.set_prefix("draining");
    let limit_ns = window_to_ns + run.plan.args.drain * SECOND_NS;
    // The schedule's last messages may leave a little after the window.
    let settle_ns = window_to_ns + 2 * START_AFTER_NS;
    loop {
        let (now_ns, sum) = (run.now_ns(), run.sum());
        let owed = expected(run, &sum).saturating_sub(sum.received);
        let acks = if run.plan.args.qos > 0 {
            sum.sent.saturating_sub(sum.acked + sum.refused)
        } else {
            0
        };
        let nobody_left = run.plan.connections() > 0 && sum.closed >= sum.ready;
        let done = nobody_left || (owed == 0 && acks == 0);
        if done && (now_ns >= settle_ns || run.plan.copies() == 0) || now_ns >= limit_ns {
            return now_ns.saturating_sub(window_to_ns);
        }
        bar.set_message(format!("{owed} messages, {acks} acknowledgements"));
        bar.tick();
        thread::sleep(Duration::from_millis(5));
    }
}
