//! `sluice plan inspect FILE` and `sluice plan sign`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{BUILT_IN_KEY, Plan, PlanError, PrivateKey, PublicKey, sign};
use crate::telemetry::clock::wall_ms;

#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what a plan says, and whether this program takes it.
    Inspect {
        file: PathBuf,
        /// A public key to check it with, instead of the one built in: a PEM file.
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
    /// Sign a plan; the token goes to standard output, the public key to standard error.
    Sign {
        /// The Ed25519 private key, PKCS #8 in PEM (`openssl genpkey -algorithm ed25519`).
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Whose plan it is.
        #[arg(long)]
        name: String,
        /// PUBLISH packets a second, in and out, of the whole cluster.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        throughput: u32,
        /// Sessions of the whole cluster; 0: not limited.
        #[arg(long, default_value_t = 0)]
        sessions: u32,
        /// How long it holds from now on.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..36500))]
        days: u32,
    },
}

/// Exit code 0: done, and the plan is in force; 2: it is not, or could not be made.
pub fn run(args: PlanArgs) -> ExitCode {
    let now_s = wall_ms() / 1000;
    let done = match args.what {
        What::Inspect { file, key } => inspect(&file, key.as_deref(), now_s),
        What::Sign { key, name, throughput, sessions, days } => {
            let expires_at_s = now_s + u64::from(days) * 86_400;
            let sessions = Some(sessions).filter(|sessions| *sessions > 0);
            make(&key, &Plan { name, throughput, sessions, expires_at_s })
        }
    };
    // Without a standard output or error nobody is there to be told.
    match done {
        Ok((out, err)) => {
            let _told = writeln!(io::stderr(), "{err}");
            let told = writeln!(io::stdout(), "{out}");
            if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(fault) => {
            let _told = writeln!(io::stderr(), "sluice: {fault}");
            ExitCode::from(2)
        }
    }
}

/// What goes to standard output, and to standard error.
type Said = Result<(String, String), PlanError>;

pub(super) fn inspect(file: &Path, key: Option<&Path>, now_s: u64) -> Said {
    let key = match key {
        Some(path) => PublicKey::parse(&read(path)?)?,
        None => PublicKey::parse(BUILT_IN_KEY.ok_or(PlanError::NoKey)?)?,
    };
    let plan = Plan::read(file, &key)?;
    plan.check(now_s)?;
    let sessions = plan.sessions.map_or("not limited".into(), |sessions| sessions.to_string());
    let days = (plan.expires_at_s - now_s) / 86_400;
    let out = format!(
        "name: {}\nthroughput: {} messages a second\nsessions: {sessions}\nexpires: {} (in {days} \
         days)",
        plan.name, plan.throughput, plan.expires_at_s
    );
    Ok((out, "the signature is right".into()))
}

pub(super) fn make(key: &Path, plan: &Plan) -> Said {
    let key = PrivateKey::parse(&read(key)?)?;
    let token = sign(plan, &key)?;
    let public = key.public().text();
    Ok((token, format!("build with SLUICE_PLAN_PUBLIC_KEY={public}")))
}

fn read(path: &Path) -> Result<String, PlanError> {
    let unreadable = |fault| PlanError::Unreadable(format!("{}: {fault}", path.display()));
    std::fs::read_to_string(path).map_err(unreadable)
}
