//! `/v1/completions`: continues texts.

use super::chat::{finish_reason, stop_token};
use super::choices::{self, Head, Shape};
use crate::app::{App, unix_time};
use crate::auth::Caller;
use crate::error::{ApiError, ErrorResponses, Result};
use crate::fim;
use crate::generation::{Plan, Wanted};
use crate::json::Json;
use crate::loading;
use crate::models::Lease;
use crate::openai::{
    Answer, CompletionChoice, CompletionLogprobs, CompletionRequest, Endpoint, Prompt, PromptLogprobs,
    PromptReport, ServerSentEvent, check_logprobs,
};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use realizar_engine::{TextEvent, TokenInfo};
use realizar_model::tokenizer::{EncodeOptions, StreamDecoder, Tokenizer};
use realizar_structured::Before;
use std::sync::Arc;

/// Tokens that OpenAI's API generates where a request does not say.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Continue texts
///
/// With `stream`, the answer comes as server-sent events, each with the news as JSON; the last is `[DONE]`.
#[utoipa::path(
    post, path = "/v1/completions", operation_id = "completion", tag = "generation", 
    request_body(content = CompletionRequest, example = json!({"prompt": "Once upon a time", "max_tokens": 8, "logprobs": 1})),
    responses(
        (status = 200, description = "The continuations", content(
            (Answer<CompletionChoice> = "application/json"), (ServerSentEvent = "text/event-stream"))),
        ErrorResponses
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<CompletionRequest>,
) -> Result<Response> {
    let (asked, streams) = (request.model.clone(), request.common.streaming()?.is_some());
    loading::answer(
        &app.clone(),
        asked.as_deref(),
        streams,
        choices::error_events,
        answer(app, caller, request),
    )
    .await
}

async fn answer(app: Arc<App>, caller: Caller, request: CompletionRequest) -> Result<Response> {
    let lease = app.model(request.model.as_deref()).await?;
    let head = Head { id: app.new_id("cmpl-"), created: unix_time(), model: lease.name.clone() };
    let streaming = request.common.streaming()?;
    let (plan, wanted, prompts, shape) = lease
        .compute(move |lease| {
            let plan = plan(lease, caller, &request)?;
            let wanted = request.common.formats.format(lease.app.config.open_schemas)?;
            let wanted = wanted.map(|(format, field)| Wanted::format(format, field, Before::Nothing));
            wanted.as_ref().map_or(Ok(()), |_| plan.check_format())?;
            let (prompts, texts) = prompts(lease, &request, &plan)?;
            let ids = plan.return_token_ids.then(|| prompts.clone());
            let shape = CompletionShape::new(lease.model.engine.tokenizer().clone(), &plan, texts, ids);
            Ok((plan, wanted, prompts, shape))
        })
        .await?;
    let generation = lease.start(plan, wanted, prompts, "prompt").await?;
    choices::answer(streaming, generation, shape, head).await
}

fn plan(lease: &Lease, caller: Caller, request: &CompletionRequest) -> Result<Plan> {
    let mut plan = request.common.plan(lease, caller, Endpoint::Text)?;
    plan.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
    plan.continues_text = true;
    plan.n_logprobs = check_logprobs("logprobs", request.logprobs)?;
    if let Some(best_of) = request.best_of.filter(|&b| b != 1 && b != plan.n) {
        let message =
            format!("best_of is {best_of} but choosing the best of several is not offered; ask for n");
        return Err(ApiError::invalid_param("best_of", message).code("unsupported"));
    }
    if request.echo.unwrap_or(false) {
        if request.suffix.is_some() {
            return Err(ApiError::invalid_param("echo", "echo and suffix cannot be combined"));
        }
        if let (Some(_), Some(_)) = (plan.prompt_logprobs, plan.n_logprobs) {
            let message = "echo with logprobs reports those of the prompt; leave out prompt_logprobs";
            return Err(ApiError::invalid_param("prompt_logprobs", message));
        }
        plan.prompt_logprobs = plan.prompt_logprobs.or(plan.n_logprobs);
    }
    Ok(plan)
}

/// The tokens that each prompt's continuation would be computed from.
pub(super) fn token_ids(lease: &Lease, caller: Caller, request: &CompletionRequest) -> Result<Vec<Vec<u32>>> {
    let plan = plan(lease, caller, request)?;
    Ok(prompts(lease, request, &plan)?.0)
}

