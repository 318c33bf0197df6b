//! What a refused request is answered: a status, and TBMQ's JSON about it.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::security::ManageError;
use crate::telemetry::clock;

#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    message: String,
}

/// The body of every answer that is not a success.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorBody {
    status: u16,
    message: String,
    #[serde(rename = "errorCode")]
    error_code: u16,
    /// Milliseconds since 1970-01-01 UTC.
    timestamp: u64,
}

/// TBMQ's numbers for the reasons.
fn error_code(status: StatusCode) -> u16 {
    match status {
        StatusCode::UNAUTHORIZED => 10,
        StatusCode::FORBIDDEN => 20,
        StatusCode::NOT_FOUND => 32,
        StatusCode::TOO_MANY_REQUESTS => 33,
        StatusCode::BAD_REQUEST | StatusCode::CONFLICT => 31,
        _ => 2,
    }
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no such {what}"))
    }

    pub(super) fn unauthorized() -> Self {
        let message = "log in at /api/auth/login and send the token as Authorization: Bearer …";
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    pub(super) fn forbidden() -> Self {
        Self::new(StatusCode::FORBIDDEN, "a viewer may change nothing")
    }

    pub(super) fn storage() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "storage refuses")
    }
}

impl From<ManageError> for ApiError {
    fn from(error: ManageError) -> Self {
        let status = match error {
            ManageError::NotFound => StatusCode::NOT_FOUND,
            ManageError::Invalid(_) => StatusCode::BAD_REQUEST,
            ManageError::Conflict(_) => StatusCode::CONFLICT,
            ManageError::WrongPassword => StatusCode::UNAUTHORIZED,
            ManageError::TooManyLogins => StatusCode::TOO_MANY_REQUESTS,
            ManageError::Storage | ManageError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            status: self.status.as_u16(),
            message: self.message,
            error_code: error_code(self.status),
            timestamp: clock::wall_ms(),
        };
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            let minute = header::HeaderValue::from_static("60");
            response.headers_mut().insert(header::RETRY_AFTER, minute);
        }
        response
    }
}
