//! `/embedding`: llama.cpp's own form of embeddings.

use super::ErrorResponses;
use crate::app::App;
use crate::embedding::{self, Texts};
use crate::error::{ApiError, Result};
use crate::json::Json;
use crate::openai::Prompt;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// Division by the length, which is also llama.cpp's default.
const BY_LENGTH: i64 = 2;

/// Texts to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = LlamaCppEmbeddingRequest)]
pub(crate) struct EmbeddingRequest {
    /// The model's name; may be left out.
    model: Option<String>,
    /// Text, texts, token ids or lists of token ids; this or `input`.
    content: Option<Prompt>,
    /// The same.
    input: Option<Prompt>,
    /// 2, the default, divides vectors by their length; others are refused.
    embd_normalize: Option<i64>,
}

/// The vector of a text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppEmbedding)]
pub(crate) struct Embedding {
    index: usize,
    /// A list of one vector, since the model pools.
    embedding: [Vec<f32>; 1],
}

/// Embed texts (llama.cpp's API)
///
/// For embedding models.
#[utoipa::path(
    post, path = "/embedding", operation_id = "llama_cpp_embedding", tag = "encoders",
    request_body(content = EmbeddingRequest, example = json!({"content": "Why is the sky blue?"})),
    responses((status = 200, description = "The vectors", body = Vec<Embedding>), ErrorResponses)
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Json(request): Json<EmbeddingRequest>,
) -> Result<axum::Json<Vec<Embedding>>> {
    let (texts, field) = match (request.content, request.input) {
        (Some(content), None) => (content, "content"),
        (None, Some(input)) => (input, "input"),
        _ => return Err(ApiError::invalid_param("content", "exactly one of content and input is needed")),
    };
    if let Some(kind) = request.embd_normalize.filter(|kind| *kind != BY_LENGTH) {
        let message =
            format!("embd_normalize is {kind} but only {BY_LENGTH}, division by the length, is offered");
        return Err(ApiError::invalid_param("embd_normalize", message).code("unsupported"));
    }
    let lease = app.encoder(request.model.as_deref()).await?;
    let wanted = Texts { texts, field, dimensions: None, max_tokens: None, normalize: true };
    let rows = embedding::embed(&app, &lease, wanted).await?.rows.into_iter().enumerate();
    Ok(axum::Json(rows.map(|(index, row)| Embedding { index, embedding: [row] }).collect()))
}
