//! `/v1/completions`.

use super::{CompletionLogprobs, PromptReport, SamplingFields};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Texts to continue.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// The model's name; may be left out.
    pub(crate) model: Option<String>,
    /// What to continue: a text, several, the ids of one, or the ids of several.
    pub(crate) prompt: Prompt,
    /// Begins the answer with the prompt; with `logprobs`, also reports those of the prompt.
    pub(crate) echo: Option<bool>,
    /// Reports log-probabilities of the chosen tokens and of this many of the likeliest.
    #[schema(maximum = 20)]
    pub(crate) logprobs: Option<u32>,
    /// Text that follows what is generated, for models that learned to fill gaps.
    pub(crate) suffix: Option<String>,
    /// Extension: whether a prompt that is text gets what the model expects around it, such as a token that begins it. Default: true.
    pub(crate) add_special_tokens: Option<bool>,
    /// Not offered; only 1, or what `n` is.
    pub(crate) best_of: Option<u32>,
    #[serde(flatten)]
    pub(crate) common: SamplingFields,
}

/// What to continue.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
pub(crate) enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

/// One of the continuations.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    /// stop or length.
    pub(crate) finish_reason: Option<&'static str>,
    #[serde(flatten)]
    pub(crate) prompt: PromptReport,
    /// Extension: the continuation's tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}
