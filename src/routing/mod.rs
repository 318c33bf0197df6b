//! Room 3: from the log to the recipients of each message.
//!
//! What comes in: batches from the log, subscriptions of the sessions, retained values. What goes
//! out: who gets a copy of a topic, which member of a shared group is next, which retained values
//! a new filter is owed. Called by the dispatcher (matching) and by sessions (subscribing).
//! Never: waiting for one slow client; Tokio or a clock in the index structures themselves
//! (invariant 8).

mod assign;
mod backlog;
mod charges;
mod config;
mod decisions;
mod dispatcher;
mod fan_out;
mod hand_over;
mod here;
mod id_table;
mod index;
mod judge;
mod label;
mod limits;
mod matching;
mod moves;
mod passing;
mod retained;
mod retained_table;
mod rooms;
mod rows;
mod runs;
mod shared_group;
mod shares;
mod slab;
mod subscribers;
mod subscriptions;
mod trie;

pub use backlog::Backlog;
pub use config::Config;
pub use dispatcher::{Parts, Progress, run};
pub use here::Here;
pub use index::SubscriptionIndex;
pub use judge::Judge;
pub use limits::Limits;
pub use moves::{GroupQueues, Lender, Returning};
pub use retained::{Cursor, Retained, RetainedFull, RetainedLimits};
pub use retained_table::RetainedTable;
pub use rooms::Rooms;
pub use rows::{SubscriptionRow, decode_row, encode_row};
pub use shared_group::{
    Choice, Group, GroupId, Groups, Joined, Left, Pick, Policy, Standing, Turn, rendezvous,
};
pub use shares::{Share, Shares};
pub use subscribers::Subscriber;
pub use subscriptions::{Entry, Subscriptions};
pub use trie::Trie;

#[cfg(test)]
mod dispatcher_tests;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod retained_tests;
#[cfg(test)]
mod shared_group_tests;
#[cfg(test)]
mod trie_tests;
