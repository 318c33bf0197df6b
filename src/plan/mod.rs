//! Room 1: the plan, a signed token (EdDSA JWT) that says how much a cluster may carry.
//!
//! What comes in: the text of a token and the public key that this program was built with. What
//! goes out: a [`Plan`], or the reason why there is none; for the command line, its lines. Who
//! calls: the broker at its start, `main` for `sluice plan`. Never: a default key, a token that
//! is taken at its word, a network.

mod command;
mod keys;
mod token;

use std::path::Path;

pub use command::{PlanArgs, run};
pub use keys::{PrivateKey, PublicKey};
pub use token::sign;

/// What was bought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub name: String,
    /// PUBLISH packets a second, in and out, for the whole cluster.
    pub throughput: u32,
    /// Sessions of the cluster; `None`: not limited.
    pub sessions: Option<u32>,
    /// Seconds since the epoch.
    pub expires_at_s: u64,
}

/// Why a plan is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("the plan can't be read: {0}")]
    Unreadable(String),
    #[error(
        "this program was built without a public key (SLUICE_PLAN_PUBLIC_KEY): it takes no plan"
    )]
    NoKey,
    #[error("the public key or private key is no Ed25519 key: {0}")]
    BadKey(String),
    #[error("the plan is no signed token: {0}")]
    Malformed(String),
    #[error("the plan's signature is not right: it was made with another key, or changed")]
    Forged,
    #[error("the plan {name:?} expired {since_s} s ago")]
    Expired { name: String, since_s: u64 },
}

/// The key that this program was built with: base64 of the 32 bytes, or of their DER form.
const BUILT_IN_KEY: Option<&str> = option_env!("SLUICE_PLAN_PUBLIC_KEY");

impl Plan {
    /// Reads the plan in a file, and trusts it as far as the built-in key does.
    pub fn load(path: &Path, now_s: u64) -> Result<Plan, PlanError> {
        let key = BUILT_IN_KEY.filter(|key| !key.trim().is_empty()).ok_or(PlanError::NoKey)?;
        let plan = Plan::read(path, &PublicKey::parse(key)?)?;
        plan.check(now_s)?;
        Ok(plan)
    }

    /// Reads a plan that was signed with the other half of this key, expired or not.
    pub fn read(path: &Path, key: &PublicKey) -> Result<Plan, PlanError> {
        let unreadable = |fault| PlanError::Unreadable(format!("{}: {fault}", path.display()));
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        token::verify(text.trim(), key)
    }

    /// Whether it is in force.
    pub fn check(&self, now_s: u64) -> Result<(), PlanError> {
        if now_s < self.expires_at_s {
            return Ok(());
        }
        let since_s = now_s - self.expires_at_s;
        Err(PlanError::Expired { name: self.name.clone(), since_s })
    }
}

#[cfg(test)]
mod tests;
