//! Appends settle in any order; acknowledgements leave in the order of the packets (IN-2,
//! invariant 3), and none before what it says is durable (invariant 1).

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::open_ids::Exchanges;
use super::unawaited;
use crate::codec::AckKind;
use crate::delivery::AckOut;
use crate::mqtt::ReasonCode;
use crate::routing::RetainedTable;
use crate::security::Grant;
use crate::session::budget::Budget;
use crate::session::conn::{Conn, End};
use crate::storage::{AppendOutcome, AppendSink, Charge, MessageRef, Quota};
use crate::telemetry::{self, Direction, DropReason, fail_point, metrics};

/// One connection's open appends. Bounded by the read-ahead: when it is full the socket is not
/// read (IN-4).
#[derive(Debug)]
pub(in crate::session) struct AckWindow {
    conn: Arc<Conn>,
    is_v5: bool,
    open_ids: Arc<Exchanges>,
    budget: Arc<Budget>,
    retained: Arc<RetainedTable>,
    quota: Option<Arc<Quota>>,
    inner: Mutex<Inner>,
    /// Something settled: there is room again.
    progress: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    pending: VecDeque<Pending>,
    next_ticket: u64,
    messages: usize,
    bytes: usize,
    /// QoS 1 and 2 exchanges of this connection that hold a place in our Receive Maximum.
    exchanges: usize,
}

/// What one append was made of.
#[derive(Debug)]
struct Pending {
    ticket: u64,
    /// Settlements still to come: the batch itself, and its retained rows.
    waits: u8,
    failed: Option<AppendOutcome>,
    /// A part of it is stored.
    stored: bool,
    acks: Vec<AckOut>,
    messages: usize,
    bytes: usize,
    retained: Vec<MessageRef>,
    charge: Charge,
    since: Instant,
}

/// What one connection has open.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Open {
    /// Messages and bytes that are not in the log yet.
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// Places taken in our Receive Maximum (RM-3).
    pub(super) exchanges: usize,
}

/// What an append holds in the window.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) acks: Vec<AckOut>,
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// QoS 1 and 2 messages among them: each takes a place in our Receive Maximum (RM-3).
    pub(super) exchanges: usize,
    /// How many settlements will come for it; 0: its acks only keep their place in the order.
    pub(super) waits: u8,
    /// Retained messages in it, which the table awaits.
    pub(super) retained: Vec<MessageRef>,
    /// What the quota was charged for it.
    pub(super) charge: Charge,
}

impl AckWindow {
    pub(in crate::session) fn new(
        conn: Arc<Conn>,
        is_v5: bool,
        open_ids: Arc<Exchanges>,
        budget: Arc<Budget>,
        retained: Arc<RetainedTable>,
        quota: Option<Arc<Quota>>,
    ) -> Arc<Self> {
        let exchanges = open_ids.lock().len();
        let inner = Mutex::new(Inner { exchanges, ..Inner::default() });
        let progress = Notify::new();
        Arc::new(Self { conn, is_v5, open_ids, budget, retained, quota, inner, progress })
    }

    /// By what right the client publishes.
    pub(super) fn grant(&self) -> Option<&Grant> {
        self.conn.grant.as_deref()
    }

    /// Enters an append before it is handed to the log; gives its ticket.
    pub(super) fn enter(&self, load: Load) -> u64 {
        let mut inner = self.inner.lock();
        let ticket = inner.next_ticket;
        inner.next_ticket += 1;
        inner.messages += load.messages;
        inner.exchanges += load.exchanges;
        inner.bytes += load.bytes;
        inner.pending.push_back(Pending {
            ticket,
            waits: load.waits,
            failed: None,
            stored: false,
            acks: load.acks,
            messages: load.messages,
            bytes: load.bytes,
            retained: load.retained,
            charge: load.charge,
            since: Instant::now(),
        });
        if inner.pending.len() == 1 {
            self.conn.set_open_since(inner.pending.front().map(|pending| pending.since));
        }
        if load.waits == 0 && inner.pending.len() == 1 {
            self.leave(&mut inner);
        }
        ticket
    }

    pub(super) fn open(&self) -> Open {
        let inner = self.inner.lock();
        Open { messages: inner.messages, bytes: inner.bytes, exchanges: inner.exchanges }
    }

    /// Waits until something settles. Cancel safe: yes.
    pub(in crate::session) async fn progress(&self) {
        self.progress.notified().await;
    }

    /// How long the oldest append has been open (IN-7).
    pub(in crate::session) fn oldest(&self) -> Option<Instant> {
        self.inner.lock().pending.front().map(|pending| pending.since)
    }

