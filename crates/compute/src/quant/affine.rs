//! The search for the scale and min of sub-blocks whose weights are `scale * q - min`, `q` and `min` not negative, and
//! the encoding of a super-block of them (Q2_K, Q4_K, Q5_K).
//!
//! A range of slightly different grids over the sub-block's weights is tried. For each the integers `q` are fixed by
//! rounding, and the weighted least-squares solution for scale and min (a line through the points `(q, x)`) is compared
//! with the best so far. Afterwards scales and mins are themselves rounded to a few bits, and each weight is rounded
//! again on the grid that results.

use super::blocks::f16_to_f32;
use super::rounding::{dot, f32_to_f16, range, round, sum};
use super::symmetric;

/// What a sub-block's weights are multiples of, and what is subtracted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine {
    pub(crate) scale: f32,
    pub(crate) min: f32,
}

/// The grids that a search tries: what lies between the best min so far and the largest weight is cut into `MAX + first`
/// steps, then `MAX + first + 0.1` and so on, `n` times in all.
#[derive(Clone, Copy)]
pub(crate) struct Grids {
    pub(crate) first: f32,
    pub(crate) n: usize,
}

/// Finds scale and min of `x` that make the sum of `w * loss(x - decoded x)` small, for `q` in `0..=MAX`.
#[inline]
pub(crate) fn fit<const N: usize, const MAX: u8>(
    x: &[f32; N],
    w: &[f32; N],
    grids: Grids,
    loss: impl Fn(f32) -> f32 + Copy,
) -> Affine {
    let levels = f32::from(MAX);
    let (low, high) = range(x);
    let low = low.min(0.0);
    let span = high - low;
    // Also where the span is not a number, and where its inverse would overflow.
    if !(span > f32::MIN_POSITIVE * 64.0 && span.is_finite()) {
        return Affine { scale: 0.0, min: if low.is_finite() { -low } else { 0.0 } };
    }
    let sum_w = sum(w);
    let sum_x = dot(w, x);
    let quantized = |steps: f32, offset: f32| -> [f32; N] {
        let per_unit = steps / (high - offset);
        std::array::from_fn(|i| round(((x[i] - offset) * per_unit).clamp(0.0, levels)))
    };
    let error = |q: &[f32; N], scale: f32, offset: f32| {
        dot(w, &std::array::from_fn(|i| loss(scale * q[i] + offset - x[i])))
    };

    let (mut scale, mut offset) = (span / levels, low);
    let mut best = error(&quantized(levels, low), scale, offset);
    for grid in 0..grids.n {
        let q = quantized(levels + grids.first + 0.1 * grid as f32, offset);
        let wq = std::array::from_fn(|i| w[i] * q[i]);
        let (sum_q, sum_qq, sum_xq) = (sum(&wq), dot(&wq, &q), dot(&wq, x));
        let determinant = sum_w * sum_qq - sum_q * sum_q;
        if determinant > 0.0 {
            let mut line_scale = (sum_w * sum_xq - sum_x * sum_q) / determinant;
            let mut line_offset = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
            if line_offset > 0.0 {
                (line_scale, line_offset) = (sum_xq / sum_qq, 0.0);
            }
            let e = error(&q, line_scale, line_offset);
            if e < best {
                (best, scale, offset) = (e, line_scale, line_offset);
            }
        }
    }
    Affine { scale, min: -offset }
}

/// A super-block of 256 weights `d * scale * q - dmin * min`, not yet packed.
pub(crate) struct SuperBlock<const N_SUB: usize> {
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
    pub(crate) scales: [u8; N_SUB],
    pub(crate) mins: [u8; N_SUB],
    pub(crate) q: [u8; 256],
}

/// Rounds the scales and mins of `N_SUB` equal sub-blocks to `0..=SCALE_MAX` and the weights to `0..=MAX` on those.
///
/// `w`: how much the error of each sub-block's scale and min counts; without it, the largest ones are kept.
#[inline]
pub(crate) fn encode_super_block<const N_SUB: usize, const SCALE_MAX: u8, const MAX: u8>(
    x: &[f32; 256],
    fits: &[Affine; N_SUB],
    w: Option<&[f32; N_SUB]>,
) -> SuperBlock<N_SUB> {
    let (d, scales) = round_non_negative::<N_SUB, SCALE_MAX>(fits.map(|f| f.scale), w);
    let (dmin, mins) = round_non_negative::<N_SUB, SCALE_MAX>(fits.map(|f| f.min), w);
    let mut q = [0; 256];
    let sub_len = 256 / N_SUB;
    for (s, (x, q)) in x.chunks_exact(sub_len).zip(q.chunks_exact_mut(sub_len)).enumerate() {
        let scale = f16_to_f32(d) * f32::from(scales[s]);
        let min = f16_to_f32(dmin) * f32::from(mins[s]);
        if scale > 0.0 {
            for (x, q) in x.iter().zip(q) {
                *q = round(((x + min) / scale).clamp(0.0, f32::from(MAX))) as u8;
            }
        }
    }
    SuperBlock { d, dmin, scales, mins, q }
}

/// A common f16 unit for `values`, and their multiples of it in `0..=MAX`.
fn round_non_negative<const N: usize, const MAX: u8>(
    values: [f32; N],
    w: Option<&[f32; N]>,
) -> ([u8; 2], [u8; N]) {
    let max = f32::from(MAX);
    let largest = values.iter().fold(0.0, |a: f32, b| a.max(*b));
    if largest < f32::MIN_POSITIVE * 64.0 {
        return ([0; 2], [0; N]);
    }
    let unit = match w.map(|w| symmetric::fit(&values, w, 0.0, max)) {
        Some(unit) if unit > 0.0 => unit,
        _ => largest / max,
    };
    (f32_to_f16(unit), values.map(|v| round((v / unit).clamp(0.0, max)) as u8))
}
