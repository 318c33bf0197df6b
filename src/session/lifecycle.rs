//! How sessions go off-line and end.

use std::sync::Arc;

use bytes::Bytes;

use super::cluster;
use super::conn::{Conn, End};
use super::context::Context;
use super::groups;
use super::registry::{Locked, Session};
use super::rows::{self, Bid, NEVER, SessionRow};
use super::wills;
use crate::delivery::SlotView;
use crate::mqtt::{ClientId, ReasonCode, TopicFilter};
use crate::routing::SubscriptionRow;
use crate::storage::{
    BatchBuilder, Durability, Position, Publisher, Row, StorageError, Table, Unwatched,
};
use crate::telemetry::{clock, metrics};

/// Rows in one put at the start.
const MENDED_AT_ONCE: usize = 1000;

/// A connection has ended. What a newer connection has taken over is not touched (TKO-02).
pub(super) async fn disconnected(context: &Arc<Context>, conn: &Arc<Conn>, end: End) {
    // While its groups still have it for a member.
    let returning = groups::returning(context, conn);
    ended(context, conn, end).await;
    if let Some(returning) = returning {
        context.groups.give(returning).await;
    }
}

async fn ended(context: &Arc<Context>, conn: &Arc<Conn>, end: End) {
    context.registry.remove_live(conn);
    if let Some(slot) = context.slots.by_client(conn.client_id.as_str()) {
        slot.detach(&conn.outbox);
    }
    let mut locked = context.registry.lock(&conn.client_id).await;
    if !locked.is_live(conn) {
        return;
    }
    if context
        .directory
        .as_ref()
        .is_some_and(|directory| directory.epoch(&conn.client_id) != Some(conn.epoch))
    {
        // Another node has it by now.
        return cluster::let_go(context, &conn.client_id, &mut locked);
    }
    let Some(session) = locked.session() else { return };
    session.live = None;
    session.offline_since_ms = Some(clock::wall_ms());
    match end {
        End::Goodbye(expiry_s) => {
            if session.will.take().is_some() {
                metrics::LAST_WILL_CLIENTS.dec();
            }
            adopt_expiry(context, session, expiry_s);
        }
        End::GoodbyeWithWill(expiry_s) => adopt_expiry(context, session, expiry_s),
        End::Closed
        | End::Fault(_)
        | End::TakenOver
        | End::KeepAlive
        | End::Server(_)
        | End::Storage => {}
    }
    look(context, &conn.client_id, &mut locked, true);
    groups::went(context, &conn.client_id);
}

/// The Session Expiry Interval of a DISCONNECT replaces the one of CONNECT (SES-02), and is under
/// the same cap.
fn adopt_expiry(context: &Context, session: &mut Session, expiry_s: Option<u32>) {
    if let Some(expiry_s) = expiry_s {
        session.expiry_s = capped(context, expiry_s);
    }
}

/// A timer of this session came up.
pub(super) async fn due(context: &Arc<Context>, client_id: &ClientId) {
    let mut locked = context.registry.lock(client_id).await;
    look(context, client_id, &mut locked, false);
}

/// Does what is due for a session that is off-line: its Will, its end, its next timer, its row.
pub(super) fn look(
    context: &Arc<Context>,
    client_id: &ClientId,
    locked: &mut Locked<'_>,
    changed: bool,
) {
    let Some(session) = locked.session() else { return };
    if session.live.is_some() {
        return;
    }
    let now_ms = clock::wall_ms();
    let mut changed = changed;
    if session.will_due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
        wills::fire(session);
        changed = true;
    }
    wills::pay(context, client_id, session);
    if !session.owed.is_empty() {
        // Whoever stores the last of them looks again: no row may forget them before.
        return context.timers.set(&mut session.timer_ms, None, client_id);
    }
    if session.expires_at_ms().is_some_and(|end_ms| end_ms <= now_ms) {
        if groups::owes(context, client_id, session) {
            if changed {
                store(context, client_id, session);
            }
            return groups::retire(context, client_id);
        }
        if session.expiry_s > 0 {
            metrics::SESSIONS_EXPIRED.inc();
        }
        if let Some(mut session) = locked.session().take() {
            context.timers.set(&mut session.timer_ms, None, client_id);
            end(context, client_id, &session);
        }
        return;
    }
    let due_ms = session.due_ms();
    context.timers.set(&mut session.timer_ms, due_ms, client_id);
    if changed {
        store(context, client_id, session);
    }
}

