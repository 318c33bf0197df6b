//! `/api/license/throughput`: the quota, and whether it was reached (QUO-9).

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::access::{Administrator, Viewer};

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(throughput)).routes(routes!(acknowledge))
}

/// Whether the licensed throughput was reached, and the plan.
#[utoipa::path(get, path = "/api/license/throughput", tag = "throughput",
    responses((status = 200, body = Value)))]
async fn throughput(_: Viewer, State(api): State<Arc<Api>>) -> Json<Value> {
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

/// Takes the indicator back.
#[utoipa::path(post, path = "/api/license/throughput/acknowledge", tag = "throughput",
    responses((status = 200)))]
async fn acknowledge(_: Administrator, State(api): State<Arc<Api>>) -> StatusCode {
    if let Some(quota) = &api.throughput {
        quota.reached().acknowledge();
    }
    StatusCode::OK
}
