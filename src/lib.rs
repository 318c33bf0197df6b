//! Sluice, a clustered MQTT broker: what was acknowledged is never lost, and no slow or greedy
//! client hurts another.
//!
//! The rooms, in the order in which a PUBLISH meets them (number = layer):
//!
//! * [`mqtt`] (0) the specification's words as pure values
//! * [`limits`] (0) every bound, and what happens at it
//! * [`cluster`] (0) which nodes live, and what is whose
//! * [`telemetry`] (0) tracing, metrics, drop reasons, clock, task spawn
//! * [`codec`] (1) bytes ↔ `Packet`, zero copy
//! * [`plan`] (1) the signed token that says how much a cluster may carry
//! * [`storage`] (1) what must survive: the ports and their backends
//! * [`delivery`] (2) one connected client, write side
//! * [`routing`] (3) log partition → recipients
//! * [`security`] (3) who may come in, and what they may do
//! * [`session`] (4) one connected client, read side
//! * [`listener`] (5) accept, permits, sockets
//! * [`admin`] (6) HTTP for operators
//! * [`bench`] (6) the load generator, for any broker
//! * [`config`] (7) YAML and environment → each room's `Config`
//! * [`broker`] (8) assembly and drain order
//!
//! Imports go only to a lower number; rooms of one number never import each other. Downwards one
//! calls a handle, upwards one emits an event on a bounded channel. `tests/tidy.rs` holds this.

/// As the program's: the tests count what it gives out.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

pub mod mqtt;

pub mod limits;

pub mod cluster;

pub mod telemetry;

pub mod codec;

pub mod plan;

pub mod storage;

pub mod delivery;

pub mod routing;

pub mod security;

pub mod session;

pub mod listener;

pub mod admin;

pub mod bench;

pub mod config;

pub mod broker;
