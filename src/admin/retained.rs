//! Retained messages.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::{Administrator, Params, Viewer};
use super::error::{ApiError, ErrorBody};
use super::page::{PageData, PageLink, Pager, SortKey, unsortable};
use super::{Api, blocking};
use crate::mqtt::TopicFilter;
use crate::storage::MessageRef;

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list_or_show, delete))
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct RetainedBody {
    topic_name: String,
    qos: u8,
    payload_size: usize,
    /// When it was received, milliseconds since 1970-01-01 UTC.
    created_time: u64,
    expires_at: Option<u64>,
    publisher: String,
    /// In base64; only where one message is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
}

impl RetainedBody {
    fn of(message: &MessageRef) -> Self {
        let view = message.view();
        Self {
            topic_name: view.topic.to_owned(),
            qos: view.qos.bits(),
            payload_size: view.payload.len(),
            created_time: message.batch().received_at_ms(),
            expires_at: message.expires_at_ms(),
            publisher: message.batch().publisher().client_id.to_string(),
            payload: None,
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct RetainedQuery {
    /// Only the message of this topic, with its payload.
    topic_name: Option<String>,
    /// Only messages that this MQTT filter matches.
    topic_filter: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct OneTopic {
    topic_name: String,
}

/// Lists retained messages; with `topicName`, shows the one of that topic.
#[utoipa::path(get, path = "/api/retained-msg", tag = "retained messages",
    params(PageLink, RetainedQuery),
    responses((status = 200, body = PageData<RetainedBody>), (status = 404, body = ErrorBody)))]
async fn list_or_show(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
    Params(query): Params<RetainedQuery>,
) -> Result<Json<Value>, ApiError> {
    let value = match query.topic_name {
        Some(topic) => {
            let found = api.sessions.retained(&topic);
            let found = found.ok_or_else(|| ApiError::not_found("retained message"))?;
            let mut body = RetainedBody::of(&found);
            body.payload = Some(STANDARD.encode(found.view().payload));
            serde_json::to_value(body)
        }
        None => serde_json::to_value(page(api, &link, query.topic_filter).await?),
    };
    value.map(Json).map_err(|_| ApiError::storage())
}

async fn page(
    api: Arc<Api>,
    link: &PageLink,
    filter: Option<String>,
) -> Result<PageData<RetainedBody>, ApiError> {
    let mut pager = Pager::new(link)?;
    let property = pager.property("topicName");
    if !["topicName", "createdTime", "payloadSize"].contains(&property.as_str()) {
        return Err(unsortable(&property));
    }
    let filter = filter.unwrap_or_else(|| "#".to_owned());
    if !TopicFilter::new(&filter).is_ok_and(|filter| !filter.is_shared()) {
        return Err(ApiError::invalid("topicFilter is no MQTT filter"));
    }
    blocking(api, move |api| {
        let mut from = None;
        loop {
            let (messages, next) = api.sessions.retained_page(&filter, from.as_ref());
            for message in messages {
                let body = RetainedBody::of(&message);
                if !pager.finds(&[&body.topic_name]) {
                    continue;
                }
                let key = match property.as_str() {
                    "createdTime" => SortKey::Number(body.created_time),
                    "payloadSize" => SortKey::Number(body.payload_size as u64),
                    _ => SortKey::Text(body.topic_name.clone()),
                };
                let topic = body.topic_name.clone();
                pager.push(key, &topic, body);
            }
            match next {
                Some(next) => from = Some(next),
                None => return pager.finish(),
            }
        }
    })
    .await
}

/// Deletes the retained message of a topic.
#[utoipa::path(delete, path = "/api/retained-msg", tag = "retained messages", params(OneTopic),
    responses((status = 200), (status = 404, body = ErrorBody)))]
async fn delete(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    Params(one): Params<OneTopic>,
) -> Result<StatusCode, ApiError> {
    if api.sessions.retained(&one.topic_name).is_none() {
        return Err(ApiError::not_found("retained message"));
    }
    if !api.sessions.delete_retained(&one.topic_name).await {
        return Err(ApiError::storage());
    }
    tracing::info!(by = by.username, topic = one.topic_name, "a retained message was deleted");
    Ok(StatusCode::OK)
}
