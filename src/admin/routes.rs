//! The replies.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Map, Value, json};

use super::{Component, Config, HealthSource, Info};
use crate::telemetry::metrics;

#[derive(Clone)]
struct Health {
    source: Arc<dyn HealthSource>,
    details: bool,
}

pub(super) fn router(config: &Config, info: Info, source: Arc<dyn HealthSource>) -> Router {
    let mut router = Router::new();
    if config.health {
        let health = Health { source, details: config.health_details };
        router = router.route("/actuator/health", get(health_reply).with_state(health));
    }
    if config.info {
        router = router.route("/actuator/info", get(info_reply).with_state(info));
    }
    if config.prometheus {
        router = router.route("/actuator/prometheus", get(prometheus_reply));
    }
    router
}

async fn health_reply(State(health): State<Health>) -> Response {
    let source = health.source;
    let Ok(components) = tokio::task::spawn_blocking(move || source.components()).await else {
        let body = json!({ "status": "DOWN" });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    };
    let up = components.iter().all(|component| component.trouble.is_none());
    let mut body = Map::new();
    body.insert("status".into(), status(up).into());
    if health.details {
        let components = components.into_iter().map(|part| (part.name.into(), describe(part)));
        body.insert("components".into(), Value::Object(components.collect()));
    }
    let code = if up { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Value::Object(body))).into_response()
}

fn describe(component: Component) -> Value {
    match component.trouble {
        None => json!({ "status": status(true) }),
        Some(trouble) => json!({ "status": status(false), "details": { "trouble": trouble } }),
    }
}

fn status(up: bool) -> &'static str {
    if up { "UP" } else { "DOWN" }
}

async fn info_reply(State(info): State<Info>) -> Json<Value> {
    Json(json!({
        "build": { "name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION") },
        "node": { "id": &*info.node_id },
        "storage": { "type": info.storage },
    }))
}

/// Reading the process's descriptors takes a moment when there are many: not on a worker thread.
async fn prometheus_reply() -> Response {
    match tokio::task::spawn_blocking(metrics::render).await {
        Ok(Ok(page)) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Ok(Err(fault)) => (StatusCode::INTERNAL_SERVER_ERROR, fault.to_string()).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
