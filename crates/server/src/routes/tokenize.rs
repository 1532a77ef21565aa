//! `/tokenize` and `/detokenize`.

use crate::app::App;
use crate::error::{ApiError, ErrorResponses, Result};
use crate::json::Json;
use crate::models::Lease;
use crate::openai::{ChatRequest, Message, ToolField};
use axum::extract::State;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa::ToSchema;

/// A text, or a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    /// The model's name; may be left out.
    model: Option<String>,
    /// The text; this, `content` or `messages`.
    prompt: Option<String>,
    /// The text, as llama.cpp's clients send it: without `add_special`, nothing is added around it.
    content: Option<String>,
    /// The conversation; this or `prompt`.
    messages: Option<Vec<Message>>,
    /// Add what the model expects around a text, such as a token that begins it; default true, but for `content`.
    #[serde(alias = "add_special")]
    add_special_tokens: Option<bool>,
    /// Read the texts of control tokens as those tokens; default true.
    parse_special: Option<bool>,
    /// Also return the tokens as the vocabulary writes them.
    return_token_strs: Option<bool>,
    /// Return each token as an object of `id` and `piece`, which is its text, or its bytes where they are no text.
    with_pieces: Option<bool>,
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
    /// The ids, or objects with `with_pieces`.
    tokens: Vec<Token>,
    /// How many they are.
    count: usize,
    /// Longest sequence that the server takes.
    max_model_len: usize,
    /// The tokens as the vocabulary writes them, if asked for.
    token_strs: Option<Vec<String>>,
}

/// A token's id, or the token with its piece.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Token {
    Id(u32),
    Piece(TokenPiece),
}

/// A token and what it stands for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenPiece {
    id: u32,
    piece: Piece,
}

/// Text, or bytes that are no text on their own.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

impl TokenPiece {
    fn new(tokenizer: &Tokenizer, id: u32) -> Self {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default().into_owned();
        let piece = String::from_utf8(bytes).map_or_else(|e| Piece::Bytes(e.into_bytes()), Piece::Text);
        Self { id, piece }
    }
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
    let of_content = request.content.is_some();
    let text = match (request.prompt, request.content) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid_param("content", "prompt and content cannot be combined"));
        }
        (prompt, content) => prompt.or(content),
    };
    let ids = match (text, request.messages) {
        (Some(text), None) => {
            let add_special = request.add_special_tokens.unwrap_or(!of_content);
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
    let count = ids.len();
    let with_pieces = request.with_pieces.unwrap_or(false);
    let token = |id| if with_pieces { Token::Piece(TokenPiece::new(tokenizer, id)) } else { Token::Id(id) };
    let tokens = ids.into_iter().map(token).collect();
    Ok(Tokens { count, tokens, max_model_len, token_strs: strings })
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
    /// The same, under the name that llama.cpp's clients read.
    content: String,
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
    Ok(axum::Json(Detokenized { content: prompt.clone(), prompt }))
}
