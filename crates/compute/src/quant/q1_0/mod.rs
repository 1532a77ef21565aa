//! Q1_0: 128 weights `d` or `-d`, one bit each.

use super::QuantSpec;
use super::blocks::{decode, f16_to_f32};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q1_0,
    name: "Q1_0",
    ggml_id: 41,
    block_len: 128,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: None,
};

/// 18 bytes for 128 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Magnitude `d`, f16.
    pub(crate) d: [u8; 2],
    /// Bit `j % 8` of byte `j / 8` is set where weight `j` is `d`.
    pub(crate) qs: [u8; 16],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 128>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (y, bits) in y.as_chunks_mut::<8>().0.iter_mut().zip(b.qs) {
            for (j, y) in y.iter_mut().enumerate() {
                *y = if bits >> j & 1 == 1 { d } else { -d };
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_bit_is_positive() {
        let mut src = [0; 18];
        src[..2].copy_from_slice(&[0x00, 0x38]); // d = 0.5
        src[3] = 0b0000_0100; // weight 10
        let mut y = [9.0; 128];
        dequantize(&src, &mut y);
        let mut want = [-0.5; 128];
        want[10] = 0.5;
        assert_eq!(y, want);
    }
}
