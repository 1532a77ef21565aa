//! `/v1/chat/completions`: answers a conversation.

use crate::app::{App, now, unix_time};
use crate::auth::Caller;
use crate::error::{ApiError, ErrorResponses, Result};
use crate::generation::Plan;
use crate::json::Json;
use crate::openai::{
    Answer, AssistantMessage, ChatChoice, ChatLogprobs, ChatPiece, ChatRequest, Chunk, Delta, TokenLogprob,
    check_logprobs,
};
use crate::sse::{self, Head, Shape};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use realizar_engine::{FinishReason, TextEvent};
use realizar_model::tokenizer::Tokenizer;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Answer a conversation
///
/// With `stream`, the answer comes as server-sent events, each with the news as JSON; the last is `[DONE]`.
#[utoipa::path(
    post, path = "/v1/chat/completions", operation_id = "chat_completion", tag = "generation", request_body = ChatRequest,
    responses(
        (status = 200, description = "The answer", content(
            (Answer<ChatChoice> = "application/json"), (Chunk<ChatPiece> = "text/event-stream"))),
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
            let plan = plan(app, caller, &request)?;
            let prompt = app.engine.encode_chat(&conversation(&request)?, now());
            let prompt = prompt.map_err(|e| ApiError::from(e).or_param("messages"))?;
            let generation = plan.submit(app, vec![prompt]).map_err(|e| e.or_param("messages"))?;
            let shape =
                ChatShape { tokenizer: app.engine.tokenizer().clone(), logprobs: plan.n_logprobs.is_some() };
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

/// What the chat template is given.
pub(crate) fn conversation(request: &ChatRequest) -> Result<Value> {
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
    Ok(object.into())
}

/// Words a generation as the answer of an assistant.
struct ChatShape {
    tokenizer: Arc<Tokenizer>,
    logprobs: bool,
}

impl Shape for ChatShape {
    type Piece = ChatPiece;
    type Choice = ChatChoice;

    const CHUNK: &'static str = "chat.completion.chunk";
    const WHOLE: &'static str = "chat.completion";

    fn begin(&mut self, index: usize, out: &mut Vec<ChatPiece>) {
        let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
        out.push(ChatPiece { index, delta, logprobs: None, finish_reason: None });
    }

    fn take(&mut self, index: usize, event: &TextEvent, out: &mut Vec<ChatPiece>) -> Result<()> {
        let piece = match event {
            TextEvent::Prompt(_) => return Ok(()),
            TextEvent::Delta { text, token, .. } => {
                let logprobs = token
                    .as_ref()
                    .filter(|_| self.logprobs)
                    .map(|token| ChatLogprobs { content: vec![TokenLogprob::new(&self.tokenizer, token)] });
                if text.is_empty() && logprobs.is_none() {
                    return Ok(());
                }
                let delta = Delta { content: Some(text.clone()), ..Delta::default() };
                ChatPiece { index, delta, logprobs, finish_reason: None }
            }
            TextEvent::Finished { reason, .. } => {
                let finish_reason = Some(finish_reason(*reason));
                ChatPiece { index, delta: Delta::default(), logprobs: None, finish_reason }
            }
        };
        out.push(piece);
        Ok(())
    }

    fn put_together(self, n_choices: usize, pieces: Vec<ChatPiece>) -> Vec<ChatChoice> {
        let choice = |index| ChatChoice {
            index,
            message: AssistantMessage { role: "assistant", content: Some(String::new()), refusal: None },
            logprobs: self.logprobs.then(ChatLogprobs::default),
            finish_reason: "stop",
        };
        let mut choices: Vec<ChatChoice> = (0..n_choices).map(choice).collect();
        for piece in pieces {
            let choice = &mut choices[piece.index];
            if let (Some(content), Some(more)) = (&mut choice.message.content, &piece.delta.content) {
                content.push_str(more);
            }
            if let (Some(logprobs), Some(more)) = (&mut choice.logprobs, piece.logprobs) {
                logprobs.content.extend(more.content);
            }
            choice.finish_reason = piece.finish_reason.unwrap_or(choice.finish_reason);
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