/// Token ids of each prompt and, if they are to be echoed, their texts.
type Prompts = (Vec<Vec<u32>>, Option<Vec<String>>);

fn prompts(lease: &Lease, request: &CompletionRequest, plan: &Plan) -> Result<Prompts> {
    let (mut ids, mut texts) = whole_prompts(lease, request)?;
    for (i, prompt) in ids.iter_mut().enumerate() {
        let n_whole = prompt.len();
        plan.truncate(lease, prompt);
        if let Some(texts) = texts.as_mut().filter(|_| prompt.len() < n_whole) {
            texts[i] = lease.model.engine.tokenizer().decode(prompt, true);
        }
    }
    Ok((ids, texts))
}

fn whole_prompts(lease: &Lease, request: &CompletionRequest) -> Result<Prompts> {
    let echo = request.echo.unwrap_or(false);
    let tokenizer = lease.model.engine.tokenizer();
    let add_special = request.add_special_tokens.unwrap_or(true);
    let encode = |text: &String| tokenizer.encode(text, EncodeOptions { add_special, parse_special: true });
    let of_texts = |texts: &[String]| -> Result<Prompts> {
        let ids = match &request.suffix {
            None => texts.iter().map(encode).collect(),
            Some(suffix) => {
                let fim = fim::find(tokenizer)?;
                texts.iter().map(|text| fim.prompt(tokenizer, text, suffix)).collect()
            }
        };
        Ok((ids, echo.then(|| texts.to_vec())))
    };
    let of_ids = |lists: &[Vec<u32>]| -> Result<Prompts> {
        if request.suffix.is_some() {
            return Err(ApiError::invalid_param("suffix", "a suffix needs a prompt that is text"));
        }
        let vocab_size = lease.model.engine.client().info().vocab_size;
        if let Some(id) = lists.iter().flatten().find(|&&id| id as usize >= vocab_size) {
            let message = format!("the prompt names token {id} but the vocabulary has {vocab_size} tokens");
            return Err(ApiError::invalid_param("prompt", message));
        }
        let texts = echo.then(|| lists.iter().map(|ids| tokenizer.decode(ids, true)).collect());
        Ok((lists.to_vec(), texts))
    };
    match &request.prompt {
        Prompt::Text(text) => of_texts(std::slice::from_ref(text)),
        Prompt::Texts(texts) if texts.is_empty() => {
            Err(ApiError::invalid_param("prompt", "there is nothing to continue: prompt is an empty list"))
        }
        Prompt::Texts(texts) => of_texts(texts),
        Prompt::Ids(ids) => of_ids(std::slice::from_ref(ids)),
        Prompt::ManyIds(lists) => of_ids(lists),
    }
}

/// Words a generation as continued texts.
struct CompletionShape {
    tokenizer: Arc<Tokenizer>,
    logprobs: bool,
    n: usize,
    /// Per prompt, if they are to be echoed.
    echo: Option<Vec<String>>,
    /// Token ids per prompt, if they are to be reported with those of the answers.
    prompt_ids: Option<Vec<Vec<u32>>>,
    /// Whether log-probabilities of prompts are reported on their own.
    prompt_logprobs: bool,
    /// Per choice.
    choices: Vec<Progress>,
}

#[derive(Clone)]
struct Progress {
    /// Of the prompt's tokens so far.
    prompt_logprobs: Vec<Option<PromptLogprobs>>,
    /// Characters so far.
    n_chars: usize,
    /// Turns the prompt's tokens into text again, where they are echoed one by one.
    decoder: Option<StreamDecoder>,
}

impl CompletionShape {
    fn new(
        tokenizer: Arc<Tokenizer>,
        plan: &Plan,
        echo: Option<Vec<String>>,
        prompt_ids: Option<Vec<Vec<u32>>>,
    ) -> Self {
        let (logprobs, n) = (plan.n_logprobs.is_some(), plan.n as usize);
        // With `echo`, they are among those of the text.
        let prompt_logprobs = plan.prompt_logprobs.is_some() && !(echo.is_some() && logprobs);
        Self { tokenizer, logprobs, n, echo, prompt_ids, prompt_logprobs, choices: Vec::new() }
    }

