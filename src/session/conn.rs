//! One live connection as others see it: how to end it, and when it was last heard of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Peer;
use super::claim::Ask;
use crate::codec::{DecodeError, Disconnect};
use crate::delivery::{self, Outbox, Owner, Socket};
use crate::mqtt::{ClientId, ReasonCode};
use crate::security::Grant;
use crate::telemetry::{Counted, clock, metrics, task};

/// Why a connection ends, and who ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client: the socket closed or failed.
    Closed,
    /// The client: DISCONNECT 0x00, which deletes the Will (MQTT-3.1.2-10), with its new Session
    /// Expiry Interval.
    Goodbye(Option<u32>),
    /// The client: DISCONNECT with another reason, which keeps the Will.
    GoodbyeWithWill(Option<u32>),
    /// The client broke a rule.
    Fault(DecodeError),
    /// Another connection of the same client (MQTT-3.1.4-3).
    TakenOver,
    /// Silence for one and a half times the keep alive (MQTT-3.1.2-22).
    KeepAlive,
    /// An administrator, or this node, for the given reason.
    Server(ReasonCode),
    /// What was in hand could not be stored, or nobody knows whether it was.
    Storage,
}

impl End {
    /// What a DISCONNECT asks for.
    pub(super) fn goodbye(packet: &Disconnect) -> End {
        if packet.reason == ReasonCode::Success {
            End::Goodbye(packet.session_expiry_s)
        } else {
            End::GoodbyeWithWill(packet.session_expiry_s)
        }
    }

    /// What a v5 client is told (MQTT-4.13.1-1); `None`: nothing is sent.
    pub(super) fn reason(self) -> Option<ReasonCode> {
        match self {
            End::Closed | End::Goodbye(_) | End::GoodbyeWithWill(_) => None,
            End::Fault(error) => Some(error.reason),
            End::TakenOver => Some(ReasonCode::SessionTakenOver),
            End::KeepAlive => Some(ReasonCode::KeepAliveTimeout),
            End::Server(reason) => Some(reason),
            End::Storage => Some(ReasonCode::UnspecifiedError),
        }
    }
}

/// Who is at the other end, and by what right.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) peer: Peer,
    /// `None`: it is anonymous, and nothing is denied to it.
    pub(super) grant: Option<Arc<Grant>>,
    /// The authentication method of its CONNECT.
    pub(super) method: Option<String>,
}

/// A live connection. Shared by its session task, the registry and the keep-alive sweep.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) client_id: ClientId,
    pub(super) epoch: u64,
    pub(super) outbox: Arc<Outbox>,
    pub(super) peer: Peer,
    pub(super) grant: Option<Arc<Grant>>,
    pub(super) method: Option<Box<str>>,
    pub(super) connected_ms: u64,
    /// Its session is an APPLICATION client's, and is counted while it is connected.
    pub(super) application: Option<Processor>,
    /// 1.5 times the keep alive, milliseconds; 0: none.
    silence_max_ms: u64,
    started: Instant,
    /// Milliseconds from `started` to the last whole packet.
    heard_ms: AtomicU64,
    /// We hold its reader: its keep-alive clock stands still (IN-5).
    held: AtomicBool,
    /// Milliseconds from `started`, plus one, to the oldest append that has not settled; 0: none.
    open_since_ms: AtomicU64,
    /// The first end that was asked for from outside.
    asked: Mutex<Option<Box<End>>>,
    ended: Notify,
}

/// One persistent APPLICATION client that is connected, and in how many groups it is.
#[derive(Debug)]
pub(super) struct Processor {
    _connected: Counted,
    groups: Mutex<Vec<Counted>>,
}

impl Processor {
    fn begin() -> Self {
        let _connected = Counted::one(&metrics::ACTIVE_APP_PROCESSORS);
        Self { _connected, groups: Mutex::default() }
    }

    /// It is in so many shared groups now.
    pub(super) fn set_groups(&self, groups: usize) {
        let one = || Counted::one(&metrics::ACTIVE_SHARED_APP_PROCESSORS);
        self.groups.lock().resize_with(groups, one);
    }
}

impl Owner for Conn {
    /// The outbox was closed, and the peer may keep its side open. (A socket that fails is found
    /// out by the reader, behind what it still holds, such as a DISCONNECT.)
    fn written_out(&self) {
        self.end(End::Closed);
    }
}

impl Conn {
    pub(super) fn new(ask: &Ask, epoch: u64, outbox: Arc<Outbox>, application: bool) -> Self {
        Self {
            client_id: ask.client_id.clone(),
            epoch,
            outbox,
            peer: ask.about.peer.clone(),
            grant: ask.about.grant.clone(),
            method: ask.about.method.as_deref().map(Box::from),
            connected_ms: clock::wall_ms(),
            application: application.then(Processor::begin),
            silence_max_ms: u64::from(ask.keep_alive_s) * 1500,
            started: Instant::now(),
            heard_ms: AtomicU64::new(0),
            held: AtomicBool::new(false),
            open_since_ms: AtomicU64::new(0),
            asked: Mutex::new(None),
            ended: Notify::new(),
        }
    }

    /// Seconds; 0: none.
    pub(super) fn keep_alive_s(&self) -> u64 {
        self.silence_max_ms / 1500
    }

    /// Asks the session task to end; the first reason stands.
    pub(super) fn end(&self, end: End) {
        self.asked.lock().get_or_insert_with(|| Box::new(end));
        self.ended.notify_waiters();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.asked.lock().is_some()
    }

    pub(super) fn asked(&self) -> Option<End> {
        self.asked.lock().as_deref().copied()
    }

    /// Waits until somebody asks for the end. Cancel safe: yes.
    pub(super) async fn ended(&self) -> End {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(end) = self.asked() {
                return end;
            }
            ended.await;
        }
    }

    /// A whole packet came: only that counts (KAL-02).
    pub(super) fn heard(&self) {
        self.heard_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(super) fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
        if !held {
            self.heard();
        }
    }

    /// Since when its oldest append waits for the log.
    pub(super) fn set_open_since(&self, oldest: Option<Instant>) {
        let since_ms = |at: Instant| at.duration_since(self.started).as_millis() as u64 + 1;
        self.open_since_ms.store(oldest.map_or(0, since_ms), Ordering::Relaxed);
    }

    /// Whether the log has not answered for so long (IN-7).
    pub(super) fn is_unanswered(&self, at_most: Duration) -> bool {
        let since_ms = self.open_since_ms.load(Ordering::Relaxed);
        let now_ms = self.started.elapsed().as_millis() as u64 + 1;
        since_ms > 0 && u128::from(now_ms.saturating_sub(since_ms)) >= at_most.as_millis()
    }

    /// Whether the client has been silent for too long.
    pub(super) fn is_silent(&self) -> bool {
        if self.silence_max_ms == 0 || self.held.load(Ordering::Relaxed) {
            return false;
        }
        let now_ms = self.started.elapsed().as_millis() as u64;
        now_ms.saturating_sub(self.heard_ms.load(Ordering::Relaxed)) > self.silence_max_ms
    }
}

/// A writer task, unless the transport has a socket that needs one only now and then.
pub(super) fn start_writing<W>(conn: &Arc<Conn>, write: W, socket: Option<Arc<dyn Socket>>)
where
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (outbox, owner) = (Arc::clone(&conn.outbox), Arc::downgrade(conn));
    match socket {
        Some(socket) => outbox.write_by(socket, owner),
        None => drop(task::spawn("writer", delivery::write(outbox, write, owner))),
    }
}
