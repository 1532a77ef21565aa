//! `/v1/chat/completions`: answers a conversation.

use super::choices::{self, Head, Shape};
use crate::app::{App, unix_time};
use crate::auth::Caller;
use crate::error::{ApiError, ErrorResponses, Result};
use crate::generation::Plan;
use crate::json::Json;
use crate::loading;
use crate::models::Lease;
use crate::openai::{
    Answer, AssistantMessage, CallWording, ChatChoice, ChatLogprobs, ChatPiece, ChatRequest, Delta, Endpoint,
    PromptLogprobs, PromptReport, RequestTools, ServerSentEvent, TokenLogprob, check_logprobs,
};
use crate::turn::{AnswerParser, News, Parsers, Prepared, Turn};
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

async fn answer(app: Arc<App>, caller: Caller, request: ChatRequest) -> Result<Response> {
    let lease = app.model(request.model.as_deref()).await?;
    let head = Head { id: app.new_id("chatcmpl-"), created: unix_time(), model: lease.name.clone() };
    let streaming = request.common.streaming()?;
    let (plan, wanted, prompt, shape) = lease
        .compute(move |lease| {
            let (plan, tools, prepared) = prepare(lease, caller, &request)?;
            let RequestTools { custom, is_legacy, .. } = tools;
            let Prepared { prompt, wanted, parsers } = prepared;
            let shape = ChatShape {
                tokenizer: lease.model.engine.tokenizer().clone(),
                logprobs: plan.n_logprobs.is_some(),
                token_ids: plan.return_token_ids,
                prompt: PromptReport {
                    prompt_token_ids: plan.return_token_ids.then(|| prompt.clone()),
                    prompt_logprobs: plan.prompt_logprobs.map(|_| Vec::new()),
                },
                parsers,
                custom,
                is_legacy,
                answers: Vec::new(),
            };
            Ok((plan, wanted, prompt, shape))
        })
        .await?;
    let generation = lease.start(plan, wanted, vec![prompt], "messages").await?;
    choices::answer(streaming, generation, shape, head).await
}

fn prepare(lease: &Lease, caller: Caller, request: &ChatRequest) -> Result<(Plan, RequestTools, Prepared)> {
    let mut plan = plan(lease, caller, request)?;
    let tools = request.request_tools()?;
    let format = request.common.formats.format(lease.app.config.open_schemas)?;
    let turn = Turn { conversation: request.conversation()?, callable: tools.callable.clone(), format };
    let prepared = turn.prepare(lease, &mut plan)?;
    Ok((plan, tools, prepared))
}

/// The tokens that an answer would be computed from.
pub(super) fn prompt(lease: &Lease, caller: Caller, request: &ChatRequest) -> Result<Vec<u32>> {
    Ok(prepare(lease, caller, request)?.2.prompt)
}

fn plan(lease: &Lease, caller: Caller, request: &ChatRequest) -> Result<Plan> {
    let mut plan = request.common.plan(lease, caller, Endpoint::Chat)?;
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

/// Words a generation as the answer of an assistant.
struct ChatShape {
    tokenizer: Arc<Tokenizer>,
    logprobs: bool,
    /// Whether tokens are reported by their ids.
    token_ids: bool,
    /// What is reported about the prompt, as far as it is known.
    prompt: PromptReport,
    parsers: Parsers,
    /// Names of the tools whose calls carry free text.
    custom: Vec<String>,
    /// Calls are worded in the older form.
    is_legacy: bool,
    /// Per choice.
    answers: Vec<Words>,
}

/// What words one answer.
struct Words {
    parser: AnswerParser,
    calls: CallWording,
}

impl Words {
    /// The news in the next piece of text, or at the answer's end.
    fn take(&mut self, text: Option<&str>) -> Vec<Delta> {
        let news = match text {
            Some(text) => self.parser.push(text, 1),
            None => self.parser.finish(),
        };
        let mut deltas = Vec::new();
        for news in news {
            match news {
                News::Reasoning(text) => {
                    deltas.push(Delta { reasoning_content: Some(text), ..Delta::default() });
                }
                News::Text(text) => deltas.push(Delta::text(text)),
                News::Call { index, id, name } => self.calls.begin(index, id, name, &mut deltas),
                News::Arguments { index, fragment } => self.calls.go_on(index, fragment, &mut deltas),
            }
        }
        if text.is_none() {
            self.calls.finish(&mut deltas);
        }
        deltas
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
        let calls = CallWording::new(self.custom.clone(), self.is_legacy);
        self.answers.push(Words { parser: self.parsers.parser(index), calls });
        out.push(piece(index, Delta { role: Some("assistant"), ..Delta::text(String::new()) }));
    }

    fn take(&mut self, index: usize, event: &TextEvent, out: &mut Vec<ChatPiece>) -> Result<()> {
        let words = &mut self.answers[index];
        let n_before = out.len();
        match event {
            TextEvent::Prompt(token) => {
                if let Some(all) = self.prompt.prompt_logprobs.as_mut().filter(|_| index == 0) {
                    all.push(PromptLogprobs::new(&self.tokenizer, token));
                }
            }
            TextEvent::Delta { text, token, .. } => {
                out.extend(words.take(Some(text)).into_iter().map(|delta| piece(index, delta)));
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
                out.extend(words.take(None).into_iter().map(|delta| piece(index, delta)));
                let finish_reason = match finish_reason(*reason) {
                    "stop" if words.parser.n_calls() > 0 && self.is_legacy => "function_call",
                    "stop" if words.parser.n_calls() > 0 => "tool_calls",
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
