//! Flattens or sharpens the distribution, and makes logits relative to the largest one.

use super::SamplerStep;

pub(super) const STEP: SamplerStep = SamplerStep {
    name: "temperature",
    active: |row| !row.params.is_greedy(),
    apply: |candidates, row, _| {
        // Relative to the largest, so that the smallest temperature cannot turn two logits into infinities that compare equal.
        let max = candidates.max();
        let scale = |l: &mut f32| *l = (*l - max) / row.params.temperature;
        match candidates.all {
            _ if max == f32::NEG_INFINITY => {}
            true => candidates.logits.iter_mut().for_each(scale),
            false => candidates.kept.iter().for_each(|&id| scale(&mut candidates.logits[id as usize])),
        }
    },
};
