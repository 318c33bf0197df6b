//! Bytes of a client, made and read by hand: the builders and the strict parser of the black-box
//! tests, which know nothing of the broker's codec.

#[path = "../../broker/support/packets.rs"]
#[allow(dead_code, reason = "the simulated clients say less than the black-box ones")]
mod packets;
#[path = "../../broker/support/parse.rs"]
#[allow(dead_code, reason = "the simulated clients look at less than the black-box ones")]
mod parse;
#[path = "../../broker/support/properties.rs"]
#[allow(dead_code, reason = "the simulated clients look at less than the black-box ones")]
mod properties;

pub(crate) use packets::{Connect, Level, Will, prop, wire};
pub(crate) use parse::{AckKind, Packet, Publish, parse};
