//! Room 6: the HTTP door for operators.

mod config;

pub use config::Config;
