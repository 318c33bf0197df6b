//! Shared groups as their members' sessions see them: one task that hands out what waits for
//! groups, and what a session gives back when its client goes or it ends (docs/decisions/010).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::conn::Conn;
use super::context::Context;
use super::lifecycle;
use super::registry::{Locked, Session};
use super::rows::SessionRow;
use crate::mqtt::ClientId;
use crate::routing::{Lender, Returning};
use crate::storage::{QueueKey, StorageError};
use crate::telemetry::{clock, task};

/// Between two looks while something waits and nothing moves: what members acknowledge wakes
/// nobody.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOK_AGAIN_AT_MOST: Duration = Duration::from_millis(80);
const AT_ONCE: Duration = Duration::from_millis(2);
/// Between two looks for rooms that nobody needs any more.
const IDLE: Duration = Duration::from_secs(1);
/// Between two tries while storage refuses.
const RETRY: Duration = Duration::from_millis(500);

/// Members that may have something of their groups. Bounded by the number of sessions.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// Their clients are away.
    away: Mutex<BTreeSet<ClientId>>,
    /// They have left a group, and may still have copies of it.
    left: Mutex<BTreeSet<ClientId>>,
}

/// How a look went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Something moved, and more may.
    Moved,
    /// Somebody is there, and has its hands full.
    Full,
    /// Nothing waits that anybody could take.
    Quiet,
}

/// Hands out what waits, until the task is aborted.
pub(super) async fn run(context: Arc<Context>) {
    context.members.away.lock().extend(context.groups.away_members());
    let (mut pause, mut ended) = (LOOK_AGAIN, Instant::now());
    loop {
        let wait = match round(&context).await {
            Ok(Round::Moved) => {
                pause = LOOK_AGAIN;
                tokio::task::yield_now().await;
                continue;
            }
            Ok(Round::Full) => pause,
            Ok(Round::Quiet) => IDLE,
            Err(error) => {
                tracing::debug!(%error, "what waits for groups goes on waiting");
                RETRY
            }
        };
        if ended.elapsed() >= IDLE {
            context.groups.end_rooms().await;
            ended = Instant::now();
        }
        tokio::select! {
            biased;
            () = context.groups.woken() => {
                // Many come at once, now and then.
                tokio::time::sleep(AT_ONCE).await;
                pause = LOOK_AGAIN;
            }
            () = tokio::time::sleep(wait) => pause = (pause * 2).min(LOOK_AGAIN_AT_MOST),
        }
    }
}

/// What older messages are in goes first: the queues of members that are away, then rooms.
async fn round(context: &Arc<Context>) -> Result<Round, StorageError> {
    let (mut known, mut full) = (HashMap::new(), false);
    let away: Vec<ClientId> = context.members.away.lock().iter().cloned().collect();
    for client_id in away {
        let left = context.members.left.lock().contains(&client_id);
        if left {
            // The dispatcher is to know of it, too.
            context.progress.reached(context.log.end(0).offset).await;
        }
        let takers = context.groups.takers(&client_id, &mut known);
        full |= takers == Some(false);
        if !left && takers != Some(true) {
            continue;
        }
        if take_back(context, &client_id).await? {
            context.members.away.lock().remove(&client_id);
            context.members.left.lock().remove(&client_id);
        } else {
            full = true;
        }
    }
    Ok(match context.groups.empty_rooms().await? {
        Some(true) => Round::Moved,
        Some(false) => Round::Full,
        None if full => Round::Full,
        None => Round::Quiet,
    })
}

/// `true` when nothing is left with the member, or it is not ours to take.
async fn take_back(context: &Arc<Context>, client_id: &ClientId) -> Result<bool, StorageError> {
    let mut locked = context.registry.lock(client_id).await;
    let Some(session) = locked.session().as_ref().filter(|session| session.live.is_none()) else {
        return Ok(true);
    };
    let lender = lender(client_id, session, false);
    match context.groups.give_back(&lender).await {
        Err(StorageError::Fenced) => Ok(true),
        given => given,
    }
}

