//! IQ4_NL: 32 weights `d * VALUES[q]`, `q` of four bits.

use super::QuantSpec;
use super::bits::nibbles;
use super::blocks::{decode, f16_to_f32};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::IQ4_NL,
    name: "IQ4_NL",
    ggml_id: 20,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: None,
};

/// The values that the four bits stand for: closer to each other around zero, as weights are. Part of the file format.
pub(crate) static VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

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
            *y = d * f32::from(VALUES[usize::from(q)]);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_index_the_values() {
        let mut src = [0x88; 18];
        src[..2].copy_from_slice(&[0x00, 0x38]); // d = 0.5
        src[2] = 0xf0;
        let mut y = [9.0; 32];
        dequantize(&src, &mut y);
        let mut want = [0.5; 32];
        (want[0], want[16]) = (-63.5, 56.5);
        assert_eq!(y, want);
    }
}
