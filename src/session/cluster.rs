//! What this node has to do for sessions that are, or were, another node's: let go of what was
//! taken over, take up what nobody has any more.

use std::sync::Arc;

use super::claim::{cut, displace};
use super::context::Context;
use super::directory::Directory;
use super::groups;
use super::inbound::OpenId;
use super::lifecycle;
use super::registry::{Locked, Session};
use super::rows::{Bid, SessionRow};
use crate::mqtt::ClientId;
use crate::storage::{AppendOutcome, Durability, Settled, Unwatched};
use crate::telemetry::{clock, metrics, task};

/// How long clients of a node that runs again may take to come back before their Wills go out.
const WILL_GRACE_MS: u64 = 10_000;

/// Rows in one put.
const ROWS_AT_ONCE: usize = 1000;

/// Follows what the log says of sessions and nodes, until the task is aborted.
pub(super) async fn run(context: Arc<Context>) {
    let Some(directory) = &context.directory else { return };
    let mut members = directory.peers.watch();
    let mut seen = members.borrow_and_update().changed();
    loop {
        tokio::select! {
            biased;
            () = directory.woken.notified() => {}
            changed = members.changed() => if changed.is_err() { return },
        }
        let news = directory.news();
        for rows in news.garbage.chunks(ROWS_AT_ONCE) {
            let sink = Arc::new(Unwatched("subscriptions of a session that has ended"));
            context.tables.put(rows.to_vec(), Durability::Durable, sink, 0);
        }
        for client_id in &news.clients {
            reconcile(&context, directory, client_id).await;
        }
        for (client_id, (epoch, bid)) in &news.bids {
            let mut locked = context.registry.lock(client_id).await;
            if locked.session().as_ref().is_some_and(|session| session.epoch == *epoch) {
                lifecycle::obey(&context, client_id, &mut locked, *bid);
            }
        }
        let changed = members.borrow_and_update().changed();
        if changed != seen {
            seen = changed;
            for client_id in directory.clients() {
                reconcile(&context, directory, &client_id).await;
            }
        }
    }
}

/// Brings what this node has of a session in line with the log.
async fn reconcile(context: &Arc<Context>, directory: &Directory, client_id: &ClientId) {
    let mut locked = context.registry.lock(client_id).await;
    let row = directory.get(client_id);
    let epoch = row.as_ref().map(|row| row.epoch);
    if locked.session().as_ref().is_some_and(|session| Some(session.epoch) != epoch) {
        let_go(context, client_id, &mut locked);
    }
    let Some(row) = row else { return };
    if let Some(slot) = context.slots.by_client(client_id.as_str()) {
        slot.set_connected_elsewhere(directory.is_connected(&row));
    }
    let owned = directory.owns(client_id, &row);
    match locked.session() {
        Some(session) if session.live.is_none() && !owned => {
            let_go(context, client_id, &mut locked);
        }
        Some(_) => {}
        // A claim of this node that is under way holds the gate; one that came to nothing has left
        // its session here.
        None if owned => adopt(context, directory, client_id, row, &mut locked),
        None => {}
    }
}

/// The session is another node's.
pub(super) fn let_go(context: &Arc<Context>, client_id: &ClientId, locked: &mut Locked<'_>) {
    let Some(mut session) = locked.session().take() else { return };
    context.timers.set(&mut session.timer_ms, None, client_id);
    cut(context, client_id, &mut session);
    if session.will.is_some() {
        metrics::LAST_WILL_CLIENTS.dec();
    }
}

