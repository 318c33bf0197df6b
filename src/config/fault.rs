//! What is wrong with a configuration, all of it at once.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    BuiltIn,
    File(PathBuf),
    /// The environment variable's name.
    Env(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn => f.write_str("built in"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Env(name) => write!(f, "environment variable {name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{}: {fault}", path.display())]
    File { path: PathBuf, fault: String },
    #[error("{key}: unknown; the nearest known key is {nearest}")]
    UnknownKey { key: String, nearest: String },
    #[error("{key}: given twice, also as {again}")]
    Twice { key: String, again: String },
    #[error("{key} = {value:?} (from {origin}): wanted {wanted}")]
    BadValue { key: String, value: String, wanted: String, origin: Origin },
    #[error("{0}")]
    Contradiction(String),
}

/// Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = if self.0.len() == 1 { "fault" } else { "faults" };
        write!(f, "{} {many} in the configuration:", self.0.len())?;
        for fault in &self.0 {
            write!(f, "\n  {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
