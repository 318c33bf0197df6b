//! Room 0: the words of the MQTT specification as pure values.
//!
//! What comes in: raw strings and numbers. What goes out: checked values that every other room can
//! trust. Never: Tokio, I/O, logging, or a clock.

mod client_id;
mod message;
mod packet_id;
mod qos;
mod reason;
mod topic;
mod version;

pub use client_id::{ByClientId, ClientId, HasClientId};
pub use message::{Delivery, RetainHandling, SubscriptionOptions};
pub use packet_id::PacketId;
pub use qos::QoS;
pub use reason::ReasonCode;
pub use topic::{ShareName, TopicError, TopicFilter, TopicName, matches, topic_str};
pub use version::ProtocolVersion;
