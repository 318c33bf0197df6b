//! Which topics a client may be sent, as its rules say at this moment.

use std::fmt;
use std::sync::Arc;

/// Asked for each copy just before it is encoded, wherever it comes from: live, retained, queued.
#[derive(Clone)]
pub struct Gate(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl Gate {
    pub fn new(lets_pass: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(lets_pass))
    }

    pub(super) fn lets_pass(&self, topic: &str) -> bool {
        (self.0)(topic)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

/// The same gate, not one that lets the same pass.
impl PartialEq for Gate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Gate {}
