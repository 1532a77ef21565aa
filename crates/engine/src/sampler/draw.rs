//! The end of the chain: the likeliest token, or one by chance.

use super::{Candidates, likelier};
use crate::SampleError;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use realizar_compute::sampling::{fraction, share, weight};

/// The random number in 0..1 with which `choice` of a request draws the token at `position`: a pure function of its arguments.
pub fn uniform(seed: u64, choice: u32, position: usize) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(u64::from(choice));
    rng.set_word_pos(position as u128 * 2); // one number is two words of 32 bits
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The token with the largest logit, the lowest id of equal ones.
pub(super) fn likeliest(candidates: &Candidates) -> Result<u32, SampleError> {
    let mut best = (f32::NEG_INFINITY, u32::MAX);
    candidates.for_each(|id, l| {
        if likelier((l, id), best) && l > f32::NEG_INFINITY {
            best = (l, id);
        }
    });
    match best {
        (_, u32::MAX) => Err(SampleError::NothingAllowed),
        // Only a bias or penalty on a logit near the end of f32's range gets here.
        (f32::INFINITY, token) => Err(SampleError::NotFinite { token, nan: false }),
        (_, token) => Ok(token),
    }
}

/// The token at which the running sum of weights, by rising id, passes its share `uniform` of their sum.
pub(super) fn draw(candidates: &Candidates, uniform: f64) -> Result<u32, SampleError> {
    let max = candidates.max();
    let mut total = 0;
    candidates.for_each(|_, l| total += weight(l - max));
    let target = share(fraction(uniform), total);
    let (mut sum, mut chosen) = (0, None);
    candidates.for_each(|id, l| {
        sum += weight(l - max);
        if sum > target && chosen.is_none() {
            chosen = Some(id);
        }
    });
    chosen.ok_or(SampleError::NothingAllowed)
}
