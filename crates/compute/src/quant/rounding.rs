//! Rounding and sums written so that the compiler vectorizes them on any processor.

use half::f16;

/// The nearest integer, ties to even, for `|v|` below 2^22.
#[inline]
pub(crate) fn round(v: f32) -> f32 {
    // 1.5 * 2^23: where floats are one apart, so that the addition rounds.
    const UNIT_SPACED: f32 = 12_582_912.0;
    (v + UNIT_SPACED) - UNIT_SPACED
}

/// The nearest integer, ties away from zero, for `|v|` below 2^22.
#[inline]
pub(crate) fn round_half_away(v: f32) -> f32 {
    let even = round(v);
    if (v - even).abs() == 0.5 { v + 0.5f32.copysign(v) } else { even }
}

/// `1 / v`, or 0 where `v` is 0.
#[inline]
pub(crate) fn inverse_or_zero(v: f32) -> f32 {
    if v == 0.0 { 0.0 } else { 1.0 / v }
}

/// The nearest half-precision number, little-endian. Beyond the range it is the largest one, so that the scale of a
/// block never becomes infinite.
#[inline]
pub(crate) fn f32_to_f16(v: f32) -> [u8; 2] {
    let max = f32::from(f16::MAX);
    f16::from_f32(v.clamp(-max, max)).to_le_bytes()
}

/// Sum of `a[i] * b[i]`, in eight partial sums.
#[inline]
pub(crate) fn dot<const N: usize>(a: &[f32; N], b: &[f32; N]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        for k in 0..8 {
            lanes[k] += a[k] * b[k];
        }
    }
    lanes.iter().sum()
}

/// Sum of all elements, in eight partial sums.
#[inline]
pub(crate) fn sum<const N: usize>(a: &[f32; N]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for a in a.as_chunks::<8>().0 {
        for k in 0..8 {
            lanes[k] += a[k];
        }
    }
    lanes.iter().sum()
}

/// The element of largest magnitude, with its sign; the first of them where several are as large.
#[inline]
pub(crate) fn largest<const N: usize>(x: &[f32; N]) -> f32 {
    x.iter().fold(0.0, |best: f32, v| if v.abs() > best.abs() { *v } else { best })
}

/// Smallest and largest element.
#[inline]
pub(crate) fn range<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; 8], [f32::NEG_INFINITY; 8]);
    for x in x.as_chunks::<8>().0 {
        for k in 0..8 {
            low[k] = if x[k] < low[k] { x[k] } else { low[k] };
            high[k] = if x[k] > high[k] { x[k] } else { high[k] };
        }
    }
    (low.iter().fold(f32::INFINITY, |a, b| a.min(*b)), high.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_round_to_even_or_away() {
        for v in [-127.5, -2.5, -1.5, -0.5, -0.499_999_97, 0.0, 0.499_999_97, 0.5, 1.5, 2.5, 126.5, 126.51] {
            assert_eq!(round(v), v.round_ties_even(), "{v}");
            assert_eq!(round_half_away(v), v.round(), "{v}");
        }
    }

    #[test]
    fn scales_beyond_half_precision_saturate() {
        assert_eq!(f16::from_le_bytes(f32_to_f16(1e9)), f16::MAX);
        assert_eq!(f16::from_le_bytes(f32_to_f16(-1e9)), f16::MIN);
    }
}