    /// A piece of text, and the token behind it if log-probabilities were asked for.
    fn piece(&mut self, index: usize, text: String, token: Option<&TokenInfo>) -> CompletionChoice {
        let progress = &mut self.choices[index];
        let logprobs = token.filter(|_| self.logprobs).map(|token| {
            let mut logprobs = CompletionLogprobs::default();
            logprobs.push(&self.tokenizer, token, progress.n_chars);
            logprobs
        });
        progress.n_chars += text.chars().count();
        let prompt = PromptReport::default();
        CompletionChoice { index, text, logprobs, finish_reason: None, prompt, token_ids: None }
    }
}

impl Shape for CompletionShape {
    type Piece = CompletionChoice;
    type Choice = CompletionChoice;

    const CHUNK: &'static str = "text_completion";
    const WHOLE: &'static str = "text_completion";

    fn begin(&mut self, index: usize, out: &mut Vec<CompletionChoice>) {
        let one_by_one = self.echo.is_some() && self.logprobs;
        let decoder = one_by_one.then(|| StreamDecoder::new(self.tokenizer.clone(), true));
        self.choices.push(Progress { prompt_logprobs: Vec::new(), n_chars: 0, decoder });
        let text = self.echo.as_ref().filter(|_| !one_by_one).map(|texts| texts[index / self.n].clone());
        let ids = self.prompt_ids.as_ref().map(|ids| ids[index / self.n].clone());
        if text.is_some() || ids.is_some() {
            let mut piece = self.piece(index, text.unwrap_or_default(), None);
            piece.prompt.prompt_token_ids = ids;
            out.push(piece);
        }
    }

    fn take(&mut self, index: usize, event: &TextEvent, out: &mut Vec<CompletionChoice>) -> Result<()> {
        match event {
            TextEvent::Prompt(token) if self.prompt_logprobs => {
                let logprobs = PromptLogprobs::new(&self.tokenizer, token);
                self.choices[index].prompt_logprobs.push(logprobs);
            }
            TextEvent::Prompt(token) => {
                let decoder = self.choices[index].decoder.as_mut();
                let text = decoder.map_or_else(String::new, |d| d.push(token.id));
                out.push(self.piece(index, text, Some(token)));
            }
            TextEvent::Delta { text, token, .. } => {
                let rest = self.choices[index].decoder.take().map_or_else(String::new, |mut d| d.finish());
                let text = rest + text;
                let ids = self.prompt_ids.is_some();
                if !text.is_empty() || ((self.logprobs || ids) && token.is_some()) {
                    let mut piece = self.piece(index, text, token.as_ref());
                    piece.token_ids = token.as_ref().filter(|_| ids).map(|token| vec![token.id]);
                    out.push(piece);
                }
            }
            TextEvent::Finished { reason, .. } => {
                let rest = self.choices[index].decoder.take().map_or_else(String::new, |mut d| d.finish());
                let piece = self.piece(index, rest, None);
                let token_ids = self.prompt_ids.as_ref().map(|_| stop_token(*reason).into_iter().collect());
                let finish_reason = Some(finish_reason(*reason));
                out.push(CompletionChoice { finish_reason, token_ids, ..piece });
            }
        }
        Ok(())
    }

    fn put_together(mut self, n_choices: usize, pieces: Vec<CompletionChoice>) -> Vec<CompletionChoice> {
        let mut prompt_logprobs = |index: usize| {
            self.prompt_logprobs.then(|| std::mem::take(&mut self.choices[index].prompt_logprobs))
        };
        let mut choice = |index| CompletionChoice {
            index,
            text: String::new(),
            logprobs: self.logprobs.then(CompletionLogprobs::default),
            finish_reason: None,
            prompt: PromptReport { prompt_logprobs: prompt_logprobs(index), prompt_token_ids: None },
            token_ids: self.prompt_ids.as_ref().map(|_| Vec::new()),
        };
        let mut choices: Vec<CompletionChoice> = (0..n_choices).map(&mut choice).collect();
        for piece in pieces {
            let choice = &mut choices[piece.index];
            choice.text += &piece.text;
            if let (Some(logprobs), Some(more)) = (&mut choice.logprobs, piece.logprobs) {
                logprobs.append(more);
            }
            choice.prompt.prompt_token_ids =
                piece.prompt.prompt_token_ids.or(choice.prompt.prompt_token_ids.take());
            if let (Some(ids), Some(more)) = (&mut choice.token_ids, piece.token_ids) {
                ids.extend(more);
            }
            choice.finish_reason = piece.finish_reason.or(choice.finish_reason);
        }
        choices
    }
}
