//! The lock of a connection's write side: a mutex, and in tests the place where another thread may
//! come first.

use parking_lot::{Mutex, MutexGuard};

/// Nothing is waited for under it.
#[derive(Debug)]
pub(super) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(test)]
        super::interleave::point();
        self.0.lock()
    }
}
