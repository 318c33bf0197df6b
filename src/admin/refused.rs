//! Blocked clients, and clients that were refused.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::access::{Administrator, Body, Params, Viewer};
use super::error::{ApiError, ErrorBody};
use super::page::{PageData, PageLink, Pager, SortKey, unsortable};
use crate::security::{Block, BlockType, MatchTarget, UnauthorizedClient};
use crate::telemetry::clock;

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(block, unblock, list_blocked))
        .routes(routes!(kept))
        .routes(routes!(list_or_show_unauthorized, forget))
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct BlockBody {
    /// `CLIENT_ID`, `USERNAME`, `IP_ADDRESS` or `REGEX`.
    #[schema(value_type = String)]
    r#type: BlockType,
    value: String,
    /// For REGEX: `BY_CLIENT_ID`, `BY_USERNAME` or `BY_IP_ADDRESS`.
    #[schema(value_type = Option<String>)]
    regex_match_target: Option<MatchTarget>,
    description: Option<String>,
    /// When it ends, milliseconds since 1970-01-01 UTC; not given: never.
    expiration_time: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct BlockView {
    #[schema(value_type = String)]
    r#type: BlockType,
    value: String,
    #[schema(value_type = Option<String>)]
    regex_match_target: Option<MatchTarget>,
    description: Option<String>,
    expiration_time: Option<u64>,
    created_time: u64,
    /// `ACTIVE` or `EXPIRED`.
    status: &'static str,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct OneBlock {
    #[param(value_type = String)]
    r#type: BlockType,
    value: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnauthorizedView {
    client_id: String,
    ip_address: String,
    /// The newest attempt, milliseconds since 1970-01-01 UTC.
    ts: u64,
    username: Option<String>,
    password_provided: bool,
    tls_used: bool,
    reason: String,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct ByClient {
    /// Only this client.
    client_id: Option<String>,
}

impl From<&Block> for BlockView {
    fn from(block: &Block) -> Self {
        let is_over = block.is_over(clock::wall_ms());
        Self {
            r#type: block.kind,
            value: block.value.clone(),
            regex_match_target: block.target,
            description: block.description.clone(),
            expiration_time: block.expires_at_ms,
            created_time: block.created_ms,
            status: if is_over { "EXPIRED" } else { "ACTIVE" },
        }
    }
}

impl From<&UnauthorizedClient> for UnauthorizedView {
    fn from(client: &UnauthorizedClient) -> Self {
        Self {
            client_id: client.client_id.clone(),
            ip_address: client.address.clone(),
            ts: client.at_ms,
            username: client.username.clone(),
            password_provided: client.has_password,
            tls_used: client.secure,
            reason: client.reason.clone(),
        }
    }
}

/// Blocks clients. Those that are connected are sent 0x98; others are refused with 0x8A (v3: 5).
#[utoipa::path(post, path = "/api/blockedClient", tag = "blocked clients",
    request_body = BlockBody,
    responses((status = 200, body = BlockView), (status = 400, body = ErrorBody)))]
async fn block(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    Body(body): Body<BlockBody>,
) -> Result<Json<BlockView>, ApiError> {
    let block = Block {
        kind: body.r#type,
        value: body.value,
        target: body.regex_match_target.filter(|_| body.r#type == BlockType::Regex),
        description: body.description,
        expires_at_ms: body.expiration_time.filter(|at_ms| *at_ms > 0),
        created_ms: clock::wall_ms(),
    };
    api.security.block(block.clone()).await?;
    tracing::info!(by = by.username, kind = ?block.kind, value = block.value, "blocked");
    Ok(Json((&block).into()))
}

/// Takes a block away.
#[utoipa::path(delete, path = "/api/blockedClient", tag = "blocked clients", params(OneBlock),
    responses((status = 200), (status = 404, body = ErrorBody)))]
