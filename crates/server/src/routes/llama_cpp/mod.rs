//! llama.cpp's own endpoints: `/completion`, `/infill`, and what its server tells of itself.
//!
//! `wire` has the types, `fields` the table of all known fields, `prompts` reads prompts, `wording` words answers, `info` says what there is.

pub(crate) mod embedding;
mod fields;
pub(crate) mod info;
mod prompts;
mod wire;
mod wording;

use crate::app::App;
use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::fim;
use crate::generation::{Plan, Wanted, stop_strings};
use crate::json::Json;
use crate::loading;
use crate::models::Lease;
use crate::openai::{MAX_N, check_logprobs};
use crate::sse;
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use fields::Endpoint;
use realizar_engine::SamplingParams;
use realizar_structured::{Before, Format};
use serde_json::Value;
use std::sync::Arc;
use wire::{
    Answer, Bias, CompletionRequest, ErrorBody, ErrorDetail, GenerationSettings, InfillRequest, Options,
    Piece, Stop, StreamEvent,
};
use wording::{CompletionWording, Told};

/// How many tokens penalties look at where a request does not say.
const REPEAT_LAST_N: usize = 64;
/// The seeds that stand for one at random: -1, and the same in 32 bits.
const RANDOM_SEEDS: [i64; 2] = [-1, u32::MAX as i64];
/// A bias that rules a token out.
const NEVER: f32 = -100.0;

/// Continue texts (llama.cpp's API)
///
/// With `stream`, the answer comes as server-sent events, each with the news as JSON; the last has `stop`.
#[utoipa::path(
    post, path = "/completion", operation_id = "llama_cpp_completion", tag = "generation",
    request_body(content = CompletionRequest, example = json!({"prompt": "Once upon a time", "n_predict": 8})),
    responses(
        (status = 200, description = "The continuation, or a list of them", content((Answer = "application/json"), (StreamEvent = "text/event-stream"))),
        ErrorResponses
    )
)]
pub(crate) async fn completion(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<CompletionRequest>,
) -> Result<Response> {
    let (asked, streams) = (request.options.model.clone(), request.options.stream.unwrap_or(false));
    let answer = answer_completion(app.clone(), caller, request);
    loading::answer(&app, asked.as_deref(), streams, error_event, answer).await
}

async fn answer_completion(app: Arc<App>, caller: Caller, request: CompletionRequest) -> Result<Response> {
    let lease = app.model(request.options.model.as_deref()).await?;
    let job = lease
        .compute(move |lease| {
            request.options.other.check(Endpoint::Completion)?;
            let (prompts, is_list) = prompts::read(&request.prompt, lease)?;
            Job::new(lease, caller, &request.options, prompts, is_list)
        })
        .await?;
    job.run(&lease, "prompt").await
}

