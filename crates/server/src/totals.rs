//! Sizes and times of a request: those of its continuations, added up.

use realizar_engine::{Timings, Usage};

/// Adds up what the continuations of a request report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    /// Per prompt.
    prompts: Vec<Usage>,
    timings: Option<Timings>,
}

impl Totals {
    /// Takes the report of a continuation of the prompt of this number.
    pub(crate) fn add(&mut self, prompt: usize, usage: Usage, timings: Timings) {
        if self.prompts.len() <= prompt {
            self.prompts.resize(prompt + 1, Usage::default());
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
                Timings { queue, prefill, first_token, decode: end - first_token }
            }
        });
    }

    /// Sizes; a prompt counts once, however many continuations it has.
    pub(crate) fn usage(&self) -> Usage {
        let sum = |f: fn(&Usage) -> usize| self.prompts.iter().map(f).sum();
        Usage {
            prompt_tokens: sum(|u| u.prompt_tokens),
            completion_tokens: sum(|u| u.completion_tokens),
            cached_tokens: sum(|u| u.cached_tokens),
            drafted_tokens: sum(|u| u.drafted_tokens),
            accepted_tokens: sum(|u| u.accepted_tokens),
        }
    }

    /// As [`Totals::timings`], if anything has ended.
    pub(crate) fn finished(&self) -> Option<Timings> {
        self.timings
    }

    /// Times: the earliest beginning and the latest end.
    pub(crate) fn timings(&self) -> Timings {
        self.timings.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_prompt_counts_once_and_its_continuations_each() {
        let mut totals = Totals::default();
        let ms = Duration::from_millis;
        let usage = |prompt_tokens, completion_tokens, cached_tokens| Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            drafted_tokens: 4,
            accepted_tokens: 3,
        };
        let timings = |queue, prefill, decode| Timings {
            queue: ms(queue),
            prefill: ms(prefill),
            first_token: ms(queue + prefill),
            decode: ms(decode),
        };
        totals.add(0, usage(10, 5, 9), timings(3, 10, 20));
        totals.add(0, usage(10, 7, 4), timings(2, 9, 30));
        totals.add(1, usage(20, 1, 0), timings(5, 9, 1));
        let sum = totals.usage();
        assert_eq!((sum.prompt_tokens, sum.completion_tokens, sum.cached_tokens), (30, 13, 4));
        assert_eq!((sum.accepted_tokens, sum.drafted_tokens), (9, 12));
        let t = totals.timings();
        assert_eq!((t.queue, t.prefill, t.first_token, t.decode), (ms(2), ms(9), ms(11), ms(30)));
    }
}
