//! The end of the chain: the likeliest token, or one by chance.

use super::{Candidates, likelier};
use crate::SampleError;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

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
    if best.1 == u32::MAX { Err(SampleError::NothingAllowed) } else { Ok(best.1) }
}

/// The token at which the running sum of probabilities, by rising id, passes `uniform`.
pub(super) fn draw(candidates: &Candidates, uniform: f64) -> Result<u32, SampleError> {
    let max = candidates.max();
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NothingAllowed);
    }
    if max == f32::INFINITY {
        // Only a bias or penalty on a logit near the end of f32's range gets here.
        return Err(SampleError::NotFinite { token: likeliest(candidates)?, nan: false });
    }
    let weight = |l: f32| f64::from((l - max).exp());
    let mut total = 0.0;
    candidates.for_each(|_, l| total += weight(l));
    let target = uniform * total;
    let (mut sum, mut chosen, mut last) = (0.0, None, 0);
    candidates.for_each(|id, l| {
        let w = weight(l);
        sum += w;
        if w > 0.0 {
            last = id;
            if chosen.is_none() && sum > target {
                chosen = Some(id);
            }
        }
    });
    // Rounding can leave the last sum a little below the target.
    Ok(chosen.unwrap_or(last))
}
