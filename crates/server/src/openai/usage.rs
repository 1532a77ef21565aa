//! Sizes and times of an answer.

use crate::totals::Totals;
use realizar_engine as engine;
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// Sizes of a request and its answer, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Of all prompts; a prompt counts once, however many continuations it has.
    pub(crate) prompt_tokens: usize,
    /// Of all continuations, without the tokens that ended them.
    pub(crate) completion_tokens: usize,
    /// Both.
    pub(crate) total_tokens: usize,
    /// What the prompt's tokens were.
    pub(crate) prompt_tokens_details: PromptTokensDetails,
    /// What became of guesses of the continuations' tokens; see speculative decoding.
    pub(crate) completion_tokens_details: CompletionTokensDetails,
}

/// What the prompt's tokens were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct PromptTokensDetails {
    /// Found in the prefix cache and not computed.
    pub(crate) cached_tokens: usize,
}

/// What became of guesses of the continuations' tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct CompletionTokensDetails {
    /// Guesses that the model would have chosen itself.
    pub(crate) accepted_prediction_tokens: usize,
    /// Guesses that were wrong; they are not part of the answer and do not count as its tokens.
    pub(crate) rejected_prediction_tokens: usize,
}

/// Extension: where the time went, in milliseconds. Of several continuations: the earliest beginning and the latest end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Timings {
    /// From the arrival to the first step.
    pub(crate) queue_ms: f64,
    /// From the first step to the first token.
    pub(crate) prefill_ms: f64,
    /// From the arrival to the first token.
    pub(crate) first_token_ms: f64,
    /// From the first token to the end.
    pub(crate) decode_ms: f64,
    /// Tokens per second after the first, of all continuations together; 0 where there is none.
    pub(crate) tokens_per_second: f64,
}

impl Timings {
    pub(crate) fn new(t: engine::Timings, n_tokens: usize) -> Self {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let tokens_per_second = match (n_tokens, t.decode.as_secs_f64()) {
            (2.., seconds) if seconds > 0.0 => (n_tokens - 1) as f64 / seconds,
            _ => 0.0,
        };
        Self {
            queue_ms: ms(t.queue),
            prefill_ms: ms(t.prefill),
            first_token_ms: ms(t.first_token),
            decode_ms: ms(t.decode),
            tokens_per_second,
        }
    }
}

impl From<&Totals> for Usage {
    fn from(totals: &Totals) -> Self {
        let sum = totals.usage();
        Self {
            prompt_tokens: sum.prompt_tokens,
            completion_tokens: sum.completion_tokens,
            total_tokens: sum.prompt_tokens + sum.completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: sum.cached_tokens },
            completion_tokens_details: CompletionTokensDetails {
                accepted_prediction_tokens: sum.accepted_tokens,
                rejected_prediction_tokens: sum.drafted_tokens - sum.accepted_tokens,
            },
        }
    }
}

impl From<&Totals> for Timings {
    fn from(totals: &Totals) -> Self {
        Self::new(totals.timings(), totals.usage().completion_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_that_were_wrong_are_told_from_those_that_were_right() {
        let mut totals = Totals::default();
        let usage = engine::Usage {
            prompt_tokens: 10,
            completion_tokens: 13,
            cached_tokens: 4,
            drafted_tokens: 12,
            accepted_tokens: 9,
        };
        let decode = Duration::from_millis(30);
        totals.add(0, usage, engine::Timings { decode, ..engine::Timings::default() });
        let usage = Usage::from(&totals);
        assert_eq!((usage.total_tokens, usage.prompt_tokens_details.cached_tokens), (23, 4));
        let guesses = &usage.completion_tokens_details;
        assert_eq!((guesses.accepted_prediction_tokens, guesses.rejected_prediction_tokens), (9, 3));
        assert_eq!(Timings::from(&totals).tokens_per_second.round(), 400.0);
    }
}