    /// Lets everything that is settled leave, in order, under one lock of the outbox.
    fn leave(&self, inner: &mut Inner) {
        let mut out: Vec<AckOut> = Vec::new();
        while inner.pending.front().is_some_and(|pending| pending.waits == 0) {
            let Some(pending) = inner.pending.pop_front() else { break };
            inner.messages -= pending.messages;
            inner.bytes -= pending.bytes;
            if out.is_empty() && pending.failed.is_none() {
                out = pending.acks;
                out.iter().for_each(|ack| self.completed(inner, *ack));
            } else {
                for ack in pending.acks {
                    let Some(ack) = self.answer(ack, pending.failed) else { continue };
                    self.completed(inner, ack);
                    out.push(ack);
                }
            }
        }
        if !out.is_empty() && !self.conn.is_ended() {
            self.conn.outbox.acks(&out);
        }
        self.conn.set_open_since(inner.pending.front().map(|pending| pending.since));
        self.progress.notify_one();
    }

    /// The acknowledgement as the append's outcome lets it be; `None`: there is none, the
    /// connection ends instead.
    fn answer(&self, mut ack: AckOut, failed: Option<AppendOutcome>) -> Option<AckOut> {
        let Some(outcome) = failed else { return Some(ack) };
        let in_doubt = outcome == AppendOutcome::InDoubt;
        // What is not known to be stored must not be answered as a repeat: the client's resend
        // decides, and the judge drops it if the first copy did get into the log.
        let surely_not = match ack.kind {
            AckKind::Pubrec => self.open_ids.lock().failed(ack.id, in_doubt),
            AckKind::Pubcomp => {
                self.open_ids.lock().reopen(ack.id);
                false
            }
            AckKind::Puback | AckKind::Pubrel => !in_doubt,
        };
        // IN-2: surely not stored, so v5 is told; PUBCOMP and v3.x have no words for it.
        if surely_not && self.is_v5 {
            ack.reason = ReasonCode::UnspecifiedError;
            return Some(ack);
        }
        self.conn.end(End::Storage);
        None
    }

    /// What leaves gives the client its place back: PUBACK, PUBCOMP, an error PUBREC (RM-3).
    fn completed(&self, inner: &mut Inner, ack: AckOut) {
        match ack.kind {
            AckKind::Puback => inner.exchanges = inner.exchanges.saturating_sub(1),
            AckKind::Pubrec if ack.reason.is_error() => {
                inner.exchanges = inner.exchanges.saturating_sub(1);
            }
            AckKind::Pubrec => self.open_ids.lock().stored(ack.id),
            // A repeated PUBREL has a PUBCOMP of its own; only the first gives the place back.
            AckKind::Pubcomp if ack.reason == ReasonCode::Success => {
                let mut open_ids = self.open_ids.lock();
                if open_ids.get(ack.id).is_some() {
                    inner.exchanges = inner.exchanges.saturating_sub(1);
                    open_ids.remove(ack.id);
                }
            }
            AckKind::Pubcomp | AckKind::Pubrel => {}
        }
    }

    /// The QoS 2 ids in use.
    pub(super) fn open_ids(&self) -> &Exchanges {
        &self.open_ids
    }
}

impl AppendSink for AckWindow {
    fn settled(&self, ticket: u64, outcome: AppendOutcome) {
        let mut inner = self.inner.lock();
        let Some(first) = inner.pending.front().map(|pending| pending.ticket) else { return };
        let Some(pending) = inner.pending.get_mut(ticket.wrapping_sub(first) as usize) else {
            return;
        };
        pending.waits = pending.waits.saturating_sub(1);
        fail_point::pass("publish.stored");
        match outcome {
            AppendOutcome::Stored(_) => pending.stored = true,
            // In doubt outweighs surely not stored.
            AppendOutcome::InDoubt => pending.failed = Some(outcome),
            AppendOutcome::NotStored => {
                pending.failed.get_or_insert(outcome);
            }
        }
        if pending.waits > 0 {
            return;
        }
        if pending.failed.is_some() && pending.stored {
            // A message without its retained row, or the reverse: that can't be refused any more.
            pending.failed = Some(AppendOutcome::InDoubt);
        }
        self.budget.give_back(pending.bytes);
        tracing::trace!(stop = 7, client = %self.conn.client_id, ticket, ?outcome, "settled");
        match pending.failed {
            None => metrics::PUBLISHED_SUCCESSFUL.add(pending.messages as u64),
            Some(_) => metrics::PUBLISHED_FAILED.add(pending.messages as u64),
        }
        if let (Some(AppendOutcome::NotStored), Some(quota)) = (pending.failed, &self.quota) {
            // QUO-2. In doubt it stays charged: it may be routed yet (design decision 16).
            quota.give_back(pending.charge);
        }
        if pending.failed.is_some() {
            pending.retained.iter().for_each(|one| unawaited(&self.retained, &one.view()));
        }
        if pending.failed.is_some() && pending.acks.is_empty() && pending.messages > 0 {
            // QoS 0 that could not be stored: nobody is told, so it is counted.
            let (why, lost) = (DropReason::InternalError, pending.messages as u64);
            let client = self.conn.client_id.as_str();
            telemetry::dropped_of(why, Direction::Inbound, client, "", lost);
        }
        if ticket == first {
            self.leave(&mut inner);
        }
    }
}
