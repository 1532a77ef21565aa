//! Log-probabilities under the model's own distribution, before any sampling step.

use crate::runner::Choice;
use realizar_compute::sampling::largest;

/// Fills in the log-probability of `choice.token` and the `n` likeliest tokens.
pub(super) fn report(choice: &mut Choice, logits: &[f32], n: usize, best: &mut Vec<(f32, u32)>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from((l - max).exp())).sum();
    let logprob = |l: f32| (f64::from(l - max) - sum.ln()) as f32;
    choice.log_sum_exp = Some((f64::from(max) + sum.ln()) as f32);
    choice.logprob = Some(logprob(logits[choice.token as usize]));
    largest(best, logits, n);
    choice.top_logprobs = best.iter().map(|&(l, id)| (id, logprob(l))).collect();
}
