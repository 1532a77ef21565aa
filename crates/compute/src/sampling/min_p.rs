//! Drops tokens whose probability is below a share of the likeliest one's.

use super::SamplerStep;

pub(super) const STEP: SamplerStep = SamplerStep {
    name: "min_p",
    is_active: |row| row.params.min_p > 0.0 && !row.params.is_greedy(),
    define: |ranking, row| ranking.retain(|x| x >= row.params.min_logit()),
    apply: |candidates, row, _| {
        // p >= min_p * p_max is l >= l_max + ln(min_p): no probability needs computing.
        let least = candidates.max() + row.params.min_logit();
        candidates.retain(|_, l| l >= least);
    },
};
