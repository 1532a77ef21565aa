//! `/api/…`: Ollama's API.
//!
//! `wire` has the types, `fields` the table of all known fields and options, `embed` embeds texts, `conversation` turns a request into a
//! [`Turn`](crate::turn::Turn), `wording` words its answer, `models` says what there is.

mod conversation;
pub(crate) mod embed;
mod fields;
pub(crate) mod models;
mod wire;
mod wording;

use crate::app::App;
use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::fim;
use crate::generation::{Generation, Plan, Wanted, stop_strings};
use crate::json::Json;
use crate::models::{KeepAlive, Lease};
use crate::openai::check_logprobs;
use crate::sse::{self, Pieces};
use crate::turn::{AnswerParser, Prepared};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use fields::Endpoint;
use realizar_engine::{Timings, Usage};
use realizar_structured::Before;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use wire::{Answer, ChatRequest, ErrorBody, GenerateRequest, Options, Stop};
use wording::{Kind, LineWording};

/// Answer a conversation (Ollama's API)
///
/// Unless `stream` is false, the answer comes as lines of JSON.
#[utoipa::path(
    post, path = "/api/chat", operation_id = "ollama_chat", tag = "generation",
    request_body(content = ChatRequest, example = json!({"messages": [{"role": "user", "content": "Tell me a story."}], "options": {"num_predict": 8}})),
    responses(
        (status = 200, description = "The answer", content((Answer = "application/x-ndjson"), (Answer = "application/json"))),
        ErrorResponses
    )
)]
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ChatRequest>,
) -> Result<Response> {
    let streams = request.stream.unwrap_or(true);
    let keep_alive = keep_alive(request.keep_alive.as_ref())?;
    let is_empty = request.messages.as_ref().is_none_or(Vec::is_empty);
    if is_empty && keep_alive == Some(KeepAlive::ZERO) {
        return unload(&app, Kind::Chat, request.model.as_deref(), streams);
    }
    let lease = model(&app, request.model.as_deref()).await?;
    if let Some(keep_alive) = keep_alive {
        lease.keep_alive(keep_alive);
    }
    if is_empty {
        return Ok(without_text(Kind::Chat, &lease.name, streams, "load"));
    }
    let job = lease
        .compute(move |lease| {
            request.other.check(Endpoint::Chat)?;
            let options = request.options.clone().unwrap_or_default();
            let mut plan = plan(lease, caller, &options, request.logprobs, request.top_logprobs)?;
            let turn = conversation::chat_turn(&request, lease.app.config.open_schemas)?;
            let Prepared { prompt, wanted, parsers } = turn.prepare(lease, &mut plan)?;
            limit(&mut plan, prompt.len(), options.num_ctx)?;
            Ok(Job { plan, wanted, prompt, parser: Some(parsers.parser(0)) })
        })
        .await?;
    job.run(&lease, Kind::Chat, streams, "messages").await
}

/// Answer or continue a text (Ollama's API)
///
/// Unless `stream` is false, the answer comes as lines of JSON.
#[utoipa::path(
    post, path = "/api/generate", operation_id = "ollama_generate", tag = "generation",
    request_body(content = GenerateRequest, example = json!({"prompt": "Tell me a story.", "options": {"num_predict": 8}})),
    responses(
        (status = 200, description = "The answer", content((Answer = "application/x-ndjson"), (Answer = "application/json"))),
        ErrorResponses
    )
)]
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<GenerateRequest>,
) -> Result<Response> {
    let streams = request.stream.unwrap_or(true);
    let keep_alive = keep_alive(request.keep_alive.as_ref())?;
    let is_empty = request.prompt.as_ref().is_none_or(String::is_empty) && request.suffix.is_none();
    if is_empty && keep_alive == Some(KeepAlive::ZERO) {
        return unload(&app, Kind::Generate, request.model.as_deref(), streams);
    }
    let lease = model(&app, request.model.as_deref()).await?;
    if let Some(keep_alive) = keep_alive {
        lease.keep_alive(keep_alive);
    }
    if is_empty {
        return Ok(without_text(Kind::Generate, &lease.name, streams, "load"));
    }
    let job = lease
        .compute(move |lease| {
            request.other.check(Endpoint::Generate)?;
            let options = request.options.clone().unwrap_or_default();
            let mut plan = plan(lease, caller, &options, request.logprobs, request.top_logprobs)?;
            let mut job = match continued(lease, &request)? {
                Some(prompt) => {
                    plan.continues_text = true;
                    let format =
                        conversation::format(request.format.as_ref(), lease.app.config.open_schemas)?;
                    let wanted = format.map(|(format, field)| Wanted::format(format, field, Before::Nothing));
                    Job { plan, wanted, prompt, parser: None }
                }
                None => {
                    let turn = conversation::generate_turn(&request, lease.app.config.open_schemas)?;
                    let Prepared { prompt, wanted, parsers } = turn.prepare(lease, &mut plan)?;
                    Job { plan, wanted, prompt, parser: Some(parsers.parser(0)) }
                }
            };
            limit(&mut job.plan, job.prompt.len(), options.num_ctx)?;
            Ok(job)
        })
        .await?;
    job.run(&lease, Kind::Generate, streams, "prompt").await
}

