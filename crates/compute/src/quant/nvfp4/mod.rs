//! NVFP4: 64 weights in FP4; each 16 of them have a scale in FP8 (unsigned E4M3).
//!
//! A tensor's second, global scale is not part of the blocks.

use super::QuantSpec;
use super::blocks::decode;
use super::fp4::DOUBLED_VALUES;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::NVFP4,
    name: "NVFP4",
    ggml_id: 40,
    block_len: 64,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: None,
};

/// 36 bytes for 64 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of each sub-block of 16 weights: four bits of exponent (bias 7), three of mantissa. The top bit is ignored.
    pub(crate) d: [u8; 4],
    /// Byte `8 * s + j`: FP4 code `16 * s + j` in the low nibble, code `16 * s + 8 + j` in the high one.
    pub(crate) qs: [u8; 32],
}

/// Half of a scale in E4M3, to go with [`DOUBLED_VALUES`]. The code for not-a-number reads as 0, like in ggml.
#[inline]
pub(crate) fn half_scale(e4m3: u8) -> f32 {
    let exponent = u32::from(e4m3 >> 3 & 15);
    let mantissa = u32::from(e4m3 & 7);
    match (e4m3, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa as f32 / 1024.0,
        _ => f32::from_bits((exponent + 127 - 7 - 1) << 23 | mantissa << 20),
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 64>(src, dst, |b, y| {
        for (s, (y, qs)) in y.as_chunks_mut::<16>().0.iter_mut().zip(b.qs.as_chunks::<8>().0).enumerate() {
            let d = half_scale(b.d[s]);
            for (j, q) in qs.iter().enumerate() {
                y[j] = f32::from(DOUBLED_VALUES[usize::from(q & 15)]) * d;
                y[j + 8] = f32::from(DOUBLED_VALUES[usize::from(q >> 4)]) * d;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_e4m3() {
        for code in 1..127u8 {
            let (e, m) = (i32::from(code >> 3), f64::from(code & 7) / 8.0);
            let full = if e == 0 { m * 2f64.powi(-6) } else { (1.0 + m) * 2f64.powi(e - 7) };
            assert_eq!(f64::from(half_scale(code)), full / 2.0, "code {code}");
        }
        assert_eq!((half_scale(0), half_scale(0x7f)), (0.0, 0.0));
    }

    #[test]
    fn each_sixteen_weights_have_a_scale() {
        let mut src = [0; 36];
        src[..4].copy_from_slice(&[0, 0x38, 0, 0x41]); // 0, 1, 0, 2.25
        (src[4], src[12], src[35]) = (0x77, 0x21, 0x9d);
        let mut y = [9.0; 64];
        dequantize(&src, &mut y);
        let mut want = [0.0; 64];
        (want[16], want[24], want[55], want[63]) = (0.5, 1.0, -6.75, -1.125);
        assert_eq!(y, want);
    }
}
