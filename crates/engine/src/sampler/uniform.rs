//! The random numbers by which tokens are drawn.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The random number in 0..1 with which `choice` of a request draws the token at `position`: a pure function of its arguments.
pub fn uniform(seed: u64, choice: u32, position: usize) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(u64::from(choice));
    rng.set_word_pos(position as u128 * 2); // one number is two words of 32 bits
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}