/// Does what an administrator wants: the connection ends with 0x98, and with it, or at once where
/// there is none, the session, if that is to go.
pub(super) fn obey(
    context: &Arc<Context>,
    client_id: &ClientId,
    locked: &mut Locked<'_>,
    bid: Bid,
) {
    let Some(session) = locked.session() else { return };
    if bid == Bid::Remove {
        session.expiry_s = 0;
    }
    match (&session.live, bid) {
        (Some(live), _) => live.end(End::Server(ReasonCode::AdministrativeAction)),
        (None, Bid::Remove) => look(context, client_id, locked, false),
        (None, Bid::Disconnect) => {}
    }
}

/// Writes the session's row as it is now; nobody waits for it.
pub(super) fn store(context: &Context, client_id: &ClientId, session: &mut Session) {
    session.stored = true;
    let row = row_of(context, session).row(client_id);
    let sink = Arc::new(Unwatched("a session's row"));
    context.tables.put(vec![row], Durability::Durable, sink, 0);
}

/// Writes the row as this node knows it over a claim that came to nothing.
pub(super) async fn restore_row(context: &Arc<Context>, client_id: &ClientId) {
    let mut locked = context.registry.lock(client_id).await;
    match locked.session() {
        Some(session) => store(context, client_id, session),
        None => {
            let sink = Arc::new(Unwatched("the end of a claim"));
            let rows = vec![rows::tombstone(client_id)];
            context.tables.put(rows, Durability::Durable, sink, 0);
        }
    }
}

pub(super) fn row_of(context: &Context, session: &Session) -> SessionRow {
    SessionRow::new(
        session.incarnation,
        session.epoch,
        &context.node.0,
        session.version,
        session.expiry_s,
        session.offline_since_ms,
        session.will.clone(),
    )
    .of_application(session.application.is_some())
    .owing(session.owed.clone())
}

/// Deletes all that belongs to a session that has ended: subscriptions, queue, open exchanges,
/// row.
pub(super) fn end(context: &Context, client_id: &ClientId, session: &Session) {
    if context.directory.is_some() {
        // The rest happens where this stands in the log, if nobody has claimed it before.
        let sink = Arc::new(Unwatched("the end of a session"));
        let rows = vec![rows::ended(client_id, session.epoch)];
        context.tables.put(rows, Durability::Durable, sink, 0);
        return close_exchanges(context, client_id, session);
    }
    let mut rows = tombstones(context, client_id, session);
    if session.stored {
        rows.push(rows::tombstone(client_id));
    }
    if !rows.is_empty() {
        let sink = Arc::new(Unwatched("the end of a session"));
        context.tables.put(rows, Durability::Durable, sink, 0);
    }
    forget(context, client_id, session);
    if let Some(slot) = context.slots.by_client(client_id.as_str()) {
        slot.set(SlotView::default());
        context.slots.remove(&slot);
    }
}

/// The rows that delete the session's subscriptions.
pub(super) fn tombstones(context: &Context, client_id: &ClientId, session: &Session) -> Vec<Row> {
    if !session.stored {
        return Vec::new();
    }
    let Some(slot) = context.slots.by_client(client_id.as_str()) else { return Vec::new() };
    let row = |filter: &TopicFilter| Row {
        table: Table::Subscriptions,
        key: SubscriptionRow::key(client_id, filter),
        value: None,
    };
    context.subscriptions.filters(slot.id()).iter().map(row).collect()
}

