//! Room 1: bytes ↔ [`Packet`], for protocol levels 3, 4 and 5, both directions.
//!
//! What comes in: the bytes of whole frames and the version. What goes out: a packet that borrows
//! from those bytes, or a [`DecodeError`] with its reason code. Never: a socket, a clock, or an
//! allocation larger than the packet limit.

mod error;
mod packet;

pub use error::{DecodeError, Fault};
pub use packet::{
    Ack, AckKind, AckProperties, Auth, Connack, ConnackProperties, Connect, ConnectProperties,
    Disconnect, Packet, Publish, Suback, Subscribe, SubscribeFilter, Unsuback, Unsubscribe,
    UserProperty, Will,
};
