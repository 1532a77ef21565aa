//! TQ2_0: 256 weights `d * (q - 1)`, `q` of two bits; what is written has `q` in 0..3.

use super::QuantSpec;
use super::bits::{join_pairs_256, pairs_256};
use super::blocks::{decode, encode, f16_to_f32};
use super::rounding::{f32_to_f16, inverse_or_zero, largest};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::TQ2_0,
    name: "TQ2_0",
    ggml_id: 35,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 66 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Byte `32 * h + l`: `q[128 * h + 32 * k + l]` in bits `2 * k` and `2 * k + 1`, for `k` in 0..4.
    pub(crate) qs: [u8; 64],
    /// Scale `d`, f16.
    pub(crate) d: [u8; 2],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (y, q) in y.iter_mut().zip(pairs_256(&b.qs)) {
            *y = (f32::from(q) - 1.0) * d;
        }
    });
}

/// The largest magnitude `d` of `x`, and each weight as 0, 1 or 2 for the nearest of `-d`, 0 and `d`.
///
/// Meant for models whose weights were trained to have these three values only.
#[inline]
pub(crate) fn ternary(x: &[f32; 256]) -> (f32, [u8; 256]) {
    let d = largest(x).abs();
    let per_unit = inverse_or_zero(d);
    let t = x.map(|x| 1 + u8::from(x * per_unit >= 0.5) - u8::from(x * per_unit <= -0.5));
    (d, t)
}

fn quantize(src: &[f32], dst: &mut [u8], _: Option<&[f32]>) {
    encode::<Block, 256>(src, dst, |x| {
        let (d, t) = ternary(x);
        Block { qs: join_pairs_256(&t), d: f32_to_f16(d) }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_bits_stand_32_weights_apart() {
        let mut block = Block { qs: [0x55; 64], d: [0x00, 0x38] }; // d = 0.5, all zero
        block.qs[32] = 0b11_10_01_00; // weights 128, 160, 192, 224
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [0.0; 256];
        (want[128], want[192], want[224]) = (-0.5, 0.5, 1.0);
        assert_eq!(y, want);
    }
}
