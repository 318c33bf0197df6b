//! Arguments, configuration, runtime, run, exit code: 0 ended as asked, 1 failed while running,
//! 2 bad arguments or configuration.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sluice::admin;
use sluice::bench::{self, BenchArgs};
use sluice::broker::Broker;
use sluice::config::{self, Config, Loaded};
use sluice::plan::{self, PlanArgs};
use sluice::telemetry;
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const FAILED: u8 = 1;
const BAD_CONFIG: u8 = 2;

/// An MQTT broker: what was acknowledged is never lost, and no slow client hurts another.
#[derive(Parser)]
#[command(name = "sluice", version)]
struct Args {
    /// Settings that differ from the built-in ones (YAML; keys as in docs/configuration.md).
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the broker (the default).
    Serve,
    /// Check the configuration and show what differs from the built-in values.
    CheckConfig,
    /// Ask the node that runs here how it is: exit code 0 when it is up, 1 when not.
    Health,
    /// Put load on any MQTT broker, and prove that nothing was lost.
    Bench(Box<BenchArgs>),
    /// Look at a plan, or sign one.
    Plan(PlanArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let config = args.config.as_deref();
    match args.command.unwrap_or(Command::Serve) {
        Command::Serve => configured(config, serve),
        Command::CheckConfig => configured(config, |loaded| check_config(&loaded)),
        Command::Health => configured(config, |loaded| health(&loaded.config)),
        Command::Bench(args) => bench::run(*args),
        Command::Plan(args) => plan::run(args),
    }
}

fn configured(path: Option<&Path>, then: impl FnOnce(Loaded) -> ExitCode) -> ExitCode {
    match config::load(path, &config::process_env) {
        Ok(loaded) => then(loaded),
        Err(faults) => fail(BAD_CONFIG, &faults),
    }
}

fn fail(code: u8, fault: &dyn Display) -> ExitCode {
    // Without a standard error nobody is there to be told.
    let _told = writeln!(io::stderr(), "sluice: {fault}");
    ExitCode::from(code)
}

fn check_config(loaded: &Loaded) -> ExitCode {
    let mut text = String::from("OK\n");
    for warning in &loaded.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    for changed in &loaded.changed {
        text.push_str(&format!("{} = {} ({})\n", changed.key, changed.value, changed.origin));
    }
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(FAILED, &fault),
    }
}

fn health(config: &Config) -> ExitCode {
    match admin::probe(&config.admin) {
        Ok(report) => match writeln!(io::stdout(), "{report}") {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => fail(FAILED, &fault),
        },
        Err(fault) => fail(FAILED, &fault),
    }
}

fn serve(loaded: Loaded) -> ExitCode {
    if let Err(fault) = telemetry::init_logging() {
        return fail(BAD_CONFIG, &fault);
    }
    for warning in &loaded.warnings {
        tracing::warn!("configuration: {warning}");
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = loaded.config.service.worker_threads {
        runtime.worker_threads(threads);
    }
    let ended = match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(run(loaded.config)),
        Err(fault) => Err(fault.into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            tracing::error!(%fault, "stopped");
            ExitCode::from(FAILED)
        }
    }
}

async fn run(config: Config) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let asked = async move {
        tokio::select! {
            _ = interrupt.recv() => tracing::info!("stopping: interrupted"),
            _ = terminate.recv() => tracing::info!("stopping: told to end"),
        }
    };
    Broker::start(config).await?.run_until(asked).await
}
