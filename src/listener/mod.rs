//! Room 5: sockets. Accepts connections and hands each, with its permit, to a session.
//!
//! What comes in: connections on bound ports. What goes out: a stream with its options set, given
//! to a new session task. Who calls: the broker binds and starts it. Never: a look into a packet.

mod config;
mod halves;
mod rate;
mod tcp;

pub use config::{Config, TcpConfig};
pub use rate::{ConnectionRate, ConnectionRateConfig};
pub use tcp::{BindError, Tcp};
