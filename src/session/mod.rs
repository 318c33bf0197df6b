//! Room 4: one connected client, read side.

mod config;

pub use config::{Config, TotalRate};
