//! Room 0: what an operator sees. Tracing set-up, the metric registry, the closed list of drop
//! reasons, the clock, and named task spawn. Knows no other room.

pub mod clock;
mod drop_reason;
mod non_writable;

pub use drop_reason::{Direction, DropReason, dropped, dropped_so_far};
pub use non_writable::{NonWritable, non_writable_clients};