/// A request that is ready for the engine.
struct Job {
    plan: Plan,
    wanted: Option<Wanted>,
    prompt: Vec<u32>,
    parser: Option<AnswerParser>,
}

impl Job {
    async fn run(self, lease: &Lease, kind: Kind, streams: bool, field: &'static str) -> Result<Response> {
        let Self { plan, wanted, prompt, parser } = self;
        let (tokenizer, logprobs) = (lease.model.engine.tokenizer().clone(), plan.n_logprobs.is_some());
        let mut wording = LineWording::new(kind, lease.name.clone(), parser, tokenizer, logprobs);
        let mut generation: Generation = lease.start(plan, wanted, vec![prompt], field).await?;
        if streams {
            return Ok(Lines::respond(Body::from_stream(Pieces::new(generation, wording))));
        }
        sse::take_all(&mut generation, &mut wording).await?;
        Ok(axum::Json(wording.whole).into_response())
    }
}

/// The prompt of a text that is continued as it is, or around a gap; `None` if it is for the chat template.
fn continued(lease: &Lease, request: &GenerateRequest) -> Result<Option<Vec<u32>>> {
    let prompt = request.prompt.as_deref().unwrap_or_default();
    let tokenizer = lease.model.engine.tokenizer();
    match &request.suffix {
        Some(suffix) if !suffix.is_empty() => {
            Ok(Some(fim::find(tokenizer)?.prompt(tokenizer, prompt, suffix)))
        }
        _ if request.raw == Some(true) => Ok(Some(lease.model.engine.encode_prompt(prompt))),
        _ => Ok(None),
    }
}

/// What to generate.
///
/// Errors: the option that is out of range, or that is not offered.
fn plan(
    lease: &Lease,
    caller: Caller,
    options: &Options,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
) -> Result<Plan> {
    options.other.check(Endpoint::Options)?;
    let context = lease.model.context();
    if let Some(n) = options.num_ctx.filter(|&n| n as usize > context) {
        let message = format!(
            "num_ctx is {n} but this server's context has {context} tokens; start it with a larger --ctx, or leave num_ctx out"
        );
        return Err(ApiError::invalid_param("options.num_ctx", message));
    }
    let mut defaults = lease.model.sampling.clone();
    defaults.seed = options.seed.map(|seed| seed as u64);
    defaults.penalty_window = match options.repeat_last_n {
        None => defaults.penalty_window,
        Some(-1) => None,
        Some(n @ 0..) => Some(n as usize),
        Some(n) => {
            let message = format!("repeat_last_n is {n} but must be -1 or at least 0");
            return Err(ApiError::invalid_param("options.repeat_last_n", message));
        }
    };
    let stops = match &options.stop {
        None => &[][..],
        Some(Stop::One(stop)) => std::slice::from_ref(stop),
        Some(Stop::Many(stops)) => stops,
    };
    let top = check_logprobs("top_logprobs", top_logprobs)?;
    Ok(Plan {
        sampling: options.params.0.over(defaults).map_err(realizar_engine::Error::from)?,
        max_tokens: options.num_predict.and_then(|n| usize::try_from(n).ok()),
        stops: stop_strings("options.stop", stops)?,
        n_logprobs: logprobs.unwrap_or(false).then_some(top.unwrap_or(0)),
        ..Plan::new(lease, caller)
    })
}

