//! Texts to vectors or scores: what the endpoints of encoders share.

use crate::access::Access;
use crate::app::App;
use crate::error::{ApiError, Result};
use crate::models::{Encoder, EncoderLease};
use crate::openai::Prompt;
use realizar_engine::Usage;
use realizar_engine::encoder::normalize;
use realizar_model::EncoderOutput;
use realizar_model::tokenizer::Encoding;
use std::sync::Arc;

/// Texts at most in one request, as at OpenAI's endpoint.
const MAX_TEXTS: usize = 2048;

/// Which texts, and what is wanted of their vectors.
pub(crate) struct Texts {
    pub(crate) texts: Prompt,
    /// The field that has them.
    pub(crate) field: &'static str,
    /// Numbers of each vector that are kept; the model's own number if there is none.
    pub(crate) dimensions: Option<usize>,
    /// Longer texts are cut to so many tokens; without it they are refused.
    pub(crate) max_tokens: Option<usize>,
    /// Divides vectors by their length even if the model's files do not say so.
    pub(crate) normalize: bool,
}

/// A row per text, and the tokens of all texts.
pub(crate) struct Rows {
    pub(crate) rows: Vec<Vec<f32>>,
    pub(crate) n_tokens: usize,
}

/// Vectors of texts.
///
/// Errors: a model that scores texts instead; a text that is empty or too long; too many texts; more dimensions than there are.
pub(crate) async fn embed(app: &Arc<App>, lease: &EncoderLease, wanted: Texts) -> Result<Rows> {
    let info = lease.encoder.text.client().info();
    let EncoderOutput::Embedding { normalize: by_itself } = info.output else {
        let message = format!("the model {} is a reranker and embeds no texts; ask /v1/rerank", lease.name);
        return Err(ApiError::invalid_param("model", message).code("unsupported"));
    };
    let n = wanted.dimensions.unwrap_or(info.output_len);
    if !(1..=info.output_len).contains(&n) {
        let message = format!("dimensions is {n} but must be between 1 and {}", info.output_len);
        return Err(ApiError::invalid_param("dimensions", message));
    }
    let (field, must_normalize) = (wanted.field, wanted.normalize || by_itself);
    let encoder = lease.encoder.clone();
    let tokens = app.compute(move || tokens(&encoder, wanted)).await?;
    let mut rows = encode(lease, tokens, field).await?;
    for row in &mut rows.rows {
        row.truncate(n);
        if must_normalize {
            normalize(row);
        }
    }
    Ok(rows)
}

/// A row of the model's output per text.
///
/// Errors: too many texts; a text that is empty or too long; too many wait.
pub(crate) async fn encode(lease: &EncoderLease, texts: Vec<Encoding>, field: &'static str) -> Result<Rows> {
    check_number(texts.len(), field)?;
    let n_tokens = texts.iter().map(|text| text.tokens.len()).sum();
    let refuse = |error| ApiError::from(error).or_param(field);
    let rows = lease.encoder.text.client().encode(texts).map_err(refuse)?.await.map_err(refuse)?;
    if let Some(access) = Access::current() {
        access.used(Usage { prompt_tokens: n_tokens, ..Usage::default() });
    }
    Ok(Rows { rows, n_tokens })
}

/// Errors: no text; more than one request may have.
pub(crate) fn check_number(n: usize, field: &'static str) -> Result<()> {
    match n {
        0 => Err(ApiError::invalid_param(field, format!("{field} has no text"))),
        1..=MAX_TEXTS => Ok(()),
        _ => {
            let message = format!("{field} has {n} texts but at most {MAX_TEXTS} are taken");
            Err(ApiError::invalid_param(field, message))
        }
    }
}

fn tokens(encoder: &Encoder, wanted: Texts) -> Result<Vec<Encoding>> {
    let text = |text: String| encoder.text.tokens(&text);
    let mut tokens: Vec<Encoding> = match wanted.texts {
        Prompt::Text(one) => vec![text(one)],
        Prompt::Texts(many) => {
            check_number(many.len(), wanted.field)?;
            many.into_iter().map(text).collect()
        }
        Prompt::Ids(ids) => vec![ids.into()],
        Prompt::ManyIds(lists) => lists.into_iter().map(Encoding::from).collect(),
    };
    if let Some(max) = wanted.max_tokens {
        tokens.iter_mut().for_each(|tokens| encoder.text.truncate(tokens, max));
    }
    Ok(tokens)
}

/// To how many tokens texts are cut by `truncate_prompt_tokens`; -1: to what the model takes.
///
/// Errors: a number that cannot be.
pub(crate) fn max_tokens(encoder: &Encoder, asked: Option<i64>) -> Result<Option<usize>> {
    let limit = encoder.text.client().info().max_tokens;
    match asked {
        None => Ok(None),
        Some(-1) => Ok(Some(limit)),
        Some(n @ 1..) => Ok(Some(usize::try_from(n).unwrap_or(usize::MAX).min(limit))),
        Some(n) => {
            let message = format!("truncate_prompt_tokens is {n} but must be -1 or at least 1");
            Err(ApiError::invalid_param("truncate_prompt_tokens", message))
        }
    }
}
