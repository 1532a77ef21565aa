//! Keeps the k likeliest tokens; of equal ones at the border, those with the lower ids.

use super::SamplerStep;
use super::candidates::select_top;

pub(super) const STEP: SamplerStep = SamplerStep {
    name: "top_k",
    is_active: |row| row.params.top_k != 0 && !row.params.is_greedy(),
    define: |ranking, row| ranking.truncate(row.params.top_k),
    apply: |candidates, row, scratch| {
        let k = row.params.top_k;
        if k < candidates.len() {
            select_top(&mut scratch.best, k, |offer| candidates.for_each(offer));
            candidates.keep(&scratch.best);
        }
    },
};
