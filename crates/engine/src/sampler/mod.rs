//! From a row of logits to a token on the host, and the random numbers by which tokens are drawn.
//!
//! [`realizar_compute::sampling`] defines the steps; devices that sample follow the same definition.

mod logprobs;
mod uniform;

pub use uniform::uniform;

use crate::SampleError;
use crate::runner::{Choice, Row, Step};
use realizar_compute::sampling::{self, SamplerInput, not_finite};

/// Chooses tokens on the host, one row of logits at a time; keeps its buffers between rows.
#[derive(Default)]
pub struct Sampler {
    sampler: sampling::Sampler,
    model_logits: Vec<f32>,
    best: Vec<(f32, u32)>,
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
        if row.n_logprobs.is_some() {
            self.model_logits.clear();
            self.model_logits.extend_from_slice(logits);
        }
        let token = match row.given {
            Some(token) => not_finite(logits).map_or(Ok(token), SampleError::check)?,
            None => {
                let input = input(step, row, row.unseen.map(|row| previous[row]));
                SampleError::check(self.sampler.choose(logits, &input))?
            }
        };
        let mut choice = Choice { token, ..Choice::default() };
        if let Some(n) = row.n_logprobs {
            logprobs::report(&mut choice, &self.model_logits, n, &mut self.best);
        }
        Ok(choice)
    }
}

/// What sampling knows about a row of a step. `last`: the token that the row does not know yet.
pub(crate) fn input<'a>(step: &'a Step, row: &'a Row, last: Option<u32>) -> SamplerInput<'a> {
    SamplerInput {
        params: &row.params,
        prompt: &step.history[row.prompt.clone()],
        generated: &step.history[row.generated.clone()],
        last,
        mask: row.mask.clone().map(|mask| &step.masks[mask]),
        uniform: row.uniform,
    }
}

#[cfg(test)]
mod tests;
