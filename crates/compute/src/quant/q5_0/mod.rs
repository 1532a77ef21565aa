//! Q5_0: 32 weights `d * (q - 16)`, `q` of five bits.

use super::QuantSpec;
use super::bits::{fifth_bits, join_nibbles, nibbles};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::importance::error_weights;
use super::rounding::{f32_to_f16, inverse_or_zero, largest};
use super::symmetric;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q5_0,
    name: "Q5_0",
    ggml_id: 6,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 22 bytes for 32 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale `d`, f16.
    pub(crate) d: [u8; 2],
    /// Bit `j` of this little-endian u32 is the highest bit of `q[j]`.
    pub(crate) qh: [u8; 4],
    /// Byte `j`: the low four bits of `q[j]` in the low nibble, of `q[j + 16]` in the high one.
    pub(crate) qs: [u8; 16],
}

impl Block {
    /// All `q`, each in 0..32.
    #[inline]
    pub(crate) fn quants(&self) -> [u8; 32] {
        let mut q = nibbles(&self.qs);
        let high = u32::from_le_bytes(self.qh);
        for (j, q) in q.iter_mut().enumerate() {
            *q |= ((high >> j & 1) << 4) as u8;
        }
        q
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 32>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (y, q) in y.iter_mut().zip(b.quants()) {
            *y = (f32::from(q) - 16.0) * d;
        }
    });
}

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 32>(src, dst, importance, |x, importance| {
        let d = match importance {
            Some(importance) => symmetric::fit(x, &error_weights(x, importance), -16.0, 15.0),
            // The extreme weight becomes -16, which reaches further than 15.
            None => largest(x) / -16.0,
        };
        let per_unit = inverse_or_zero(d);
        let q = x.map(|x| ((x * per_unit + 16.5) as u8).min(31));
        Block { d: f32_to_f16(d), qh: fifth_bits(&q), qs: join_nibbles(&q) }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fifth_bit_comes_from_its_own_word() {
        let mut src = [0; 22];
        src[..2].copy_from_slice(&[0x00, 0x38]); // d = 0.5
        src[2..6].copy_from_slice(&[1, 0, 0, 0x80]);
        src[6] = 0x21;
        let mut y = [9.0; 32];
        dequantize(&src, &mut y);
        let mut want = [-8.0; 32];
        (want[0], want[16], want[31]) = (0.5, -7.0, 0.0);
        assert_eq!(y, want);
    }
}
