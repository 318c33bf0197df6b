//! Certificates, keys and revocation lists, read again by order.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::access::Administrator;
use super::error::{ApiError, ErrorBody};

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(reload))
}

/// Takes the files of all TLS doors as they are now. Connections stay. A door whose files have a
/// fault keeps what it has, and the answer names every fault.
#[utoipa::path(post, path = "/api/certificates/reload", tag = "certificates",
    responses((status = 200), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
async fn reload(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
) -> Result<StatusCode, ApiError> {
    let certificates = api.certificates.clone();
    let read = tokio::task::spawn_blocking(move || certificates.reload()).await;
    let read = read.unwrap_or_else(|_| Err(vec!["reading them failed".to_owned()]));
    read.map_err(|faults| ApiError::invalid(faults.join("; ")))?;
    tracing::info!(by = by.username, "certificate files were read by order");
    Ok(StatusCode::OK)
}
