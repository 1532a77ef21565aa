//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.
//!
//! `wire` has the types, `fields` the table of all known fields, `conversation` and `tools` turn a request into a
//! [`Turn`](crate::turn::Turn), `wording` words its answer.

mod conversation;
mod fields;
mod tools;
mod wire;
mod wording;

use crate::app::App;
use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::generation::{Plan, stop_strings};
use crate::json::Json;
use crate::loading;
use crate::models::Lease;
use crate::sse;
use crate::turn::{Prepared, Turn};
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use fields::Endpoint;
use std::sync::Arc;
pub(super) use wire::MessagesRequest;
use wire::{Answer, ErrorBody, ErrorDetail, StreamEvent, TokenCount, Usage};
use wording::MessageWording;

/// What no endpoint's description mentions by its type.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(StreamEvent, ErrorBody)))]
pub(super) struct Streamed;

/// Answer a conversation (Anthropic's API)
///
/// With `stream`, the answer comes as server-sent events: `message_start`, blocks, `message_delta` and `message_stop`.
#[utoipa::path(
    post, path = "/v1/messages", operation_id = "messages", tag = "generation",
    request_body(content = MessagesRequest, example = json!({"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8})),
    responses(
        (status = 200, description = "The answer", content((Answer = "application/json"), (String = "text/event-stream"))),
        ErrorResponses
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<MessagesRequest>,
) -> Result<Response> {
    let (asked, streams) = (request.model.clone(), request.stream.unwrap_or(false));
    loading::answer(&app.clone(), asked.as_deref(), streams, error_event, answer(app, caller, request)).await
}

async fn answer(app: Arc<App>, caller: Caller, request: MessagesRequest) -> Result<Response> {
    let lease = app.model(request.model.as_deref()).await?;
    let streams = request.stream.unwrap_or(false);
    let id = app.new_id("msg_");
    let (plan, wanted, prompt, mut wording) = lease
        .compute(move |lease| {
            let mut plan = plan(lease, caller, &request)?;
            let max_tokens = request.max_tokens.ok_or_else(|| {
                ApiError::invalid_param("max_tokens", "max_tokens is missing: say how long the answer may be")
            })? as usize;
            plan.max_tokens = Some(max_tokens);
            let Prepared { prompt, wanted, parsers } = turn(lease, &request)?.prepare(lease, &mut plan)?;
            let display = request.thinking.as_ref().and_then(|thinking| thinking.display.as_deref());
            let wording = MessageWording {
                answer: Answer {
                    id,
                    kind: "message",
                    role: "assistant",
                    model: lease.name.clone(),
                    content: Vec::new(),
                    stop_reason: None,
                    stop_sequence: None,
                    usage: Usage::default(),
                },
                parser: parsers.parser(0),
                seal: lease.seal(),
                n_prompt: prompt.len(),
                max_tokens,
                omits_thoughts: display == Some("omitted"),
                open: None,
            };
            Ok((plan, wanted, prompt, wording))
        })
        .await?;
    let started = lease.start(plan, wanted, vec![prompt], "messages").await;
    let mut generation = started.map_err(|error| ApiError {
        message: error.message.replace("/function/parameters", "/input_schema"),
        ..error
    })?;
    if streams {
        return Ok(sse::respond(generation, wording, Some(StreamEvent::Ping.sent())));
    }
    sse::take_all(&mut generation, &mut wording).await?;
    Ok(axum::Json(wording.answer).into_response())
}

/// Count the tokens of a conversation (Anthropic's API)
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", operation_id = "count_tokens", tag = "tokens",
    request_body(content = MessagesRequest, example = json!({"messages": [{"role": "user", "content": "Tell me a story."}]})),
    responses((status = 200, description = "The size", body = TokenCount), ErrorResponses)
)]
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<MessagesRequest>,
) -> Result<axum::Json<TokenCount>> {
    let lease = app.model(request.model.as_deref()).await?;
    let count = move |lease: &Lease| Ok(prompt(lease, caller, &request)?.len());
    Ok(axum::Json(TokenCount { input_tokens: lease.compute(count).await? }))
}

/// The tokens that an answer would be computed from.
pub(super) fn prompt(lease: &Lease, caller: Caller, request: &MessagesRequest) -> Result<Vec<u32>> {
    let mut plan = plan(lease, caller, request)?;
    Ok(turn(lease, request)?.prepare(lease, &mut plan)?.prompt)
}

fn plan(lease: &Lease, caller: Caller, request: &MessagesRequest) -> Result<Plan> {
    request.other.check(Endpoint::Messages)?;
    let mut defaults = lease.model.sampling.clone();
    defaults.seed = request.seed.map(|seed| seed as u64);
    let stops = request.stop_sequences.as_deref().unwrap_or_default();
    Ok(Plan {
        sampling: request.params.0.over(defaults).map_err(realizar_engine::Error::from)?,
        stops: stop_strings("stop_sequences", stops)?,
        cache_salt: lease.app.cache_salt(caller, request.cache_salt.as_deref()),
        ..Plan::new(lease, caller)
    })
}

fn turn(lease: &Lease, request: &MessagesRequest) -> Result<Turn> {
    Ok(Turn {
        conversation: conversation::conversation(lease, request)?,
        callable: tools::callable(request)?,
        format: tools::format(request, lease.app.config.open_schemas)?,
    })
}

/// An error in this API's words.
fn error_detail(error: &ApiError) -> ErrorDetail {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    let message = match error.code {
        // By these words agents know that they have to shorten the conversation.
        Some("context_length_exceeded") => format!("prompt is too long: {}", error.message),
        _ => error.message.clone(),
    };
    ErrorDetail { kind, message }
}

/// The end of a stream that has not begun for this reason.
fn error_event(error: &ApiError) -> String {
    format!("event: error\ndata: {}\n\n", error_body(error, None))
}

/// The body of an answer that is an error.
pub(super) fn error_body(error: &ApiError, request_id: Option<&str>) -> String {
    let body =
        ErrorBody { kind: "error", error: error_detail(error), request_id: request_id.map(str::to_owned) };
    serde_json::to_string(&body).unwrap_or_default()
}

crate::error::error_responses!(pub(super) ErrorBody);
