//! `/api/embed` and `/api/embeddings`: Ollama's embeddings.

use super::wire::Options;
use super::{ErrorResponses, keep_alive, known_name};
use crate::app::App;
use crate::embedding::{self, Rows, Texts};
use crate::error::{ApiError, Result};
use crate::json::Json;
use crate::models::EncoderLease;
use crate::openai::Prompt;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;
use utoipa::ToSchema;

/// Texts to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbedRequest)]
pub(crate) struct EmbedRequest {
    /// The model's name; may be left out.
    model: Option<String>,
    /// A text, or several.
    input: Input,
    /// Whether texts that are too long are cut; default true.
    truncate: Option<bool>,
    /// Keeps only so many numbers of each vector.
    #[schema(minimum = 1)]
    dimensions: Option<u32>,
    /// How long the model stays loaded.
    #[schema(value_type = Option<Object>)]
    keep_alive: Option<Value>,
    /// Of these, `num_ctx` cuts texts.
    options: Option<Options>,
}

/// A text, or several.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaInput)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub(crate) enum Input {
    One(String),
    Many(Vec<String>),
}

/// The vectors of texts, each of length 1.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbeddings)]
pub(crate) struct Embeddings {
    model: String,
    embeddings: Vec<Vec<f32>>,
    /// In nanoseconds.
    total_duration: u64,
    /// In nanoseconds.
    load_duration: u64,
    /// Tokens of all texts.
    prompt_eval_count: usize,
}

/// A text to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbeddingRequest)]
pub(crate) struct EmbeddingRequest {
    /// The model's name; may be left out.
    model: Option<String>,
    /// The text.
    prompt: String,
    /// How long the model stays loaded.
    #[schema(value_type = Option<Object>)]
    keep_alive: Option<Value>,
    /// Of these, `num_ctx` cuts the text.
    options: Option<Options>,
}

/// The vector of a text, of length 1.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbedding)]
pub(crate) struct Embedding {
    embedding: Vec<f32>,
}

/// Embed texts (Ollama's API)
#[utoipa::path(
    post, path = "/api/embed", operation_id = "ollama_embed", tag = "encoders",
    request_body(content = EmbedRequest, example = json!({"input": ["Why is the sky blue?"]})),
    responses((status = 200, description = "The vectors", body = Embeddings), ErrorResponses)
)]
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Json(request): Json<EmbedRequest>,
) -> Result<axum::Json<Embeddings>> {
    let start = Instant::now();
    let lease = lease(&app, request.model.as_deref(), request.keep_alive.as_ref()).await?;
    let load_duration = start.elapsed().as_nanos() as u64;
    let texts = match request.input {
        Input::One(text) => Prompt::Text(text),
        Input::Many(texts) => Prompt::Texts(texts),
    };
    let dimensions = request.dimensions.map(|n| n as usize);
    let truncates = request.truncate.unwrap_or(true);
    let max_tokens = max_tokens(&lease, request.options.as_ref(), truncates)?;
    let wanted = Texts { texts, field: "input", dimensions, max_tokens, normalize: true };
    let Rows { rows, n_tokens } = embedding::embed(&app, &lease, wanted).await?;
    Ok(axum::Json(Embeddings {
        model: lease.name.clone(),
        embeddings: rows,
        total_duration: start.elapsed().as_nanos() as u64,
        load_duration,
        prompt_eval_count: n_tokens,
    }))
}

/// Embed a text (Ollama's API, older form)
#[utoipa::path(
    post, path = "/api/embeddings", operation_id = "ollama_embeddings", tag = "encoders",
    request_body(content = EmbeddingRequest, example = json!({"prompt": "Why is the sky blue?"})),
    responses((status = 200, description = "The vector", body = Embedding), ErrorResponses)
)]
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    Json(request): Json<EmbeddingRequest>,
) -> Result<axum::Json<Embedding>> {
    let lease = lease(&app, request.model.as_deref(), request.keep_alive.as_ref()).await?;
    let max_tokens = max_tokens(&lease, request.options.as_ref(), true)?;
    let texts = Prompt::Text(request.prompt);
    let wanted = Texts { texts, field: "prompt", dimensions: None, max_tokens, normalize: true };
    let rows = embedding::embed(&app, &lease, wanted).await?.rows;
    Ok(axum::Json(Embedding { embedding: rows.into_iter().next().unwrap_or_default() }))
}

async fn lease(app: &Arc<App>, asked: Option<&str>, keep: Option<&Value>) -> Result<EncoderLease> {
    let keep = keep_alive(keep)?;
    let lease = app.encoder(known_name(app, asked)).await?;
    if let Some(keep) = keep {
        lease.keep_alive(keep);
    }
    Ok(lease)
}

/// To how many tokens texts are cut.
///
/// Errors: more than the model takes.
fn max_tokens(lease: &EncoderLease, options: Option<&Options>, truncates: bool) -> Result<Option<usize>> {
    let limit = lease.encoder.text.client().info().max_tokens;
    let asked = options.and_then(|options| options.num_ctx).map(|n| n as usize);
    if let Some(n) = asked.filter(|&n| n > limit) {
        let message = format!("num_ctx is {n} but the model takes texts of at most {limit} tokens");
        return Err(ApiError::invalid_param("options.num_ctx", message));
    }
    Ok(truncates.then_some(asked.unwrap_or(limit)))
}
