//! IQ4_NL: 32 weights `d * VALUES[q]`, `q` of four bits.

use super::QuantSpec;
use super::bits::{join_nibbles, nibbles};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::importance::error_weights;
use super::rounding::{dot, f32_to_f16, inverse_or_zero, largest};
use super::symmetric::TINY;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::IQ4_NL,
    name: "IQ4_NL",
    ggml_id: 20,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// The values that the four bits stand for: closer to each other around zero, as weights are. Part of the file format.
pub(crate) static VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 18 bytes for 32 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale `d`, f16.
    pub(crate) d: [u8; 2],
    /// Byte `j`: `q[j]` in the low nibble, `q[j + 16]` in the high one.
    pub(crate) qs: [u8; 16],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 32>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (y, q) in y.iter_mut().zip(nibbles(&b.qs)) {
            *y = d * f32::from(VALUES[usize::from(q)]);
        }
    });
}

/// Halfway between each value and the next.
const BORDERS: [f32; 15] = {
    let mut borders = [0.0; 15];
    let mut k = 0;
    while k < 15 {
        borders[k] = (VALUES[k] as f32 + VALUES[k + 1] as f32) / 2.0;
        k += 1;
    }
    borders
};

/// Index of the value nearest to `v`; of two as near, the larger one.
#[inline]
pub(super) fn nearest(v: f32) -> u8 {
    BORDERS.iter().map(|border| u8::from(v >= *border)).sum()
}

/// The value nearest to each of `v`; of two as near, the larger one.
#[inline]
fn nearest_values(v: &[f32; 32]) -> [f32; 32] {
    let mut values = [f32::from(VALUES[0]); 32];
    for (border, next) in BORDERS.iter().zip(&VALUES[1..]) {
        let next = f32::from(*next);
        for (value, v) in values.iter_mut().zip(v) {
            *value = if *v >= *border { next } else { *value };
        }
    }
    values
}

/// The scale that makes the sum of `w * (x - scale * value)²` small: for fixed values it is a weighted least-squares
/// fit, and the values that go with each of 16 scales are tried, which map the extreme weight to either end.
pub(super) fn fit(x: &[f32; 32], w: &[f32; 32]) -> f32 {
    let extreme = largest(x);
    if extreme.abs() < TINY || !extreme.is_finite() {
        return 0.0;
    }
    let (mut scale, mut best) = (0.0, 0.0);
    for target in std::iter::once(127.0).chain((-134..=-120).map(|t| t as f32)) {
        let per_unit = target / extreme;
        let value = nearest_values(&x.map(|x| x * per_unit));
        let wv = std::array::from_fn(|i| w[i] * value[i]);
        let (sum_xv, sum_vv) = (dot(&wv, x), dot(&wv, &value));
        if sum_vv > 0.0 && sum_xv * sum_xv > best * sum_vv {
            scale = sum_xv / sum_vv;
            best = scale * sum_xv;
        }
    }
    scale
}

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 32>(src, dst, importance, |x, importance| {
        let w = importance.map_or_else(|| x.map(|v| v * v), |importance| error_weights(x, importance));
        let d = fit(x, &w);
        let per_unit = inverse_or_zero(d);
        let q = x.map(|x| nearest(x * per_unit));
        Block { d: f32_to_f16(d), qs: join_nibbles(&q) }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_index_the_values() {
        let mut src = [0x88; 18];
        src[..2].copy_from_slice(&[0x00, 0x38]); // d = 0.5
        src[2] = 0xf0;
        let mut y = [9.0; 32];
        dequantize(&src, &mut y);
        let mut want = [0.5; 32];
        (want[0], want[16]) = (-63.5, 56.5);
        assert_eq!(y, want);
    }
}
