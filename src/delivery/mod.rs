//! Room 2: one connected client, write side.

mod config;

pub use config::Config;
