//! Quality of service (MQTT 5 section 4.3).

/// Ordered: a delivery goes out at the lesser of publish and subscription QoS (MQTT-3.8.4-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum QoS {
    AtMostOnce = 0,
    AtLeastOnce = 1,
    ExactlyOnce = 2,
}

impl QoS {
    /// `None` for 3, which is malformed wherever it stands (MQTT-3.3.1-4).
    pub fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(QoS::AtMostOnce),
            1 => Some(QoS::AtLeastOnce),
            2 => Some(QoS::ExactlyOnce),
            _ => None,
        }
    }

    pub fn bits(self) -> u8 {
        self as u8
    }

    /// Whether a delivery at this QoS carries a packet id and is acknowledged.
    pub fn is_acknowledged(self) -> bool {
        self != QoS::AtMostOnce
    }
}
