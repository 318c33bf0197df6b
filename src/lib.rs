//! Sluice, a clustered MQTT broker: what was acknowledged is never lost, and no slow or greedy
//! client hurts another.
//!
//! The rooms, in the order in which a PUBLISH meets them (number = layer):
//!
//! * [`mqtt`] (0) the specification's words as pure values
//! * [`telemetry`] (0) tracing, metrics, drop reasons, clock, task spawn
//! * [`codec`] (1) bytes ↔ `Packet`, zero copy
//! * [`routing`] (3) from the log to the recipients
//! * [`storage`] (1) what must survive: the ports and their backends
//!
//! Imports go only to a lower number; rooms of one number never import each other. Downwards one
//! calls a handle, upwards one emits an event on a bounded channel. `tests/tidy.rs` holds this.

pub mod mqtt;

pub mod telemetry;

pub mod codec;

pub mod storage;

pub mod routing;
