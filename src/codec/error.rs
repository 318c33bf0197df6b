//! Why a frame is no packet.

use crate::mqtt::ReasonCode;

/// The two kinds of fault that MQTT 5 section 4.13 tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The bytes don't parse.
    Malformed,
    /// They parse, but must not be sent, or not now.
    ProtocolError,
}

/// What is wrong with a frame, and what a server answers. Ends the connection in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct DecodeError {
    pub fault: Fault,
    /// For a v5 CONNACK or DISCONNECT: 0x81, 0x82, 0x84, 0x94, 0x95…
    pub reason: ReasonCode,
    /// The v3.x CONNACK return code, where v3.x has one (0x01, 0x02); else the connection is just
    /// closed.
    pub connack_v3: Option<u8>,
    /// For the log: which rule, with its normative id.
    pub detail: &'static str,
}

impl DecodeError {
    pub const fn malformed(detail: &'static str) -> Self {
        let (fault, reason) = (Fault::Malformed, ReasonCode::MalformedPacket);
        Self { fault, reason, connack_v3: None, detail }
    }

    pub const fn protocol(detail: &'static str) -> Self {
        let (fault, reason) = (Fault::ProtocolError, ReasonCode::ProtocolError);
        Self { fault, reason, connack_v3: None, detail }
    }

    #[must_use]
    pub const fn with_reason(mut self, reason: ReasonCode) -> Self {
        self.reason = reason;
        self
    }

    #[must_use]
    pub const fn with_connack_v3(mut self, code: u8) -> Self {
        self.connack_v3 = Some(code);
        self
    }
}

/// Why a packet can't be written. Nothing was appended then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    #[error("the packet is above the limit of {limit} bytes")]
    TooLarge { limit: u32 },
    #[error("a string or binary field is longer than 65 535 bytes")]
    FieldTooLong,
    #[error("this version of MQTT has no such packet")]
    NotInVersion,
    /// A filter that came as an error has no text to write.
    #[error("a topic filter is invalid")]
    InvalidFilter,
    /// A SUBSCRIBE carries one Subscription Identifier for all its filters, from 1 to 268 435 455.
    #[error("a subscription identifier is out of range or differs between filters")]
    SubscriptionId,
}