fn lender(client_id: &ClientId, session: &Session, over: bool) -> Lender {
    let (incarnation, epoch) = (session.incarnation, session.epoch);
    Lender { queue: session.queue(client_id), incarnation, epoch, over }
}

fn is_member(context: &Context, client_id: &ClientId) -> bool {
    let Some(slot) = context.slots.by_client(client_id.as_str()) else { return false };
    context.subscriptions.filters(slot.id()).iter().any(|filter| filter.is_shared())
        || context.members.left.lock().contains(client_id)
}

/// What a connection without a queue has of groups and leaves unacknowledged.
pub(super) fn returning(context: &Context, conn: &Conn) -> Option<Returning> {
    let left = conn.outbox.give_back();
    let some = !left.is_empty();
    some.then(|| context.groups.returning(&conn.client_id, conn.epoch, &left))
}

/// A persistent session's client has gone.
pub(super) fn went(context: &Context, client_id: &ClientId) {
    if is_member(context, client_id) {
        context.members.away.lock().insert(client_id.clone());
        context.groups.wake();
    }
}

/// The session is a member no more of some group.
pub(super) fn left_group(context: &Context, client_id: &ClientId) {
    context.members.left.lock().insert(client_id.clone());
}

/// Whether a session that ends has to give something back before.
pub(super) fn owes(context: &Context, client_id: &ClientId, session: &Session) -> bool {
    // Where several nodes have queues, only who opens one knows what is in it.
    let may = context.directory.is_some() || context.queues.depth(&session.queue(client_id)) > 0;
    may && !session.released && is_member(context, client_id)
}

/// A session that is over gives back before it ends; then it is looked at again.
pub(super) fn retire(context: &Arc<Context>, client_id: &ClientId) {
    let (context, client_id) = (Arc::clone(context), client_id.clone());
    task::spawn("end of a member", async move {
        let mut locked = context.registry.lock(&client_id).await;
        let Some(session) = locked.session() else { return };
        let over = session.expires_at_ms().is_some_and(|end_ms| end_ms <= clock::wall_ms());
        if session.live.is_some() || session.released || !over {
            return;
        }
        release(&context, &client_id, session).await;
        lifecycle::look(&context, &client_id, &mut locked, false);
    });
}

/// A session that was to end, and whose connection was cut, goes on: its end was not stored.
pub(super) fn goes_on(context: &Arc<Context>, client_id: &ClientId, locked: &mut Locked<'_>) {
    if let Some(session) = locked.session().as_mut().filter(|session| session.released) {
        session.offline_since_ms.get_or_insert_with(clock::wall_ms);
        session.released = false;
        lifecycle::look(context, client_id, locked, true);
    }
}

/// The same for a session that a claim of another one has ended, on whatever node it was.
pub(super) async fn inherit(
    context: &Context,
    client_id: &ClientId,
    ended: &SessionRow,
    epoch: u64,
) {
    if ended.expiry_s > 0 {
        let queue = QueueKey::of(client_id, ended.is_application());
        let incarnation = ended.incarnation;
        give_all_back(context, Lender { queue, incarnation, epoch, over: true }).await;
    }
}

/// Gives back what a session has of groups, which is about to end. Nobody reads its queue.
pub(super) async fn release(context: &Context, client_id: &ClientId, session: &mut Session) {
    give_all_back(context, lender(client_id, session, true)).await;
    context.members.away.lock().remove(client_id);
    context.members.left.lock().remove(client_id);
    session.released = true;
}

async fn give_all_back(context: &Context, lender: Lender) {
    // What was on its way to it when its client went: decided first, then put into its queue.
    for _ in 0..2 {
        context.progress.queued(context.log.end(0).offset).await;
    }
    loop {
        match context.groups.give_back(&lender).await {
            Ok(_) | Err(StorageError::Fenced) => break,
            Err(error) => {
                tracing::warn!(queue = %lender.queue, %error, "a member can't give back yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
    context.groups.departed(lender.queue, lender.incarnation);
}
