//! CONNECT's effect on the session: who owns the client id from here on (design decision 2).

use std::sync::Arc;

use tokio::time::Instant;

use super::census::Excess;
use super::cluster;
use super::conn::{About, Conn, End};
use super::context::Context;
use super::directory::{Directory, Found};
use super::groups;
use super::inbound::Exchanges;
use super::lifecycle;
use super::places::Place;
use super::registry::{Locked, Session};
use super::rows::{Guest, Owed, SessionRow, WillRow};
use super::wills;
use crate::codec::{Connect, Disconnect, Packet};
use crate::delivery::{Outbox, Settings, SlotView};
use crate::mqtt::{ClientId, ReasonCode};
use crate::security::{ClientType, Grant};
use crate::storage::once;
use crate::storage::{AppendOutcome, Durability, Publisher, QueueKey, QueueState, StorageError};
use crate::telemetry::{Throttle, clock, fail_point, metrics, task};

/// No connection's epoch: nobody may append while a claim is on its way.
const NOBODY: u64 = u64::MAX;

static NO_PLAN: Throttle = Throttle::per_minute();
static NO_QUEUE: Throttle = Throttle::per_minute();

/// What a CONNECT asks for, after it was checked.
pub(super) struct Ask {
    pub(super) client_id: ClientId,
    pub(super) clean_start: bool,
    pub(super) expiry_s: u32,
    /// Its session, if it outlives the connection, is to be an APPLICATION client's.
    pub(super) application: bool,
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

/// A claim that is in force.
struct Won {
    /// The session that was there.
    old: Option<Session>,
    resumes: bool,
    incarnation: u64,
    epoch: u64,
    open_ids: Arc<Exchanges>,
    /// A row of it is in the table for good.
    stored: bool,
    application: bool,
    /// Wills that the sessions before it leave to the log.
    owed: Vec<Owed>,
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
    let place = place(context, &ask.client_id, locked.session().as_ref())?;
    let application = application_place(context, &ask, locked.session().as_ref())?;
    let won = match &context.directory {
        Some(directory) => win(context, directory, &mut locked, &ask, deadline).await?,
        None => win_alone(context, &mut locked, &ask, now_ms, deadline).await?,
    };
    let Won { old, resumes, incarnation, epoch, open_ids, stored, owed, application: is_one } = won;
    open_ids.own(epoch);
    let anyway = || Arc::new(context.applications.take_anyway());
    let application = is_one.then(|| application.unwrap_or_else(anyway));
    ask.tell_kind(is_one);
    // A resumed session is owed what waits for it, also on a connection with which it ends.
    let persistent = ask.expiry_s > 0 || resumes;
    let queue = persistent.then(|| QueueKey::of(&ask.client_id, is_one));
    let outbox = outbox_of(context, &ask);
    let conn = Arc::new(Conn::new(&ask, epoch, Arc::clone(&outbox), is_one));
    let session = locked.session().insert(Session {
        incarnation,
        epoch,
        version: ask.settings.version,
        expiry_s: ask.expiry_s,
        live: Some(Arc::clone(&conn)),
        offline_since_ms: None,
        will: ask.will.clone(),
        owed,
        under_way: Vec::new(),
        grant: ask.about.grant.clone(),
        open_ids: Arc::clone(&open_ids),
        timer_ms: None,
        stored,
        place,
        application,
        released: false,
    });
    if old.as_ref().is_some_and(|old| wills::inherit(session, old)) {
        lifecycle::store(context, &ask.client_id, session);
    }
    displace(context, &ask.client_id, old, resumes);
    wills::pay(context, &ask.client_id, session);
    let Ok(opened) = open(context, queue.as_ref(), incarnation, epoch).await else {
        return Err(give_up(context, &ask.client_id, &mut locked));
    };
    if ask.will.is_some() {
        metrics::LAST_WILL_CLIENTS.inc();
    }
    context.registry.add_live(&conn);
    context.tell_groups(&conn);
    greet(&outbox, resumes);
    let view = SlotView { incarnation, persistent, application: is_one, outbox: Some(outbox) };
    show(context, &ask.client_id, view);
    if let Some(queue) = queue {
        attach_queue(context, &conn, queue, incarnation, opened).await;
    }
    if context.directory.as_ref().is_some_and(|all| all.epoch(&ask.client_id) != Some(epoch)) {
        // Another node was quicker than this one could look for its connection.
        conn.end(End::TakenOver);
    }
    drop(locked);
    let publisher = Arc::new(Publisher { client_id: ask.client_id, incarnation, epoch });
    Ok(Claimed { conn, publisher, open_ids, persistent, expiry_s: ask.expiry_s })
}

/// The session's queue, which must be there for it before anything is promised, and behind the last
/// word of the connection before. Opened once: whoever opens it again is told that all reserved ids
/// may have been used. `None`: where queues are the node's own, whoever has the claim stored has
/// them, too, and they are opened behind CONNACK.
async fn open(
    context: &Context,
    queue: Option<&QueueKey>,
    incarnation: u64,
    epoch: u64,
) -> Result<Option<QueueState>, StorageError> {
    let Some(queue) = queue.filter(|_| context.directory.is_some()) else { return Ok(None) };
    let opened = context.queues.open_as(queue, incarnation, epoch).await;
    if let Err(error) = &opened
        && !matches!(error, StorageError::Fenced)
        && let Some(unsaid) = NO_QUEUE.ready()
    {
        tracing::warn!(%queue, %error, unsaid, "a session is refused: its queue can't be opened");
    }
    opened.map(Some)
}

/// A session whose connection gets no CONNACK: its client is away, and its Will was never promised.
fn give_up(context: &Arc<Context>, client_id: &ClientId, locked: &mut Locked<'_>) -> ReasonCode {
    if let Some(session) = locked.session() {
        (session.live, session.will) = (None, None);
        session.offline_since_ms = Some(clock::wall_ms());
    }
    lifecycle::look(context, client_id, locked, true);
    ReasonCode::ServerUnavailable
}

/// From here on the session's messages come from its queue, which may have been opened before.
async fn attach_queue(
    context: &Context,
    conn: &Conn,
    queue: QueueKey,
    incarnation: u64,
    opened: Option<QueueState>,
) {
    let state = match opened {
        Some(state) => Ok(state),
        None => context.queues.open_as(&queue, incarnation, conn.epoch).await,
    };
    match state {
        Ok(state) => conn.outbox.attach_queue(queue, &state),
        // A newer connection has it.
        Err(StorageError::Fenced) => conn.end(End::TakenOver),
        Err(error) => {
            tracing::warn!(client = %conn.client_id, %error, "the queue can't be opened");
            conn.end(End::Storage);
        }
    }
}

/// Where there is one node: what this one knows of the session is all there is.
async fn win_alone(
    context: &Arc<Context>,
    locked: &mut Locked<'_>,
    ask: &Ask,
    now_ms: u64,
    deadline: Instant,
) -> Result<Won, ReasonCode> {
    let resumes = !ask.clean_start && ask.expiry_resumes(locked.session().as_ref(), now_ms);
    if let Some(old) = locked.session().as_mut().filter(|_| !resumes)
        && groups::owes(context, &ask.client_id, old)
    {
        // Nobody may acknowledge meanwhile what goes to others.
        cut(context, &ask.client_id, old);
        groups::release(context, &ask.client_id, old).await;
    }
    let epoch = context.next_epoch();
    let kept = locked.session().as_ref().filter(|_| resumes);
    let incarnation = kept.map_or(epoch, |session| session.incarnation);
    let open_ids = kept.map(|session| Arc::clone(&session.open_ids)).unwrap_or_default();
    let application = kept.map_or(ask.application, |session| session.application.is_some());
    let before = locked.session().as_ref().map(|old| lifecycle::row_of(context, old));
    let owed = before.map(|old| old.leaves(resumes, now_ms)).unwrap_or_default();
    let stored = ask.expiry_s > 0 || resumes || ask.will.is_some() || !owed.is_empty();
    let earlier = locked.session().as_ref().map(|old| (Arc::clone(&old.open_ids), old.epoch));
    if let Some((earlier, _)) = &earlier {
        earlier.own(epoch);
    }
    open_ids.own(epoch);
    let row = ask.row(context, incarnation, epoch).of_application(application).owing(owed.clone());
    let put = store(context, locked, ask, (row, stored), resumes, deadline).await;
    if let (Err(_), Some((earlier, epoch))) = (&put, &earlier) {
        earlier.own(*epoch);
    }
    put.inspect_err(|_| groups::goes_on(context, &ask.client_id, locked))?;
    let old = locked.session().take();
    Ok(Won { old, resumes, incarnation, epoch, open_ids, stored, owed, application })
}

/// Among several nodes: what the claim finds where it stands in the log is what counts. Everything
/// in front of it was routed here, and is in the session's queue, when this returns.
async fn win(
    context: &Arc<Context>,
    directory: &Directory,
    locked: &mut Locked<'_>,
    ask: &Ask,
    deadline: Instant,
) -> Result<Won, ReasonCode> {
    let earlier = locked.session().as_ref().map(|old| (Arc::clone(&old.open_ids), old.epoch));
    if let Some((earlier, _)) = &earlier {
        earlier.own(NOBODY);
    }
    let row = ask.row(context, 0, 0).claiming(ask.clean_start, ask.guest());
    let row = row.of_application(ask.application);
    let row = row.row(&ask.client_id);
    let (sink, mut settled) = once();
    context.tables.put(vec![row], Durability::Durable, sink, 0);
    let position = match tokio::time::timeout_at(deadline, settled.outcome()).await {
        Ok(AppendOutcome::Stored(position)) => position,
        unsure => {
            if let Some((earlier, epoch)) = &earlier {
                earlier.own(*epoch);
            }
            if !matches!(unsure, Ok(AppendOutcome::NotStored)) {
                cluster::see_to_late_claim(context, &ask.client_id, settled);
            }
            return Err(ReasonCode::ServerUnavailable);
        }
    };
    fail_point::pass("claim.stored");
    let Some(Found { before, now, was_member, excess }) = directory.found(&ask.client_id, position)
    else {
        return Err(ReasonCode::ServerUnavailable);
    };
    if let Some(excess) = excess {
        cluster::take_back(context, &ask.client_id, locked, before, now);
        return Err(refused(excess));
    }
    let resumes = before.as_ref().is_some_and(|old| old.incarnation == now.incarnation);
    // Nothing in front of its beginning is for a new session.
    let routed = context.progress.queued(if resumes { position.offset + 1 } else { 0 });
    if tokio::time::timeout_at(deadline, routed).await.is_err() {
        cluster::surrender(context, &ask.client_id, locked, before, now);
        return Err(ReasonCode::ServerUnavailable);
    }
    if let Some(ended) = before.as_ref().filter(|_| was_member && !resumes) {
        // Before the queue is the new session's; whoever has no patience gets what is left counted.
        let given = groups::inherit(context, &ask.client_id, ended, now.epoch);
        drop(tokio::time::timeout_at(deadline, given).await);
    }
    let old = cluster::take_old(context, &ask.client_id, locked, before);
    let kept = old.as_ref().filter(|_| resumes);
    let open_ids = kept.map(|old| Arc::clone(&old.open_ids)).unwrap_or_default();
    let application = now.is_application();
    let SessionRow { incarnation, epoch, owed, .. } = now;
    Ok(Won { old, resumes, incarnation, epoch, open_ids, stored: true, owed, application })
}

fn outbox_of(context: &Context, ask: &Ask) -> Arc<Outbox> {
    let (config, queues) = (Arc::clone(&context.delivery), Arc::clone(&context.queues));
    Outbox::new(ask.settings.clone(), config, queues)
}

/// Shows routing how the session stands: it may take what waits for its groups.
fn show(context: &Context, client_id: &ClientId, view: SlotView) {
    attach(context, client_id, view);
    context.groups.wake();
}

fn attach(context: &Context, client_id: &ClientId, view: SlotView) {
    if context.directory.is_some() {
        // What else there is to see was told in the log's order.
        if let (Some(slot), Some(outbox)) =
            (context.slots.by_client(client_id.as_str()), view.outbox)
        {
            slot.attach(view.incarnation, outbox);
        }
        return;
    }
    let slot = context.slots.ensure(client_id);
    if slot.is_persistent() != view.persistent {
        context.subscriptions.touch();
    }
    slot.set(view);
}

/// The session's place, or one for one more session, if there may be one.
fn place(
    context: &Context,
    client_id: &ClientId,
    known: Option<&Session>,
) -> Result<Arc<Place>, ReasonCode> {
    if let Some(known) = known {
        let may = known.owed.len() < wills::OWED_MAX;
        return may.then(|| Arc::clone(&known.place)).ok_or(ReasonCode::ServerUnavailable);
    }
    if context.directory.as_ref().is_some_and(|all| all.epoch(client_id).is_some()) {
        // It had one on the node that it comes from.
        return Ok(Arc::new(context.places.take_anyway()));
    }
    let until_ms = context.config.new_sessions_until_ms;
    let over = until_ms.is_some_and(|until_ms| clock::wall_ms() >= until_ms);
    if over && let Some(unsaid) = NO_PLAN.ready() {
        tracing::error!(unsaid, "the plan expired: no new session is taken");
    }
    let place = match &context.directory {
        // Where the claim stands in the log decides; this spares the log what is hopeless.
        Some(all) => (!all.is_full(Excess::Sessions)).then(|| context.places.take_anyway()),
        None => context.places.take(context.config.sessions_limit),
    };
    place.filter(|_| !over).map(Arc::new).ok_or_else(|| refused(Excess::Sessions))
}

/// The same for `mqtt.application-clients-limit`; `None`: it is no persistent APPLICATION client,
/// or one whose session is on its way from another node.
fn application_place(
    context: &Context,
    ask: &Ask,
    known: Option<&Session>,
) -> Result<Option<Arc<Place>>, ReasonCode> {
    if let Some(place) = known.and_then(|known| known.application.clone()) {
        return Ok(Some(place));
    }
    let goes_on = known.is_some() && ask.expiry_resumes(known, clock::wall_ms());
    if !ask.application || goes_on && !ask.clean_start {
        return Ok(None);
    }
    let place = match &context.directory {
        Some(all) => {
            let known = all.get(&ask.client_id).is_some_and(|row| row.is_application());
            let may = known || !all.is_full(Excess::Applications);
            may.then(|| context.applications.take_anyway())
        }
        None => context.applications.take(context.config.application_clients_limit),
    };
    place.map(|place| Some(Arc::new(place))).ok_or_else(|| refused(Excess::Applications))
}

fn refused(excess: Excess) -> ReasonCode {
    match excess {
        Excess::Sessions => metrics::LIMITED_SESSIONS.inc(),
        Excess::Applications => metrics::LIMITED_APPLICATIONS.inc(),
    }
    ReasonCode::QuotaExceeded
}

impl Ask {
    /// Says so when the session is of another kind than its client: it stays what it began as.
    fn tell_kind(&self, application: bool) {
        if application != self.application && self.expiry_s > 0 {
            let (client, wanted) = (&self.client_id, self.application);
            let text = "the session stays what it began as, until a clean start";
            tracing::info!(%client, application, wanted, "{text}");
        }
    }

