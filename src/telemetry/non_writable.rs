//! The `nonWritableClients` gauge (OUT-3) as a guard: it can't leak.

use std::sync::atomic::{AtomicI64, Ordering};

static NON_WRITABLE: AtomicI64 = AtomicI64::new(0);

/// Held by a connection while it is over its high mark.
#[derive(Debug)]
pub struct NonWritable(());

impl NonWritable {
    #[expect(clippy::new_without_default, reason = "making one counts; a default must not")]
    pub fn new() -> Self {
        NON_WRITABLE.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for NonWritable {
    fn drop(&mut self) {
        NON_WRITABLE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections over their high mark now.
pub fn non_writable_clients() -> i64 {
    NON_WRITABLE.load(Ordering::Relaxed)
}
