//! CONNECT's effect on the session: who owns the client id from here on (design decision 2).

use std::sync::Arc;

use tokio::time::Instant;

use super::conn::{About, Conn, End};
use super::context::Context;
use super::inbound::Exchanges;
use super::lifecycle;
use super::registry::{Locked, Session};
use super::rows::WillRow;
use crate::codec::{Connect, Disconnect, Packet};
use crate::delivery::{Outbox, Settings, SlotView};
use crate::mqtt::{ClientId, ReasonCode};
use crate::storage::once;
use crate::storage::{AppendOutcome, Durability, Publisher, QueueKey};
use crate::telemetry::{clock, metrics, task};

/// What a CONNECT asks for, after it was checked.
pub(super) struct Ask {
    pub(super) client_id: ClientId,
    pub(super) clean_start: bool,
    pub(super) expiry_s: u32,
    pub(super) keep_alive_s: u16,
    pub(super) will: Option<Box<WillRow>>,
    pub(super) settings: Settings,
    pub(super) about: About,
}

/// A session that is ours, and whose connection is ready for its CONNACK.
pub(super) struct Claimed {
    pub(super) conn: Arc<Conn>,
    pub(super) publisher: Arc<Publisher>,
    pub(super) open_ids: Arc<Exchanges>,
    /// The session has a queue: it outlives its connection, or did outlive the one before.
    pub(super) persistent: bool,
    /// Session Expiry Interval of the CONNECT.
    pub(super) expiry_s: u32,
}

/// Makes the connection the owner of its client id. The claim is durable before the old owner is
/// cut and before anything is answered; `greet` puts CONNACK into the outbox, which is attached to
/// routing only behind it.
pub(super) async fn claim(
    context: &Arc<Context>,
    ask: Ask,
    greet: impl FnOnce(&Outbox, bool),
) -> Result<Claimed, ReasonCode> {
    let deadline = Instant::now() + context.config.claim_timeout;
    let locked = tokio::time::timeout_at(deadline, context.registry.lock(&ask.client_id)).await;
    let mut locked = locked.map_err(|_| ReasonCode::ServerUnavailable)?;
    let now_ms = clock::wall_ms();
    let is_new = locked.session().is_none();
    if is_new && over_limit(context) {
        return Err(ReasonCode::QuotaExceeded);
    }
    let resumes = !ask.clean_start && ask.expiry_resumes(locked.session().as_ref(), now_ms);
    let epoch = context.next_epoch();
    let kept = locked.session().as_ref().filter(|_| resumes);
    let incarnation = kept.map_or(epoch, |session| session.incarnation);
    let open_ids = kept.map(|session| Arc::clone(&session.open_ids)).unwrap_or_default();
    // A resumed session is owed what waits for it, also on a connection with which it ends.
    let persistent = ask.expiry_s > 0 || resumes;
    let (config, queues) = (Arc::clone(&context.delivery), Arc::clone(&context.queues));
    let outbox = Outbox::new(ask.settings.clone(), config, queues);
    let conn = Conn::new(&ask, epoch, Arc::clone(&outbox));
    let conn = Arc::new(conn);
    let session = Session {
        incarnation,
        epoch,
        version: ask.settings.version,
        expiry_s: ask.expiry_s,
        live: Some(Arc::clone(&conn)),
        offline_since_ms: None,
        will: ask.will.clone(),
        grant: ask.about.grant.clone(),
        open_ids: Arc::clone(&open_ids),
        timer_ms: None,
        stored: persistent || ask.will.is_some(),
    };
    let earlier = locked.session().as_ref().map(|old| (Arc::clone(&old.open_ids), old.epoch));
    if let Some((earlier, _)) = &earlier {
        earlier.own(epoch);
    }
    open_ids.own(epoch);
    let stored = store(context, &mut locked, &ask, &session, resumes, deadline).await;
    if let (Err(_), Some((earlier, epoch))) = (&stored, &earlier) {
        earlier.own(*epoch);
    }
    stored?;
    let old = locked.session().replace(session);
    displace(context, &ask.client_id, old, resumes, now_ms);
    if ask.will.is_some() {
        metrics::LAST_WILL_CLIENTS.inc();
    }
    context.registry.add_live(&conn);
    greet(&outbox, resumes);
    let slot = context.slots.ensure(&ask.client_id);
    slot.set(SlotView { incarnation, persistent, outbox: Some(Arc::clone(&outbox)) });
    if persistent {
        let queue = QueueKey::Client(ask.client_id.clone());
        match context.queues.open(&queue, incarnation).await {
            Ok(state) => outbox.attach_queue(queue, &state),
            Err(error) => {
                tracing::warn!(client = %ask.client_id, %error, "the queue can't be opened");
                conn.end(End::Server(ReasonCode::ServerUnavailable));
            }
        }
    }
    drop(locked);
    let publisher = Arc::new(Publisher { client_id: ask.client_id, incarnation, epoch });
    Ok(Claimed { conn, publisher, open_ids, persistent, expiry_s: ask.expiry_s })
}

