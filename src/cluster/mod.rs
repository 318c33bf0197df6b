//! Room 0: who the nodes of a cluster are, and what is whose.
//!
//! What comes in: words of nodes in the order of the log, each with its place and the run of the
//! program that wrote it; hashes of client ids and groups. What goes out: who lives, who owns a
//! session, who decides for a group, below which place nobody needs anything any more. Like words
//! give the same answers on every node. Called by `storage` (which reads the words), `routing`
//! and `session`. Never: I/O, a clock, Tokio, a word that did not come by way of the log.

mod members;
mod placement;
mod silence;

pub use members::{Member, Members, Word};
pub use placement::{place_of, rendezvous};
pub use silence::Silence;
