//! Errors as clients see them: a status and a body in OpenAI's shape.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use realizar_engine::{Error as EngineError, Fault};
use realizar_structured::GrammarError;
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) code: Option<&'static str>,
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    pub(crate) retry_after: Option<Duration>,
}

/// Result of handling a request.
pub(crate) type Result<T> = std::result::Result<T, ApiError>;

/// The body of every answer that is an error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What is wrong.
    pub(crate) error: ErrorDetail,
}

/// What is wrong, in OpenAI's shape.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorDetail {
    /// For a person: what was wrong and what to do.
    pub(crate) message: String,
    /// The kind: invalid_request_error, authentication_error, not_found_error, rate_limit_error, server_error.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The field of the request that is at fault.
    pub(crate) param: Option<String>,
    /// For a program: which error of its kind.
    pub(crate) code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into(), retry_after: None }
    }

    /// The request is wrong.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// One of the request's fields is wrong.
    pub(crate) fn invalid_param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(message).param(param)
    }

    /// The request is refused for another reason than its contents.
    pub(crate) fn refused(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message).code(code)
    }

    /// No such model, or no such page.
    pub(crate) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message).code(code)
    }

    /// The key is missing or wrong.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message).code("invalid_api_key")
    }

    /// Our fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Something that the request needs is not to be had now.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code(code)
    }

    /// There is too much to do; the same request may succeed later.
    pub(crate) fn overloaded(message: impl Into<String>, retry_after: Duration) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { retry_after: Some(retry_after), ..error.code("queue_full") }
    }

    pub(crate) fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    pub(crate) fn param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    /// Names the field that a prompt came in, where the engine could only say that the prompt is wrong.
    pub(crate) fn or_param(self, param: &str) -> Self {
        let unnamed = self.param.is_none() && self.status == StatusCode::BAD_REQUEST;
        if unnamed { self.param(param) } else { self }
    }

    /// The body, also for an error in the middle of a stream.
    pub(crate) fn body(&self) -> ErrorBody {
        let Self { kind, code, param, message, .. } = self.clone();
        ErrorBody { error: ErrorDetail { message, kind, param, code } }
    }
}

impl From<GrammarError> for ApiError {
    fn from(error: GrammarError) -> Self {
        let code = match error {
            GrammarError::Schema { .. } => "invalid_schema",
            GrammarError::TooLarge { .. } => "too_large",
            GrammarError::TooSlow { .. } => "too_complex",
            GrammarError::Vocabulary { .. } => "unsupported",
            _ => "invalid_grammar",
        };
        Self::invalid(error.to_string()).code(code)
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        let status = match (error.fault(), &error) {
            (_, EngineError::ShuttingDown) => StatusCode::SERVICE_UNAVAILABLE,
            (Fault::Client, _) => StatusCode::BAD_REQUEST,
            (Fault::Overload, _) => StatusCode::TOO_MANY_REQUESTS,
            (Fault::Internal, _) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let kind = match status {
            StatusCode::BAD_REQUEST => "invalid_request_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            _ => "server_error",
        };
        let api = Self::new(status, kind, message);
        match error {
            EngineError::PromptTooLong { .. } => api.code("context_length_exceeded"),
            EngineError::EmptyStop | EngineError::Stop { .. } => api.param("stop"),
            EngineError::NoChatTemplate => api.code("no_chat_template"),
            EngineError::Template { .. } => api.code("chat_template_error"),
            EngineError::UnknownToken { what: "the logit bias", .. } => api.param("logit_bias"),
            EngineError::UnknownToken { what: "the list of stop tokens", .. } => api.param("stop_token_ids"),
            EngineError::InvalidParam { name, .. } => api.param(name),
            EngineError::Overloaded { retry_after, .. } => {
                Self { retry_after: Some(retry_after), ..api.code("queue_full") }
            }
            EngineError::ShuttingDown => {
                Self { retry_after: Some(Duration::from_secs(1)), ..api.code("shutting_down") }
            }
            EngineError::SlowReader { .. } => api.code("slow_reader"),
            _ if status == StatusCode::INTERNAL_SERVER_ERROR => api.code("engine_failed"),
            _ => api,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            headers
                .insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil().max(1.0) as u64));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Other APIs word it anew; see `routes::errors`.
        response.extensions_mut().insert(self);
        response
    }
}

/// `ErrorResponses`: the errors that an API's endpoints may answer with, for the OpenAPI document, each with a body of this type.
macro_rules! error_responses {
    ($visibility:vis $body:ident) => {
        #[derive(utoipa::IntoResponses)]
        #[expect(dead_code, reason = "only their attributes are read")]
        $visibility enum ErrorResponses {
            /// The request is wrong.
            #[response(status = 400)]
            Invalid($body),
            /// The key is missing or wrong.
            #[response(status = 401)]
            Unauthorized($body),
            /// The server does not answer to this name, or not to pages of this origin.
            #[response(status = 403)]
            Forbidden($body),
            /// There is no such model.
            #[response(status = 404)]
            NotFound($body),
            /// The body came too slowly.
            #[response(status = 408)]
            Timeout($body),
            /// The body is larger than the server takes.
            #[response(status = 413)]
            TooLarge($body),
            /// The body is not declared as JSON.
            #[response(status = 415)]
            MediaType($body),
            /// Too many requests are waiting; `Retry-After` says when to try again.
            #[response(status = 429)]
            Overloaded($body),
            /// The device or the program failed.
            #[response(status = 500)]
            Internal($body),
            /// The server is about to stop, or cannot load the model.
            #[response(status = 503)]
            Unavailable($body),
        }
    };
}
pub(crate) use error_responses;

error_responses!(pub(crate) ErrorBody);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_fault_it_is_decides_the_status() {
        let too_long =
            EngineError::PromptTooLong { n_prompt: 9, limit: 8, context_length: 8, cache_tokens: 64 };
        let overloaded = EngineError::Overloaded { queued: 3, retry_after: Duration::from_millis(1500) };
        let failed = EngineError::EngineFailed { message: "gone".into() };
        let of_a_step = EngineError::Device { message: "off the bus".into() };
        for (error, status, code) in [
            (too_long, 400, Some("context_length_exceeded")),
            (overloaded, 429, Some("queue_full")),
            (EngineError::ShuttingDown, 503, Some("shutting_down")),
            (EngineError::EmptyPrompt, 400, None),
            (failed, 500, Some("engine_failed")),
            (of_a_step, 500, Some("engine_failed")),
        ] {
            let api = ApiError::from(error);
            assert_eq!((api.status.as_u16(), api.code), (status, code), "{api:?}");
        }
    }

    #[test]
    fn retry_after_is_whole_seconds_and_never_too_early() {
        let error = EngineError::Overloaded { queued: 3, retry_after: Duration::from_millis(1500) };
        let response = ApiError::from(error).into_response();
        assert_eq!(response.headers()["retry-after"], "2");
    }
}
