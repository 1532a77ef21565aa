//! Q4_1: 32 weights `d * q + m`, `q` of four bits.

use super::QuantSpec;
use super::affine::{self, Affine, Grids};
use super::bits::{join_nibbles, nibbles};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::importance::error_weights;
use super::rounding::{f32_to_f16, inverse_or_zero, range};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q4_1,
    name: "Q4_1",
    ggml_id: 3,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 20 bytes for 32 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale `d`, f16.
    pub(crate) d: [u8; 2],
    /// Minimum `m`, f16.
    pub(crate) m: [u8; 2],
    /// Byte `j`: `q[j]` in the low nibble, `q[j + 16]` in the high one.
    pub(crate) qs: [u8; 16],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 32>(src, dst, |b, y| {
        let (d, m) = (f16_to_f32(b.d), f16_to_f32(b.m));
        for (y, q) in y.iter_mut().zip(nibbles(&b.qs)) {
            *y = f32::from(q) * d + m;
        }
    });
}

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 32>(src, dst, importance, |x, importance| {
        let Affine { scale: d, min } = match importance {
            Some(importance) => {
                let grids = Grids { first: -0.9, n: 19 };
                affine::fit::<32, 15>(x, &error_weights(x, importance), grids, |e| e * e)
            }
            None => {
                let (low, high) = range(x);
                Affine { scale: (high - low) / 15.0, min: -low }
            }
        };
        let per_unit = inverse_or_zero(d);
        let q = x.map(|x| (((x + min) * per_unit + 0.5) as u8).min(15));
        Block { d: f32_to_f16(d), m: f32_to_f16(-min), qs: join_nibbles(&q) }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_is_added() {
        let mut src = [0; 20];
        src[..4].copy_from_slice(&[0x00, 0x38, 0x00, 0xbc]); // d = 0.5, m = -1
        src[4] = 0x2f;
        let mut y = [9.0; 32];
        dequantize(&src, &mut y);
        let mut want = [-1.0; 32];
        (want[0], want[16]) = (6.5, 0.0);
        assert_eq!(y, want);
    }
}
