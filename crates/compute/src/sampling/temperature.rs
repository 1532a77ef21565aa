//! Flattens or sharpens the distribution, and makes logits relative to the largest one.

use super::SamplerStep;

// Relative to the largest, so that the smallest temperature cannot turn two logits into infinities that compare equal.
pub(super) const STEP: SamplerStep = SamplerStep {
    name: "temperature",
    is_active: |row| !row.params.is_greedy(),
    define: |ranking, row| {
        let max = ranking.max();
        if max.is_finite() {
            ranking.edit(|_, l| (l - max) / row.params.temperature);
        }
    },
    apply: |candidates, row, _| {
        let max = candidates.max();
        let scale = |l: &mut f32| *l = (*l - max) / row.params.temperature;
        match candidates.all {
            _ if !max.is_finite() => {}
            true => candidates.logits.iter_mut().for_each(scale),
            false => candidates.kept.iter().for_each(|&id| scale(&mut candidates.logits[id as usize])),
        }
    },
};