/// What of an ended session lives outside the tables.
pub(super) fn forget(context: &Context, client_id: &ClientId, session: &Session) {
    if let Some(slot) = context.slots.by_client(client_id.as_str()) {
        context.subscriptions.remove_all(slot.id());
    }
    context.queues.remove(&session.queue(client_id), session.incarnation);
    close_exchanges(context, client_id, session);
}

fn close_exchanges(context: &Context, client_id: &ClientId, session: &Session) {
    // Open exchanges end with the session (MQTT-3.1.2-4): as records, so that the dispatcher
    // forgets them in its order, behind what they belong to.
    let open = session.open_ids.lock().ids();
    if !open.is_empty() {
        let (incarnation, epoch) = (session.incarnation, session.epoch);
        let publisher = Publisher { client_id: client_id.clone(), incarnation, epoch };
        let mut batch = BatchBuilder::new(Arc::new(publisher), clock::wall_ms());
        open.into_iter().for_each(|id| batch.push_release(id));
        let sink = Arc::new(Unwatched("the end of a session's exchanges"));
        context.log.append(batch.finish(), Durability::Relaxed, sink, 0);
    }
}

/// Takes a stored session up at start. One that was connected when the process ended is off-line
/// from now on; `grace_ms` is how long its client has to come back before its Will goes out. The
/// row that says so is handed back.
pub(super) fn load(
    context: &Context,
    client_id: &ClientId,
    (position, value): (Position, &[u8]),
    grace_ms: u64,
) -> Result<Option<Row>, StorageError> {
    let mut row = SessionRow::decode(value)?;
    if let Some(directory) = &context.directory {
        let stored = (position.offset, Bytes::copy_from_slice(value));
        directory.load(context, client_id, &row, stored);
        if !directory.owns(client_id, &row) {
            return Ok(None);
        }
    }
    context.saw_epoch(row.epoch.max(row.incarnation));
    let slot = context.slots.ensure(client_id);
    let persistent = row.expiry_s > 0;
    let application = row.is_application();
    slot.set(SlotView { incarnation: row.incarnation, persistent, application, outbox: None });
    let offline = row.offline_since_ms.unwrap_or_else(|| clock::wall_ms() + grace_ms);
    let was_cut = row.offline_since_ms.is_none();
    row.offline_since_ms = Some(offline);
    let mut session = Session::away(context, row);
    if session.will.is_some() {
        metrics::LAST_WILL_CLIENTS.inc();
    }
    let due_ms = session.due_ms();
    context.timers.set(&mut session.timer_ms, due_ms, client_id);
    // From now on its time runs, however often this node is started again.
    let cut = was_cut.then(|| row_of(context, &session).row(client_id));
    context.registry.load(client_id.clone(), session);
    Ok(cut)
}

/// Writes rows that loading found to be out of date; bounded pieces, nobody waits for them.
pub(super) fn mend(context: &Context, rows: Vec<Row>) {
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let piece = rows.by_ref().take(MENDED_AT_ONCE).collect();
        let sink = Arc::new(Unwatched("rows of sessions that ended with the last run"));
        context.tables.put(piece, Durability::Durable, sink, 0);
    }
}

fn capped(context: &Context, expiry_s: u32) -> u32 {
    expiry_s.min(context.config.max_session_expiry_secs.unwrap_or(NEVER))
}

/// The expiry interval in force: v5 as asked for, up to the cap; v3.x by its clean session flag.
pub(super) fn expiry_in_force(context: &Context, connect: &crate::codec::Connect) -> u32 {
    if connect.version.is_v5() {
        let asked = connect.properties.session_expiry_s.unwrap_or(0);
        return capped(context, asked);
    }
    if connect.clean_start { 0 } else { context.config.v3_session_ttl_secs.unwrap_or(NEVER) }
}
