//! What a caller asks for and what it gets back: [`Request`] in, [`Event`]s out, all in token ids.

use crate::{Error, Result, RunnerInfo};
use realizar_compute::sampling::SamplingParams;
use std::time::Duration;

/// A prompt to continue.
pub struct Request {
    /// Token ids to continue; at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; 0 generates nothing. Where prompt and continuation fill the context it stops earlier, also with
    /// `Length`.
    pub max_tokens: usize,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// Continuations to generate from the one prompt, at least 1; each has its own stream of random numbers.
    pub n: u32,
    /// Ids that end a continuation; they are never emitted.
    pub stop_tokens: Vec<u32>,
    /// Treats the stop tokens like all others, to generate exactly `max_tokens`.
    pub ignore_eos: bool,
    /// Reports log-probabilities: of the chosen token and of this many of the likeliest.
    pub n_logprobs: Option<usize>,
    /// Reports log-probabilities of the prompt's tokens, and of this many of the likeliest at each place. Such a request computes
    /// its whole prompt, whatever the prefix cache holds.
    pub prompt_logprobs: Option<usize>,
    /// Higher goes first: one step of priority is worth [`crate::EngineConfig::priority_step`] of waiting.
    pub priority: i32,
    /// Only requests with the same salt share cached prefixes, so that response times reveal nothing about other tenants' prompts.
    pub cache_salt: Option<u64>,
    /// Restricts each token, as a grammar does.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Whether guesses may speed it up, where the engine makes any; they never change what is generated. `None` follows
    /// [`crate::EngineConfig::speculate`].
    pub speculate: Option<bool>,
}

impl Request {
    /// A request with default sampling, no stop tokens and no extras.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            max_tokens,
            sampling: SamplingParams::default(),
            n: 1,
            stop_tokens: Vec::new(),
            ignore_eos: false,
            n_logprobs: None,
            prompt_logprobs: None,
            priority: 0,
            cache_salt: None,
            constraint: None,
            speculate: None,
        }
    }

    /// Whether a runner can serve it; needs no device work.
    ///
    /// Errors: [`Error::PromptTooLong`] with both numbers, or the parameter that is out of range.
    pub fn validate(&self, info: &RunnerInfo) -> Result<()> {
        let vocab_size = info.vocab_size;
        if self.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let unknown = |id: &u32| *id as usize >= vocab_size;
        if let Some(&id) = self.prompt.iter().find(|id| unknown(id)) {
            return Err(Error::UnknownToken { what: "the prompt", id, vocab_size });
        }
        if let Some(&id) = self.stop_tokens.iter().find(|id| unknown(id)) {
            return Err(Error::UnknownToken { what: "the list of stop tokens", id, vocab_size });
        }
        if let Some(&(id, _)) = self.sampling.logit_bias.iter().find(|(id, _)| unknown(id)) {
            return Err(Error::UnknownToken { what: "the logit bias", id, vocab_size });
        }
        if self.n == 0 {
            return Err(Error::InvalidParam { name: "n", value: 0.0, expected: "at least 1".into() });
        }
        let (n_prompt, limit) = (self.prompt.len(), info.max_seq_len());
        if n_prompt > limit {
            let (context_length, cache_tokens) = (info.context_length, info.cache_tokens());
            return Err(Error::PromptTooLong { n_prompt, limit, context_length, cache_tokens });
        }
        Ok(self.sampling.validate()?)
    }
}

/// A set of token ids, one bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    /// The empty set over `vocab_size` tokens.
    pub fn none(vocab_size: usize) -> Self {
        Self { words: vec![0; vocab_size.div_ceil(32)] }
    }

    /// The set with these words of 32 tokens each, lowest bit first.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Adds a token. Panics if it is outside the vocabulary.
    pub fn allow(&mut self, token: u32) {
        self.words[token as usize / 32] |= 1 << (token % 32);
    }

    /// Whether the token is in the set.
    pub fn contains(&self, token: u32) -> bool {
        mask_contains(&self.words, token)
    }

    /// Words of 32 tokens each, lowest bit first.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The same, to change.
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }
}

