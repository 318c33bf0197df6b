//! Sessions and their subscriptions.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::{Administrator, Params, Viewer};
use super::error::{ApiError, ErrorBody};
use super::page::{PageData, PageLink, Pager, SortKey, unsortable};
use super::shares::{self, GroupBody};
use super::{Api, blocking};
use crate::security::ClientType;
use crate::session::{SessionView, SubscriptionView};

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(list_or_show))
        .routes(routes!(list_v2))
        .routes(routes!(totals))
        .routes(routes!(disconnect))
        .routes(routes!(remove))
        .routes(routes!(groups_or_subscriptions))
        .routes(routes!(subscriptions))
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SessionBody {
    client_id: String,
    /// Another one with each connection.
    session_id: String,
    /// `CONNECTED` or `DISCONNECTED`.
    connection_state: &'static str,
    #[schema(value_type = String)]
    client_type: ClientType,
    node_id: String,
    /// 3 (MQTT 3.1), 4 (3.1.1) or 5.
    mqtt_version: u8,
    persistent: bool,
    /// Seconds; 4294967295: it never ends by itself.
    session_expiry_interval: u32,
    /// When it ends if nobody comes back, milliseconds since 1970-01-01 UTC.
    session_end_ts: Option<u64>,
    connected_at: Option<u64>,
    disconnected_at: Option<u64>,
    client_ip_adr: Option<String>,
    keep_alive_seconds: Option<u64>,
    subscriptions_count: usize,
    /// Messages that wait for it or are not acknowledged; of a persistent APPLICATION client, how
    /// far it lags behind in its log. On the cluster profile as far as this node knows since its
    /// start: of other clients while they are connected. None: only `nodeId` can say.
    lag: Option<u64>,
    username: Option<String>,
    /// Who let it in: `MQTT_BASIC`, `X_509`, `JWT`, `HTTP`, `SCRAM`; none: it is anonymous.
    auth_provider: Option<String>,
    /// Only where one session is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    subscriptions: Option<Vec<SubscriptionBody>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SubscriptionBody {
    client_id: String,
    topic_filter: String,
    qos: u8,
    no_local: bool,
    retain_as_publish: bool,
    retain_handling: u8,
    subscription_id: Option<u32>,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct ByClient {
    /// Only this client.
    client_id: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct SessionFilters {
    client_id: Option<String>,
    /// `CONNECTED` or `DISCONNECTED`.
    connected_status_list: Option<String>,
    /// `DEVICE` or `APPLICATION`.
    client_type_list: Option<String>,
    /// Whether it is connected from such an address.
    client_ip_address: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct OneSession {
    client_id: String,
    /// If it is given, only this connection of the client.
    session_id: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct SubscriptionFilters {
    client_id: Option<String>,
    topic_filter: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SessionTotals {
    connected_count: usize,
    disconnected_count: usize,
    total_count: usize,
}

impl From<SessionView> for SessionBody {
    fn from(view: SessionView) -> Self {
        Self {
            client_id: view.client_id.to_string(),
            session_id: view.session_id.to_string(),
            connection_state: state(view.connected),
            client_type: view.client_type,
            node_id: view.node.to_string(),
            mqtt_version: view.version,
            persistent: view.persistent,
            session_expiry_interval: view.expiry_s,
            session_end_ts: view.ends_at_ms,
            connected_at: view.connected_ms,
            disconnected_at: view.disconnected_ms,
            client_ip_adr: view.address,
            keep_alive_seconds: view.keep_alive_s,
            subscriptions_count: view.subscriptions,
            lag: view.lag,
            username: view.username,
            auth_provider: view.provider,
            subscriptions: None,
        }
    }
}

impl From<SubscriptionView> for SubscriptionBody {
    fn from(view: SubscriptionView) -> Self {
        let options = view.options;
        Self {
            client_id: view.client_id.to_string(),
            topic_filter: view.filter.to_string(),
            qos: options.qos.bits(),
            no_local: options.no_local,
            retain_as_publish: options.retain_as_published,
            retain_handling: options.retain_handling as u8,
            subscription_id: options.subscription_id,
        }
    }
}

fn state(connected: bool) -> &'static str {
    if connected { "CONNECTED" } else { "DISCONNECTED" }
}

fn contains(text: &str, wanted: Option<&String>) -> bool {
    wanted.is_none_or(|wanted| text.to_lowercase().contains(&wanted.to_lowercase()))
}

fn listed(list: Option<&String>, one: &str) -> bool {
    list.is_none_or(|list| list.split(',').any(|item| item.trim() == one))
}

/// Lists sessions; with `clientId`, shows the one of that client with its subscriptions.
#[utoipa::path(get, path = "/api/client-session", tag = "sessions", params(PageLink, ByClient),
    responses((status = 200, body = PageData<SessionBody>), (status = 404, body = ErrorBody)))]
async fn list_or_show(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
    Params(by): Params<ByClient>,
) -> Result<Json<Value>, ApiError> {
    let value = match by.client_id {
        Some(client_id) => {
            let view = api.sessions.view(&client_id).await;
            let mut body = SessionBody::from(view.ok_or_else(|| ApiError::not_found("session"))?);
            let subscriptions = api.sessions.subscriptions(&client_id);
            body.subscriptions = Some(subscriptions.into_iter().map(Into::into).collect());
            serde_json::to_value(body)
        }
        None => serde_json::to_value(session_page(api, link, |_| true).await?),
    };
    value.map(Json).map_err(|_| ApiError::storage())
}

/// Lists sessions that fit all of the filters.
#[utoipa::path(get, path = "/api/v2/client-session", tag = "sessions",
    params(PageLink, SessionFilters),
    responses((status = 200, body = PageData<SessionBody>), (status = 400, body = ErrorBody)))]
