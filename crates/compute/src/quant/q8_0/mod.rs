//! Q8_0: 32 weights `d * q`, `q` of eight bits.

use super::QuantSpec;
use super::blocks::{decode, encode, f16_to_f32};
use super::rounding::{f32_to_f16, inverse_or_zero, largest, round_half_away};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q8_0,
    name: "Q8_0",
    ggml_id: 8,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 34 bytes for 32 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale `d`, f16.
    pub(crate) d: [u8; 2],
    /// `q`, in order.
    pub(crate) qs: [i8; 32],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 32>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (y, q) in y.iter_mut().zip(b.qs) {
            *y = f32::from(q) * d;
        }
    });
}

fn quantize(src: &[f32], dst: &mut [u8], _: Option<&[f32]>) {
    encode::<Block, 32>(src, dst, |x| {
        let d = largest(x).abs() / 127.0;
        let per_unit = inverse_or_zero(d);
        Block { d: f32_to_f16(d), qs: x.map(|x| round_half_away(x * per_unit) as i8) }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quants_are_signed() {
        let mut src = [0; 34];
        src[..4].copy_from_slice(&[0x00, 0x38, 0x80, 0x7f]); // d = 0.5, q = -128, 127
        let mut y = [9.0; 32];
        dequantize(&src, &mut y);
        assert_eq!(y[..3], [-64.0, 63.5, 0.0]);
    }
}
