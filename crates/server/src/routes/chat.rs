//! `/v1/chat/completions`: answers a conversation.

use crate::app::{App, now, unix_time};
use crate::auth::Caller;
use crate::error::{ApiError, ErrorResponses, Result};
use crate::generation::Plan;
use crate::json::Json;
use crate::openai::{
    Answer, AssistantMessage, ChatChoice, ChatLogprobs, ChatPiece, ChatRequest, Delta, FunctionDelta,
    ServerSentEvent, TokenLogprob, ToolCallDelta, check_logprobs,
};
use crate::reasoning::{self, Piece, ReasoningParser};
use crate::sse::{self, Head, Shape};
use crate::tool_calls::{Delta as Found, Syntax, Tool, ToolCallParser, ToolChoice, check_tools};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use realizar_engine::{FinishReason, TextEvent};
use realizar_model::tokenizer::Tokenizer;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Tokens at a prompt's end among which the tag is looked for that begins the reasoning.
const TAG_TOKENS: usize = 16;

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
    let (shape, generation, streaming) = app
        .compute(move |app| {
            let mut plan = plan(app, caller, &request)?;
            let prompt = app.engine.encode_chat(&conversation(app, &request)?, now());
            let prompt = prompt.map_err(|e| ApiError::from(e).or_param("messages"))?;
            let shape = shape(app, &request, &mut plan, &prompt)?;
            let generation = plan.submit(app, vec![prompt]).map_err(|e| e.or_param("messages"))?;
            Ok((shape, generation, plan.streaming))
        })
        .await?;
    sse::answer(streaming, generation, shape, head).await
}

fn plan(app: &App, caller: Caller, request: &ChatRequest) -> Result<Plan> {
    let mut plan = Plan::new(app, caller, &request.common)?;
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

/// The tools that the model may call, and whether it has to.
///
/// Errors: a name that cannot be, or a choice that is not among them.
fn tools(request: &ChatRequest) -> Result<(&[Tool], ToolChoice)> {
    let tools = request.tools.as_deref().unwrap_or_default();
    let choice = request.tool_choice.clone().unwrap_or_default();
    match check_tools(tools, &choice) {
        Ok(()) => Ok((tools, choice)),
        Err((param, message)) => Err(ApiError::invalid_param(param, message)),
    }
}

/// How the answer to a prompt is worded; what it must look like is put into the plan.
fn shape(app: &App, request: &ChatRequest, plan: &mut Plan, prompt: &[u32]) -> Result<ChatShape> {
    let tokenizer = app.engine.tokenizer();
    let (tools, choice) = tools(request)?;
    let end = &prompt[prompt.len().saturating_sub(TAG_TOKENS)..];
    let thinking = reasoning::is_open(&tokenizer.decode(end, false));
    let format = request.common.format()?;
    let calls = if tools.is_empty() { ToolChoice::None } else { choice };
    let parallel = request.parallel_tool_calls.unwrap_or(true);
    let answer = format.as_ref().map(|(format, _)| format);
    let rules = app.syntax.grammar(tokenizer, tools, &calls, parallel, answer);
    let (rules, field) = match rules.map_err(|e| ApiError::from(e).param("tools"))? {
        Some(rules) => (Some(rules), "tools"),
        None => format.map_or((None, ""), |(format, field)| (Some(format), field)),
    };
    if let Some(rules) = rules {
        plan.constrain(app, &rules, thinking).map_err(|e| e.or_param(field))?;
    }
    plan.shown = reasoning::shown_tokens(tokenizer);
    let tools = if calls == ToolChoice::None { Vec::new() } else { tools.to_vec() };
    if !tools.is_empty() {
        plan.shown.extend(app.syntax.shown_tokens(tokenizer));
    }
    Ok(ChatShape {
        tokenizer: tokenizer.clone(),
        logprobs: plan.n_logprobs.is_some(),
        thinking,
        tools,
        syntax: app.syntax,
        seed: app.new_seed(),
        answers: Vec::new(),
    })
}

/// What the chat template is given.
pub(crate) fn conversation(app: &App, request: &ChatRequest) -> Result<Value> {
    if request.messages.is_empty() {
        return Err(ApiError::invalid_param("messages", "messages is empty"));
    }
    let mut object = Map::new();
    let messages = request.messages.iter().enumerate().map(|(i, m)| m.to_template(i));
    object.insert("messages".into(), messages.collect::<Result<Value>>()?);
    for (key, value) in request.chat_template_kwargs.iter().flatten() {
        if key != "messages" {
            object.insert(key.clone(), value.clone());
        }
    }
    let (mut conversation, (tools, choice)) = (Value::from(object), tools(request)?);
    app.syntax.prepare(&mut conversation, tools, &choice);
    Ok(conversation)
}

/// Words a generation as the answer of an assistant.
struct ChatShape {
    tokenizer: Arc<Tokenizer>,
    logprobs: bool,
    /// The prompt ends within the reasoning.
    thinking: bool,
    /// What the answer may call.
    tools: Vec<Tool>,
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
                (Piece::Content(text), None) => {
                    deltas.push(Delta { content: Some(text), ..Delta::default() })
                }
                (Piece::Content(text), Some(calls)) => {
                    deltas.extend(calls.push(&text).into_iter().map(delta))
                }
            }
        }
        if let (None, Some(calls)) = (text, &mut self.calls) {
            deltas.extend(calls.finish().into_iter().map(delta));
        }
        deltas
    }

    fn has_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.n_calls() > 0)
    }
}

