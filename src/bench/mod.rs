//! Room 6, `sluice bench`: a load generator for any MQTT broker.
//!
//! * In: [`BenchArgs`], the command line. Out: a table or a JSON object on standard output, and
//!   the exit code.
//! * Called by `main`, before any runtime exists: its threads are event loops of their own.
//! * Never touches our codec or any other room: it speaks through `mqttbytes`, so that our
//!   broker is not judged by its own reading of the specification. Linux only (epoll, /proc).
//!
//! A run: every connection is made (subscribers subscribe), then publishers send through a
//! warm-up and a measured window, then what is on its way may arrive (drain). A payload carries
//! publisher, sequence and send time, so that the receiving side alone knows what was lost,
//! doubled or reordered, and how long each message took. Rates count what happened inside the
//! window; latencies are those of the messages *sent* inside it, even if they arrive later, and
//! with `--rate` the send time is the schedule's, so a stalled sender hides nothing.

mod args;

mod carrier;

mod plan;

mod frame;

mod handshake;

mod schedule;

mod sequence;

mod publisher;

mod subscriber;

mod churn;

mod conn;

mod wire;

mod poller;

mod run_state;

mod tally;

mod tickets;

mod worker;

mod process;

mod conduct;

mod sessions;

mod report;

#[cfg(test)]
mod end_to_end;

use std::io::{self, Write};
use std::process::ExitCode;

pub use args::{BenchArgs, Pattern};

use crate::telemetry::clock;

/// The run could not be done at all.
const EXIT_NO_RUN: u8 = 2;

/// Does one run and prints what it showed.
pub fn run(args: BenchArgs) -> ExitCode {
    match run_and_print(args) {
        Ok(code) => code,
        Err(reason) => {
            writeln!(io::stderr(), "sluice bench: {reason}").ok();
            ExitCode::from(EXIT_NO_RUN)
        }
    }
}

fn run_and_print(args: BenchArgs) -> Result<ExitCode, String> {
    let (json, strict) = (args.json, args.strict);
    let report = run_once(args)?;
    let text = if json {
        serde_json::to_string(&report).map_err(|error| error.to_string())? + "\n"
    } else {
        report.to_string()
    };
    io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(if strict && !report.faultless() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn run_once(args: BenchArgs) -> Result<report::Report, String> {
    let run_tag = (clock::wall_ms() as u32) ^ std::process::id().rotate_left(16);
    let run = run_state::RunState::new(plan::Plan::new(args, run_tag)?);
    let outcome = conduct::conduct(&run);
    sessions::remove(&run.plan);
    Ok(report::Report::new(&run, &outcome?))
}
