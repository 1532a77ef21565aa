//! `/v1/responses`: OpenAI's Responses API.
//!
//! `wire` has the types, `fields` the table of all known fields, `conversation` and `tools` turn a request into a
//! [`Turn`](crate::turn::Turn), `wording` words its answer.

mod conversation;
mod fields;
mod tools;
mod wire;
mod wording;

use crate::app::{App, unix_time};
use crate::auth::Caller;
use crate::error::{ApiError, ErrorBody, ErrorResponses, Result};
use crate::generation::Plan;
use crate::json::Json;
use crate::loading;
use crate::models::Lease;
use crate::openai::check_logprobs;
use crate::sse;
use crate::turn::{Prepared, Turn};
use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response as HttpResponse};
use fields::Endpoint;
use serde_json::{Value, json};
use std::sync::Arc;
pub(super) use wire::ResponsesRequest;
use wire::{Deleted, Echo, Response, Status, StreamEvent, Truncation};
use wording::{Logprobs, ResponseWording};

/// What no endpoint's description mentions by its type.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(StreamEvent)))]
pub(super) struct Streamed;

/// Answer a conversation (Responses API)
///
/// With `stream`, the answer comes as server-sent events, from `response.created` to `response.completed`.
#[utoipa::path(
    post, path = "/v1/responses", operation_id = "create_response", tag = "generation",
    request_body(content = ResponsesRequest, example = json!({"input": "Tell me a story.", "max_output_tokens": 8})),
    responses(
        (status = 200, description = "The response", content((Response = "application/json"), (String = "text/event-stream"))),
        ErrorResponses
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ResponsesRequest>,
) -> Result<HttpResponse> {
    let (asked, streams) = (request.model.clone(), request.stream.unwrap_or(false));
    loading::answer(&app.clone(), asked.as_deref(), streams, error_event, answer(app, caller, request)).await
}

async fn answer(app: Arc<App>, caller: Caller, request: ResponsesRequest) -> Result<HttpResponse> {
    let lease = app.model(request.model.as_deref()).await?;
    let streams = request.stream.unwrap_or(false);
    let (plan, wanted, prompt, mut wording) = lease
        .compute(move |lease| {
            let (plan, messages, prepared) = prepare(lease, caller, &request)?;
            let Prepared { prompt, wanted, parsers } = prepared;
            let stores = stores(lease, &request)?;
            let includes = |kind: &str| request.include.iter().flatten().any(|included| included == kind);
            let wording = ResponseWording {
                caller,
                response: response(lease, &request, &plan, stores),
                parser: parsers.parser(0),
                messages: stores.then_some(messages),
                seals: includes("reasoning.encrypted_content"),
                logprobs: plan.n_logprobs.map(|_| Logprobs::default()),
                open: None,
                n_events: 0,
                lease: lease.clone(),
            };
            Ok((plan, wanted, prompt, wording))
        })
        .await?;
    let started = lease.start(plan, wanted, vec![prompt], "input").await;
    let mut generation = started.map_err(|error| ApiError {
        message: error.message.replace("/function/parameters", "/parameters"),
        ..error
    })?;
    if streams {
        return Ok(sse::respond(generation, wording, None));
    }
    sse::take_all(&mut generation, &mut wording).await?;
    Ok(axum::Json(wording.response).into_response())
}

/// The end of a stream that has not begun for this reason: the API's event of type `error`.
fn error_event(error: &ApiError) -> String {
    let event = json!({
        "type": "error", "code": error.code, "message": error.message, "param": error.param, "sequence_number": 0,
    });
    format!("event: error\ndata: {event}\n\n")
}

/// The conversation that a request goes on after.
///
/// Errors: 400 if it is not stored.
fn before(lease: &Lease, caller: Caller, request: &ResponsesRequest) -> Result<Vec<Value>> {
    let Some(id) = &request.previous_response_id else { return Ok(Vec::new()) };
    let stored = lease.app.responses.get(caller, id).ok_or_else(|| {
        let message = format!(
            "there is no response {id:?}: responses are kept in memory, up to {} bytes, if store is true",
            lease.app.responses.limit()
        );
        ApiError::invalid_param("previous_response_id", message).code("previous_response_not_found")
    })?;
    Ok(stored.messages.clone())
}

/// Whether the response is kept.
///
/// Errors: it should be, but this server keeps none.
fn stores(lease: &Lease, request: &ResponsesRequest) -> Result<bool> {
    let is_possible = lease.app.responses.limit() > 0;
    match request.store {
        Some(true) if !is_possible => {
            let message = "this server stores no responses; set store to false and send the conversation";
            Err(ApiError::invalid_param("store", message).code("unsupported"))
        }
        Some(stores) => Ok(stores),
        None => Ok(is_possible),
    }
}

fn plan(lease: &Lease, caller: Caller, request: &ResponsesRequest) -> Result<Plan> {
    request.other.check(Endpoint::Responses)?;
    let mut defaults = lease.model.sampling.clone();
    defaults.seed = request.seed.map(|seed| seed as u64);
    let top = check_logprobs("top_logprobs", request.top_logprobs)?;
    let included = request.include.iter().flatten().any(|kind| kind == "message.output_text.logprobs");
    Ok(Plan {
        sampling: request.params.0.over(defaults).map_err(realizar_engine::Error::from)?,
        max_tokens: request.max_output_tokens.map(|n| n as usize),
        n_logprobs: top.filter(|&n| n > 0).or(included.then_some(0)),
        cache_salt: lease.app.cache_salt(caller, request.cache_salt.as_deref()),
        ..Plan::new(lease, caller)
    })
}

