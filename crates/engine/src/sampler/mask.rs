//! Drops the tokens that the request's grammar forbids.

use super::SamplerStep;
use crate::request::mask_contains;

pub(super) const STEP: SamplerStep = SamplerStep {
    name: "grammar",
    active: |row| row.mask.is_some(),
    apply: |candidates, row, _| {
        if let Some(mask) = row.mask {
            candidates.retain(|id, _| mask_contains(mask, id));
        }
    },
};
