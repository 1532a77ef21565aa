//! Sizes and times of an answer.

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

/// Adds up what the continuations of a request report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    prompts: Vec<engine::Usage>,
    timings: Option<engine::Timings>,
}

impl Totals {
    /// Takes the report of a continuation of the prompt of this number.
    pub(crate) fn add(&mut self, prompt: usize, usage: engine::Usage, timings: engine::Timings) {
        if self.prompts.len() <= prompt {
            self.prompts.resize(prompt + 1, engine::Usage::default());
        }
        let sum = &mut self.prompts[prompt];
        // All but the first continuation find the whole prompt in the cache, because the first has put it there.
        sum.cached_tokens = match sum.prompt_tokens {
            0 => usage.cached_tokens,
            _ => sum.cached_tokens.min(usage.cached_tokens),
        };
        sum.prompt_tokens = usage.prompt_tokens;
        sum.completion_tokens += usage.completion_tokens;
        sum.drafted_tokens += usage.drafted_tokens;
        sum.accepted_tokens += usage.accepted_tokens;
        self.timings = Some(match self.timings {
            None => timings,
            Some(t) => {
                let first_token = t.first_token.min(timings.first_token);
                let end = (t.first_token + t.decode).max(timings.first_token + timings.decode);
                let queue = t.queue.min(timings.queue);
                let prefill = first_token.saturating_sub(queue);
                engine::Timings { queue, prefill, first_token, decode: end - first_token }
            }
        });
    }

    pub(crate) fn usage(&self) -> Usage {
        let sum = |f: fn(&engine::Usage) -> usize| self.prompts.iter().map(f).sum::<usize>();
        let (prompt_tokens, completion_tokens) = (sum(|u| u.prompt_tokens), sum(|u| u.completion_tokens));
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: sum(|u| u.cached_tokens) },
            completion_tokens_details: CompletionTokensDetails {
                accepted_prediction_tokens: sum(|u| u.accepted_tokens),
                rejected_prediction_tokens: sum(|u| u.drafted_tokens - u.accepted_tokens),
            },
        }
    }

    pub(crate) fn timings(&self) -> Timings {
        Timings::new(self.timings.unwrap_or_default(), self.usage().completion_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_counts_once_and_its_continuations_each() {
        let mut totals = Totals::default();
        let ms = Duration::from_millis;
        let usage = |prompt_tokens, completion_tokens, cached_tokens| engine::Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            drafted_tokens: 4,
            accepted_tokens: 3,
        };
        let timings = |queue, prefill, decode| engine::Timings {
            queue: ms(queue),
            prefill: ms(prefill),
            first_token: ms(queue + prefill),
            decode: ms(decode),
        };
        totals.add(0, usage(10, 5, 9), timings(3, 10, 20));
        totals.add(0, usage(10, 7, 4), timings(2, 9, 30));
        totals.add(1, usage(20, 1, 0), timings(5, 9, 1));
        let sum = totals.usage();
        assert_eq!((sum.prompt_tokens, sum.completion_tokens, sum.total_tokens), (30, 13, 43));
        assert_eq!(sum.prompt_tokens_details.cached_tokens, 4);
        let guesses = &sum.completion_tokens_details;
        assert_eq!((guesses.accepted_prediction_tokens, guesses.rejected_prediction_tokens), (9, 3));
        let t = totals.timings();
        assert_eq!((t.queue_ms, t.prefill_ms, t.first_token_ms, t.decode_ms), (2.0, 9.0, 11.0, 30.0));
        assert_eq!(t.tokens_per_second.round(), 400.0);
    }
}
