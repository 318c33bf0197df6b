//! Room 4: one connected client, the read side; and the sessions that outlive their connections.
//!
//! What comes in: byte streams from a listener. What goes out: appended records, acknowledgements
//! on the control lane, rows of sessions and subscriptions. Who calls: the listener hands streams
//! over, the broker starts and stops. Never: writing to a socket of a session itself (its outbox
//! does), or looking for subscribers.

mod admission;
mod arrival;
mod budget;
mod census;
mod claim;
mod cluster;
mod config;
mod conn;
mod connection;
mod context;
mod directory;
mod edges;
mod groups;
mod handshake;
mod inbound;
mod lifecycle;
mod loading;
mod overview;
mod places;
mod read_buffer;
mod reauthenticate;
mod registry;
mod retained_replay;
mod rows;
mod shares;
mod subscribe;
mod sweep;
mod timers;
mod topics;
mod wills;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

pub use arrival::{Arrival, Peer, TlsPeer};
pub use config::{Config, TotalRate};
use context::Context;
pub use context::Handles;
use directory::Directory;
#[doc(hidden)]
pub use inbound::{Gate, Ruling};
use loading::load_beside;
pub use overview::{SessionView, SubscriptionView};
pub use shares::{GroupView, MemberView, ShareDraft, ShareError};

use crate::mqtt::{ClientId, ReasonCode};
use crate::routing::Subscriptions;
use crate::storage::{Row, StorageError, Table};

/// All sessions of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sessions {
    context: Arc<Context>,
}

impl Sessions {
    pub fn new(handles: Handles) -> Self {
        Self { context: Context::new(handles) }
    }

    /// Takes up stored sessions, then subscriptions, then retained messages: all before a
    /// listener opens (STO-11). Sessions that were connected when the process ended get
    /// `will_grace` to come back before their Wills go out.
    pub fn load(&self, will_grace: Duration) -> Result<(), StorageError> {
        let context = &self.context;
        let (mut fault, mut mended) = (Ok(()), Vec::new());
        let mut note = |result: Result<Option<Row>, StorageError>| match result {
            Ok(row) => mended.extend(row),
            Err(error) if fault.is_ok() => fault = Err(error),
            Err(_) => {}
        };
        if context.directory.is_some() {
            context.tables.resolve_by(Table::Sessions, Directory::resolver());
            let subscriptions = Subscriptions::resolver(&context.subscriptions);
            context.tables.resolve_by(Table::Subscriptions, subscriptions);
        }
        context.tables.load(Table::Sessions, &mut |position, key, value| {
            let client_id = String::from_utf8_lossy(key);
            let client_id = ClientId::new(&client_id);
            let grace_ms = will_grace.as_millis() as u64;
            note(lifecycle::load(context, &client_id, (position, value), grace_ms));
        })?;
        if context.directory.is_some() {
            let follow = Arc::new(directory::Follow(Arc::downgrade(context)));
            context.tables.follow(Table::Sessions, follow);
        }
        load_beside(&*context.tables, Table::Subscriptions, |position, key, value| {
            let in_force = context.subscriptions.load(position, key, value);
            // Left behind by a session that ended while the row was on its way.
            let key = Bytes::copy_from_slice(key);
            let stale = Row { table: Table::Subscriptions, key, value: None };
            note(in_force.map(|in_force| (!in_force).then_some(stale)));
        })?;
        context.tables.follow(Table::Subscriptions, Arc::clone(&context.subscriptions) as _);
        load_beside(&*context.tables, Table::Retained, |_, _, value| {
            note(context.retained.load(value).map(|()| None));
        })?;
        fault?;
        // A row that was stale at the commit may have been put again since.
        let alone = context
            .directory
            .as_ref()
            .is_none_or(|directory| directory.peers.members().alive().count() == 1);
        // Among others, such a row may be put again before its end comes.
        let ended = |row: &Row| row.table != Table::Subscriptions || alone;
        mended.retain(|row| ended(row) && !context.subscriptions.holds(row));
        lifecycle::mend(context, mended);
        context.tables.follow(Table::Retained, Arc::clone(&context.retained) as _);
        Ok(())
    }

    /// QoS 2 ids that publishers have open, as the log's replay told them.
    pub async fn adopt_open_ids(&self) {
        for (client_id, incarnation, ids) in self.context.judge.open_ids() {
            let mut locked = self.context.registry.lock(&client_id).await;
            let Some(session) = locked.session() else {
                // Among other nodes all judge alike; who resumes here asks then.
                if self.context.directory.is_none() {
                    self.context.judge.forget(&client_id, incarnation);
                }
                continue;
            };
            if session.incarnation == incarnation {
                let mut open = session.open_ids.lock();
                // The message is in the log; whether its retained row is, nobody knows.
                ids.into_iter().for_each(|id| open.set(id, inbound::OpenId::InDoubt));
            }
        }
    }

    /// Starts the timers, the keep-alive sweep and the rest that runs beside connections.
    pub fn start(&self) -> Vec<tokio::task::JoinHandle<()>> {
        sweep::start(&self.context)
    }

    /// Serves one connection until it ends. Cancelling it loses nothing that was acknowledged.
    pub async fn serve<R, W>(&self, read: R, write: W, arrival: Box<Arrival>)
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        connection::serve(Arc::clone(&self.context), read, write, arrival).await;
    }

    pub fn connected(&self) -> usize {
        self.context.registry.connected()
    }

    /// Takes no further CONNECT, sends DISCONNECT 0x8B (v3.x: closes), and waits until all
    /// connections have ended or `patience` is over.
    pub async fn stop(&self, patience: Duration) {
        self.context.stop();
        let ends = async {
            while self.context.serving() > 0 {
                let end = conn::End::Server(ReasonCode::ServerShuttingDown);
                self.context.registry.each_live(|conn| conn.end(end));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(patience, ends).await.is_err() {
            let connections = self.context.serving();
            tracing::warn!(connections, "connections were cut at the stop");
        }
    }
}

#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod will_tests;
