//! Room 3: from a log partition to the recipients of its messages.

mod config;

pub use config::Config;
