//! `/tokenize` and `/detokenize`.

use crate::app::App;
use crate::error::{ApiError, ErrorResponses, Result};
use crate::json::Json;
use crate::models::Lease;
use crate::openai::{ChatRequest, Message, ToolField};
use axum::extract::State;
use realizar_model::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa::ToSchema;

/// A text, or a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    /// The model's name; may be left out.
    model: Option<String>,
    /// The text; this or `messages`.
    #[serde(alias = "content")]
    prompt: Option<String>,
    /// The conversation; this or `prompt`.
    messages: Option<Vec<Message>>,
    /// Add what the model expects around a text, such as a token that begins it; default true.
    add_special_tokens: Option<bool>,
    /// Read the texts of control tokens as those tokens; default true.
    parse_special: Option<bool>,
    /// Also return the tokens as the vocabulary writes them.
    return_token_strs: Option<bool>,
    /// Of a conversation, as in `/v1/chat/completions`.
    add_generation_prompt: Option<bool>,
    /// Of a conversation, as in `/v1/chat/completions`.
    continue_final_message: Option<bool>,
    /// Of a conversation, as in `/v1/chat/completions`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Of a conversation, as in `/v1/chat/completions`.
    tools: Option<Vec<ToolField>>,
}

/// Token ids of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    /// The ids.
    tokens: Vec<u32>,
    /// How many they are.
    count: usize,
    /// Longest sequence that the server takes.
    max_model_len: usize,
    /// The tokens as the vocabulary writes them, if asked for.
    token_strs: Option<Vec<String>>,
}

/// Turn a text or a conversation into token ids
#[utoipa::path(
    post, path = "/tokenize", tag = "tokens", 
    request_body(content = TokenizeRequest, example = json!({"prompt": "Once upon a time"})),
    responses((status = 200, description = "The tokens", body = Tokens), ErrorResponses)
)]
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Json(request): Json<TokenizeRequest>,
) -> Result<axum::Json<Tokens>> {
    let lease = app.model(request.model.as_deref()).await?;
    lease.compute(move |lease| tokens(lease, request)).await.map(axum::Json)
}

fn tokens(lease: &Lease, request: TokenizeRequest) -> Result<Tokens> {
    let tokenizer = lease.model.engine.tokenizer();
    let ids = match (request.prompt, request.messages) {
        (Some(text), None) => {
            let add_special = request.add_special_tokens.unwrap_or(true);
            let parse_special = request.parse_special.unwrap_or(true);
            tokenizer.encode(&text, EncodeOptions { add_special, parse_special })
        }
        (None, Some(messages)) => {
            let chat = ChatRequest {
                messages,
                add_generation_prompt: request.add_generation_prompt,
                continue_final_message: request.continue_final_message,
                chat_template_kwargs: request.chat_template_kwargs,
                tools: request.tools,
                ..ChatRequest::default()
            };
            let callable = chat.request_tools()?.callable;
            let rendered = chat.conversation()?.render(lease, &callable.tools, &callable.choice)?;
            lease.model.engine.encode_rendered(&rendered.text)
        }
        _ => return Err(ApiError::invalid_param("prompt", "exactly one of prompt and messages is needed")),
    };
    let strings = request
        .return_token_strs
        .unwrap_or(false)
        .then(|| ids.iter().map(|&id| tokenizer.token_text(id).unwrap_or_default().to_owned()).collect());
    let max_model_len = lease.model.context();
    Ok(Tokens { count: ids.len(), tokens: ids, max_model_len, token_strs: strings })
}

/// Token ids.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DetokenizeRequest {
    /// The model's name; may be left out.
    model: Option<String>,
    /// The ids.
    tokens: Vec<u32>,
    /// Leave out control tokens; default false.
    skip_special_tokens: Option<bool>,
}

/// The text of tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Detokenized {
    /// The text; U+FFFD for bytes that are no text.
    prompt: String,
}

/// Turn token ids into text
#[utoipa::path(
    post, path = "/detokenize", tag = "tokens", 
    request_body(content = DetokenizeRequest, example = json!({"tokens": [1, 2, 3]})),
    responses((status = 200, description = "The text", body = Detokenized), ErrorResponses)
)]
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Json(request): Json<DetokenizeRequest>,
) -> Result<axum::Json<Detokenized>> {
    let lease = app.model(request.model.as_deref()).await?;
    let prompt = lease
        .compute(move |lease| {
            let tokenizer = lease.model.engine.tokenizer();
            let n = tokenizer.vocab_size();
            if let Some(i) = request.tokens.iter().position(|&id| id as usize >= n) {
                let message =
                    format!("tokens[{i}] is {} but the vocabulary has {n} tokens", request.tokens[i]);
                return Err(ApiError::invalid_param(format!("tokens[{i}]"), message));
            }
            Ok(tokenizer.decode(&request.tokens, request.skip_special_tokens.unwrap_or(false)))
        })
        .await?;
    Ok(axum::Json(Detokenized { prompt }))
}