/// What a parser found, in OpenAI's words.
fn delta(found: Found) -> Delta {
    let call = match found {
        Found::Text(text) => return Delta { content: Some(text), ..Delta::default() },
        Found::Call { index, id, name } => ToolCallDelta {
            index,
            id: Some(id),
            kind: Some("function"),
            function: FunctionDelta { name: Some(name), arguments: String::new() },
        },
        Found::Arguments { index, fragment } => {
            let function = FunctionDelta { name: None, arguments: fragment };
            ToolCallDelta { index, id: None, kind: None, function }
        }
    };
    Delta { tool_calls: Some(vec![call]), ..Delta::default() }
}

impl Shape for ChatShape {
    type Piece = ChatPiece;
    type Choice = ChatChoice;

    const CHUNK: &'static str = "chat.completion.chunk";
    const WHOLE: &'static str = "chat.completion";

    fn begin(&mut self, index: usize, out: &mut Vec<ChatPiece>) {
        let parser = || self.syntax.parser(&self.tools, self.seed.wrapping_add(index as u64));
        let calls = (!self.tools.is_empty()).then(parser);
        self.answers.push(Parsers { reasoning: ReasoningParser::new(self.thinking), calls });
        let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        out.push(ChatPiece { index, delta, logprobs: None, finish_reason: None });
    }

    fn take(&mut self, index: usize, event: &TextEvent, out: &mut Vec<ChatPiece>) -> Result<()> {
        let piece = |delta| ChatPiece { index, delta, logprobs: None, finish_reason: None };
        let parsers = &mut self.answers[index];
        let n_before = out.len();
        match event {
            TextEvent::Prompt(_) => {}
            TextEvent::Delta { text, token, .. } => {
                out.extend(parsers.take(Some(text)).into_iter().map(piece));
                if let Some(token) = token.as_ref().filter(|_| self.logprobs) {
                    if out.len() == n_before {
                        out.push(piece(Delta { content: Some(String::new()), ..Delta::default() }));
                    }
                    let content = vec![TokenLogprob::new(&self.tokenizer, token)];
                    out[n_before].logprobs = Some(ChatLogprobs { content });
                }
            }
            TextEvent::Finished { reason, .. } => {
                out.extend(parsers.take(None).into_iter().map(piece));
                let finish_reason = match finish_reason(*reason) {
                    "stop" if parsers.has_calls() => "tool_calls",
                    reason => reason,
                };
                out.push(ChatPiece { finish_reason: Some(finish_reason), ..piece(Delta::default()) });
            }
        }
        Ok(())
    }

    fn put_together(self, n_choices: usize, pieces: Vec<ChatPiece>) -> Vec<ChatChoice> {
        let message = || AssistantMessage {
            role: "assistant",
            content: Some(String::new()),
            reasoning_content: None,
            tool_calls: None,
            refusal: None,
        };
        let choice = |index| ChatChoice {
            index,
            message: message(),
            logprobs: self.logprobs.then(ChatLogprobs::default),
            finish_reason: "stop",
        };
        let mut choices: Vec<ChatChoice> = (0..n_choices).map(choice).collect();
        for piece in pieces {
            let choice = &mut choices[piece.index];
            choice.message.add(piece.delta);
            if let (Some(logprobs), Some(more)) = (&mut choice.logprobs, piece.logprobs) {
                logprobs.content.extend(more.content);
            }
            choice.finish_reason = piece.finish_reason.unwrap_or(choice.finish_reason);
        }
        for message in choices.iter_mut().map(|choice| &mut choice.message) {
            if message.tool_calls.is_some() && message.content.as_deref() == Some("") {
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
