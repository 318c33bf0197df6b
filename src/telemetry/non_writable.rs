//! The `nonWritableClients` gauge (OUT-3) as a guard: it can't leak.

use super::metrics;

/// Held by a connection while it is over its high mark.
#[derive(Debug)]
pub struct NonWritable(());

impl NonWritable {
    /// Counts one connection until the guard is dropped.
    pub fn count() -> Self {
        metrics::NON_WRITABLE_CLIENTS.inc();
        Self(())
    }
}

impl Drop for NonWritable {
    fn drop(&mut self) {
        metrics::NON_WRITABLE_CLIENTS.dec();
    }
}
