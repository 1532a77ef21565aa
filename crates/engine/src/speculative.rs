//! Speculative decoding: cheap guesses of the next tokens, verified by the model in one step.
//!
//! A step of one sequence reads all weights to yield one token. If somebody guesses the next `k` tokens, the same step can compute them
//! too and choose a token after each. As far as the guesses agree with what is chosen, they were right; the first choice that differs
//! replaces its guess. So each step yields between 1 and `k + 1` tokens.
//!
//! **What is generated does not change**, sampled or greedy. The token at a position is a function of its logits, of the tokens before
//! (penalties, grammar) and of one random number, which is a function of the request's seed and the position. A row behind right
//! guesses has the same of all three as it would have without speculation, so it chooses the same token; rows behind a wrong guess are
//! not looked at. This holds bit for bit wherever a row of logits does not depend on how many tokens share the step: on the CPU always,
//! on other devices in exact mode. Elsewhere logits may differ by rounding, as they do between batches of different sizes, and so may a
//! token that is as good as tied.
//!
//! Comparing with the sampled token accepts a guess `x` with the probability `p(x)` that the model gives it. That is also what
//! rejection sampling (Leviathan et al. 2023) accepts for a guess made without chance, as [`Ngram`]'s are: `min(1, p(x) / 1)`. For
//! guesses drawn from a distribution `q`, rejection sampling accepts `Σ min(p, q)`; [`DraftModel`] instead draws with the very random
//! number that the model will draw with. All is accepted if the two distributions are the same, and the more is lost the more tokens
//! are likely (docs/speculation.md has figures). What is gained is that a seed gives the same text with and without speculation.

mod draft_layer;
mod draft_model;
mod length;
mod ngram;

pub use draft_layer::DraftLayer;
pub use draft_model::DraftModel;
pub(crate) use length::DraftLength;
pub use length::SpeculationCosts;
pub use ngram::Ngram;

use crate::bench::step_times;
use crate::chooser::Chooser;
use crate::{Result, Runner, SeqId};
use std::time::Duration;

/// A sequence whose next tokens are worth guessing.
#[derive(Clone, Copy, Debug)]
pub struct DraftWanted<'a> {
    /// Whose.
    pub id: SeqId,
    /// Its prompt and what it has generated.
    pub tokens: &'a [u32],
    /// How it chooses.
    pub(crate) chooser: Chooser<'a>,
    /// Guesses wanted, at least 1.
    pub n: usize,
    /// Its blocks. The last token's keys and values, and those of guesses, may be written behind those that are computed.
    pub(crate) blocks: &'a [u32],
    /// Row of the step before that held the token before the last one, if that step did.
    pub(crate) row: Option<u32>,
}

/// Guesses how texts go on.
pub trait Proposer: Send {
    /// For each of the wanted, in their order: its next tokens, at most as many as wanted, none if it has no idea. `runner`: the model's, of
    /// which no step is under way.
    ///
    /// Errors: the device failed; the engine then goes on without guesses.
    fn propose(&mut self, runner: &mut dyn Runner, wanted: &[DraftWanted<'_>]) -> Result<Vec<Vec<u32>>>;

    /// How long it takes to guess one token. `runner`: the model's, whose cache is free.
    fn guess_time(&mut self, runner: &mut dyn Runner) -> Result<Duration>;
}

/// Measures how long a step of one token takes with this runner, whose cache must be free, and what guesses cost.
///
/// Errors: the device failed.
pub fn measure_costs(
    runner: &mut dyn Runner,
    proposer: &mut dyn Proposer,
) -> Result<(Duration, SpeculationCosts)> {
    let n = 5
        .min(runner.info().limits.n_logits)
        .min(runner.info().limits.n_tokens)
        .min(runner.info().max_seq_len());
    let (one, many) = step_times(runner, n)?;
    let one_s = one.as_secs_f32().max(1e-9);
    let row = (many.as_secs_f32() / one_s - 1.0) / n.saturating_sub(1).max(1) as f32;
    let guess = proposer.guess_time(runner)?.as_secs_f32() / one_s;
    // A row is never for nothing, and never dearer than a step of its own; beyond that, timing erred.
    Ok((one, SpeculationCosts { row: row.clamp(0.01, 1.0), guess }))
}
