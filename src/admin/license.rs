//! `/api/license/throughput`: the quota, and whether it was reached (QUO-9).

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::Api;

pub(super) fn router(api: Api) -> Router {
    Router::new()
        .route("/api/license/throughput", get(throughput))
        .route("/api/license/throughput/acknowledge", post(acknowledge))
        .with_state(Arc::new(api))
}

async fn throughput(State(api): State<Arc<Api>>) -> Json<Value> {
    let since_ms = api.throughput.as_ref().and_then(|quota| quota.reached().since_ms());
    let plan = api.plan.as_ref().map(|plan| {
        json!({
            "name": plan.name,
            "throughput": plan.throughput,
            "sessions": plan.sessions,
            "expiresAt": plan.expires_at_s.saturating_mul(1000),
        })
    });
    Json(json!({
        "limited": api.throughput.is_some(),
        "reached": since_ms.is_some(),
        "reachedSince": since_ms,
        "leasedTokens": api.throughput.as_ref().map(|quota| quota.leased()),
        "plan": plan,
    }))
}

async fn acknowledge(State(api): State<Arc<Api>>) -> StatusCode {
    if let Some(quota) = &api.throughput {
        quota.reached().acknowledge();
    }
    StatusCode::OK
}
