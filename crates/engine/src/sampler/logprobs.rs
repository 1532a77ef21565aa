//! Log-probabilities under the model's own distribution, before any sampling step.

use super::{by_likelihood, select_top};
use crate::runner::Choice;

/// Fills in the log-probability of `choice.token` and the `n` likeliest tokens.
pub(super) fn report(choice: &mut Choice, logits: &[f32], n: usize, best: &mut Vec<(f32, u32)>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from((l - max).exp())).sum();
    let logprob = |l: f32| (f64::from(l - max) - sum.ln()) as f32;
    choice.logprob = Some(logprob(logits[choice.token as usize]));
    select_top(best, n.min(logits.len()), |offer| {
        logits.iter().enumerate().for_each(|(id, &l)| offer(id as u32, l));
    });
    best.sort_unstable_by(by_likelihood);
    choice.top_logprobs = best.iter().map(|&(l, id)| (id, logprob(l))).collect();
}
