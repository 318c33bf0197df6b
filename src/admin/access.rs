//! Who asks: taken out of a request before a handler sees it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Query, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::{Json, RequestPartsExt};
use serde::de::DeserializeOwned;

use super::Api;
use super::connection::PeerAddress;
use super::error::ApiError;
use crate::security::{Account, Role};

/// TBMQ's header, which goes before the usual one.
const TOKEN_HEADER: &str = "x-authorization";

/// Somebody who has logged in.
pub(super) struct Viewer(pub(super) Arc<Account>);

/// Somebody who may change things.
pub(super) struct Administrator(pub(super) Arc<Account>);

/// Where the request comes from.
pub(super) struct From(pub(super) Option<IpAddr>);

/// A JSON body whose faults are told in our form.
pub(super) struct Body<T>(pub(super) T);

/// A query whose faults are told in our form.
pub(super) struct Params<T>(pub(super) T);

fn account(parts: &Parts, api: &Api) -> Result<Arc<Account>, ApiError> {
    let header = parts.headers.get(TOKEN_HEADER).or_else(|| parts.headers.get(AUTHORIZATION));
    let text = header.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let token = text.split_once(' ').filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    let account = token.and_then(|(_, token)| api.security.account_of(token.trim()));
    account.ok_or_else(ApiError::unauthorized)
}

impl FromRequestParts<Arc<Api>> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        account(parts, api).map(Self)
    }
}

impl FromRequestParts<Arc<Api>> for Administrator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let account = account(parts, api)?;
        match account.role {
            Role::Administrator => Ok(Self(account)),
            Role::Viewer => Err(ApiError::forbidden()),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for From {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let known = parts.extract::<ConnectInfo<PeerAddress>>().await;
        Ok(Self(known.ok().map(|ConnectInfo(PeerAddress(address))| address.ip())))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(fault) => Err(told(&fault)),
        }
    }
}

fn told(fault: &JsonRejection) -> ApiError {
    ApiError::new(fault.status(), fault.body_text())
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|Query(query)| Self(query)).map_err(|fault| ApiError::invalid(fault.body_text()))
    }
}
