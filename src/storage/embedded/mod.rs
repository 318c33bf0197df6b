//! The embedded profile: everything of one node in one folder, no service needed.

pub mod wal;
