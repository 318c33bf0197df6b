//! Credentials of MQTT clients. No answer holds a password, a hash or a key.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::access::{Administrator, Body, From, Params, Viewer};
use super::error::{ApiError, ErrorBody};
use super::page::{PageData, PageLink, Pager, SortKey, unsortable};
use crate::security::{
    AuthRules, Certificate, ClientType, Credential, Draft, DraftProof, Key, Proof, ScramHash,
};

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(save, list))
        .routes(routes!(list_v2))
        .routes(routes!(totals))
        .routes(routes!(show, delete, change_password))
}

/// A credential, as it is sent.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct CredentialBody {
    /// Of the one that is to be changed; none for a new one.
    id: Option<String>,
    name: String,
    /// `DEVICE` or `APPLICATION`.
    #[schema(value_type = String)]
    #[serde(default)]
    client_type: ClientType,
    /// `MQTT_BASIC`, `SCRAM` or `X_509`.
    #[serde(default = "basic")]
    credentials_type: String,
    /// An object, or its JSON in a text, as TBMQ has it. MQTT_BASIC: clientId, userName, password,
    /// authRules; SCRAM: userName, password, algorithm (SHA-256, SHA-512), authRules; X_509:
    /// certCnPattern, certCnIsRegex, authRulesMapping. authRules: pubAuthRulePatterns,
    /// subAuthRulePatterns (lists of expressions; not there: everything, empty: nothing), and rules
    /// (a list of objects with action allow or deny, operation publish, subscribe or all, and
    /// filter).
    #[schema(value_type = Object)]
    credentials_value: Value,
}

