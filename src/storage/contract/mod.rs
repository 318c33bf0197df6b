//! The contract suite: every sentence of `ports` as a named case, for any backend.
//!
//! What comes in: a [`Factory`], which opens, crashes and restarts one backend. What goes out: a
//! panic that names what was broken. Called by tests only, of this crate and of others; a backend
//! passes all cases unchanged or is no backend. Never: knowledge of how a backend works.
//!
//! `sluice::storage_contract!(factory)` makes one test of each case.

mod cases;
mod kit;
mod log_cases;
mod queue_cases;
mod queue_crash_cases;
mod table_cases;

use super::{BoxFuture, Stores};

pub use cases::{Case, all};
pub use kit::{Inbox, Seen, batch_of, client};

/// One backend under test. Dropping it ends it.
pub trait Backend: Send {
    fn stores(&self) -> Stores;

    /// Ends it as a loss of power would, and opens what is left.
    fn crash(&mut self) -> BoxFuture<'_, ()>;

    /// Ends it in order and opens it again.
    fn restart(&mut self) -> BoxFuture<'_, ()>;

    /// Waits until what is written behind would be durable; nothing to do for most.
    fn settle(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// How a backend is to be made for a case.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// DEV-5.
    pub queue_limit: u64,
    /// DEV-6, milliseconds.
    pub queue_ttl_ms: u64,
    /// Tokens the bucket holds, refilled over an hour.
    pub tokens: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { queue_limit: 10_000, queue_ttl_ms: 604_800_000, tokens: 100 }
    }
}

pub trait Factory: Send + Sync {
    /// A fresh, empty backend.
    fn make(&self, options: Options) -> BoxFuture<'_, Box<dyn Backend>>;
}

/// Makes one Tokio test of every case; the argument is an expression that makes a `Factory`.
#[macro_export]
macro_rules! storage_contract {
    ($factory:expr) => {
        $crate::storage_contract_cases!($factory);

        #[test]
        fn every_case_is_a_test() {
            let names: Vec<&str> =
                $crate::storage::contract::all().iter().map(|case| case.name).collect();
            assert_eq!(names, CASES, "the macro and the list of cases differ");
        }
    };
}
