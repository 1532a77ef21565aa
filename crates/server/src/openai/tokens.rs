//! Fields about token ids, and what an answer reports about them.

use crate::error::{ApiError, Result};
use realizar_engine::TokenInfo;
use realizar_model::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

/// Which tokens may be generated, which end the answer, and what is reported of them.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct TokenFields {
    /// Extension: tokens before which the answer cannot end, not even by a stop string.
    pub(crate) min_tokens: Option<u32>,
    /// Extension: tokens that end the answer, besides the model's own.
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    /// Extension: the answer ends after its stop string, or the text of its stop token, and not before.
    pub(crate) include_stop_str_in_output: Option<bool>,
    /// Extension: no other tokens are generated; without one that ends the answer it goes on to `max_tokens`.
    #[schema(min_items = 1)]
    pub(crate) allowed_token_ids: Option<Vec<u32>>,
    /// Extension: whether control tokens are left out of the text. Default: true.
    pub(crate) skip_special_tokens: Option<bool>,
    /// Extension: of a longer prompt only the last so many tokens are kept, and the token that begins every text; -1 keeps what the
    /// context holds.
    #[schema(minimum = -1)]
    pub(crate) truncate_prompt_tokens: Option<i64>,
    /// Extension: reports the log-probability of each token of the prompt, and of so many of the likeliest in its place.
    #[schema(maximum = 20)]
    pub(crate) prompt_logprobs: Option<u32>,
    /// Extension: reports the token ids of prompt and answer; the token that ended the answer is among them.
    pub(crate) return_token_ids: Option<bool>,
}

impl TokenFields {
    /// How many tokens of the prompt are kept. `limit`: as many as the context holds beside one of the answer.
    ///
    /// Errors: a number that cannot be.
    pub(crate) fn kept_prompt_tokens(&self, limit: usize) -> Result<Option<usize>> {
        match self.truncate_prompt_tokens {
            None => Ok(None),
            Some(-1) => Ok(Some(limit)),
            Some(n @ 1..) => Ok(Some(n as usize)),
            Some(n) => {
                let message = format!("truncate_prompt_tokens is {n} but must be -1 or at least 1");
                Err(ApiError::invalid_param("truncate_prompt_tokens", message))
            }
        }
    }
}

/// Extension: what was asked for about a prompt.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct PromptReport {
    /// Its token ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// Per token of the prompt; null for the first, which nothing precedes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub(crate) prompt_logprobs: Option<Vec<Option<PromptLogprobs>>>,
}

/// Log-probabilities in one place of a prompt, by token id: of the token that stands there, and of the likeliest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PromptLogprobs(Vec<(u32, PromptLogprob)>);

/// A token's log-probability in its place of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PromptLogprob {
    /// Natural logarithm of its probability.
    logprob: f32,
    /// From 1 for the likeliest; null for a token that is not among those asked for.
    rank: Option<usize>,
    decoded_token: String,
}

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(id, logprob)| (id.to_string(), logprob)))
    }
}

impl PromptLogprobs {
    /// `None` for a token without a log-probability.
    pub(crate) fn new(tokenizer: &Tokenizer, info: &TokenInfo) -> Option<Self> {
        let entry = |id: u32, logprob: f32, rank| {
            let decoded_token = tokenizer.decode(&[id], false);
            (id, PromptLogprob { logprob: super::finite(logprob), rank, decoded_token })
        };
        let ranked = info.top_logprobs.iter().enumerate();
        let mut entries: Vec<_> = ranked.map(|(i, &(id, logprob))| entry(id, logprob, Some(i + 1))).collect();
        let logprob = info.logprob?;
        if entries.iter().all(|(id, _)| *id != info.id) {
            entries.insert(0, entry(info.id, logprob, None));
        }
        Some(Self(entries))
    }
}
