//! Shared subscriptions: the entities of APPLICATION groups, and the groups that there are.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::access::{Administrator, Body, Params, Viewer};
use super::api::blocking;
use super::error::{ApiError, ErrorBody};
use super::page::{PageData, PageLink, Pager, SortKey, unsortable};
use crate::routing::Share;
use crate::session::{GroupView, MemberView, ShareDraft, ShareError};
use crate::storage::StorageError;

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(save, list))
        .routes(routes!(create_topics))
        .routes(routes!(show, delete))
        .routes(routes!(remove_topics))
}

/// A shared subscription's entity, as it is sent.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it describes what is read field by field, for its faults to be told")]
struct ShareBody {
    /// Of the one that is to be changed; none for a new one.
    id: Option<String>,
    name: String,
    /// A group's whole filter, `$share/…` included, or a plain one for all groups of that filter.
    /// It never changes.
    topic_filter: String,
    /// 1 to 1000; 1 if not given. It never changes. A group has one log, which any number of
    /// members shares: the number is kept for tools that ask for it.
    partitions: Option<u64>,
    /// `ROUND_ROBIN`, `STICKY`, `HASH_CLIENT`, `HASH_TOPIC` or `LEAST_INFLIGHT`; none: as
    /// `mqtt.shared-subscriptions.processing-type` says.
    processing_type: Option<String>,
}

/// A shared subscription's entity, as it is shown.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ShareView {
    id: String,
    created_time: u64,
    name: String,
    topic_filter: String,
    partitions: u32,
    processing_type: Option<&'static str>,
}

impl From<&Share> for ShareView {
    fn from(share: &Share) -> Self {
        Self {
            id: share.id.to_string(),
            created_time: share.created_ms,
            name: share.name.clone(),
            topic_filter: share.filter.to_string(),
            partitions: share.partitions,
            processing_type: share.policy.map(|policy| policy.name()),
        }
    }
}

/// One shared group.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupBody {
    share_name: String,
    /// Without the share's name.
    topic_filter: String,
    /// Whether APPLICATION clients are in it.
    application: bool,
    processing_type: &'static str,
    /// Of the entity that is about it, if there is one.
    entity_id: Option<String>,
    /// Messages that wait for the members, as far as this node knows.
    waiting_messages: u64,
    members: Vec<MemberBody>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct MemberBody {
    client_id: String,
    connected: bool,
    #[schema(value_type = String)]
    client_type: crate::security::ClientType,
    qos: u8,
}

impl From<MemberView> for MemberBody {
    fn from(member: MemberView) -> Self {
        let MemberView { client_id, connected, client_type, qos } = member;
        Self { client_id: client_id.to_string(), connected, client_type, qos }
    }
}

impl From<GroupView> for GroupBody {
    fn from(group: GroupView) -> Self {
        Self {
            share_name: group.filter.share_name().map_or_else(String::new, |name| name.to_string()),
            topic_filter: group.filter.plain().to_owned(),
            application: group.is_application(),
            processing_type: group.policy.name(),
            entity_id: group.entity.map(|share| share.id.to_string()),
            waiting_messages: group.waiting,
            members: group.members.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<ShareError> for ApiError {
    fn from(error: ShareError) -> Self {
        let status = match error {
            ShareError::NotFound => StatusCode::NOT_FOUND,
            ShareError::Invalid(_) => StatusCode::BAD_REQUEST,
            ShareError::Conflict(_) => StatusCode::CONFLICT,
            ShareError::Storage => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ByTopic {
    /// Only the entity of this topicFilter.
    topic: Option<String>,
}

type Fields = Map<String, Value>;

fn text(fields: &Fields, name: &str) -> Result<Option<String>, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ApiError::invalid(format!("{name} must be a text"))),
    }
}

fn draft(fields: &Fields) -> Result<ShareDraft, ApiError> {
    let needed = |name: &str| {
        text(fields, name)?.ok_or_else(|| ApiError::invalid(format!("{name} must be given")))
    };
    let partitions = match fields.get("partitions") {
        None | Some(Value::Null) => None,
        Some(given) => {
            let number = given.as_u64();
            Some(number.ok_or_else(|| ApiError::invalid("partitions must be a whole number"))?)
        }
    };
    Ok(ShareDraft {
        id: text(fields, "id")?,
        name: needed("name")?,
        filter: needed("topicFilter")?,
        partitions,
        policy: text(fields, "processingType")?,
    })
}

/// Makes an entity, or changes the name or the processingType of one: that acts on the next
/// message. There is one for each topicFilter.
#[utoipa::path(post, path = "/api/app/shared/subs", tag = "shared subscriptions",
    request_body = ShareBody,
    responses((status = 200, body = ShareView), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn save(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    Body(fields): Body<Fields>,
) -> Result<Json<ShareView>, ApiError> {
    let saved = api.sessions.save_share(draft(&fields)?).await?;
    tracing::info!(by = by.username, name = saved.name, "a shared subscription was saved");
    Ok(Json((&*saved).into()))
}

/// Lists entities; with `topic`, the one of that topicFilter.
#[utoipa::path(get, path = "/api/app/shared/subs", tag = "shared subscriptions",
    params(PageLink, ByTopic),
    responses((status = 200, body = PageData<ShareView>), (status = 404, body = ErrorBody)))]
async fn list(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
    Params(by): Params<ByTopic>,
) -> Result<Json<Value>, ApiError> {
    let all = api.sessions.shares();
    let value = match by.topic {
        Some(topic) => {
            let found = all.iter().find(|share| share.filter.as_str() == topic);
            let found = found.ok_or_else(|| ApiError::not_found("shared subscription"))?;
            serde_json::to_value(ShareView::from(&**found))
        }
        None => serde_json::to_value(page(&all, &link)?),
    };
    value.map(Json).map_err(|_| ApiError::storage())
}

fn page(all: &[Arc<Share>], link: &PageLink) -> Result<PageData<ShareView>, ApiError> {
    let mut pager = Pager::new(link)?;
    let property = pager.property("createdTime");
    for share in all {
        if !pager.finds(&[&share.name, share.filter.as_str()]) {
            continue;
        }
        let key = match property.as_str() {
            "createdTime" => SortKey::Number(share.created_ms),
            "name" => SortKey::Text(share.name.clone()),
            "topicFilter" => SortKey::Text(share.filter.to_string()),
            "partitions" => SortKey::Number(u64::from(share.partitions)),
            other => return Err(unsortable(other)),
        };
        pager.push(key, &share.id, ShareView::from(&**share));
    }
    Ok(pager.finish())
}

/// Makes nothing: a group's log is made when something waits for its members, and goes with its
/// last member. It is here for tools that call it.
#[utoipa::path(post, path = "/api/app/shared/subs/createTopics", tag = "shared subscriptions",
    responses((status = 200)))]
