//! Room 1: bytes ↔ [`Packet`], for protocol levels 3, 4 and 5, both directions.
//!
//! What comes in: the bytes of a connection, of which [`frame_length`] tells how many make the
//! next packet, and the version; or a packet to write. What goes out: a packet that borrows from
//! those bytes, or a [`DecodeError`] with its reason code; or bytes appended to the caller's
//! buffer. The session calls the reading half, delivery the writing half; tests and tools use
//! both as a client. Never: a socket, a clock, a length from the wire taken as a size to
//! allocate.

#![deny(clippy::cast_possible_truncation)]

mod decode;
mod encode;
mod error;
mod forwarded;
mod frame;
mod packet;
mod properties;
mod reader;
mod writer;

pub use decode::decode;
pub use encode::{
    EncodeLimits, EncodedHead, PublishHead, connack_v3_code, encode, encode_ack, encode_within,
    patch_dup, patch_packet_id,
};
pub use error::{DecodeError, EncodeError, Fault};
pub use forwarded::{ForwardedProperty, forwarded_properties, put_forwarded_property};
pub use frame::{FrameLength, MAX_PACKET_SIZE, Peer, connect_level, frame_length};
pub use packet::{
    Ack, AckKind, AckProperties, Auth, Connack, ConnackProperties, Connect, ConnectProperties,
    Disconnect, Packet, Publish, Suback, Subscribe, SubscribeFilter, Unsuback, Unsubscribe,
    UserProperty, Will,
};

#[cfg(test)]
mod tests;
