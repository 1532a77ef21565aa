//! `/openapi.json` and `/docs`: what the server offers.

use super::page::Page;
use super::{llama_cpp, messages, ollama, responses};
use crate::app::App;
use crate::openai::{ChatPiece, Chunk, CompletionChoice};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::{HeaderName, header};
use axum::response::Response;
use serde_json::Value;
use std::sync::{Arc, LazyLock};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Info, License, OpenApi};

/// Swagger UI sets styles of its elements, and makes HTML of descriptions, which are the program's own.
pub(super) static DOCS: LazyLock<Page> = LazyLock::new(|| {
    Page::new(include_bytes!("../page/docs.html.gz"), |_| "style-src 'unsafe-inline'".into())
});

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
    let key = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A key of `--api-key`, if the server has any."));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("key", SecurityScheme::Http(key.build()));
    // Needed only where the server has keys.
    let key = SecurityRequirement::new("key", Vec::<String>::new());
    document.security = Some(vec![SecurityRequirement::default(), key]);
    document
}

pub(crate) fn to_json(document: &OpenApi) -> String {
    // A map of strings and numbers is always JSON.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    let schemas = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut);
    // A request's own fields come before those that it shares with others.
    for parts in schemas.into_iter().flat_map(|all| all.values_mut()) {
        if let Some(parts) = parts.get_mut("allOf").and_then(Value::as_array_mut) {
            parts.sort_by_key(|part| part.get("$ref").is_some());
        }
    }
    // OpenAPI has no wildcards: a model's name may hold slashes, but the parameter is a parameter.
    document.to_string().replace("{*", "{")
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
    responses(
        (status = 200, description = "The page", body = String, content_type = "text/html"),
        (status = 304, description = "The browser has it already")
    )
)]
pub(crate) async fn page(asked: HeaderMap) -> Response {
    DOCS.answer(&asked)
}
