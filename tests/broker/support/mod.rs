//! What the black-box tests stand on: a broker process, a client that speaks bytes, and a strict
//! parser for what the broker sends.
//!
//! Comes in: the built `sluice` binary. Goes out: [`Broker`] and [`Client`]. Never: the broker's
//! own codec, which must not be the judge of itself.

mod client;
mod harness;
mod link;
mod matching;
mod packets;
mod parse;
mod properties;
mod random;

pub(crate) use client::{Client, PATIENCE};
pub(crate) use harness::{Broker, Start, free_port};

pub(crate) use link::{Link, Transport, encrypt, papers, roots_of, trusting};
pub(crate) use matching::matches;
pub(crate) use packets::{Connect, Level, Will, hex, prop, wire};
pub(crate) use parse::{AckKind, Packet, Publish, parse};
pub(crate) use random::Random;
