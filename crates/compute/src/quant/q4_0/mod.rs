//! Q4_0: 32 weights `d * (q - 8)`, `q` of four bits.

use super::QuantSpec;
use super::bits::{join_nibbles, nibbles};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::importance::error_weights;
use super::rounding::{f32_to_f16, inverse_or_zero, largest};
use super::symmetric;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q4_0,
    name: "Q4_0",
    ggml_id: 2,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

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
            *y = (f32::from(q) - 8.0) * d;
        }
    });
}

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 32>(src, dst, importance, |x, importance| {
        let d = match importance {
            Some(importance) => symmetric::fit(x, &error_weights(x, importance), -8.0, 7.0),
            // The extreme weight becomes -8, which reaches further than 7.
            None => largest(x) / -8.0,
        };
        let per_unit = inverse_or_zero(d);
        let q = x.map(|x| ((x * per_unit + 8.5) as u8).min(15));
        Block { d: f32_to_f16(d), qs: join_nibbles(&q) }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_nibbles_are_the_first_half() {
        let mut src = [0x88; 18];
        src[..2].copy_from_slice(&[0x00, 0x38]); // d = 0.5
        src[2] = 0xf0;
        src[17] = 0x19;
        let mut y = [9.0; 32];
        dequantize(&src, &mut y);
        let mut want = [0.0; 32];
        (want[0], want[16], want[15], want[31]) = (-4.0, 3.5, 0.5, -3.5);
        assert_eq!(y, want);
    }
}
