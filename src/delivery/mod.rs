//! Room 2: one connected client, the write side.
//!
//! What comes in: copies that routing offers, control packets, acknowledgements the session read.
//! What goes out: bytes on one socket, in order, within credit and watermark. Who calls: routing
//! offers, session controls. Never: deciding who should receive, or waiting for the read side.

mod alias;
mod answers;
mod backlog;
mod channel;
mod config;
mod credit;
mod gate;
mod lent;
mod lock;
mod out_buffer;
mod outbox;
mod packet_ids;
mod pause;
mod probe;
mod pull;
mod replay_guard;
mod socket;
mod subscriber;
mod tally;
mod toll;
mod watermark;
mod writer;

#[cfg(test)]
mod accounting_tests;
#[cfg(test)]
mod interleave;
#[cfg(test)]
mod rest_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use answers::ClientAck;
pub use config::Config;
pub use gate::Gate;
pub use lent::{GroupCopy, Left};
pub use outbox::{AckOut, OpenCursor, Outbox};
pub use socket::{Owner, Socket};
pub use subscriber::{Slot, SlotId, SlotView, Slots};
pub use toll::Toll;
pub use writer::write;

use crate::mqtt::{ClientId, Delivery, ProtocolVersion};
use crate::storage::Batch;

/// What a CONNECT fixed for this connection's write side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For log lines.
    pub client_id: ClientId,
    pub version: ProtocolVersion,
    /// The client's Receive Maximum; never 0.
    pub receive_maximum: u16,
    /// The client's Maximum Packet Size, bytes.
    pub maximum_packet_size: Option<u32>,
    /// The client's Topic Alias Maximum.
    pub topic_alias_maximum: u16,
    /// Whether Reason Strings and User Properties may go out on acks (MQTT-3.1.2-29).
    pub problem_information: bool,
    /// What may be sent to the client; `None`: everything.
    pub gate: Option<Gate>,
}

/// One copy on its way to one client.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub batch: &'a Arc<Batch>,
    pub index: usize,
    pub delivery: Delivery,
    pub subscription_ids: &'a [u32],
    /// Charged at admission, or with the cursor that brings it: it pays no toll.
    pub paid: bool,
    /// It is a shared group's, and no queue has it.
    pub share: Option<GroupCopy>,
}
