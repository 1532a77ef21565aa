//! Adds the caller's bias to the logits of single tokens.

use super::SamplerStep;

pub(super) const STEP: SamplerStep = SamplerStep {
    name: "logit_bias",
    is_active: |row| !row.params.logit_bias.is_empty(),
    define: |ranking, row| {
        let biases = &row.params.logit_bias;
        ranking.edit(|id, l| biases.iter().find(|(token, _)| *token == id).map_or(l, |(_, bias)| l + bias));
    },
    apply: |candidates, row, _| {
        for &(id, bias) in &row.params.logit_bias {
            candidates.logits[id as usize] += bias;
        }
    },
};