fn basic() -> String {
    "MQTT_BASIC".into()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BasicValue {
    client_id: Option<String>,
    user_name: Option<String>,
    password: Option<String>,
    auth_rules: Option<AuthRules>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScramValue {
    user_name: String,
    password: Option<String>,
    algorithm: String,
    auth_rules: Option<AuthRules>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CertificateValue {
    cert_cn_pattern: String,
    #[serde(default)]
    cert_cn_is_regex: bool,
    #[serde(default)]
    auth_rules_mapping: BTreeMap<String, AuthRules>,
}

/// A credential, as it is shown.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CredentialView {
    id: String,
    created_time: u64,
    name: String,
    #[schema(value_type = String)]
    client_type: ClientType,
    credentials_type: &'static str,
    /// What it is found by: `username|…`, `client_id|…`, `mixed|…|…`, `scram|…`, `ssl|…`.
    credentials_id: String,
    has_password: bool,
    /// JSON in a text, as TBMQ has it, without the password.
    credentials_value: String,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct ByName {
    /// Only the credential of this name.
    name: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
struct Filters {
    name: Option<String>,
    client_id: Option<String>,
    username: Option<String>,
    /// `DEVICE`, `APPLICATION` or both, with a comma.
    client_type_list: Option<String>,
    /// `MQTT_BASIC`, `SCRAM`, `X_509`, with commas.
    credentials_type_list: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Totals {
    device_credentials_count: usize,
    application_credentials_count: usize,
    total_count: usize,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct PasswordBody {
    current_password: Option<String>,
    new_password: String,
}

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    let fault = |fault: serde_json::Error| ApiError::invalid(format!("credentialsValue: {fault}"));
    match value {
        Value::String(text) => serde_json::from_str(&text).map_err(fault),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            serde_json::from_value(value).map_err(fault)
        }
    }
}

impl CredentialBody {
    fn draft(self) -> Result<Draft, ApiError> {
        let value = self.credentials_value;
        let proof = match self.credentials_type.as_str() {
            "MQTT_BASIC" => {
                let value: BasicValue = parse(value)?;
                DraftProof::Basic {
                    client_id: value.client_id,
                    username: value.user_name,
                    password: value.password,
                    rules: value.auth_rules.unwrap_or_default(),
                }
            }
            "SCRAM" => {
                let value: ScramValue = parse(value)?;
                let hash = match value.algorithm.as_str() {
                    "SHA-256" | "SHA_256" => ScramHash::Sha256,
                    "SHA-512" | "SHA_512" => ScramHash::Sha512,
                    _ => return Err(ApiError::invalid("algorithm must be SHA-256 or SHA-512")),
                };
                DraftProof::Scram {
                    username: value.user_name,
                    hash,
                    password: value.password,
                    rules: value.auth_rules.unwrap_or_default(),
                }
            }
            "X_509" => {
                let value: CertificateValue = parse(value)?;
                DraftProof::Certificate(Certificate {
                    cn: value.cert_cn_pattern,
                    is_expression: value.cert_cn_is_regex,
                    rules: value.auth_rules_mapping.into_iter().collect(),
                })
            }
            _ => {
                let message = "credentialsType must be MQTT_BASIC, SCRAM or X_509";
                return Err(ApiError::invalid(message));
            }
        };
        Ok(Draft { id: self.id, name: self.name, client_type: self.client_type, proof })
    }
}

impl std::convert::From<&Credential> for CredentialView {
    fn from(credential: &Credential) -> Self {
        let (kind, has_password, value) = match &credential.proof {
            Proof::Basic(basic) => {
                let value = json!({ "clientId": basic.client_id, "userName": basic.username,
                    "password": null, "authRules": basic.rules });
                ("MQTT_BASIC", basic.password.is_some(), value)
            }
            Proof::Scram(scram) => {
                let value = json!({ "userName": scram.username, "password": null,
                    "algorithm": scram.hash.name(), "authRules": scram.rules });
                ("SCRAM", true, value)
            }
            Proof::Certificate(certificate) => {
                let mapping: BTreeMap<_, _> = certificate.rules.iter().cloned().collect();
                let value = json!({ "certCnPattern": certificate.cn,
                    "certCnIsRegex": certificate.is_expression, "authRulesMapping": mapping });
                ("X_509", false, value)
            }
        };
        Self {
            id: credential.id.to_string(),
            created_time: credential.created_ms,
            name: credential.name.clone(),
            client_type: credential.client_type,
            credentials_type: kind,
            credentials_id: credentials_id(&credential.key()),
            has_password,
            credentials_value: value.to_string(),
        }
    }
}

fn credentials_id(key: &Key) -> String {
    match key {
        Key::ClientId(client_id) => format!("client_id|{client_id}"),
        Key::Username(username) => format!("username|{username}"),
        Key::Both { username, client_id } => format!("mixed|{username}|{client_id}"),
        Key::Scram(username, _) => format!("scram|{username}"),
        Key::Cn(cn) | Key::CnExpression(cn) => format!("ssl|{cn}"),
    }
}

/// Makes a credential, or changes one. A password that is not given stays what it is; an empty one
/// is none. Other rules act on connected clients at once; anything else ends their connections.
#[utoipa::path(post, path = "/api/mqtt/client/credentials", tag = "credentials",
    request_body = CredentialBody,
    responses((status = 200, body = CredentialView), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn save(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    From(address): From,
    Body(body): Body<CredentialBody>,
) -> Result<Json<CredentialView>, ApiError> {
    let saved = api.security.save_credential(address, body.draft()?).await?;
    tracing::info!(by = by.username, credential = saved.name, "a credential was saved");
    Ok(Json((&*saved).into()))
}

/// Lists credentials; with `name`, the one of that name.
#[utoipa::path(get, path = "/api/mqtt/client/credentials", tag = "credentials",
    params(PageLink, ByName),
    responses((status = 200, body = PageData<CredentialView>), (status = 404, body = ErrorBody)))]
async fn list(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
    Params(by): Params<ByName>,
) -> Result<Json<Value>, ApiError> {
    let told =
        |value: Result<Value, serde_json::Error>| value.map(Json).map_err(|_| ApiError::storage());
    if let Some(name) = by.name {
        let found = api.security.credential_by_name(&name);
        let found = found.ok_or_else(|| ApiError::not_found("credential"))?;
        return told(serde_json::to_value(CredentialView::from(&*found)));
    }
    told(serde_json::to_value(page(&api, &link, |_| true)?))
}

/// Lists credentials that fit all of the filters.
#[utoipa::path(get, path = "/api/v2/mqtt/client/credentials", tag = "credentials",
    params(PageLink, Filters),
    responses((status = 200, body = PageData<CredentialView>), (status = 400, body = ErrorBody)))]
async fn list_v2(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Params(link): Params<PageLink>,
    Params(filters): Params<Filters>,
) -> Result<Json<PageData<CredentialView>>, ApiError> {
    Ok(Json(page(&api, &link, |credential| filters.fit(credential))?))
}

impl Filters {
    fn fit(&self, credential: &Credential) -> bool {
        let holds = |wanted: &Option<String>, text: &str| {
            wanted.as_ref().is_none_or(|w| text.to_lowercase().contains(&w.to_lowercase()))
        };
        let listed = |list: &Option<String>, one: &str| {
            list.as_ref().is_none_or(|list| list.split(',').any(|item| item.trim() == one))
        };
        let (client_id, username) = match &credential.proof {
            Proof::Basic(basic) => (basic.client_id.as_deref(), basic.username.as_deref()),
            Proof::Scram(scram) => (None, Some(scram.username.as_str())),
            Proof::Certificate(_) => (None, None),
        };
        let client_type = match credential.client_type {
            ClientType::Device => "DEVICE",
            ClientType::Application => "APPLICATION",
        };
        holds(&self.name, &credential.name)
            && holds(&self.client_id, client_id.unwrap_or_default())
            && holds(&self.username, username.unwrap_or_default())
            && listed(&self.client_type_list, client_type)
            && listed(
                &self.credentials_type_list,
                CredentialView::from(credential).credentials_type,
            )
    }
}

fn page(
    api: &Api,
    link: &PageLink,
    fits: impl Fn(&Credential) -> bool,
) -> Result<PageData<CredentialView>, ApiError> {
    let mut pager = Pager::new(link)?;
    let property = pager.property("createdTime");
    for credential in api.security.credentials() {
        if !pager.finds(&[&credential.name]) || !fits(&credential) {
            continue;
        }
        let key = match property.as_str() {
            "name" => SortKey::Text(credential.name.clone()),
            "createdTime" => SortKey::Number(credential.created_ms),
            "credentialsId" => SortKey::Text(credentials_id(&credential.key())),
            other => return Err(unsortable(other)),
        };
        pager.push(key, &credential.id, CredentialView::from(&*credential));
    }
    Ok(pager.finish())
}

/// How many there are, by type of client.
#[utoipa::path(get, path = "/api/mqtt/client/credentials/info", tag = "credentials",
    responses((status = 200, body = Totals)))]
