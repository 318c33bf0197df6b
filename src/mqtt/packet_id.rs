//! The Packet Identifier (MQTT 5 section 2.2.1): 1 to 65 535, never 0.

use std::fmt;
use std::num::NonZeroU16;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketId(NonZeroU16);

impl PacketId {
    pub const MIN: PacketId = PacketId(NonZeroU16::MIN);
    pub const MAX: PacketId = PacketId(NonZeroU16::MAX);

    /// `None` for 0, which MQTT-2.2.1-3 and -4 forbid.
    pub fn new(id: u16) -> Option<Self> {
        NonZeroU16::new(id).map(Self)
    }

    pub fn get(self) -> u16 {
        self.0.get()
    }

    /// The id after this one; 1 follows 65 535.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).unwrap_or(NonZeroU16::MIN))
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
