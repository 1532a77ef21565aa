//! The encoding of a super-block whose 16 sub-blocks have a scale each and no min (Q3_K, Q6_K).
//!
//! A scale is negative where the largest weight is positive, since `-n` reaches further than `n - 1`.

use super::blocks::f16_to_f32;
use super::rounding::{f32_to_f16, largest, round};

/// Below this, weights count as zero: their squares would leave the range of f32.
pub(crate) const TINY: f32 = 1e-15;

/// A super-block of 256 weights `d * scale * q`, not yet packed; `q` is shifted by `HALF` to start at 0.
pub(crate) struct SuperBlock {
    pub(crate) d: [u8; 2],
    pub(crate) scales: [i8; 16],
    pub(crate) q: [u8; 256],
}

/// Rounds the scales of 16 sub-blocks to `-SCALE_HALF..SCALE_HALF` and the weights to `-HALF..HALF` on those.
#[inline]
pub(crate) fn encode_super_block<const SCALE_HALF: u8, const HALF: u8>(
    x: &[f32; 256],
    fits: &[f32; 16],
) -> SuperBlock {
    let (scale_half, half) = (f32::from(SCALE_HALF), f32::from(HALF));
    let mut block = SuperBlock { d: [0; 2], scales: [0; 16], q: [HALF; 256] };
    let extreme = largest(fits);
    if extreme.abs() < TINY {
        return block;
    }
    let per_unit = -scale_half / extreme;
    block.d = f32_to_f16(1.0 / per_unit);
    block.scales = fits.map(|s| round((s * per_unit).clamp(-scale_half, scale_half - 1.0)) as i8);
    for (s, (x, q)) in x.as_chunks::<16>().0.iter().zip(block.q.as_chunks_mut::<16>().0).enumerate() {
        let scale = f16_to_f32(block.d) * f32::from(block.scales[s]);
        if scale != 0.0 {
            for (x, q) in x.iter().zip(q) {
                *q = (round((x / scale).clamp(-half, half - 1.0)) + half) as u8;
            }
        }
    }
    block
}
