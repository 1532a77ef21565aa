//! Adds the caller's bias to the logits of single tokens.

use super::SamplerStep;

pub(super) const STEP: SamplerStep = SamplerStep {
    name: "logit_bias",
    active: |row| !row.params.logit_bias.is_empty(),
    apply: |candidates, row, _| {
        for &(id, bias) in &row.params.logit_bias {
            candidates.logits[id as usize] += bias;
        }
    },
};
