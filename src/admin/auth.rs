//! Logging in, and the accounts that can.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::access::{Administrator, Body, From, Params, Viewer};
use super::error::{ApiError, ErrorBody};
use super::page::{PageData, PageLink, Pager, SortKey, unsortable};
use crate::security::{Account, Role, Tokens};

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(login))
        .routes(routes!(refresh))
        .routes(routes!(user))
        .routes(routes!(change_password))
        .routes(routes!(list_accounts, save_account))
        .routes(routes!(delete_account))
}

#[derive(Deserialize, ToSchema)]
struct LoginBody {
    username: String,
    password: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct TokenBody {
    /// For `Authorization: Bearer …` or `X-Authorization: Bearer …`.
    token: String,
    /// For `/api/auth/token`.
    refresh_token: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct RefreshBody {
    refresh_token: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct PasswordBody {
    current_password: String,
    new_password: String,
}

#[derive(Deserialize, ToSchema)]
struct AccountBody {
    username: String,
    password: String,
    /// `ADMINISTRATOR` or `VIEWER`.
    #[schema(value_type = String)]
    role: Role,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountView {
    username: String,
    #[schema(value_type = String)]
    role: Role,
    created_time: u64,
}

impl std::convert::From<Tokens> for TokenBody {
    fn from(tokens: Tokens) -> Self {
        Self { token: tokens.token, refresh_token: tokens.refresh_token }
    }
}

impl std::convert::From<&Account> for AccountView {
    fn from(account: &Account) -> Self {
        let username = account.username.clone();
        Self { username, role: account.role, created_time: account.created_ms }
    }
}

/// Gives tokens for a user name and a password. After ten failures of a name or an address in a
/// minute it answers 429 until the minute is over.
#[utoipa::path(post, path = "/api/auth/login", tag = "auth", security(()),
    request_body = LoginBody,
    responses((status = 200, body = TokenBody), (status = 401, body = ErrorBody),
        (status = 429, body = ErrorBody)))]
async fn login(
    State(api): State<Arc<Api>>,
    From(address): From,
    Body(body): Body<LoginBody>,
) -> Result<Json<TokenBody>, ApiError> {
    let tokens = api.security.login(address, &body.username, &body.password).await?;
    Ok(Json(tokens.into()))
}

/// Gives new tokens for a refresh token.
#[utoipa::path(post, path = "/api/auth/token", tag = "auth", security(()),
    request_body = RefreshBody,
    responses((status = 200, body = TokenBody), (status = 401, body = ErrorBody)))]
async fn refresh(
    State(api): State<Arc<Api>>,
    Body(body): Body<RefreshBody>,
) -> Result<Json<TokenBody>, ApiError> {
    let tokens = api.security.refresh(&body.refresh_token).ok_or_else(ApiError::unauthorized)?;
    Ok(Json(tokens.into()))
}

/// Who is logged in.
#[utoipa::path(get, path = "/api/auth/user", tag = "auth",
    responses((status = 200, body = AccountView), (status = 401, body = ErrorBody)))]
async fn user(Viewer(account): Viewer) -> Json<AccountView> {
    Json((&*account).into())
}

/// Changes one's own password; all earlier tokens are worth nothing then.
#[utoipa::path(post, path = "/api/auth/changePassword", tag = "auth",
    request_body = PasswordBody,
    responses((status = 200, body = TokenBody), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 429, body = ErrorBody)))]
async fn change_password(
    State(api): State<Arc<Api>>,
    Viewer(account): Viewer,
    From(address): From,
    Body(body): Body<PasswordBody>,
) -> Result<Json<TokenBody>, ApiError> {
    let PasswordBody { current_password, new_password } = body;
    let security = &api.security;
    let changed =
        security.change_own_password(address, &account.username, &current_password, &new_password);
    Ok(Json(changed.await?.into()))
}

/// Lists administrators and viewers.
#[utoipa::path(get, path = "/api/admin", tag = "admin", params(PageLink),
    responses((status = 200, body = PageData<AccountView>), (status = 401, body = ErrorBody)))]
async fn list_accounts(
    State(api): State<Arc<Api>>,
    _: Administrator,
    Params(link): Params<PageLink>,
) -> Result<Json<PageData<AccountView>>, ApiError> {
    let mut pager = Pager::new(&link)?;
    let property = pager.property("username");
    for account in api.security.accounts() {
        if !pager.finds(&[&account.username]) {
            continue;
        }
        let key = match property.as_str() {
            "username" => SortKey::Text(account.username.clone()),
            "createdTime" => SortKey::Number(account.created_ms),
            other => return Err(unsortable(other)),
        };
        pager.push(key, &account.username, (&*account).into());
    }
    Ok(Json(pager.finish()))
}

/// Makes an account, or gives one another password and role.
#[utoipa::path(post, path = "/api/admin", tag = "admin", request_body = AccountBody,
    responses((status = 200, body = AccountView), (status = 400, body = ErrorBody),
        (status = 409, description = "it is the last administrator", body = ErrorBody)))]
async fn save_account(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    From(address): From,
    Body(body): Body<AccountBody>,
) -> Result<Json<AccountView>, ApiError> {
    let AccountBody { username, password, role } = body;
    let account = api.security.put_account(address, &username, &password, role).await?;
    tracing::info!(by = by.username, account = account.username, ?role, "an account was saved");
    Ok(Json((&account).into()))
}

/// Deletes an account; the last administrator stays.
#[utoipa::path(delete, path = "/api/admin/{username}", tag = "admin",
    params(("username" = String, Path)),
    responses((status = 200), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn delete_account(
    State(api): State<Arc<Api>>,
    Administrator(by): Administrator,
    Path(username): Path<String>,
) -> Result<StatusCode, ApiError> {
    api.security.delete_account(&username).await?;
    tracing::info!(by = by.username, account = username, "an account was deleted");
    Ok(StatusCode::OK)
}
