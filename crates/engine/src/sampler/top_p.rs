//! Keeps the smallest set of likeliest tokens whose probabilities reach a sum (nucleus sampling, Holtzman et al. 2020).

use super::{Candidates, RowInput, SamplerStep, Scratch, by_likelihood};

pub(super) const STEP: SamplerStep =
    SamplerStep { name: "top_p", active: |row| row.params.top_p < 1.0 && !row.params.is_greedy(), apply };

fn apply(candidates: &mut Candidates, row: &RowInput, scratch: &mut Scratch) {
    let max = candidates.max();
    if max == f32::NEG_INFINITY {
        return;
    }
    let mut total = 0.0f64;
    candidates.for_each(|_, l| total += f64::from((l - max).exp()));
    // Tokens below this probability have less than `1 - top_p` together, even if all but one were such, so the others reach
    // `top_p` without them. What is left to sort is short.
    let negligible = total * f64::from(1.0 - row.params.top_p) / candidates.len() as f64;
    let best = &mut scratch.best;
    best.clear();
    candidates.for_each(|id, l| {
        if l == max || f64::from((l - max).exp()) >= negligible {
            best.push((l, id));
        }
    });
    best.sort_unstable_by(by_likelihood);
    let wanted = total * f64::from(row.params.top_p);
    let mut sum = 0.0f64;
    let n = best.iter().position(|&(l, _)| {
        sum += f64::from((l - max).exp());
        sum >= wanted
    });
    best.truncate(n.map_or(best.len(), |n| n + 1));
    candidates.all = false;
    candidates.kept.clear();
    candidates.kept.extend(best.iter().map(|&(_, id)| id));
    candidates.kept.sort_unstable();
}
