//! What sampling needs to know about each row of logits.

use super::{STEPS, SamplingParams};
use crate::Chosen;
use std::ops::Range;
use std::sync::Arc;

/// What to do with the rows of logits of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samplers {
    /// One per row of logits.
    pub rows: Vec<SamplerRow>,
    /// Tokens that penalties look at; rows hold ranges of it.
    pub history: Vec<u32>,
    /// Bits of allowed tokens, lowest first; rows hold ranges of it.
    pub masks: Vec<u32>,
}

/// How one row of logits becomes a token.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerRow {
    /// What its request asks for; no token has two biases.
    pub params: Arc<SamplingParams>,
    /// Range of [`Samplers::history`]: tokens of the prompt that count for penalties.
    pub prompt: Range<usize>,
    /// Range of [`Samplers::history`]: generated tokens that count for penalties.
    pub generated: Range<usize>,
    /// One more generated token that counts for penalties.
    pub last: Option<LastToken>,
    /// Range of [`Samplers::masks`]: the tokens that are allowed; those behind its end are not. `None` allows all.
    pub mask: Option<Range<usize>>,
    /// The random number to choose by, in 0..1.
    pub uniform: f64,
}

/// The token before the one to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastToken {
    /// Its id.
    Known(u32),
    /// What was chosen from this row of the logits before; only the device may know it.
    Chosen(usize),
}

impl SamplerRow {
    /// A row without history or mask.
    pub fn new(params: Arc<SamplingParams>) -> Self {
        Self { params, prompt: 0..0, generated: 0..0, last: None, mask: None, uniform: 0.0 }
    }
}

impl Samplers {
    /// What the steps know about a row. `previous`: what was chosen from the logits before.
    pub fn input(&self, row: usize, previous: &[Chosen]) -> SamplerInput<'_> {
        let row = &self.rows[row];
        SamplerInput {
            params: &row.params,
            prompt: &self.history[row.prompt.clone()],
            generated: &self.history[row.generated.clone()],
            last: row.last.map(|last| match last {
                LastToken::Known(id) => id,
                LastToken::Chosen(row) => previous[row].token_or_zero(),
            }),
            mask: row.mask.clone().map(|mask| &self.masks[mask]),
            uniform: row.uniform,
        }
    }
}

/// What the steps know about a row besides its logits.
#[derive(Clone, Copy, Debug)]
pub struct SamplerInput<'a> {
    /// What its request asks for; no token has two biases.
    pub params: &'a SamplingParams,
    /// The prompt's tokens that count for penalties.
    pub prompt: &'a [u32],
    /// The generated tokens that count for penalties, except `last`.
    pub generated: &'a [u32],
    /// One more generated token.
    pub last: Option<u32>,
    /// Bits of the tokens that are allowed; those behind its end are not. `None` allows all.
    pub mask: Option<&'a [u32]>,
    /// The random number to choose by, in 0..1.
    pub uniform: f64,
}

impl<'a> SamplerInput<'a> {
    /// A row without history or mask.
    pub fn new(params: &'a SamplingParams) -> Self {
        Self { params, prompt: &[], generated: &[], last: None, mask: None, uniform: 0.0 }
    }

    /// Whether the choice is the token with the largest logit, as the model computed it.
    pub fn is_argmax(&self) -> bool {
        self.params.is_greedy() && !STEPS.iter().any(|step| (step.is_active)(self))
    }

    /// The generated tokens that count for penalties.
    pub(super) fn all_generated(&self) -> impl Iterator<Item = u32> {
        self.generated.iter().copied().chain(self.last)
    }

    /// Whether the mask allows a token.
    pub(super) fn allows(&self, token: u32) -> bool {
        let bit = |words: &[u32]| words.get(token as usize / 32).is_some_and(|w| w >> (token % 32) & 1 == 1);
        self.mask.is_none_or(bit)
    }
}
