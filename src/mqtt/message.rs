//! How a message stands to a subscription: the options a SUBSCRIBE sets, and what one copy is.

use super::QoS;

/// MQTT 5 section 3.8.3.1, bits 4 and 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RetainHandling {
    SendAtSubscribe = 0,
    SendIfNew = 1,
    DoNotSend = 2,
}

/// The options byte of one filter plus its Subscription Identifier. For v3.x: only `qos` differs
/// from the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscriptionOptions {
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
    /// 1 to 268 435 455 (MQTT 5 section 3.8.2.1.2).
    pub subscription_id: Option<u32>,
}

impl SubscriptionOptions {
    /// What a v3.x SUBSCRIBE means.
    pub fn v3(qos: QoS) -> Self {
        Self {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::SendAtSubscribe,
            subscription_id: None,
        }
    }

    /// The options as the wire's byte, without the identifier.
    pub fn to_byte(self) -> u8 {
        self.qos.bits()
            | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | (self.retain_handling as u8) << 4
    }

    /// The reverse of [`Self::to_byte`]; `None` for QoS 3, Retain Handling 3 or reserved bits.
    pub fn from_byte(byte: u8, subscription_id: Option<u32>) -> Option<Self> {
        let retain_handling = match byte >> 4 {
            0 => RetainHandling::SendAtSubscribe,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return None,
        };
        Some(Self {
            qos: QoS::from_bits(byte & 3)?,
            no_local: byte & 4 != 0,
            retain_as_published: byte & 8 != 0,
            retain_handling,
            subscription_id,
        })
    }
}

/// How one copy of a message goes to one subscriber, decided by routing, obeyed by delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The lesser of publish and subscription QoS.
    pub qos: QoS,
    /// The RETAIN bit the subscriber sees (MQTT-3.3.1-8, -12, -13).
    pub retain: bool,
}