/// Keeps prompt and answer together within `num_ctx`.
///
/// Errors: the prompt alone fills it.
fn limit(plan: &mut Plan, n_prompt: usize, num_ctx: Option<u32>) -> Result<()> {
    let Some(num_ctx) = num_ctx.map(|n| n as usize) else { return Ok(()) };
    if n_prompt >= num_ctx {
        let message = format!(
            "the prompt has {n_prompt} tokens, and num_ctx allows {num_ctx} for prompt and answer together"
        );
        return Err(ApiError::invalid_param("options.num_ctx", message).code("context_length_exceeded"));
    }
    let room = num_ctx - n_prompt;
    plan.max_tokens = Some(plan.max_tokens.map_or(room, |n| n.min(room)));
    Ok(())
}

/// Unloads the model as soon as nobody uses it: what a request without a text asks for by a `keep_alive` of 0.
///
/// Errors: 404 for a model that is not here.
fn unload(app: &App, kind: Kind, asked: Option<&str>, streams: bool) -> Result<Response> {
    let name = app.models.describe(known_name(app, asked))?.name;
    app.models.unload(Some(&name))?;
    Ok(without_text(kind, &name, streams, if app.models.can_load() { "unload" } else { "load" }))
}

/// The answer to a request that asks for nothing but a model to be loaded or unloaded.
fn without_text(kind: Kind, model: &str, streams: bool, done_reason: &'static str) -> Response {
    let mut answer = wording::empty(kind, model);
    answer.done = true;
    answer.end = Some(wording::end(done_reason, Usage::default(), Timings::default()));
    match streams {
        true => Lines::of(&[answer]),
        false => axum::Json(answer).into_response(),
    }
}

/// How long the model stays loaded after a request.
///
/// Errors: neither a number nor a duration.
fn keep_alive(value: Option<&Value>) -> Result<Option<KeepAlive>> {
    let parsed = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(seconds)) => Ok(KeepAlive::from_seconds(seconds.as_f64().unwrap_or(-1.0))),
        Some(Value::String(text)) => text.parse(),
        Some(other) => Err(format!("{other} is neither a number of seconds nor a text such as 5m")),
    };
    parsed.map(Some).map_err(|reason| ApiError::invalid_param("keep_alive", format!("keep_alive: {reason}")))
}

/// The name of a model that a request asks for; Ollama's clients may add a tag.
fn known_name<'a>(app: &App, asked: Option<&'a str>) -> Option<&'a str> {
    let asked = asked.filter(|name| !name.is_empty())?;
    match asked.strip_suffix(":latest") {
        Some(bare) if !app.models.has(asked) && app.models.has(bare) => Some(bare),
        _ => Some(asked),
    }
}

/// The model that a request asks for.
///
/// Errors: 404 for a model that is not here.
async fn model(app: &Arc<App>, asked: Option<&str>) -> Result<Lease> {
    app.model(known_name(app, asked)).await
}

/// Answers of several lines of JSON.
struct Lines;

impl Lines {
    /// These lines.
    fn of(lines: &[impl Serialize]) -> Response {
        let text = lines.iter().filter_map(|line| serde_json::to_string(line).ok());
        Self::respond(Body::from(text.fold(String::new(), |all, line| all + &line + "\n")))
    }

    fn respond(body: Body) -> Response {
        let mut response = body.into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        // Proxies that collect answers would hold back the stream.
        headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        response
    }
}

/// The body of an answer that is an error.
pub(super) fn error_body(error: &ApiError) -> String {
    serde_json::to_string(&ErrorBody { error: error.message.clone() }).unwrap_or_default()
}

/// What no endpoint's description mentions by its type.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(ErrorBody)))]
pub(super) struct Errors;

crate::error::error_responses!(ErrorBody);
