//! The end of the host's chain: the likeliest token, or one by chance.

use super::candidates::{Candidates, likelier};
use super::{fraction, share, weight};
use crate::Chosen;

/// The token with the largest logit, the lowest id of equal ones.
pub(super) fn likeliest(candidates: &Candidates) -> Chosen {
    let mut best = (f32::NEG_INFINITY, u32::MAX);
    candidates.for_each(|id, l| {
        if likelier((l, id), best) && l > f32::NEG_INFINITY {
            best = (l, id);
        }
    });
    match best {
        (_, u32::MAX) => Chosen::Nothing,
        // Only a bias or penalty on a logit near the end of f32's range gets here.
        (f32::INFINITY, token) => Chosen::NotFinite { token, nan: false },
        (_, token) => Chosen::Token(token),
    }
}

/// The token at which the running sum of weights, by rising id, passes its share `uniform` of their sum.
pub(super) fn draw(candidates: &Candidates, uniform: f64) -> Chosen {
    let max = candidates.max();
    if !max.is_finite() {
        return likeliest(candidates);
    }
    let mut total = 0;
    candidates.for_each(|_, l| total += weight(l - max));
    let target = share(fraction(uniform), total);
    let (mut sum, mut chosen) = (0, Chosen::Nothing);
    candidates.for_each(|id, l| {
        sum += weight(l - max);
        if sum > target && chosen == Chosen::Nothing {
            chosen = Chosen::Token(id);
        }
    });
    chosen
}
