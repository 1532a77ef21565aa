//! TQ2_0: 256 weights `d * (q - 1)`, `q` of two bits; what is written has `q` in 0..3.

use super::QuantSpec;
use super::bits::pairs_256;
use super::blocks::{decode, f16_to_f32};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::TQ2_0,
    name: "TQ2_0",
    ggml_id: 35,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: None,
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