async fn totals(State(api): State<Arc<Api>>, _: Viewer) -> Json<Totals> {
    let all = api.security.credentials();
    let devices = all.iter().filter(|one| one.client_type == ClientType::Device).count();
    Json(Totals {
        device_credentials_count: devices,
        application_credentials_count: all.len() - devices,
        total_count: all.len(),
    })
}

/// One credential.
#[utoipa::path(get, path = "/api/mqtt/client/credentials/{id}", tag = "credentials",
    params(("id" = String, Path)),
    responses((status = 200, body = CredentialView), (status = 404, body = ErrorBody)))]
async fn show(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Path(id): Path<String>,
) -> Result<Json<CredentialView>, ApiError> {
    let found = api.security.credential(&id).ok_or_else(|| ApiError::not_found("credential"))?;
    Ok(Json((&*found).into()))
}

/// Deletes a credential; connections that rest on it end with 0x87.
#[utoipa::path(delete, path = "/api/mqtt/client/credentials/{id}", tag = "credentials",
    params(("id" = String, Path)),
    responses((status = 200), (status = 404, body = ErrorBody)))]
async fn delete(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    api.security.delete_credential(&id).await?;
    tracing::info!(by = by.username, credential = id, "a credential was deleted");
    Ok(StatusCode::OK)
}

/// Changes a MQTT_BASIC credential's password, for whoever knows the one before; connections that
/// rest on it end with 0x87.
#[utoipa::path(post, path = "/api/mqtt/client/credentials/{id}", tag = "credentials",
    params(("id" = String, Path)), request_body = PasswordBody,
    responses((status = 200, body = CredentialView), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody)))]
async fn change_password(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    From(address): From,
    Path(id): Path<String>,
    Body(body): Body<PasswordBody>,
) -> Result<Json<CredentialView>, ApiError> {
    let current = body.current_password.as_deref();
    let new = &body.new_password;
    let changed = api.security.change_credential_password(address, &id, current, new).await?;
    tracing::info!(by = by.username, credential = changed.name, "a password was changed");
    Ok(Json((&*changed).into()))
}
