//! The protocol level that a CONNECT names.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ProtocolVersion {
    /// Level 3, protocol name `MQIsdp`.
    V31 = 3,
    /// Level 4.
    V311 = 4,
    V5 = 5,
}

impl ProtocolVersion {
    pub fn is_v5(self) -> bool {
        self == ProtocolVersion::V5
    }

    pub fn level(self) -> u8 {
        self as u8
    }

    pub fn from_level(level: u8) -> Option<Self> {
        match level {
            3 => Some(ProtocolVersion::V31),
            4 => Some(ProtocolVersion::V311),
            5 => Some(ProtocolVersion::V5),
            _ => None,
        }
    }
}