async fn list_v2(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
    Params(filters): Params<SessionFilters>,
) -> Result<Json<PageData<SessionBody>>, ApiError> {
    let fits = move |view: &SessionView| {
        let client_type = match view.client_type {
            ClientType::Device => "DEVICE",
            ClientType::Application => "APPLICATION",
        };
        let address = view.address.as_deref().unwrap_or_default();
        contains(view.client_id.as_str(), filters.client_id.as_ref())
            && listed(filters.connected_status_list.as_ref(), state(view.connected))
            && listed(filters.client_type_list.as_ref(), client_type)
            && contains(address, filters.client_ip_address.as_ref())
    };
    Ok(Json(session_page(api, link, fits).await?))
}

async fn session_page(
    api: Arc<Api>,
    link: PageLink,
    fits: impl Fn(&SessionView) -> bool + Send + 'static,
) -> Result<PageData<SessionBody>, ApiError> {
    let mut pager = Pager::new(&link)?;
    let property = pager.property("clientId");
    if !["clientId", "connectedAt", "disconnectedAt", "subscriptionsCount"]
        .contains(&property.as_str())
    {
        return Err(unsortable(&property));
    }
    blocking(api, move |api| {
        api.sessions.each_view(&mut |view| {
            if !pager.finds(&[view.client_id.as_str()]) || !fits(&view) {
                return;
            }
            let key = match property.as_str() {
                "connectedAt" => SortKey::Number(view.connected_ms.unwrap_or(0)),
                "disconnectedAt" => SortKey::Number(view.disconnected_ms.unwrap_or(0)),
                "subscriptionsCount" => SortKey::Number(view.subscriptions as u64),
                _ => SortKey::Text(view.client_id.to_string()),
            };
            let client_id = view.client_id.clone();
            pager.push(key, client_id.as_str(), view);
        });
        pager.finish().map(SessionBody::from)
    })
    .await
}

/// How many sessions there are.
#[utoipa::path(get, path = "/api/client-session/info", tag = "sessions",
    responses((status = 200, body = SessionTotals)))]
async fn totals(State(api): State<Arc<Api>>, _: Viewer) -> Result<Json<SessionTotals>, ApiError> {
    let counted = blocking(api, move |api| {
        let (mut connected, mut total) = (0, 0);
        api.sessions.each_view(&mut |view| {
            connected += usize::from(view.connected);
            total += 1;
        });
        (connected, total)
    });
    let (connected_count, total_count) = counted.await?;
    let disconnected_count = total_count - connected_count;
    Ok(Json(SessionTotals { connected_count, disconnected_count, total_count }))
}

