//! `/v1/embeddings` and `/v1/rerank`: texts to vectors, and to scores against a query.

pub(crate) mod embeddings;
mod fields;
pub(crate) mod rerank;

use serde::Serialize;
use utoipa::ToSchema;

/// Tokens of a request to an encoder.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EncoderUsage {
    /// Of all texts.
    prompt_tokens: usize,
    /// The same.
    total_tokens: usize,
}

impl EncoderUsage {
    fn of(n_tokens: usize) -> Self {
        Self { prompt_tokens: n_tokens, total_tokens: n_tokens }
    }
}
