//! Drops the tokens that the request's grammar forbids.

use super::SamplerStep;

pub(super) const STEP: SamplerStep = SamplerStep {
    name: "grammar",
    is_active: |row| row.mask.is_some(),
    define: |ranking, row| ranking.edit(|id, l| if row.allows(id) { l } else { f32::NEG_INFINITY }),
    apply: |candidates, row, _| candidates.retain(|id, _| row.allows(id)),
};
