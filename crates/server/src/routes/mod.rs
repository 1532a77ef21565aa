//! One line per endpoint; each is in a file of its own, with its description for the OpenAPI document.

mod chat;
mod choices;
mod completions;
mod encoders;
mod errors;
mod health;
mod llama_cpp;
mod messages;
mod metrics;
mod models;
mod ollama;
mod openapi;
mod page;
mod render;
mod responses;
mod template;
mod tokenize;

use crate::app::App;
use crate::error::ApiError;
use crate::hosts::{self, Hosts};
use crate::models::Models;
use crate::server::Error;
use crate::{auth, bodies, request_id};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, Any as AnyOrigin, CorsLayer};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// What a client needs a key for, if the server has keys.
fn guarded() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(chat::create))
        .routes(routes!(completions::create))
        .routes(routes!(responses::create))
        .routes(routes!(responses::retrieve, responses::delete))
        .routes(routes!(messages::create))
        .routes(routes!(messages::count_tokens))
        .routes(routes!(ollama::chat))
        .routes(routes!(ollama::generate))
        .routes(routes!(ollama::models::tags))
        .routes(routes!(ollama::models::ps))
        .routes(routes!(ollama::models::version))
        .routes(routes!(ollama::models::show))
        .routes(routes!(ollama::models::pull))
        .routes(routes!(ollama::models::delete))
        .routes(routes!(ollama::embed::embed))
        .routes(routes!(ollama::embed::embeddings))
        .routes(routes!(llama_cpp::completion))
        .routes(routes!(llama_cpp::infill))
        .routes(routes!(llama_cpp::info::props, llama_cpp::info::set_props))
        .routes(routes!(llama_cpp::info::slots))
        .routes(routes!(llama_cpp::info::slot_action))
        .routes(routes!(llama_cpp::info::lora_adapters, llama_cpp::info::set_lora_adapters))
        .routes(routes!(llama_cpp::embedding::create))
        .routes(routes!(models::list))
        .routes(routes!(models::retrieve))
        .routes(routes!(models::load))
        .routes(routes!(models::unload))
        .routes(routes!(encoders::embeddings::create))
        .routes(routes!(encoders::rerank::create))
        .routes(routes!(tokenize::tokenize))
        .routes(routes!(tokenize::detokenize))
        .routes(routes!(template::apply))
        .routes(routes!(render::chat))
        .routes(routes!(render::completion))
        .routes(routes!(render::response))
        .routes(routes!(render::message))
}

/// The same endpoints for clients whose base URL lacks `/v1`, and under the other names that they have.
fn unversioned() -> Router<Arc<App>> {
    Router::new()
        .route("/chat/completions", post(chat::create))
        .route("/completions", post(completions::create))
        .route("/responses", post(responses::create))
        .route("/responses/{id}", get(responses::retrieve).delete(responses::delete))
        .route("/embeddings", post(encoders::embeddings::create))
        .route("/rerank", post(encoders::rerank::create))
        .route("/reranking", post(encoders::rerank::create))
        .route("/v1/reranking", post(encoders::rerank::create))
        .route("/v2/rerank", post(encoders::rerank::create))
        .route("/models", get(models::list))
        .route("/models/{*model}", get(models::retrieve))
}

/// What probes, scrapers and readers may see.
fn open() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(metrics::metrics))
        .routes(routes!(openapi::document))
        .routes(routes!(openapi::page))
        .routes(routes!(page::page))
}

/// The whole server as a service that listens at `addresses`.
///
/// Errors: as [`App::new`].
pub(crate) fn router(
    models: Models,
    config: crate::Config,
    addresses: &[SocketAddr],
) -> Result<(Arc<App>, Router), Error> {
    let document = OpenApiRouter::with_openapi(openapi::info()).merge(guarded()).merge(open()).into_openapi();
    let app = Arc::new(App::new(models, config, openapi::to_json(&document))?);
    let keys = middleware::from_fn_with_state(app.clone(), auth::check);
    let guarded = OpenApiRouter::new().merge(guarded()).merge(unversioned().into());
    let router = guarded.layer(keys).merge(open());
    let mut router = Router::from(router)
        .fallback(async || {
            ApiError::not_found("unknown_url", "there is no such page; /docs lists what there is")
        })
        .method_not_allowed_fallback(async || {
            let message = "this page does not take this method; /docs lists what it takes";
            ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        })
        .layer(CatchPanicLayer::custom(panicked))
        .layer(cors(&app.config.cors));
    if let Some(hosts) = Hosts::new(&app.config, addresses) {
        router = router.layer(middleware::from_fn_with_state(Arc::new(hosts), hosts::check));
    }
    let router = router
        .layer(middleware::from_fn(errors::word))
        .layer(middleware::from_fn_with_state(app.config.body_timeout, bodies::drain_unread))
        .layer(middleware::from_fn_with_state(app.clone(), request_id::trace))
        .with_state(app.clone());
    Ok((app, router))
}

fn cors(origins: &[String]) -> CorsLayer {
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Clients send headers of their own, such as `x-stainless-os`. Who may ask is a matter of origins and keys.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-request-id"), header::RETRY_AFTER])
        .max_age(Duration::from_secs(3600));
    if origins.iter().any(|o| o == "*") {
        return layer.allow_origin(AnyOrigin);
    }
    layer.allow_origin(origins.iter().filter_map(|o| HeaderValue::from_str(o).ok()).collect::<Vec<_>>())
}

fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message");
    tracing::error!(panic = text, "a request's handler failed");
    ApiError::internal("the server failed at this request").into_response()
}
