//! What runs beside the connections: the keep-alive sweep, the look at the log's health, and the
//! expiry of retained messages.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::cluster;
use super::conn::End;
use super::context::Context;
use super::{groups, timers};
use crate::mqtt::ReasonCode;
use crate::storage::Durability;
use crate::storage::Unwatched;
use crate::telemetry::{Throttle, clock, metrics, task};

/// `mqtt.keep-alive.monitoring-delay-ms`: fine enough for one and a half times a second.
const KEEP_ALIVE_EVERY: Duration = Duration::from_millis(500);
const LOG_EVERY: Duration = Duration::from_millis(100);

pub(super) fn start(context: &Arc<Context>) -> Vec<JoinHandle<()>> {
    let mut tasks = vec![
        task::spawn("session timers", timers::run(Arc::clone(context))),
        task::spawn("keep-alive sweep", keep_alive(Arc::clone(context))),
        task::spawn("log watch", watch_log(Arc::clone(context))),
        task::spawn("shared groups", groups::run(Arc::clone(context))),
        task::spawn("rights watch", watch_rights(Arc::clone(context))),
        task::spawn("retained expiry", expire_retained(Arc::clone(context))),
    ];
    if context.directory.is_some() {
        tasks.push(task::spawn("cluster watch", cluster::run(Arc::clone(context))));
    }
    tasks
}

/// Ends connections that were silent for too long (MQTT-3.1.2-22), and those that the log owes an
/// answer for too long: nobody knows whether what they have open will be stored (IN-7).
async fn keep_alive(context: Arc<Context>) {
    let append_timeout = context.config.append_timeout;
    loop {
        let began = Instant::now();
        tokio::time::sleep(KEEP_ALIVE_EVERY).await;
        if began.elapsed() > 2 * KEEP_ALIVE_EVERY {
            // This process stood still (stopped, or on a suspended machine). What came meanwhile
            // is read first, and judged next time.
            continue;
        }
        let now_ms = clock::wall_ms();
        context.registry.each_live(|conn| {
            if conn.is_silent() {
                conn.end(End::KeepAlive);
            } else if conn.is_unanswered(append_timeout) {
                conn.end(End::Storage);
            } else if conn.grant.as_ref().is_some_and(|grant| grant.is_over(now_ms)) {
                // A token's end comes without news.
                conn.end(End::Server(ReasonCode::NotAuthorized));
            }
        });
        metrics::ALL_CLIENT_SESSIONS.set(context.places.taken() as i64);
        context.budget.tell();
        context.limits.sweep();
    }
}

/// Ends connections whose right to be here is gone: a credential, a token, a new block.
async fn watch_rights(context: Arc<Context>) {
    let mut seen = 0;
    loop {
        seen = context.security.changed(seen).await;
        context.registry.each_live(|conn| {
            let username = conn.grant.as_ref().and_then(|grant| grant.username());
            if conn.grant.as_ref().is_some_and(|grant| grant.is_over(clock::wall_ms())) {
                conn.end(End::Server(ReasonCode::NotAuthorized));
            } else if context.security.is_blocked(
                conn.client_id.as_str(),
                username,
                conn.peer.address.map(|address| address.ip()),
            ) {
                // DISCONNECT has no word for a ban (MQTT 5 table 2-6).
                conn.end(End::Server(ReasonCode::AdministrativeAction));
            }
        });
    }
}

static HELD: Throttle = Throttle::per_minute();
static GO_ON: Throttle = Throttle::per_minute();

/// Holds publishers while dispatch lags behind (IN-8), and tells of trouble once.
async fn watch_log(context: Arc<Context>) {
    loop {
        tokio::time::sleep(LOG_EVERY).await;
        let (bytes, age_ms) = context.log.lag();
        metrics::LOG_LAG_BYTES.set(bytes as i64);
        metrics::LOG_LAG_MS.set(age_ms as i64);
        let age_max_ms = context.config.dispatch_lag_max_age.as_millis();
        let lags = bytes > context.config.dispatch_lag_max_bytes || u128::from(age_ms) > age_max_ms;
        if lags != context.is_lagging() {
            // At the bound it goes to and fro.
            if let Some(unsaid) = if lags { HELD.ready() } else { GO_ON.ready() } {
                if lags {
                    tracing::warn!(
                        bytes,
                        age_ms,
                        unsaid,
                        "dispatch lags behind: publishers are held"
                    );
                } else {
                    tracing::info!(unsaid, "dispatch has caught up: publishers go on");
                }
            }
            context.set_lagging(lags);
        }
        let trouble = context.log.trouble();
        let mut known = context.trouble.lock();
        if *known != trouble {
            match &trouble {
                Some(text) => tracing::error!("the publish log: {text}"),
                None => tracing::info!("the publish log is well again"),
            }
            *known = trouble;
        }
    }
}

/// Takes expired retained messages out of the table (MQTT-3.3.2-5).
async fn expire_retained(context: Arc<Context>) {
    let period = context.retained_expiry_period;
    loop {
        tokio::time::sleep(period).await;
        loop {
            let expired = context.retained.apart(|| {
                let rows = context.retained.expire();
                let some = !rows.is_empty();
                if some {
                    let sink = Arc::new(Unwatched("the expiry of retained messages"));
                    context.tables.put(rows, Durability::Durable, sink, 0);
                }
                some
            });
            if !expired {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}