fn over_limit(context: &Context) -> bool {
    // The entry of the client that asks is in the registry already.
    let sessions = || context.registry.sessions() as u64;
    context.config.sessions_limit.is_some_and(|limit| sessions() > limit)
}

impl Ask {
    /// Whether there is a session to go on with: one that outlived its connection, or would have.
    fn expiry_resumes(&self, session: Option<&Session>, now_ms: u64) -> bool {
        session.is_some_and(|session| {
            session.expiry_s > 0 && session.expires_at_ms().is_none_or(|end_ms| end_ms > now_ms)
        })
    }
}

/// Writes the claim, and with it, as one, the end of a session that it does not go on with.
async fn store(
    context: &Arc<Context>,
    locked: &mut Locked<'_>,
    ask: &Ask,
    session: &Session,
    resumes: bool,
    deadline: Instant,
) -> Result<(), ReasonCode> {
    let mut rows = Vec::new();
    let old = locked.session().as_ref();
    let was_stored = old.is_some_and(|old| old.stored);
    if let Some(old) = old.filter(|_| !resumes) {
        rows = lifecycle::tombstones(context, &ask.client_id, old);
    }
    let durability =
        if session.stored || was_stored { Durability::Durable } else { Durability::Relaxed };
    rows.push(if session.stored || !was_stored {
        lifecycle::row_of(context, session).row(&ask.client_id)
    } else {
        super::rows::tombstone(&ask.client_id)
    });
    let (sink, mut settled) = once();
    context.tables.put(rows, durability, sink, 0);
    match tokio::time::timeout_at(deadline, settled.outcome()).await {
        Ok(AppendOutcome::Stored(_)) => Ok(()),
        Ok(AppendOutcome::NotStored) => Err(ReasonCode::ServerUnavailable),
        Ok(AppendOutcome::InDoubt) | Err(_) => {
            // It may land yet; then the row is set right again (design decision 2).
            let (context, client_id) = (Arc::clone(context), ask.client_id.clone());
            task::spawn("late claim", async move {
                settled.outcome().await;
                lifecycle::restore_row(&context, &client_id).await;
            });
            Err(ReasonCode::ServerUnavailable)
        }
    }
}

/// Cuts the connection before this one, and deals with the Will and the session it leaves.
fn displace(
    context: &Arc<Context>,
    client_id: &ClientId,
    old: Option<Session>,
    resumes: bool,
    now_ms: u64,
) {
    let Some(mut old) = old else { return };
    context.timers.set(&mut old.timer_ms, None, client_id);
    let was_live = old.live.take().is_some_and(|live| {
        let is_v5 = old.version.is_v5();
        let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::SessionTakenOver));
        live.end(End::TakenOver);
        if let Some(slot) = context.slots.by_client(client_id.as_str()) {
            slot.detach(&live.outbox);
        }
        live.outbox.close(is_v5.then_some(&disconnect));
        context.registry.remove_live(&live);
        metrics::TAKEOVERS.inc();
        true
    });
    // The Will goes out when its connection was cut here and it has no delay, when its delay is
    // over, or when its session ends; a client that comes back in time cancels it (MQTT-3.1.3-9),
    // and so does one that comes back after this node was away (then its off-line time lies
    // ahead).
    let delayed = old.will.as_ref().is_some_and(|will| will.delay_s > 0);
    let in_grace = old.offline_since_ms.is_some_and(|since_ms| since_ms > now_ms);
    let over = old.will_due_ms().is_some_and(|due_ms| due_ms <= now_ms);
    let fires = if was_live { !delayed || !resumes } else { over || !resumes && !in_grace };
    if fires {
        lifecycle::fire_will(context, client_id, &mut old);
    } else if old.will.is_some() {
        metrics::LAST_WILL_CLIENTS.dec();
    }
    if !resumes {
        lifecycle::forget(context, client_id, &old);
    }
}

/// Whether v5 must be told another Session Expiry Interval than it asked for.
pub(super) fn expiry_to_tell(connect: &Connect, in_force: u32) -> Option<u32> {
    let asked = connect.properties.session_expiry_s.unwrap_or(0);
    (asked != in_force).then_some(in_force)
}