fn number(session_id: Option<&String>) -> Result<Option<u64>, ApiError> {
    let parse = |text: &String| text.parse::<u64>().map_err(|_| ApiError::not_found("session"));
    session_id.map(parse).transpose()
}

/// Ends a client's connection with 0x98. Its session stays, if it outlives connections.
#[utoipa::path(delete, path = "/api/client-session/disconnect", tag = "sessions",
    params(OneSession), responses((status = 200), (status = 404, body = ErrorBody)))]
async fn disconnect(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    Params(one): Params<OneSession>,
) -> Result<StatusCode, ApiError> {
    let session_id = number(one.session_id.as_ref())?;
    if !api.sessions.disconnect(&one.client_id, session_id).await {
        return Err(ApiError::not_found("connection"));
    }
    tracing::info!(by = by.username, client = one.client_id, "a client was disconnected");
    Ok(StatusCode::OK)
}

/// Ends a session with all that waits for it; a connected client is disconnected with 0x98.
#[utoipa::path(delete, path = "/api/client-session/remove", tag = "sessions",
    params(OneSession), responses((status = 200), (status = 404, body = ErrorBody)))]
async fn remove(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    Params(one): Params<OneSession>,
) -> Result<StatusCode, ApiError> {
    let session_id = number(one.session_id.as_ref())?;
    if !api.sessions.remove(&one.client_id, session_id).await {
        return Err(ApiError::not_found("session"));
    }
    tracing::info!(by = by.username, client = one.client_id, "a session was removed");
    Ok(StatusCode::OK)
}

/// The shared groups, with their members and what waits for them; with `clientId`, a list of all
/// subscriptions of that client.
#[utoipa::path(get, path = "/api/subscription", tag = "subscriptions",
    params(PageLink, ByClient),
    responses((status = 200, body = PageData<GroupBody>), (status = 400, body = ErrorBody)))]
async fn groups_or_subscriptions(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
    Params(by): Params<ByClient>,
) -> Result<Json<Value>, ApiError> {
    let value = match by.client_id {
        Some(client_id) => {
            let all = api.sessions.subscriptions(&client_id).into_iter();
            serde_json::to_value(all.map(Into::into).collect::<Vec<SubscriptionBody>>())
        }
        None => serde_json::to_value(shares::groups(api, link).await?),
    };
    value.map(Json).map_err(|_| ApiError::storage())
}

/// All subscriptions that fit all of the filters.
#[utoipa::path(get, path = "/api/subscription/all", tag = "subscriptions",
    params(PageLink, SubscriptionFilters),
    responses((status = 200, body = PageData<SubscriptionBody>), (status = 400, body = ErrorBody)))]
async fn subscriptions(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
    Params(filters): Params<SubscriptionFilters>,
) -> Result<Json<PageData<SubscriptionBody>>, ApiError> {
    let mut pager = Pager::new(&link)?;
    let property = pager.property("clientId");
    if !["clientId", "topicFilter", "qos"].contains(&property.as_str()) {
        return Err(unsortable(&property));
    }
    let page = blocking(api, move |api| {
        api.sessions.each_subscription(&mut |view| {
            let (client_id, filter) = (view.client_id.clone(), view.filter.clone());
            if !pager.finds(&[client_id.as_str(), filter.as_str()])
                || !contains(client_id.as_str(), filters.client_id.as_ref())
                || !contains(filter.as_str(), filters.topic_filter.as_ref())
            {
                return;
            }
            let key = match property.as_str() {
                "topicFilter" => SortKey::Text(filter.to_string()),
                "qos" => SortKey::Number(u64::from(view.options.qos.bits())),
                _ => SortKey::Text(client_id.to_string()),
            };
            let name = format!("{client_id}\0{filter}");
            pager.push(key, &name, view);
        });
        pager.finish().map(SubscriptionBody::from)
    });
    Ok(Json(page.await?))
}