/// Fill a gap in a text (llama.cpp's API)
///
/// For models whose vocabulary has tokens for it.
#[utoipa::path(
    post, path = "/infill", operation_id = "llama_cpp_infill", tag = "generation",
    request_body(content = InfillRequest, example = json!({"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 8})),
    responses(
        (status = 200, description = "The text in the gap", content((Answer = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = 501, description = "The model cannot fill gaps", body = ErrorBody),
        ErrorResponses
    )
)]
pub(crate) async fn infill(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<InfillRequest>,
) -> Result<Response> {
    let (asked, streams) = (request.options.model.clone(), request.options.stream.unwrap_or(false));
    let answer = answer_infill(app.clone(), caller, request);
    loading::answer(&app, asked.as_deref(), streams, error_event, answer).await
}

async fn answer_infill(app: Arc<App>, caller: Caller, request: InfillRequest) -> Result<Response> {
    let lease = app.model(request.options.model.as_deref()).await?;
    let job = lease
        .compute(move |lease| {
            request.options.other.check(Endpoint::Infill)?;
            let tokenizer = lease.model.engine.tokenizer();
            let fim = fim::find(tokenizer).map_err(|_| {
                let message = "this model cannot fill in the middle: its vocabulary has no tokens for it; use a model that can, such as Qwen2.5-Coder";
                not_offered(message)
            })?;
            let extra: Vec<(&str, &str)> = (request.input_extra.iter().flatten())
                .map(|file| (file.filename.as_deref().unwrap_or("tmp"), file.text.as_str()))
                .collect();
            let begun = request.prompt.as_deref().unwrap_or_default();
            let prompt = fim.prompt_among(tokenizer, &extra, &request.input_prefix, &request.input_suffix, begun);
            Job::new(lease, caller, &request.options, vec![prompt], false)
        })
        .await?;
    job.run(&lease, "input_prefix").await
}

/// A request that is ready for the engine.
struct Job {
    plan: Plan,
    wanted: Option<Wanted>,
    prompts: Vec<Vec<u32>>,
    /// Whether the answer is a list.
    is_list: bool,
    wording: CompletionWording,
}

impl Job {
    fn new(
        lease: &Lease,
        caller: Caller,
        options: &Options,
        prompts: Vec<Vec<u32>>,
        is_list: bool,
    ) -> Result<Self> {
        let (plan, settings) = plan(lease, caller, options)?;
        let wanted = format(options, lease.app.config.open_schemas)?;
        wanted.as_ref().map_or(Ok(()), |_| plan.check_format())?;
        let wording = CompletionWording {
            model: lease.name.clone(),
            tokenizer: lease.model.engine.tokenizer().clone(),
            settings,
            prompts: prompts.clone(),
            return_tokens: options.return_tokens.unwrap_or(false),
            response_fields: options.response_fields.clone().filter(|fields| !fields.is_empty()),
            parts: Vec::new(),
            whole: Vec::new(),
        };
        Ok(Self { is_list: is_list || plan.n > 1, plan, wanted, prompts, wording })
    }

    async fn run(self, lease: &Lease, field: &'static str) -> Result<Response> {
        let Self { plan, wanted, prompts, is_list, mut wording } = self;
        let mut generation = lease.start(plan, wanted, prompts, field).await?;
        if wording.settings.stream {
            return Ok(sse::respond(generation, wording, None));
        }
        sse::take_all(&mut generation, &mut wording).await?;
        // Every continuation has ended.
        let mut whole: Vec<Told> = wording.whole.into_iter().flatten().collect();
        Ok(match whole.pop() {
            Some(one) if !is_list => axum::Json(one).into_response(),
            last => axum::Json(whole.into_iter().chain(last).collect::<Vec<_>>()).into_response(),
        })
    }
}

/// What to generate, and the same for the client.
///
/// Errors: the field that is out of range.
fn plan(lease: &Lease, caller: Caller, options: &Options) -> Result<(Plan, GenerationSettings)> {
    let n = options.n_cmpl.unwrap_or(1);
    if !(1..=MAX_N).contains(&n) {
        return Err(ApiError::invalid_param(
            "n_cmpl",
            format!("n_cmpl is {n} but must be between 1 and {MAX_N}"),
        ));
    }
    let stop = match &options.stop {
        None => Vec::new(),
        Some(Stop::One(stop)) => vec![stop.clone()],
        Some(Stop::Many(stops)) => stops.clone(),
    };
    let n_logprobs = check_logprobs("n_probs", options.n_probs.filter(|&n| n > 0))?;
    let sampling = sampling(lease, options)?;
    let ignore_eos = options.ignore_eos.unwrap_or(false);
    let mut settings = settings(&sampling);
    settings.stop = stop.clone();
    settings.n_predict = options.n_predict.unwrap_or(-1);
    settings.max_tokens = settings.n_predict;
    settings.ignore_eos = ignore_eos;
    settings.stream = options.stream.unwrap_or(false);
    settings.n_probs = n_logprobs.unwrap_or(0);
    settings.grammar = options.grammar.clone().unwrap_or_default();
    let plan = Plan {
        sampling,
        max_tokens: options.n_predict.and_then(|n| usize::try_from(n).ok()),
        n,
        stops: stop_strings("stop", &stop)?,
        ignore_eos,
        continues_text: true,
        n_logprobs,
        ..Plan::new(lease, caller)
    };
    Ok((plan, settings))
}

/// How tokens are chosen.
///
/// Errors: the field that is out of range.
fn sampling(lease: &Lease, options: &Options) -> Result<SamplingParams> {
    let mut defaults = lease.model.sampling.clone();
    defaults.seed = options.seed.filter(|seed| !RANDOM_SEEDS.contains(seed)).map(|seed| seed as u64);
    defaults.penalty_window = match options.repeat_last_n {
        None => Some(REPEAT_LAST_N),
        Some(-1) => None,
        Some(n @ 0..) => Some(n as usize),
        Some(n) => {
            let message = format!("repeat_last_n is {n} but must be -1 or at least 0");
            return Err(ApiError::invalid_param("repeat_last_n", message));
        }
    };
    if let Some(biases) = &options.logit_bias {
        defaults.logit_bias = logit_bias(lease, biases)?;
    }
    Ok(options.params.0.over(defaults).map_err(realizar_engine::Error::from)?)
}

/// Biases of tokens, given as pairs or as an object; those of a text are of each of its tokens.
///
/// Errors: anything else.
fn logit_bias(lease: &Lease, value: &Value) -> Result<Vec<(u32, f32)>> {
    let refuse = |what: &Value| {
        let message =
            format!("logit_bias has {what}, but takes pairs of a token id or a text and a number or false");
        ApiError::invalid_param("logit_bias", message)
    };
    let pairs: Vec<(Value, Value)> = match value {
        Value::Null => Vec::new(),
        Value::Object(biases) => biases
            .iter()
            .map(|(token, bias)| {
                (token.parse::<u32>().map_or_else(|_| token.as_str().into(), Value::from), bias.clone())
            })
            .collect(),
        Value::Array(list) => list
            .iter()
            .map(|pair| match pair.as_array().map(Vec::as_slice) {
                Some([token, bias]) => Ok((token.clone(), bias.clone())),
                _ => Err(refuse(pair)),
            })
            .collect::<Result<_>>()?,
        other => return Err(refuse(other)),
    };
    let mut biases = Vec::new();
    for (token, bias) in pairs {
        let by = match &bias {
            Value::Bool(false) => NEVER,
            Value::Number(number) => number.as_f64().unwrap_or_default() as f32,
            other => return Err(refuse(other)),
        };
        match &token {
            Value::String(text) => {
                let ids = prompts::encode(lease, text, false);
                biases.extend(ids.into_iter().map(|id| (id, by)));
            }
            Value::Number(id) => {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| refuse(&token))?;
                biases.push((id, by));
            }
            other => return Err(refuse(other)),
        }
    }
    Ok(biases)
}

/// What the answer must look like.
///
/// Errors: two formats.
fn format(options: &Options, open_schemas: bool) -> Result<Option<Wanted>> {
    let grammar = options.grammar.as_deref().filter(|grammar| !grammar.is_empty());
    let schema = options.json_schema.as_ref().filter(|schema| !schema.is_null());
    let (format, field) = match (grammar, schema) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid_param("json_schema", "grammar and json_schema cannot be combined"));
        }
        (Some(grammar), None) => (Format::Grammar(grammar.to_owned()), "grammar"),
        (None, Some(schema)) => (Format::json_schema(schema, false, open_schemas), "json_schema"),
    };
    Ok(Some(Wanted::format(format, field, Before::Nothing)))
}

