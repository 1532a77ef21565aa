//! Errors in the words of the API that a request belongs to: whatever refuses it, the client finds the shape that it knows.

use super::{llama_cpp, messages, ollama};
use crate::error::ApiError;
use crate::request_id::RequestId;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, header};
use axum::middleware::Next;
use axum::response::Response;

/// APIs whose errors differ.
enum Api {
    OpenAi,
    Anthropic,
    Ollama,
    LlamaCpp,
}

impl Api {
    fn of(path: &str) -> Self {
        if path.starts_with("/api/") {
            return Self::Ollama;
        }
        if llama_cpp::has(path) {
            return Self::LlamaCpp;
        }
        match path.strip_prefix("/v1/messages") {
            Some("") => Self::Anthropic,
            Some(rest) if rest.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }
}

/// Words an error, which has OpenAI's shape, anew.
pub(super) async fn word(request: Request, next: Next) -> Response {
    let api = Api::of(request.uri().path());
    let id = request.extensions().get::<RequestId>().cloned();
    let mut response = next.run(request).await;
    if let (Api::Anthropic, Some(RequestId(id))) = (&api, &id) {
        response.headers_mut().insert(HeaderName::from_static("request-id"), id.clone());
    }
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let body = match api {
        Api::OpenAi => return response,
        Api::Ollama => ollama::error_body(&error),
        Api::LlamaCpp => llama_cpp::error_body(&error),
        Api::Anthropic => messages::error_body(&error, id.as_ref().and_then(|id| id.0.to_str().ok())),
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body))
}
