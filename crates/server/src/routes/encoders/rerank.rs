//! `/v1/rerank`: Jina's and Cohere's endpoint, and with `texts` that of Hugging Face's TEI.

use super::EncoderUsage;
use super::fields::{EncoderFields, Endpoint};
use crate::app::App;
use crate::embedding;
use crate::error::{ApiError, ErrorResponses, Result};
use crate::fields::OtherFields;
use crate::json::Json;
use crate::models::Encoder;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use realizar_engine::encoder::{logit, relevance};
use realizar_model::EncoderOutput;
use realizar_model::tokenizer::Encoding;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// A query, and documents to compare with it.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RerankRequest {
    /// The model's name; may be left out.
    model: Option<String>,
    /// What the documents are compared with.
    query: String,
    /// The documents; this or `texts`.
    documents: Option<Vec<Document>>,
    /// The documents; then the answer is a list, as that of Hugging Face's TEI.
    texts: Option<Vec<String>>,
    /// How many of the best documents are returned; all by default.
    #[schema(minimum = 1)]
    top_n: Option<usize>,
    /// Return the documents' texts; default false.
    return_documents: Option<bool>,
    /// With `texts`: return them; default false.
    return_text: Option<bool>,
    /// With `texts`: scores before the logistic function; default false.
    raw_scores: Option<bool>,
    /// With `texts`: cut what is too long; default false.
    truncate: Option<bool>,
    /// Extension: keeps the first so many tokens of a longer pair; -1: what the model takes.
    #[schema(minimum = -1)]
    truncate_prompt_tokens: Option<i64>,
    #[serde(flatten)]
    #[schema(ignore)]
    pub(super) other: OtherFields<EncoderFields>,
}

/// A text, or an object that has it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, or an object with a text")]
pub(crate) enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// Documents, the most relevant first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ranking {
    id: String,
    /// list
    object: &'static str,
    /// As the request calls it.
    model: String,
    results: Vec<Ranked>,
    usage: EncoderUsage,
}

/// A document and how well it answers the query.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ranked {
    /// Among the request's documents.
    index: usize,
    /// From 0 to 1.
    relevance_score: f32,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RankedDocument>,
}

/// A document's text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RankedDocument {
    text: String,
}

/// A text and how well it answers the query, as TEI says it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Scored {
    /// Among the request's texts.
    index: usize,
    /// From 0 to 1, or as `raw_scores` asks.
    score: f32,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Sort documents by how well they answer a query
///
/// For rerankers.
#[utoipa::path(
    post, path = "/v1/rerank", operation_id = "rerank", tag = "encoders",
    request_body(content = RerankRequest, example = json!({"query": "Why is the sky blue?", "documents": ["Bread needs flour.", "Air scatters blue light most."]})),
    responses(
        (status = 200, description = "The documents, the most relevant first; a list if the request has `texts`", content((Ranking = "application/json"))),
        ErrorResponses
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Json(request): Json<RerankRequest>,
) -> Result<Response> {
    request.other.check(Endpoint::Rerank)?;
    let is_tei = request.texts.is_some();
    let (documents, field) = match (request.documents, request.texts) {
        (Some(documents), None) => {
            (documents.into_iter().map(Document::into_text).collect::<Vec<_>>(), "documents")
        }
        (None, Some(texts)) => (texts, "texts"),
        _ => {
            let message = "exactly one of documents and texts is needed";
            return Err(ApiError::invalid_param("documents", message));
        }
    };
    embedding::check_number(documents.len(), field)?;
    if request.top_n == Some(0) {
        return Err(ApiError::invalid_param("top_n", "top_n is 0 but must be at least 1"));
    }
    let lease = app.encoder(request.model.as_deref()).await?;
    let output = lease.encoder.text.client().info().output;
    if matches!(output, EncoderOutput::Embedding { .. }) {
        let message = format!(
            "the model {} embeds texts and scores none; ask /v1/embeddings, or a reranker",
            lease.name
        );
        return Err(ApiError::invalid_param("model", message).code("unsupported"));
    }
    let truncate = request.truncate_prompt_tokens.or(request.truncate.unwrap_or(false).then_some(-1));
    let max_tokens = embedding::max_tokens(&lease.encoder, truncate)?;
    let (encoder, query, texts) = (lease.encoder.clone(), request.query, documents.clone());
    let pairs = app.compute(move || Ok(pairs(&encoder, &query, &texts, max_tokens))).await?;
    let rows = embedding::encode(&lease, pairs, field).await?;
    let is_raw = is_tei && request.raw_scores.unwrap_or(false);
    let score = |row: &Vec<f32>| if is_raw { logit(output, row) } else { relevance(output, row) };
    let mut scores: Vec<(usize, f32)> = rows.rows.iter().map(score).enumerate().collect();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    scores.truncate(request.top_n.unwrap_or(usize::MAX));
    let text_of = |index: usize| documents.get(index).cloned();
    if is_tei {
        let shows = request.return_text.unwrap_or(false);
        let scored = |(index, score)| Scored { index, score, text: text_of(index).filter(|_| shows) };
        return Ok(axum::Json(scores.into_iter().map(scored).collect::<Vec<_>>()).into_response());
    }
    let shows = request.return_documents.unwrap_or(false);
    let ranked = |(index, relevance_score)| Ranked {
        index,
        relevance_score,
        document: text_of(index).filter(|_| shows).map(|text| RankedDocument { text }),
    };
    let results = scores.into_iter().map(ranked).collect();
    let (id, usage) = (app.new_id("rerank-"), EncoderUsage::of(rows.n_tokens));
    Ok(axum::Json(Ranking { id, object: "list", model: lease.name.clone(), results, usage }).into_response())
}

fn pairs(encoder: &Encoder, query: &str, documents: &[String], max_tokens: Option<usize>) -> Vec<Encoding> {
    let pair = |document: &String| {
        let mut tokens = encoder.text.pair(query, document);
        if let Some(max) = max_tokens {
            encoder.text.truncate(&mut tokens, max);
        }
        tokens
    };
    documents.iter().map(pair).collect()
}
