//! `/openapi.json` and `/docs`: what the server offers.

use super::{llama_cpp, messages, ollama, responses};
use crate::app::App;
use crate::openai::{ChatPiece, Chunk, CompletionChoice};
use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::Html;
use std::sync::Arc;
use utoipa::openapi::{Info, License, OpenApi};

/// What no endpoint's description mentions by its type.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(Chunk<ChatPiece>, Chunk<CompletionChoice>)))]
struct Streamed;

/// The document without its endpoints.
pub(crate) fn info() -> OpenApi {
    let mut info = Info::new("realizar", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Answers, compatible with the APIs of OpenAI, Anthropic, Ollama and llama.cpp, from the model that this server has loaded."
            .into(),
    );
    info.license = Some(License::new(env!("CARGO_PKG_LICENSE")));
    let mut document = <Streamed as utoipa::OpenApi>::openapi();
    document.merge(<responses::Streamed as utoipa::OpenApi>::openapi());
    document.merge(<llama_cpp::Streamed as utoipa::OpenApi>::openapi());
    document.merge(<ollama::Errors as utoipa::OpenApi>::openapi());
    document.merge(<messages::Streamed as utoipa::OpenApi>::openapi());
    document.info = info;
    document
}

pub(crate) fn to_json(document: &OpenApi) -> String {
    // A map of strings and numbers is always JSON.
    let text = serde_json::to_string(document).unwrap_or_default();
    // OpenAPI has no wildcards: a model's name may hold slashes, but the parameter is a parameter.
    text.replace("{*", "{")
}

/// This document
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "operation",
    responses((status = 200, description = "The OpenAPI document", body = Object))
)]
pub(crate) async fn document(State(app): State<Arc<App>>) -> ([(HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, "application/json")], app.openapi.clone())
}

/// A page that shows this document
#[utoipa::path(
    get, path = "/docs", operation_id = "docs", tag = "operation",
    responses((status = 200, description = "The page", body = String, content_type = "text/html"))
)]
pub(crate) async fn page() -> Html<&'static str> {
    Html(include_str!("docs.html"))
}
