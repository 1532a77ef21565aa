//! `/v1/chat/completions`: answers a conversation.

use crate::app::{App, unix_time};
use crate::auth::Caller;
use crate::conversation::{self, Rendered};
use crate::error::{ApiError, ErrorResponses, Result};
use crate::generation::{Plan, Wanted};
use crate::json::Json;
use crate::openai::{
    Answer, AssistantMessage, CallWording, Callable, ChatChoice, ChatLogprobs, ChatPiece, ChatRequest, Delta,
    Endpoint, PromptLogprobs, PromptReport, ServerSentEvent, TokenLogprob, check_logprobs,
};
use crate::reasoning::{self, Piece, ReasoningParser};
use crate::sse::{self, Head, Shape};
use crate::structured::{Format, GrammarError};
use crate::tool_calls::{Delta as Found, Syntax, Tool, ToolCallParser, ToolChoice};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use realizar_engine::{FinishReason, TextEvent};
use realizar_model::tokenizer::Tokenizer;
use std::sync::Arc;

/// Answer a conversation
///
/// With `stream`, the answer comes as server-sent events, each with the news as JSON; the last is `[DONE]`.
#[utoipa::path(
    post, path = "/v1/chat/completions", operation_id = "chat_completion", tag = "generation", 
    request_body(content = ChatRequest, example = json!({"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8})),
    responses(
        (status = 200, description = "The answer", content(
            (Answer<ChatChoice> = "application/json"), (ServerSentEvent = "text/event-stream"))),
        ErrorResponses
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ChatRequest>,
) -> Result<Response> {
    let model = app.check_model(request.model.as_deref())?;
    let head = Head { id: app.new_id("chatcmpl-"), created: unix_time(), model };
    let (mut plan, wanted, prompt, shape) = app
        .compute(move |app| {
            let mut plan = plan(app, caller, &request)?;
            let callable = request.callable()?;
            let rendered = conversation::render(app, &request, &callable)?;
            let mut prompt = app.engine.encode_rendered(&rendered.text);
            plan.truncate(app, &mut prompt);
            let (mut shape, wanted) = shape(app, &request, callable, &mut plan, &rendered)?;
            shape.prompt.prompt_token_ids = plan.return_token_ids.then(|| prompt.clone());
            wanted.as_ref().map_or(Ok(()), |_| plan.check_format())?;
            Ok((plan, wanted, prompt, shape))
        })
        .await?;
    if let Some(wanted) = wanted {
        plan.constraint = Some(app.constraint(wanted).await?);
    }
    let (generation, streaming) = app
        .compute(move |app| {
            let generation = plan.submit(app, vec![prompt]).map_err(|e| e.or_param("messages"))?;
            Ok((generation, plan.streaming))
        })
        .await?;
    sse::answer(streaming, generation, shape, head).await
}

fn plan(app: &App, caller: Caller, request: &ChatRequest) -> Result<Plan> {
    let mut plan = Plan::new(app, caller, Endpoint::Chat, &request.common)?;
    if let Some(n) = request.max_completion_tokens {
        plan.max_tokens = Some(n as usize);
    }
    let top = check_logprobs("top_logprobs", request.top_logprobs)?;
    plan.n_logprobs = match (request.logprobs.unwrap_or(false), top) {
        (true, top) => Some(top.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            return Err(ApiError::invalid_param("top_logprobs", "top_logprobs needs logprobs to be true"));
        }
    };
    Ok(plan)
}

/// How the answer to a prompt is worded, and what it must look like.
fn shape(
    app: &App,
    request: &ChatRequest,
    callable: Callable,
    plan: &mut Plan,
    rendered: &Rendered,
) -> Result<(ChatShape, Option<Wanted>)> {
    let tokenizer = app.engine.tokenizer();
    let thinking = rendered.is_thinking;
    let format = request.common.formats.format(app.config.open_schemas)?;
    let calls = if callable.tools.is_empty() { ToolChoice::None } else { callable.choice.clone() };
    let answer = format.as_ref().map(|(format, _)| format);
    let closed = callable.closed_tools(app.config.open_schemas);
    let wanted = match Syntax::demands(&closed, &calls, callable.parallel, answer) {
        true => Some(tools_wanted(&closed, &calls, callable.parallel, answer, thinking)),
        false => format.map(|(format, field)| Wanted::format(format, field, thinking)),
    };
    plan.shown.extend(reasoning::shown_tokens(tokenizer));
    let tools = if calls == ToolChoice::None { Vec::new() } else { callable.tools };
    if !tools.is_empty() {
        plan.shown.extend(app.syntax.shown_tokens(tokenizer));
    }
    let shape = ChatShape {
        tokenizer: tokenizer.clone(),
        logprobs: plan.n_logprobs.is_some(),
        token_ids: plan.return_token_ids,
        prompt: PromptReport {
            prompt_logprobs: plan.prompt_logprobs.map(|_| Vec::new()),
            ..PromptReport::default()
        },
        thinking,
        tools,
        custom: callable.custom,
        is_legacy: callable.is_legacy,
        syntax: app.syntax,
        seed: app.new_seed(),
        answers: Vec::new(),
    };
    Ok((shape, wanted))
}

/// The format that tools demand.
fn tools_wanted(
    tools: &[Tool],
    choice: &ToolChoice,
    parallel: bool,
    answer: Option<&Format>,
    after_reasoning: bool,
) -> Wanted {
    let key = format!("{choice:?} {parallel} {answer:?} {tools:?}");
    let (tools, choice, answer) = (tools.to_vec(), choice.clone(), answer.cloned());
    let format = move |app: &App| {
        let format =
            app.syntax.grammar(app.engine.tokenizer(), &tools, &choice, parallel, answer.as_ref())?;
        // `Syntax::demands` has said that there is one.
        format.ok_or_else(|| GrammarError::Grammar { reason: "the tools demand nothing".to_owned() })
    };
    Wanted { key, field: "tools", after_reasoning, format: Box::new(format) }
}

/// Words a generation as the answer of an assistant.
struct ChatShape {
    tokenizer: Arc<Tokenizer>,
    logprobs: bool,
    /// Whether tokens are reported by their ids.
    token_ids: bool,
    /// What is reported about the prompt, as far as it is known.
    prompt: PromptReport,
    /// The prompt ends within the reasoning.
    thinking: bool,
    /// What the answer may call.
    tools: Vec<Tool>,
    /// Names of those whose calls carry free text.
    custom: Vec<String>,
    /// Calls are worded in the older form.
    is_legacy: bool,
    syntax: &'static Syntax,
    /// Of the calls' ids.
    seed: u64,
    /// Per choice.
    answers: Vec<Parsers>,
}

/// What takes an answer's text apart.
struct Parsers {
    reasoning: ReasoningParser,
    /// If there is something to call.
    calls: Option<ToolCallParser>,
    wording: CallWording,
}

impl Parsers {
    /// The news in the next piece of text, or at the answer's end.
    fn take(&mut self, text: Option<&str>) -> Vec<Delta> {
        let mut deltas = Vec::new();
        let pieces = match text {
            Some(text) => self.reasoning.push(text),
            None => self.reasoning.finish(),
        };
        for piece in pieces {
            match (piece, &mut self.calls) {
                (Piece::Reasoning(text), _) => {
                    deltas.push(Delta { reasoning_content: Some(text), ..Delta::default() });
                }
                (Piece::Content(text), None) => deltas.push(Delta::text(text)),
                (Piece::Content(text), Some(calls)) => {
                    calls.push(&text).into_iter().for_each(|found| self.wording.take(found, &mut deltas));
                }
            }
        }
        if let (None, Some(calls)) = (text, &mut self.calls) {
            calls.finish().into_iter().for_each(|found| self.wording.take(found, &mut deltas));
            self.wording.finish(&mut deltas);
        }
        deltas
    }

    fn has_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.n_calls() > 0)
    }
}

impl CallWording {
    /// Words what a parser found.
    fn take(&mut self, found: Found, out: &mut Vec<Delta>) {
        match found {
            Found::Text(text) => out.push(Delta::text(text)),
            Found::Call { index, id, name } => self.begin(index, id, name, out),
            Found::Arguments { index, fragment } => self.go_on(index, fragment, out),
        }
    }
}

/// A piece without logprobs, end or tokens.
fn piece(index: usize, delta: Delta) -> ChatPiece {
    ChatPiece { index, delta, logprobs: None, finish_reason: None, token_ids: None }
}

impl Shape for ChatShape {
    type Piece = ChatPiece;
    type Choice = ChatChoice;

    const CHUNK: &'static str = "chat.completion.chunk";
    const WHOLE: &'static str = "chat.completion";

    fn begin(&mut self, index: usize, out: &mut Vec<ChatPiece>) {
        let parser = || self.syntax.parser(&self.tools, self.seed.wrapping_add(index as u64));
        let calls = (!self.tools.is_empty()).then(parser);
        let wording = CallWording::new(self.custom.clone(), self.is_legacy);
        self.answers.push(Parsers { reasoning: ReasoningParser::new(self.thinking), calls, wording });
        out.push(piece(index, Delta { role: Some("assistant"), ..Delta::text(String::new()) }));
    }

    fn take(&mut self, index: usize, event: &TextEvent, out: &mut Vec<ChatPiece>) -> Result<()> {
        let parsers = &mut self.answers[index];
        let n_before = out.len();
        match event {
            TextEvent::Prompt(token) => {
                if let Some(all) = self.prompt.prompt_logprobs.as_mut().filter(|_| index == 0) {
                    all.push(PromptLogprobs::new(&self.tokenizer, token));
                }
            }
            TextEvent::Delta { text, token, .. } => {
                out.extend(parsers.take(Some(text)).into_iter().map(|delta| piece(index, delta)));
                if let Some(token) = token.as_ref().filter(|_| self.logprobs || self.token_ids) {
                    if out.len() == n_before {
                        out.push(piece(index, Delta::text(String::new())));
                    }
                    let content = || vec![TokenLogprob::new(&self.tokenizer, token)];
                    out[n_before].logprobs =
                        self.logprobs.then(|| ChatLogprobs { content: content(), refusal: None });
                    out[n_before].token_ids = self.token_ids.then(|| vec![token.id]);
                }
            }
            TextEvent::Finished { reason, .. } => {
                out.extend(parsers.take(None).into_iter().map(|delta| piece(index, delta)));
                let finish_reason = match finish_reason(*reason) {
                    "stop" if parsers.has_calls() && self.is_legacy => "function_call",
                    "stop" if parsers.has_calls() => "tool_calls",
                    reason => reason,
                };
                let token_ids = self.token_ids.then(|| stop_token(*reason).into_iter().collect());
                let last = piece(index, Delta::default());
                out.push(ChatPiece { finish_reason: Some(finish_reason), token_ids, ..last });
            }
        }
        Ok(())
    }

    fn report(&mut self) -> PromptReport {
        std::mem::take(&mut self.prompt)
    }

    fn put_together(self, n_choices: usize, pieces: Vec<ChatPiece>) -> Vec<ChatChoice> {
        let message = || AssistantMessage {
            role: "assistant",
            content: Some(String::new()),
            reasoning_content: None,
            tool_calls: None,
            function_call: None,
            refusal: None,
        };
        let choice = |index| ChatChoice {
            index,
            message: message(),
            logprobs: self.logprobs.then(ChatLogprobs::default),
            finish_reason: "stop",
            token_ids: self.token_ids.then(Vec::new),
        };
        let mut choices: Vec<ChatChoice> = (0..n_choices).map(choice).collect();
        for piece in pieces {
            let choice = &mut choices[piece.index];
            choice.message.add(piece.delta);
            if let (Some(logprobs), Some(more)) = (&mut choice.logprobs, piece.logprobs) {
                logprobs.content.extend(more.content);
            }
            if let (Some(ids), Some(more)) = (&mut choice.token_ids, piece.token_ids) {
                ids.extend(more);
            }
            choice.finish_reason = piece.finish_reason.unwrap_or(choice.finish_reason);
        }
        for message in choices.iter_mut().map(|choice| &mut choice.message) {
            let calls = message.tool_calls.is_some() || message.function_call.is_some();
            if calls && message.content.as_deref() == Some("") {
                message.content = None;
            }
        }
        choices
    }
}

/// Why a continuation ended, in OpenAI's words.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { .. } | FinishReason::Cancelled => "stop",
        FinishReason::Length => "length",
    }
}

/// The token that ended a continuation, which is not part of its text.
pub(crate) fn stop_token(reason: FinishReason) -> Option<u32> {
    match reason {
        FinishReason::Stop { token } => token,
        FinishReason::Length | FinishReason::Cancelled => None,
    }
}