async fn create_topics(_: Administrator) -> StatusCode {
    StatusCode::OK
}

/// One entity.
#[utoipa::path(get, path = "/api/app/shared/subs/{id}", tag = "shared subscriptions",
    params(("id" = String, Path)),
    responses((status = 200, body = ShareView), (status = 404, body = ErrorBody)))]
async fn show(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Path(id): Path<String>,
) -> Result<Json<ShareView>, ApiError> {
    let found = api.sessions.share(&id);
    let found = found.ok_or_else(|| ApiError::not_found("shared subscription"))?;
    Ok(Json((&*found).into()))
}

/// Deletes an entity. While anybody is subscribed to what it is about, that is refused.
#[utoipa::path(delete, path = "/api/app/shared/subs/{id}", tag = "shared subscriptions",
    params(("id" = String, Path)),
    responses((status = 200), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn delete(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    api.sessions.delete_share(&id).await?;
    tracing::info!(by = by.username, id, "a shared subscription was deleted");
    Ok(StatusCode::OK)
}

/// Deletes, at once, the logs in Kafka that sessions and groups have left behind at their end;
/// their topics' names. (One node does so by itself ten minutes after it has found one.)
#[utoipa::path(delete, path = "/api/app/remove-topics", tag = "shared subscriptions",
    responses((status = 200, body = Vec<String>), (status = 503, body = ErrorBody)))]
async fn remove_topics(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
) -> Result<Json<Vec<String>>, ApiError> {
    let Some(topics) = &api.topics else { return Ok(Json(Vec::new())) };
    tracing::info!(by = by.username, "topics of ended sessions are to be deleted");
    let removed = api.sessions.remove_orphan_topics(topics).await;
    let failed =
        |error: StorageError| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
    removed.map(Json).map_err(failed)
}

/// A page of the shared groups of all nodes.
pub(super) async fn groups(api: Arc<Api>, link: PageLink) -> Result<PageData<GroupBody>, ApiError> {
    let mut pager = Pager::new(&link)?;
    let property = pager.property("topicFilter");
    if !["topicFilter", "shareName", "waitingMessages", "members"].contains(&property.as_str()) {
        return Err(unsortable(&property));
    }
    blocking(api, move |api| {
        for group in api.sessions.groups() {
            if !pager.finds(&[group.filter.as_str()]) {
                continue;
            }
            let name = group.filter.to_string();
            let key = match property.as_str() {
                "waitingMessages" => SortKey::Number(group.waiting),
                "members" => SortKey::Number(group.members.len() as u64),
                "shareName" => SortKey::Text(name.clone()),
                _ => SortKey::Text(group.filter.plain().to_owned()),
            };
            pager.push(key, &name, group);
        }
        pager.finish().map(GroupBody::from)
    })
    .await
}
