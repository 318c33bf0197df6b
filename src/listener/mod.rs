//! Room 5: accepts connections and hands each, with its permit, to a session.

mod config;

pub use config::{Config, TcpConfig};
