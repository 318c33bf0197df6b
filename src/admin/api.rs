//! The administration's paths, all under `/api`, and the document that describes them.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::Semaphore;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, InfoBuilder, OpenApi, OpenApiBuilder, SecurityRequirement};
use utoipa_axum::router::OpenApiRouter;

use super::error::ApiError;
use super::{
    Managed, auth, certificates, clients, credentials, ledger, license, refused, retained, shares,
};
use crate::limits::LISTS_AT_ONCE;
use crate::listener::Certificates;
use crate::plan::Plan;
use crate::security::Security;
use crate::session::Sessions;
use crate::storage::{AppTopics, NodeLosses, Quota};

/// What the handlers work with.
pub(super) struct Api {
    pub(super) security: Arc<Security>,
    pub(super) sessions: Sessions,
    pub(super) throughput: Option<Arc<Quota>>,
    pub(super) plan: Option<Plan>,
    pub(super) losses: Option<Arc<NodeLosses>>,
    pub(super) topics: Option<AppTopics>,
    pub(super) certificates: Certificates,
    lists: Arc<Semaphore>,
}

/// Where the document is served.
const DOCUMENT: &str = "/v3/api-docs";

pub(super) fn router(managed: Managed) -> Router {
    let Managed { security, sessions, throughput, plan, losses, certificates, topics } = managed;
    let lists = Arc::new(Semaphore::new(LISTS_AT_ONCE));
    let api =
        Arc::new(Api { security, sessions, throughput, plan, losses, topics, certificates, lists });
    let (router, document) = described().split_for_parts();
    let document: Arc<str> = Arc::from(document.to_json().unwrap_or_default());
    let served = get(document_reply).with_state(document);
    router.with_state(api).route(DOCUMENT, served)
}

fn described() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::with_openapi(head())
        .merge(auth::routes())
        .merge(certificates::routes())
        .merge(credentials::routes())
        .merge(clients::routes())
        .merge(retained::routes())
        .merge(shares::routes())
        .merge(refused::routes())
        .merge(ledger::routes())
        .merge(license::routes())
}

fn head() -> OpenApi {
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
    let mut components = Components::new();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let info = InfoBuilder::new()
        .title("Sluice administration")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Paths and names are TBMQ's where TBMQ has the thing."));
    let bearer = SecurityRequirement::new("bearer", Vec::<String>::new());
    OpenApiBuilder::new()
        .info(info.build())
        .components(Some(components))
        .security(Some([bearer]))
        .build()
}

async fn document_reply(State(document): State<Arc<str>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], document.to_string())
}

/// Runs what walks through many sessions on a thread that may block; few at once.
pub(super) async fn blocking<T: Send + 'static>(
    api: Arc<Api>,
    work: impl FnOnce(&Api) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let Ok(permit) = Arc::clone(&api.lists).acquire_owned().await else {
        return Err(ApiError::storage());
    };
    let done = tokio::task::spawn_blocking(move || {
        let done = work(&api);
        drop(permit);
        done
    });
    done.await.map_err(|_| ApiError::storage())
}
