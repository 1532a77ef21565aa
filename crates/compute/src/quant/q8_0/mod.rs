//! Q8_0: 32 weights `d * q`, `q` of eight bits.

use super::QuantSpec;
use super::blocks::{decode, f16_to_f32};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q8_0,
    name: "Q8_0",
    ggml_id: 8,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: None,
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
