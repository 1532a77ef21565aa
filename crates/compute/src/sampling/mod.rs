//! How a token is chosen from a row of logits: the parameters, and the steps in arithmetic that every device repeats bit by bit.
//!
//! [`SamplingParams`] are what a request asks for; [`PARAMS`] names them, and a device reads them as [`DeviceParams`]. [`Samplers`] add
//! what belongs to one row of logits: its history, its mask, its random number.
//!
//! Logits are `F32`; each operation on them is rounded once, to nearest. [`STEPS`] apply in order, each in a file of its own:
//! 1. biases are added, then penalties change the logits of tokens that occurred; a mask forbids tokens;
//! 2. greedy rows end here: the likeliest token, the lowest of equal ones;
//! 3. logits become relative to the largest one, `(l - max) / temperature`;
//! 4. the `top_k` likeliest stay; of those the fewest likeliest whose [`weight`]s reach `top_p` of the sum; of those the ones of at
//!    least `min_p`. Of equal logits the lower token counts as likelier;
//! 5. of the tokens that stay, in the order of their ids, the first at which the running sum of weights exceeds `uniform` times their
//!    sum.
//!
//! Temperature comes before the truncations, as in Hugging Face's `generate`, so that a high one also widens what they keep.
//! (llama.cpp applies temperature last; with temperature 1 the two agree.)
//!
//! Each step is written twice: as its definition on a sorted vocabulary, which [`choose`] runs, and without sorting, which [`Sampler`]
//! runs on the host. Sampler and devices must agree with the definition in every token.
//!
//! A new step is a file here, its parameter and its row of [`STEPS`] in this file, and its part of the kernel
//! `cuda/sampling/sample.cu`.

mod candidates;
mod definition;
mod draw;
mod host;
mod logit_bias;
mod mask;
mod min_p;
mod overrides;
mod penalties;
mod rows;
mod temperature;
mod top_k;
mod top_p;
mod weight;

pub use definition::choose;
pub use host::{Sampler, largest, not_finite};
pub use overrides::SamplingOverrides;
pub use rows::{LastToken, SamplerInput, SamplerRow, Samplers};
pub use weight::{MAX_VOCAB, WEIGHT_OF_LIKELIEST, fraction, share, weight};

use candidates::{Candidates, Scratch};
use definition::Ranking;
use std::ops::RangeInclusive;

/// How the next token is chosen from the logits. The defaults change nothing: the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the likeliest token (greedy). Default 1.
    pub temperature: f32,
    /// Keeps only this many of the likeliest tokens; 0 keeps all. Default 0.
    pub top_k: usize,
    /// Keeps the smallest set of likeliest tokens whose probabilities reach this sum; 1 keeps all. Default 1.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the likeliest one's probability; 0 drops none. Default 0.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the text so far, 0.01 to 100; 1 is off. Default
    /// 1.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time that it was generated, -2 to 2. Default 0.
    pub frequency_penalty: f32,
    /// Subtracted once from the logits of tokens that were generated, -2 to 2. Default 0.
    pub presence_penalty: f32,
    /// Only this many of the last tokens count for the penalties; `None` counts all. Default `None`.
    pub penalty_window: Option<usize>,
    /// Added to logits, per token, -100 to 100; several of one token add up. Default empty.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed and request give the same tokens again; `None` takes one at random. Default `None`.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: None,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

/// A parameter that is one number.
#[derive(Debug)]
pub struct Param {
    /// Its name in requests and in messages.
    pub name: &'static str,
    /// What it does, for somebody who writes a request.
    pub description: &'static str,
    /// Whether it is a whole number.
    pub is_integer: bool,
    /// The values that it may have; infinity stands for any finite number.
    pub range: RangeInclusive<f64>,
    get: fn(&SamplingParams) -> f32,
    set: fn(&mut SamplingParams, f32),
}

