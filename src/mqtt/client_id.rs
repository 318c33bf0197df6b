//! The Client Identifier (MQTT 5 section 3.1.3.1): UTF-8, at most 65 535 bytes, compared byte-wise.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
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

/// Something that knows its client's identifier.
pub trait HasClientId {
    fn client_id(&self) -> &ClientId;
}

/// It, in a set in which it is found under that identifier: a map would keep that twice.
#[derive(Clone, Debug)]
pub struct ByClientId<T>(pub T);

impl<T: HasClientId> Borrow<str> for ByClientId<T> {
    fn borrow(&self) -> &str {
        self.0.client_id().as_str()
    }
}

impl<T: HasClientId> Hash for ByClientId<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As `str` does: it is looked for by text.
        self.0.client_id().as_str().hash(state);
    }
}

impl<T: HasClientId> PartialEq for ByClientId<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.client_id() == other.0.client_id()
    }
}

impl<T: HasClientId> Eq for ByClientId<T> {}
