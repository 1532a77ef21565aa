//! From a row of logits to a token: the steps of [`STEPS`] in order, then the draw.
//!
//! The order is that of OpenAI's API and Hugging Face's `generate`: temperature comes before the truncations, so that a high one
//! also widens what they keep. (llama.cpp applies temperature last; with temperature 1 the two agree.) Each step is in a file of
//! its own and sees the tokens that the steps before left.
//!
//! [`realizar_compute::sampling`] is the definition, which devices that sample follow; this does the same on the host, where a step
//! cannot be sampled on its device, and chooses the same tokens. Probabilities are therefore integer weights, in any order of summation.

mod draw;
mod logit_bias;
mod logprobs;
mod mask;
mod min_p;
mod penalties;
mod temperature;
mod top_k;
mod top_p;

pub use draw::uniform;

use crate::runner::{Choice, Step};
use crate::{SampleError, SamplingParams};
use std::cmp::Ordering;

/// One step of the chain.
pub struct SamplerStep {
    /// The name under which users know it.
    pub name: &'static str,
    /// Whether it would change anything for this row.
    active: fn(&RowInput) -> bool,
    apply: fn(&mut Candidates, &RowInput, &mut Scratch),
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

/// What the steps know about a row besides its logits.
#[derive(Clone, Copy)]
struct RowInput<'a> {
    params: &'a SamplingParams,
    /// The prompt's tokens that count for penalties.
    prompt: &'a [u32],
    /// The generated tokens that count for penalties, but for `unseen`.
    generated: &'a [u32],
    /// The token generated last, if it is not in `generated`.
    unseen: Option<u32>,
    /// Bits of the tokens that are allowed.
    mask: Option<&'a [u32]>,
}

/// Tokens still in the race.
struct Candidates<'a> {
    /// A logit per token of the vocabulary; stale for those out of the race.
    logits: &'a mut [f32],
    /// Who is in the race, if not all.
    kept: &'a mut Vec<u32>,
    all: bool,
}

impl Candidates<'_> {
    fn for_each(&self, mut f: impl FnMut(u32, f32)) {
        match self.all {
            true => self.logits.iter().enumerate().for_each(|(id, &l)| f(id as u32, l)),
            false => self.kept.iter().for_each(|&id| f(id, self.logits[id as usize])),
        }
    }

    fn retain(&mut self, mut f: impl FnMut(u32, f32) -> bool) {
        if self.all {
            self.kept.clear();
            let ids = self.logits.iter().enumerate().map(|(id, &l)| (id as u32, l));
            self.kept.extend(ids.filter(|&(id, l)| f(id, l)).map(|(id, _)| id));
            self.all = false;
        } else {
            self.kept.retain(|&id| f(id, self.logits[id as usize]));
        }
    }

    fn len(&self) -> usize {
        if self.all { self.logits.len() } else { self.kept.len() }
    }

    fn max(&self) -> f32 {
        let mut max = f32::NEG_INFINITY;
        self.for_each(|_, l| max = max.max(l));
        max
    }
}

/// Buffers that steps reuse from row to row.
#[derive(Default)]
struct Scratch {
    /// Occurrences per token; all zero between uses.
    counts: Vec<u32>,
    /// The likeliest tokens seen so far.
    best: Vec<(f32, u32)>,
}

/// Chooses tokens on the host, one row of logits at a time; keeps its buffers between rows.
#[derive(Default)]
pub struct Sampler {
    scratch: Scratch,
    kept: Vec<u32>,
    model_logits: Vec<f32>,
}

impl Sampler {
    /// An empty one; buffers grow with the first row.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the token of `step.rows[row]`. `logits`: f32, `vocab_size` of them, changed by this. `previous`: the tokens of the step
    /// launched just before, one per row; read only where the row has an unseen token.
    ///
    /// Errors: [`SampleError`] if a logit is not a number or infinite (minus infinity is allowed and means never), or if every
    /// token is forbidden.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        step: &Step,
        row: usize,
        previous: &[u32],
    ) -> Result<Choice, SampleError> {
        let row = &step.rows[row];
        let input = RowInput {
            params: &row.params,
            prompt: &step.history[row.prompt.clone()],
            generated: &step.history[row.generated.clone()],
            unseen: row.unseen.map(|r| previous[r]),
            mask: row.mask.clone().map(|m| &step.masks[m]),
        };
        if row.n_logprobs.is_some() {
            self.model_logits.clear();
            self.model_logits.extend_from_slice(logits);
        }
        let token = match row.given {
            Some(token) => {
                check_finite(logits)?;
                token
            }
            None => self.choose(logits, &input, row.uniform)?,
        };
        let mut choice = Choice { token, ..Choice::default() };
        if let Some(n) = row.n_logprobs {
            logprobs::report(&mut choice, &self.model_logits, n, &mut self.scratch.best);
        }
        Ok(choice)
    }

    fn choose(&mut self, logits: &mut [f32], input: &RowInput, uniform: f64) -> Result<u32, SampleError> {
        check_finite(logits)?;
        let mut candidates = Candidates { logits, kept: &mut self.kept, all: true };
        for step in STEPS.iter().filter(|s| (s.active)(input)) {
            (step.apply)(&mut candidates, input, &mut self.scratch);
        }
        match input.params.is_greedy() {
            true => draw::likeliest(&candidates),
            false => draw::draw(&candidates, uniform),
        }
    }
}

fn check_finite(logits: &[f32]) -> Result<(), SampleError> {
    // Whole chunks without an early exit, which the compiler turns into vector compares.
    let bad = |l: f32| l.is_nan() || l == f32::INFINITY;
    if !logits.chunks(256).any(|chunk| chunk.iter().fold(false, |any, &l| any | bad(l))) {
        return Ok(());
    }
    let first = |nan: bool| {
        let i = logits.iter().position(|&l| bad(l) && l.is_nan() == nan)?;
        Some(SampleError::NotFinite { token: i as u32, nan })
    };
    first(true).or_else(|| first(false)).map_or(Ok(()), Err)
}

/// Whether `a` is likelier than `b`; the lower id wins a tie.
fn likelier(a: (f32, u32), b: (f32, u32)) -> bool {
    a.0 > b.0 || (a.0 == b.0 && a.1 < b.1)
}

/// Most likely first. Zero and minus zero are equal, which `total_cmp` denies; not-a-number does not get here.
fn by_likelihood(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

/// Leaves the `k` likeliest tokens in `best`, in no order; ties go to the lower ids. One pass: whatever is not among the best so
/// far is dropped at once, so the vocabulary is never sorted.
fn select_top(best: &mut Vec<(f32, u32)>, k: usize, for_each: impl FnOnce(&mut dyn FnMut(u32, f32))) {
    best.clear();
    if k == 0 {
        return;
    }
    let mut worst: Option<(f32, u32)> = None;
    let mut offer = |id: u32, logit: f32| {
        let new = (logit, id);
        if worst.is_some_and(|w| !likelier(new, w)) {
            return;
        }
        best.push(new);
        if best.len() >= 2 * k + 64 {
            best.select_nth_unstable_by(k - 1, by_likelihood);
            best.truncate(k);
            worst = Some(best[k - 1]);
        }
    };
    for_each(&mut offer);
    if best.len() > k {
        best.select_nth_unstable_by(k - 1, by_likelihood);
        best.truncate(k);
    }
}

#[cfg(test)]
mod tests;