async fn unblock(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    Params(one): Params<OneBlock>,
) -> Result<StatusCode, ApiError> {
    api.security.unblock(one.r#type, &one.value).await?;
    tracing::info!(by = by.username, kind = ?one.r#type, value = one.value, "unblocked");
    Ok(StatusCode::OK)
}

/// Lists blocks.
#[utoipa::path(get, path = "/api/blockedClient", tag = "blocked clients", params(PageLink),
    responses((status = 200, body = PageData<BlockView>), (status = 400, body = ErrorBody)))]
async fn list_blocked(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
) -> Result<Json<PageData<BlockView>>, ApiError> {
    let mut pager = Pager::new(&link)?;
    let property = pager.property("createdTime");
    for block in api.security.blocks() {
        let description = block.description.as_deref().unwrap_or_default();
        if !pager.finds(&[&block.value, description]) {
            continue;
        }
        let key = match property.as_str() {
            "createdTime" => SortKey::Number(block.created_ms),
            "value" => SortKey::Text(block.value.clone()),
            "type" => SortKey::Text(format!("{:?}", block.kind)),
            "expirationTime" => SortKey::Number(block.expires_at_ms.unwrap_or(u64::MAX)),
            other => return Err(unsortable(other)),
        };
        pager.push(key, &block.value, BlockView::from(&*block));
    }
    Ok(Json(pager.finish()))
}

/// How long a block stays in the list behind its end, in minutes.
#[utoipa::path(get, path = "/api/blockedClient/ttl", tag = "blocked clients",
    responses((status = 200, body = u64)))]
async fn kept(State(api): State<Arc<Api>>, _: Viewer) -> Json<u64> {
    Json(api.security.config().blocked_kept.as_secs() / 60)
}

/// Lists clients that this node refused; with `clientId`, shows that one.
#[utoipa::path(get, path = "/api/unauthorized/client", tag = "unauthorized clients",
    params(PageLink, ByClient),
    responses((status = 200, body = PageData<UnauthorizedView>), (status = 404, body = ErrorBody)))]
async fn list_or_show_unauthorized(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
    Params(by): Params<ByClient>,
) -> Result<Json<Value>, ApiError> {
    let value = match by.client_id {
        Some(client_id) => {
            let found = api.security.unauthorized_client(&client_id);
            let found = found.ok_or_else(|| ApiError::not_found("unauthorized client"))?;
            serde_json::to_value(UnauthorizedView::from(&*found))
        }
        None => serde_json::to_value(unauthorized_page(&api, &link)?),
    };
    value.map(Json).map_err(|_| ApiError::storage())
}

fn unauthorized_page(api: &Api, link: &PageLink) -> Result<PageData<UnauthorizedView>, ApiError> {
    let mut pager = Pager::new(link)?;
    let property = pager.property("ts");
    for client in api.security.unauthorized_clients() {
        let username = client.username.as_deref().unwrap_or_default();
        if !pager.finds(&[&client.client_id, username, &client.address]) {
            continue;
        }
        let key = match property.as_str() {
            "ts" => SortKey::Number(client.at_ms),
            "clientId" => SortKey::Text(client.client_id.clone()),
            "ipAddress" => SortKey::Text(client.address.clone()),
            other => return Err(unsortable(other)),
        };
        pager.push(key, &client.client_id, UnauthorizedView::from(&*client));
    }
    Ok(pager.finish())
}

/// Forgets a client that was refused; without `clientId`, all of them.
#[utoipa::path(delete, path = "/api/unauthorized/client", tag = "unauthorized clients",
    params(ByClient), responses((status = 200), (status = 404, body = ErrorBody)))]
async fn forget(
    State(api): State<Arc<Api>>,
    _: Administrator,
    Params(by): Params<ByClient>,
) -> Result<StatusCode, ApiError> {
    match by.client_id {
        None => api.security.forget_all_unauthorized(),
        Some(client_id) if api.security.forget_unauthorized(&client_id) => {}
        Some(_) => return Err(ApiError::not_found("unauthorized client")),
    }
    Ok(StatusCode::OK)
}