/// All parameters that are one number.
pub static PARAMS: &[Param] = &[
    Param {
        name: "temperature",
        description: "Divides the logits; 0 takes the likeliest token.",
        is_integer: false,
        range: 0.0..=f64::INFINITY,
        get: |p| p.temperature,
        set: |p, value| p.temperature = value,
    },
    Param {
        name: "top_p",
        description: "Keeps the smallest set of likeliest tokens whose probabilities reach this sum.",
        is_integer: false,
        range: 0.0..=1.0,
        get: |p| p.top_p,
        set: |p, value| p.top_p = value,
    },
    Param {
        name: "top_k",
        description: "Keeps only this many of the likeliest tokens; 0 or -1 keeps all.",
        is_integer: true,
        range: -1.0..=f64::INFINITY,
        get: |p| p.top_k as f32,
        set: |p, value| p.top_k = value.max(0.0) as usize,
    },
    Param {
        name: "min_p",
        description: "Drops tokens less likely than this share of the likeliest one's probability.",
        is_integer: false,
        range: 0.0..=1.0,
        get: |p| p.min_p,
        set: |p, value| p.min_p = value,
    },
    Param {
        name: "repetition_penalty",
        description: "Divides positive and multiplies negative logits of tokens in the prompt or the text so far; 1 is off.",
        is_integer: false,
        range: 0.01..=100.0,
        get: |p| p.repetition_penalty,
        set: |p, value| p.repetition_penalty = value,
    },
    Param {
        name: "frequency_penalty",
        description: "Subtracted from a token's logit for each time that it was generated.",
        is_integer: false,
        range: -2.0..=2.0,
        get: |p| p.frequency_penalty,
        set: |p, value| p.frequency_penalty = value,
    },
    Param {
        name: "presence_penalty",
        description: "Subtracted once from the logits of tokens that were generated.",
        is_integer: false,
        range: -2.0..=2.0,
        get: |p| p.presence_penalty,
        set: |p, value| p.presence_penalty = value,
    },
];

/// The parameters of a row as kernels read them. `cuda/sampling/sample.cu` declares the same struct.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct DeviceParams {
    /// 0: greedy.
    temperature: f32,
    /// 0: all.
    top_k: u32,
    top_p: f32,
    /// The least relative logit that `min_p` keeps. The host takes the logarithm, which devices round differently.
    min_logit: f32,
    repetition_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
}

impl From<&SamplingParams> for DeviceParams {
    fn from(params: &SamplingParams) -> Self {
        Self {
            temperature: params.temperature,
            top_k: u32::try_from(params.top_k).unwrap_or(u32::MAX),
            top_p: params.top_p,
            min_logit: params.min_logit(),
            repetition_penalty: params.repetition_penalty,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
        }
    }
}

/// One step of sampling.
pub struct SamplerStep {
    /// The name under which users know it.
    pub name: &'static str,
    /// Whether it would change anything for this row.
    is_active: fn(&SamplerInput) -> bool,
    /// The step in its plainest form, on a sorted vocabulary: what it means.
    define: fn(&mut Ranking, &SamplerInput),
    /// The same without sorting the vocabulary.
    apply: fn(&mut Candidates, &SamplerInput, &mut Scratch),
}

/// All steps, in the order in which they apply.
pub static STEPS: &[SamplerStep] = &[
    logit_bias::STEP,
    penalties::STEP,
    mask::STEP,
    temperature::STEP,
    top_k::STEP,
    top_p::STEP,
    min_p::STEP,
];

impl SamplingParams {
    /// The likeliest token at each step.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the likeliest token is taken, without chance.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether the choice depends on the tokens so far.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// The least logit, relative to the largest, that `min_p` keeps.
    pub(crate) fn min_logit(&self) -> f32 {
        if self.min_p > 0.0 { self.min_p.ln() } else { f32::NEG_INFINITY }
    }

    /// The same with one bias for each token that has any, as [`SamplerInput`] demands.
    pub fn with_biases_merged(mut self) -> Self {
        self.logit_bias.sort_by_key(|&(token, _)| token);
        self.logit_bias.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        self
    }

    /// Whether all parameters are within their ranges.
    ///
    /// Errors: the first that is not; not-a-number is outside every range.
    pub fn validate(&self) -> Result<(), InvalidParam> {
        PARAMS.iter().try_for_each(|param| param.check((param.get)(self)))?;
        self.logit_bias.iter().try_for_each(|&(_, bias)| check("logit_bias", bias, &(-100.0..=100.0)))
    }
}

impl Param {
    /// The parameter of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PARAMS.iter().find(|param| param.name == name)
    }

    fn check(&self, value: f32) -> Result<(), InvalidParam> {
        check(self.name, value, &self.range)
    }
}

fn check(name: &'static str, value: f32, range: &RangeInclusive<f64>) -> Result<(), InvalidParam> {
    // Compared as f32, so that the decimal that the range names is within it.
    if value.is_finite() && (*range.start() as f32..=*range.end() as f32).contains(&value) {
        return Ok(());
    }
    let expected = match *range.end() {
        f64::INFINITY => format!("at least {}", range.start()),
        end => format!("between {} and {end}", range.start()),
    };
    Err(InvalidParam { name, value, expected })
}

/// A parameter outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value} but must be {expected}")]
pub struct InvalidParam {
    /// The parameter's name.
    pub name: &'static str,
    /// What was given.
    pub value: f32,
    /// Its range in words.
    pub expected: String,
}

#[cfg(test)]
mod tests;