/// The session is this node's, and its client is away: from now on, if nobody has said since when.
fn adopt(
    context: &Arc<Context>,
    directory: &Directory,
    client_id: &ClientId,
    mut row: SessionRow,
    locked: &mut Locked<'_>,
) {
    let cut_off = row.offline_since_ms.is_none();
    if cut_off {
        // Its node runs again: its clients may be on their way back.
        let grace_ms = match directory.peers.members().lives(&row.node) {
            true => WILL_GRACE_MS,
            false => 0,
        };
        row.offline_since_ms = Some(clock::wall_ms() + grace_ms);
    }
    if row.bid == Some(Bid::Remove) {
        // Its node went before it could.
        row.expiry_s = 0;
    }
    if row.will.is_some() {
        metrics::LAST_WILL_CLIENTS.inc();
    }
    let session = Session::away(context, row);
    know_open_ids(context, client_id, &session);
    *locked.session() = Some(session);
    lifecycle::look(context, client_id, locked, cut_off);
    groups::went(context, client_id);
}

/// The session that a claim found: what this node has of it, or what its row says. QoS 2 ids that
/// it has open are those that everybody in front of the claim knows.
pub(super) fn take_old(
    context: &Arc<Context>,
    client_id: &ClientId,
    locked: &mut Locked<'_>,
    before: Option<SessionRow>,
) -> Option<Session> {
    let known = locked.session().as_ref().map(|session| session.epoch);
    if known.is_some() && known == before.as_ref().map(|row| row.epoch) {
        return locked.session().take();
    }
    let_go(context, client_id, locked);
    let old = Session::away(context, before?);
    if old.will.is_some() {
        metrics::LAST_WILL_CLIENTS.inc();
    }
    know_open_ids(context, client_id, &old);
    Some(old)
}

/// What the dispatcher's judge knows of the session's exchanges.
fn know_open_ids(context: &Context, client_id: &ClientId, session: &Session) {
    let mut open = session.open_ids.lock();
    for id in context.judge.open_ids_of(client_id, session.incarnation) {
        // The message is in the log; whether its retained row is, nobody knows.
        open.set(id, OpenId::InDoubt);
    }
}

/// A claim that came into force too late for its connection: the client is away.
pub(super) fn surrender(
    context: &Arc<Context>,
    client_id: &ClientId,
    locked: &mut Locked<'_>,
    before: Option<SessionRow>,
    mut now: SessionRow,
) {
    let resumes = before.as_ref().is_some_and(|old| old.incarnation == now.incarnation);
    let old = take_old(context, client_id, locked, before);
    now.offline_since_ms = Some(clock::wall_ms());
    let mut session = Session::away(context, now);
    // Its own Will was never promised.
    session.will = None;
    if let Some(old) = old.as_ref().filter(|_| resumes) {
        session.open_ids = Arc::clone(&old.open_ids);
    }
    let said = old.as_ref().map(|old| old.under_way.clone());
    session.under_way = said.unwrap_or_default();
    *locked.session() = Some(session);
    displace(context, client_id, old, resumes);
    lifecycle::look(context, client_id, locked, true);
    groups::went(context, client_id);
}

/// A claim of this node that is one too many: it ends, and with it what it displaced.
pub(super) fn take_back(
    context: &Arc<Context>,
    client_id: &ClientId,
    locked: &mut Locked<'_>,
    before: Option<SessionRow>,
    mut now: SessionRow,
) {
    now.expiry_s = 0;
    surrender(context, client_id, locked, before, now);
}

/// A claim that nobody waits for any more may land yet.
pub(super) fn see_to_late_claim(
    context: &Arc<Context>,
    client_id: &ClientId,
    mut settled: Settled,
) {
    let (context, client_id) = (Arc::clone(context), client_id.clone());
    task::spawn("late claim", async move {
        let AppendOutcome::Stored(position) = settled.outcome().await else { return };
        let Some(directory) = &context.directory else { return };
        let mut locked = context.registry.lock(&client_id).await;
        let Some(found) = directory.found(&client_id, position) else { return };
        if directory.epoch(&client_id) == Some(position.offset) {
            let leave = if found.excess.is_some() { take_back } else { surrender };
            leave(&context, &client_id, &mut locked, found.before, found.now);
        }
    });
}
