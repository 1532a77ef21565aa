//! MXFP4: 32 weights in FP4 with one power of two as their scale.
//!
//! Source: OCP Microscaling Formats 1.0, 5.2.1.

use super::QuantSpec;
use super::bits::{join_nibbles, nibbles};
use super::blocks::{decode, encode};
use super::fp4::DOUBLED_VALUES;
use super::rounding::largest;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::MXFP4,
    name: "MXFP4",
    ggml_id: 39,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 17 bytes for 32 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Exponent of the scale: `2^(e - 127)` (E8M0).
    pub(crate) e: u8,
    /// Byte `j`: FP4 code `j` in the low nibble, code `j + 16` in the high one.
    pub(crate) qs: [u8; 16],
}

/// Half of the scale `2^(e - 127)`, to go with [`DOUBLED_VALUES`].
///
/// The format calls `e` = 255 not a number; like ggml, this reads it as a power of two.
#[inline]
pub(crate) fn half_scale(e: u8) -> f32 {
    // 2^-128 and 2^-127 are subnormal.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 32>(src, dst, |b, y| {
        let d = half_scale(b.e);
        for (y, q) in y.iter_mut().zip(nibbles(&b.qs)) {
            *y = f32::from(DOUBLED_VALUES[usize::from(q)]) * d;
        }
    });
}

/// The FP4 code nearest to `x / d / 2`; of two as near, the one closer to zero.
#[inline]
fn nearest(x: f32, d: f32) -> u8 {
    let m = x.abs() / d;
    let magnitude: u8 = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0].iter().map(|border| u8::from(m > *border)).sum();
    magnitude | u8::from(x < 0.0 && magnitude > 0) << 3
}

fn quantize(src: &[f32], dst: &mut [u8], _: Option<&[f32]>) {
    encode::<Block, 32>(src, dst, |x| {
        // The largest power of two in the block becomes 4, the largest one in FP4.
        let exponent = (largest(x).abs().to_bits() >> 23) as u8;
        let e = exponent.saturating_sub(2);
        let d = half_scale(e);
        Block { e, qs: join_nibbles(&x.map(|x| nearest(x, d))) }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_scales_are_powers_of_two() {
        for e in 0..=255u8 {
            assert_eq!(f64::from(half_scale(e)), 2f64.powi(i32::from(e) - 128));
        }
    }

    #[test]
    fn codes_are_fp4() {
        let mut src = [0; 17];
        (src[0], src[1], src[16]) = (128, 0xf7, 0x19); // scale 2
        let mut y = [9.0; 32];
        dequantize(&src, &mut y);
        let mut want = [0.0; 32];
        (want[0], want[16], want[15], want[31]) = (12.0, -12.0, -1.0, 1.0);
        assert_eq!(y, want);
    }
}
