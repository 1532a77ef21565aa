//! Keeps the k likeliest tokens; of equal ones at the border, those with the lower ids.

use super::{SamplerStep, select_top};

pub(super) const STEP: SamplerStep = SamplerStep {
    name: "top_k",
    active: |row| row.params.top_k != 0 && !row.params.is_greedy(),
    apply: |candidates, row, scratch| {
        let k = row.params.top_k;
        if k < candidates.len() {
            select_top(&mut scratch.best, k, |offer| candidates.for_each(offer));
            candidates.all = false;
            candidates.kept.clear();
            candidates.kept.extend(scratch.best.iter().map(|&(_, id)| id));
            candidates.kept.sort_unstable();
        }
    },
};
