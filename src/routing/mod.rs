//! Room 3: from the log to the recipients of each message.
//!
//! What comes in: batches from the log, subscriptions of the sessions, retained values. What goes
//! out: who gets a copy of a topic, which member of a shared group is next, which retained values
//! a new filter is owed. Called by the dispatcher (matching) and by sessions (subscribing).
//! Never: waiting for one slow client; Tokio or a clock in the index structures themselves
//! (invariant 8).

mod config;
mod id_table;
mod slab;
mod subscribers;
mod trie;

pub use config::Config;
pub use subscribers::Subscriber;
pub use trie::Trie;

#[cfg(test)]
mod trie_tests;
