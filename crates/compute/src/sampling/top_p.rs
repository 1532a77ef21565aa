//! Keeps the smallest set of likeliest tokens whose probabilities reach a sum (nucleus sampling, Holtzman et al. 2020).

use super::candidates::{Candidates, Scratch, by_likelihood};
use super::definition::Ranking;
use super::{SamplerInput, SamplerStep, fraction, share, weight};

pub(super) const STEP: SamplerStep = SamplerStep {
    name: "top_p",
    is_active: |row| row.params.top_p < 1.0 && !row.params.is_greedy(),
    define,
    apply,
};

fn define(ranking: &mut Ranking, row: &SamplerInput) {
    if !ranking.max().is_finite() {
        return;
    }
    let total: u64 = ranking.tokens().map(|(_, x)| weight(x)).sum();
    let wanted = share(fraction(row.params.top_p.into()), total).max(1);
    let mut sum = 0;
    let last = ranking.tokens().position(|(_, x)| {
        sum += weight(x);
        sum >= wanted
    });
    ranking.truncate(last.expect("all tokens together reach a part of their sum") + 1);
}

fn apply(candidates: &mut Candidates, row: &SamplerInput, scratch: &mut Scratch) {
    let max = candidates.max();
    if !max.is_finite() {
        return;
    }
    let mut total = 0;
    candidates.for_each(|_, l| total += weight(l - max));
    let wanted = share(fraction(row.params.top_p.into()), total).max(1);
    // Tokens below this weight have less than the rest together, even if all but one were such, so the others reach `wanted` without
    // them. What is left to sort is short.
    let negligible = (total - wanted) / candidates.len() as u64;
    let mut least = max;
    candidates.for_each(|_, l| {
        if l < least && weight(l - max) >= negligible {
            least = l;
        }
    });
    let best = &mut scratch.best;
    best.clear();
    candidates.for_each(|id, l| {
        if l >= least {
            best.push((l, id));
        }
    });
    best.sort_unstable_by(by_likelihood);
    let mut sum = 0;
    let n = best.iter().position(|&(l, _)| {
        sum += weight(l - max);
        sum >= wanted
    });
    best.truncate(n.map_or(best.len(), |n| n + 1));
    candidates.keep(best);
}