/// Whether a token's bit is set; tokens behind the last word are not in the set.
pub(crate) fn mask_contains(words: &[u32], token: u32) -> bool {
    words.get(token as usize / 32).is_some_and(|w| w >> (token % 32) & 1 == 1)
}

/// Decides which tokens may come next, as a grammar does. Messages of errors finish the sentence "cannot follow the grammar: …".
pub trait Constraint: Send {
    /// The tokens allowed after those accepted so far; where the text may end, stop tokens are among them.
    fn allowed(&mut self) -> std::result::Result<&TokenMask, String>;

    /// Goes on by a token that was chosen; [`Constraint::allowed`] need not be asked before each. Stop tokens end the sequence and are not passed.
    fn accept(&mut self, token: u32) -> std::result::Result<(), String>;

    /// An independent copy in the same state, for further continuations of one prompt.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// What a stream delivers. After `Finished` of every choice, or after `Error`, nothing follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The prompt's next token, if its log-probabilities were asked for.
    PromptToken {
        /// Its id.
        id: u32,
        /// Natural logarithm of its probability; `None` for the first, which nothing precedes.
        logprob: Option<f32>,
        /// The likeliest tokens in its place, likeliest first.
        top_logprobs: Vec<(u32, f32)>,
    },
    /// A generated token.
    Token {
        /// Which of the request's `n` continuations, from 0.
        choice: u32,
        /// Its id.
        id: u32,
        /// Natural logarithm of its probability under the model, before any sampling step; if asked for.
        logprob: Option<f32>,
        /// The likeliest tokens in its place, likeliest first; if asked for.
        top_logprobs: Vec<(u32, f32)>,
        /// Logarithm of the sum of the exponentials of all logits in its place, which is a logit less its log-probability; if asked for.
        log_sum_exp: Option<f32>,
    },
    /// A continuation is complete.
    Finished {
        /// Which of the request's `n` continuations, from 0.
        choice: u32,
        /// Why it ended.
        reason: FinishReason,
        /// Its size.
        usage: Usage,
        /// Where the time went.
        timings: Timings,
    },
    /// The request ended early, with all its continuations.
    Error(Error),
}

/// Why a continuation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose to end it.
    Stop {
        /// The stop token; `None` if a stop string was found in the text.
        token: Option<u32>,
    },
    /// It reached `max_tokens` or the end of the context.
    Length,
    /// The caller wanted no more.
    Cancelled,
}

/// Sizes of a continuation, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Generated, without the stop token.
    pub completion_tokens: usize,
    /// Of the prompt, found in the prefix cache and not computed.
    pub cached_tokens: usize,
    /// Guesses that were verified in its steps; see [`crate::speculative`].
    pub drafted_tokens: usize,
    /// Those of them that were right.
    pub accepted_tokens: usize,
}

/// Where the time of a continuation went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the request's arrival to its first step.
    pub queue: Duration,
    /// From its first step to its first token.
    pub prefill: Duration,
    /// From its arrival to its first token: `queue + prefill`.
    pub first_token: Duration,
    /// From its first token to its end.
    pub decode: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_runner_cannot_serve_is_refused() {
        let limits = realizar_compute::BatchLimits { n_tokens: 8, n_seqs: 8, n_blocks: 8, n_logits: 8 };
        let info = RunnerInfo {
            vocab_size: 10,
            n_blocks: 2,
            block_size: 4,
            context_length: 6,
            limits,
            slots: None,
            asynchronous: false,
            drafts: false,
        };
        assert_eq!(Request::new(vec![], 1).validate(&info), Err(Error::EmptyPrompt));
        assert_eq!(
            Request::new(vec![0; 7], 1).validate(&info),
            Err(Error::PromptTooLong { n_prompt: 7, limit: 6, context_length: 6, cache_tokens: 8 })
        );
        let what = |r: &Request| match r.validate(&info) {
            Err(Error::UnknownToken { what, id: 10, vocab_size: 10 }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(&Request::new(vec![9, 10], 1)), "the prompt");
        let mut request = Request::new(vec![9], 1);
        request.validate(&info).unwrap();
        request.sampling.logit_bias = vec![(10, 1.0)];
        assert_eq!(what(&request), "the logit bias");
        request.stop_tokens = vec![10];
        assert_eq!(what(&request), "the list of stop tokens");
    }
}