    fn row(&self, context: &Context, incarnation: u64, epoch: u64) -> SessionRow {
        let (node, version) = (&context.node.0, self.settings.version);
        SessionRow::new(incarnation, epoch, node, version, self.expiry_s, None, self.will.clone())
    }

    /// The client as other nodes may know it.
    fn guest(&self) -> Guest {
        let grant = self.about.grant.as_deref();
        Guest {
            connected_ms: clock::wall_ms(),
            address: self.about.peer.address.map(|at| at.ip()),
            keep_alive_s: self.keep_alive_s,
            application: grant.is_some_and(|grant| grant.client_type() == ClientType::Application),
            username: grant.and_then(Grant::username).map(str::to_owned),
            provider: grant.map(|grant| grant.provider().to_owned()),
        }
    }

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
    (row, stored): (SessionRow, bool),
    resumes: bool,
    deadline: Instant,
) -> Result<(), ReasonCode> {
    let mut rows = Vec::new();
    let old = locked.session().as_ref();
    let was_stored = old.is_some_and(|old| old.stored);
    if let Some(old) = old.filter(|_| !resumes) {
        rows = lifecycle::tombstones(context, &ask.client_id, old);
    }
    let durability = if stored || was_stored { Durability::Durable } else { Durability::Relaxed };
    rows.push(if stored || !was_stored {
        row.row(&ask.client_id)
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

/// Cuts the session's connection, if it has one here.
pub(super) fn cut(context: &Context, client_id: &ClientId, session: &mut Session) {
    let Some(live) = session.live.take() else { return };
    let is_v5 = session.version.is_v5();
    let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::SessionTakenOver));
    live.end(End::TakenOver);
    if let Some(slot) = context.slots.by_client(client_id.as_str()) {
        slot.detach(&live.outbox);
    }
    live.outbox.close(is_v5.then_some(&disconnect));
    context.registry.remove_live(&live);
    metrics::TAKEOVERS.inc();
}

/// Cuts the connection before this one. Its Will is owed by then, or cancelled.
pub(super) fn displace(
    context: &Arc<Context>,
    client_id: &ClientId,
    old: Option<Session>,
    resumes: bool,
) {
    let Some(mut old) = old else { return };
    context.timers.set(&mut old.timer_ms, None, client_id);
    cut(context, client_id, &mut old);
    if old.will.is_some() {
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
