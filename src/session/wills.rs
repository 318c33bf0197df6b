//! Wills, from the decision that one goes out until the log has it. In between its session owes it:
//! the row keeps it, and the session does not end, so that neither a refusing storage nor a crash
//! loses it (WIL-09). The judge drops all copies but the first (WIL-01).

use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, Serving};
use super::lifecycle;
use super::registry::Session;
use super::rows::Owed;
use crate::mqtt::ClientId;
use crate::storage::{AppendOutcome, Batch, Durability, Publisher, Row, Settled, once};
use crate::telemetry::{self, Direction, DropReason, metrics, task};

/// How long to wait before a Will that could not be stored is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// More than so many Wills on their way, and nobody takes the session over: each takeover that the
/// storage takes adds one, and it took none of them.
pub(super) const OWED_MAX: usize = 16;

/// The session's Will goes out, if it still may (its rules may have changed since CONNECT).
pub(super) fn fire(session: &mut Session) {
    let Some(will) = session.will.take() else { return };
    metrics::LAST_WILL_CLIENTS.dec();
    if let Some(denied) = denied(session, will.topic()) {
        return denied();
    }
    let (incarnation, epoch) = (session.incarnation, session.epoch);
    session.owed.push(Owed { incarnation, epoch, will });
}

/// What to do about a Will that may not go out any more; `None`: it may.
fn denied(session: &Session, topic: &str) -> Option<fn()> {
    let may = session.grant.as_ref().is_none_or(|grant| grant.may_publish(topic));
    (!may).then_some(|| {
        metrics::AUTHORIZATION_PUBLISH.inc();
        telemetry::dropped(DropReason::NotAuthorized, Direction::Inbound, 1);
    })
}

/// The session of a new connection takes over what those before it owe, as its row says it, and
/// who sees to it. Whether the row says more than may go out.
pub(super) fn inherit(session: &mut Session, old: &Session) -> bool {
    session.under_way.clone_from(&old.under_way);
    let Some(denied) = old.will.as_ref().and_then(|will| denied(old, will.topic())) else {
        return false;
    };
    let said = session.owed.len();
    session.owed.retain(|owed| owed.epoch != old.epoch);
    let too_much = session.owed.len() < said;
    if too_much {
        denied();
    }
    too_much
}

/// Sends what the session owes and nobody sees to yet: through the log, like any publish (IN-1).
pub(super) fn pay(context: &Arc<Context>, client_id: &ClientId, session: &mut Session) {
    for owed in &session.owed {
        if !session.under_way.contains(&owed.epoch) {
            session.under_way.push(owed.epoch);
            send(context, client_id, owed);
        }
    }
}

/// Nobody sends a Will again but its session's node: one that could not be stored is tried again
/// until it is.
fn send(context: &Arc<Context>, client_id: &ClientId, owed: &Owed) {
    let Owed { incarnation, epoch, will } = owed;
    let (incarnation, epoch) = (*incarnation, *epoch);
    let batch =
        will.batch(Arc::new(Publisher { client_id: client_id.clone(), incarnation, epoch }));
    let (mut open, mut retained) = (Vec::new(), None);
    if is_paid_for(context, &batch) {
        retained = will.retained(&context.retained, &batch);
        metrics::WILLS_PUBLISHED.inc();
        open = append(context, &batch, retained.as_ref());
    }
    let (context, client_id) = (Arc::clone(context), client_id.clone());
    let serving = Serving::of(&context);
    task::spawn("will", async move {
        while !all_stored(&mut open).await {
            if context.is_stopping() {
                // The row has it, for the next start.
                return;
            }
            tracing::warn!("a Will could not be stored; it is tried again");
            tokio::time::sleep(RETRY).await;
            open = append(&context, &batch, retained.as_ref());
        }
        paid(&context, &client_id, epoch).await;
        drop(serving);
    });
}

/// The log has the Will: its session may forget it, and end if it was due to.
async fn paid(context: &Arc<Context>, client_id: &ClientId, epoch: u64) {
    let mut locked = context.registry.lock(client_id).await;
    let Some(session) = locked.session() else { return };
    session.under_way.retain(|one| *one != epoch);
    let owed = session.owed.len();
    session.owed.retain(|one| one.epoch != epoch);
    if session.owed.len() == owed {
        // It is another node's by now, and was when it came here.
        return;
    }
    match session.live {
        Some(_) => lifecycle::store(context, client_id, session),
        None => lifecycle::look(context, client_id, &mut locked, true),
    }
}

/// Wills are charged like publishes (QUO-2); one beyond the budget is lost, and counted.
fn is_paid_for(context: &Context, will: &Batch) -> bool {
    let Some(quota) = &context.limits.throughput else { return true };
    let (view, publisher) = (will.view(0), &will.publisher().client_id);
    let cost = 1 + context.subscriptions.fan_out(view.topic, view.qos, publisher);
    let charged = quota.take_now(cost).is_some();
    if !charged {
        metrics::LIMITED_TOTAL.inc();
        let (why, client) = (DropReason::RateLimits, publisher.as_str());
        telemetry::dropped_of(why, Direction::Inbound, client, view.topic, 1);
    }
    charged
}

fn append(context: &Context, batch: &Arc<Batch>, retained: Option<&Row>) -> Vec<Settled> {
    let (sink, settled) = once();
    let mut open = vec![settled];
    let batch = Arc::clone(batch);
    let Some(row) = retained else {
        context.log.append(batch, Durability::Durable, sink, 0);
        return open;
    };
    if context.log.takes_retained() {
        context.log.append_retaining(batch, &[0], sink, 0);
        return open;
    }
    let (of_row, settled) = once();
    context.retained.together(|| {
        context.log.append(batch, Durability::Durable, sink, 0);
        context.tables.put(vec![row.clone()], Durability::Durable, of_row, 0);
    });
    open.push(settled);
    open
}

async fn all_stored(open: &mut [Settled]) -> bool {
    let mut all = true;
    for settled in open {
        all &= matches!(settled.outcome().await, AppendOutcome::Stored(_));
    }
    all
}