/// Sampling parameters in llama.cpp's words; the rest of the settings is what a request without fields has.
fn settings(sampling: &SamplingParams) -> GenerationSettings {
    GenerationSettings {
        seed: sampling.seed.unwrap_or(u64::from(u32::MAX)),
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repeat_last_n: sampling.penalty_window.map_or(-1, |n| n as i64),
        repeat_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        logit_bias: sampling.logit_bias.iter().map(|&(token, bias)| Bias { token, bias }).collect(),
        n_predict: -1,
        max_tokens: -1,
        ..GenerationSettings::default()
    }
}

/// What this server does not do.
fn not_offered(message: impl Into<String>) -> ApiError {
    ApiError::refused(StatusCode::NOT_IMPLEMENTED, "unsupported", message)
}

/// An error in llama.cpp's words.
fn error_detail(error: &ApiError) -> ErrorDetail {
    let kind = match (error.status.as_u16(), error.code) {
        (400, Some("context_length_exceeded")) => "exceed_context_size_error",
        (403, _) => "permission_error",
        (501, _) => "not_supported_error",
        (503, _) => "unavailable_error",
        _ => error.kind,
    };
    ErrorDetail { code: error.status.as_u16(), message: error.message.clone(), kind }
}

/// The body of an answer that is an error.
pub(super) fn error_body(error: &ApiError) -> String {
    serde_json::to_string(&ErrorBody { error: error_detail(error) }).unwrap_or_default()
}

/// An error as the only event of a stream.
fn error_event(error: &ApiError) -> String {
    format!("data: {}\n\n", error_body(error))
}

/// Whether a path is one of these endpoints.
pub(super) fn has(path: &str) -> bool {
    let first = path[1..].split('/').next().unwrap_or_default();
    ["completion", "infill", "props", "slots", "lora-adapters", "embedding"].contains(&first)
}

/// What no endpoint's description mentions by its type.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(ErrorBody, Piece)))]
pub(super) struct Streamed;

crate::error::error_responses!(ErrorBody);
