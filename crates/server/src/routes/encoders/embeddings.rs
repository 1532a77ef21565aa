//! `/v1/embeddings`: OpenAI's endpoint.

use super::EncoderUsage;
use super::fields::{EncoderFields, Endpoint};
use crate::app::App;
use crate::embedding::{self, Texts};
use crate::error::{ApiError, ErrorResponses, Result};
use crate::fields::OtherFields;
use crate::json::Json;
use crate::openai::Prompt;
use axum::extract::State;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// Texts to embed.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingRequest {
    /// The model's name; may be left out.
    model: Option<String>,
    /// Text, texts, token ids or lists of token ids.
    input: Prompt,
    /// `float`, by default, or `base64` of little-endian 32-bit floats.
    encoding_format: Option<String>,
    /// Keeps only so many numbers of each vector.
    #[schema(minimum = 1)]
    dimensions: Option<u32>,
    /// Extension: keeps the first so many tokens of a longer text; -1: what the model takes.
    #[schema(minimum = -1)]
    truncate_prompt_tokens: Option<i64>,
    #[serde(flatten)]
    #[schema(ignore)]
    pub(super) other: OtherFields<EncoderFields>,
}

/// The vectors of texts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Embeddings {
    /// list
    object: &'static str,
    /// In the order of the texts.
    data: Vec<Embedding>,
    /// As the request calls it.
    model: String,
    usage: EncoderUsage,
}

/// The vector of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Embedding {
    /// embedding
    object: &'static str,
    /// Of the text.
    index: usize,
    embedding: Vector,
}

/// Numbers, or their little-endian 32-bit floats in base64.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

/// Embed texts
///
/// For embedding models.
#[utoipa::path(
    post, path = "/v1/embeddings", operation_id = "embeddings", tag = "encoders",
    request_body(content = EmbeddingRequest, example = json!({"input": ["Why is the sky blue?", "Rayleigh scattering."]})),
    responses((status = 200, description = "The vectors", body = Embeddings), ErrorResponses)
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Json(request): Json<EmbeddingRequest>,
) -> Result<axum::Json<Embeddings>> {
    request.other.check(Endpoint::Embeddings)?;
    let is_base64 = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("encoding_format is {other:?} but must be float or base64");
            return Err(ApiError::invalid_param("encoding_format", message));
        }
    };
    let lease = app.encoder(request.model.as_deref()).await?;
    let wanted = Texts {
        texts: request.input,
        field: "input",
        dimensions: request.dimensions.map(|n| n as usize),
        max_tokens: embedding::max_tokens(&lease.encoder, request.truncate_prompt_tokens)?,
        normalize: false,
    };
    let rows = embedding::embed(&app, &lease, wanted).await?;
    let vector = |row: Vec<f32>| match is_base64 {
        false => Vector::Floats(row),
        true => {
            let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
            Vector::Base64(BASE64_STANDARD.encode(bytes))
        }
    };
    let data = rows.rows.into_iter().enumerate();
    let data = data.map(|(index, row)| Embedding { object: "embedding", index, embedding: vector(row) });
    Ok(axum::Json(Embeddings {
        object: "list",
        data: data.collect(),
        model: lease.name.clone(),
        usage: EncoderUsage::of(rows.n_tokens),
    }))
}
