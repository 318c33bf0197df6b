//! The Client Identifier (MQTT 5 section 3.1.3.1): UTF-8, at most 65 535 bytes, compared byte-wise.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// A client identifier; cheap to clone, byte-exact identity, never normalised or cut.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(Arc<str>);

impl ClientId {
    /// Takes any text the wire can carry; the empty id is the caller's to refuse or replace.
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ClientId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