/// What to generate, the conversation and its turn.
fn prepare(
    lease: &Lease,
    caller: Caller,
    request: &ResponsesRequest,
) -> Result<(Plan, Vec<Value>, Prepared)> {
    let before = before(lease, caller, request)?;
    let mut plan = plan(lease, caller, request)?;
    let messages = conversation::messages(&lease.seal(), request, before)?;
    let prepared = fit(lease, request, &messages, &mut plan)?;
    Ok((plan, messages, prepared))
}

/// The tokens that an answer would be computed from.
pub(super) fn prompt(lease: &Lease, caller: Caller, request: &ResponsesRequest) -> Result<Vec<u32>> {
    Ok(prepare(lease, caller, request)?.2.prompt)
}

/// The turn; with `truncation: auto` without the oldest turns of the user's if the conversation is too long.
fn fit(lease: &Lease, request: &ResponsesRequest, messages: &[Value], plan: &mut Plan) -> Result<Prepared> {
    let functions = tools::functions(request);
    let callable = tools::callable(request, &functions)?;
    let format = tools::format(request, lease.app.config.open_schemas)?;
    let turn = |messages: &[Value]| Turn {
        conversation: conversation::conversation(request, messages),
        callable: callable.clone(),
        format: format.clone(),
    };
    let prepared = turn(messages).prepare(lease, plan)?;
    // As much of the context is left for the answer as was asked for, but no more than a quarter.
    let context = lease.model.context();
    let answer = request.max_output_tokens.map_or(context, |n| n as usize).clamp(1, (context / 4).max(1));
    let limit = context.saturating_sub(answer);
    if request.truncation != Some(Truncation::Auto) || prepared.prompt.len() <= limit {
        return Ok(prepared);
    }
    // Where the user's turns begin; a system message before them stays.
    let is_user = |(i, message): (usize, &Value)| (message["role"] == "user").then_some(i);
    let turns: Vec<usize> = messages.iter().enumerate().filter_map(is_user).collect();
    let n_system = usize::from(messages.first().is_some_and(|first| first["role"] == "system"));
    let from = |at: usize| [&messages[..n_system], &messages[at.max(n_system)..]].concat();
    // The first turn from which on the conversation fits.
    let (mut low, mut high) = (1, turns.len());
    let mut shortest = prepared;
    while low < high {
        let middle = (low + high) / 2;
        let prepared = turn(&from(turns[middle])).prepare(lease, plan)?;
        if prepared.prompt.len() <= limit {
            (high, shortest) = (middle, prepared);
        } else {
            low = middle + 1;
        }
    }
    Ok(shortest)
}

/// The response before anything is generated.
fn response(lease: &Lease, request: &ResponsesRequest, plan: &Plan, stores: bool) -> Response {
    Response {
        id: lease.app.new_id("resp_"),
        object: "response",
        created_at: unix_time(),
        completed_at: None,
        status: Status::InProgress,
        error: None,
        incomplete_details: None,
        output: Vec::new(),
        usage: None,
        request: Echo {
            model: lease.name.clone(),
            instructions: request.instructions.clone(),
            previous_response_id: request.previous_response_id.clone(),
            store: stores,
            background: false,
            max_output_tokens: request.max_output_tokens,
            parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
            reasoning: request.reasoning.clone().unwrap_or_default(),
            text: wire::TextField {
                format: request.text.as_ref().and_then(|t| t.format.clone()).or(Some(wire::TextFormat::Text)),
                verbosity: request.text.as_ref().and_then(|text| text.verbosity.clone()),
            },
            tools: tools::functions(request),
            tool_choice: request
                .tool_choice
                .clone()
                .filter(|v| !v.is_null())
                .unwrap_or_else(|| "auto".into()),
            truncation: request.truncation.unwrap_or_default(),
            temperature: plan.sampling.temperature,
            top_p: plan.sampling.top_p,
            top_logprobs: request.top_logprobs.unwrap_or(0),
            service_tier: "default",
            metadata: request.metadata.clone().unwrap_or_default(),
        },
    }
}

/// A stored response
#[utoipa::path(
    get, path = "/v1/responses/{id}", operation_id = "retrieve_response", tag = "generation",
    params(("id" = String, Path, description = "The response's id")),
    responses(
        (status = 200, description = "The response", body = Response),
        (status = 401, description = "The key is missing or wrong", body = ErrorBody),
        (status = 404, description = "It is not stored", body = ErrorBody)
    )
)]
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    id: std::result::Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<axum::Json<Value>> {
    let Path(id) = id.map_err(|_| not_found("that is not UTF-8"))?;
    let stored = app.responses.get(caller, &id).ok_or_else(|| not_found(&id))?;
    Ok(axum::Json(stored.response.clone()))
}

/// Forget a stored response
#[utoipa::path(
    delete, path = "/v1/responses/{id}", operation_id = "delete_response", tag = "generation",
    params(("id" = String, Path, description = "The response's id")),
    responses(
        (status = 200, description = "It is forgotten", body = Deleted),
        (status = 401, description = "The key is missing or wrong", body = ErrorBody),
        (status = 404, description = "It is not stored", body = ErrorBody)
    )
)]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    id: std::result::Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<axum::Json<Deleted>> {
    let Path(id) = id.map_err(|_| not_found("that is not UTF-8"))?;
    match app.responses.delete(caller, &id) {
        true => Ok(axum::Json(Deleted { id, object: "response", deleted: true })),
        false => Err(not_found(&id)),
    }
}

fn not_found(id: &str) -> ApiError {
    ApiError::not_found("response_not_found", format!("there is no response {id:?}")).param("id")
}
