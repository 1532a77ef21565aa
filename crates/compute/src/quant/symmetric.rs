//! The search for the scale of weights that have no min, and the encoding of a super-block whose 16 sub-blocks have a scale each (Q3_K,
//! Q6_K).
//!
//! A scale is negative where the largest weight is positive, since `-n` reaches further than `n - 1`.

use super::blocks::f16_to_f32;
use super::rounding::{dot, f32_to_f16, largest, round};

/// Below this, weights count as zero: their squares would leave the range of f32.
pub(crate) const TINY: f32 = 1e-15;

/// Finds a scale of `x` that makes the sum of `w * (x - scale * q)²` small, for whole `q` in `low..=high`.
///
/// For fixed `q` the best scale is `Σ w x q / Σ w q²`, and it lowers the error by `(Σ w x q)² / Σ w q²`. The `q` of 19 grids around the one
/// that maps the largest weight to the farther bound are compared.
pub(crate) fn fit<const N: usize>(x: &[f32; N], w: &[f32; N], low: f32, high: f32) -> f32 {
    let extreme = largest(x);
    if extreme.abs() < TINY || !extreme.is_finite() {
        return 0.0;
    }
    let bound = if -low > high { low } else { high };
    let (mut scale, mut best) = (0.0, 0.0);
    // The plain grid is first, so that it wins ties.
    for tenths in std::iter::once(0).chain((-9..=9).filter(|t| *t != 0)) {
        let per_unit = bound.signum() * (bound.abs() + 0.1 * tenths as f32) / extreme;
        let q = x.map(|v| round((v * per_unit).clamp(low, high)));
        let wq = std::array::from_fn(|i| w[i] * q[i]);
        let (sum_xq, sum_qq) = (dot(&wq, x), dot(&wq, &q));
        if sum_qq > 0.0 && sum_xq * sum_xq > best * sum_qq {
            scale = sum_xq / sum_qq;
            best = scale * sum_xq;
        }
    }
    scale
}

/// A super-block of 256 weights `d * scale * q`, not yet packed; `q` is shifted by `HALF` to start at 0.
pub(crate) struct SuperBlock {
    pub(crate) d: [u8; 2],
    pub(crate) scales: [i8; 16],
    pub(crate) q: [u8; 256],
}

/// Rounds the scales of 16 sub-blocks to `-SCALE_HALF..SCALE_HALF` times `d` and the weights to `-HALF..HALF` on those.
#[inline]
pub(crate) fn encode_super_block<const SCALE_HALF: u8, const HALF: u8>(
    x: &[f32; 256],
    fits: &[f32; 16],
    d: f32,
) -> SuperBlock {
    let (scale_half, half) = (f32::from(SCALE_HALF), f32::from(HALF));
    let mut block = SuperBlock { d: [0; 2], scales: [0; 16], q: [HALF; 256] };
    if d.abs() * scale_half < TINY {
        return block;
    }
    block.d = f32_to_f16(d);
    block.scales = fits.map(|s| round((s / d).clamp(-scale_half, scale_half - 1.0)) as i8);
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
