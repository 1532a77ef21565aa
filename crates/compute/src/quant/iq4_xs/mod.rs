//! IQ4_XS: 256 weights `d * (scale - 32) * VALUES[q]`, `q` of four bits, with the values of IQ4_NL.
//!
//! Each of 8 sub-blocks of 32 weights has its own scale of six bits.

use super::QuantSpec;
use super::bits::{join_nibbles, nibbles};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::importance::error_weights;
use super::iq4_nl::{VALUES, fit, nearest};
use super::rounding::{f32_to_f16, inverse_or_zero, largest, round};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::IQ4_XS,
    name: "IQ4_XS",
    ggml_id: 23,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 136 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Bits `2 * s` and `2 * s + 1` of this little-endian u16 are the upper two bits of scale `s`.
    pub(crate) scales_h: [u8; 2],
    /// The low four bits of scale `s` in nibble `s % 2` of byte `s / 2`.
    pub(crate) scales_l: [u8; 4],
    /// Byte `16 * s + j`: `q[32 * s + j]` in the low nibble, `q[32 * s + 16 + j]` in the high one.
    pub(crate) qs: [u8; 128],
}

impl Block {
    /// Scales of the 8 sub-blocks, each in -32..32.
    #[inline]
    pub(crate) fn sub_scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|s| {
            let low = self.scales_l[s / 2] >> (4 * (s % 2)) & 15;
            let high = (high >> (2 * s) & 3) as u8;
            (low | high << 4) as i8 - 32
        })
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        let scales = b.sub_scales();
        for (s, (y, qs)) in y.as_chunks_mut::<32>().0.iter_mut().zip(b.qs.as_chunks::<16>().0).enumerate() {
            let scale = d * f32::from(scales[s]);
            for (y, q) in y.iter_mut().zip(nibbles(qs)) {
                *y = scale * f32::from(VALUES[usize::from(q)]);
            }
        }
    });
}

/// Each sub-block has the scale that fits it best, as in IQ4_NL, rounded to a multiple of a 32nd of the largest one.
fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let w = importance.map_or_else(|| x.map(|v| v * v), |importance| error_weights(x, importance));
        let (sub_blocks, w) = (x.as_chunks::<32>().0, w.as_chunks::<32>().0);
        let fitted: [f32; 8] = std::array::from_fn(|s| fit(&sub_blocks[s], &w[s]));
        // -32 is the scale with the largest magnitude.
        let d = -largest(&fitted) / 32.0;
        let per_unit = inverse_or_zero(d);
        let mut block = Block { d: f32_to_f16(d), scales_h: [0; 2], scales_l: [0; 4], qs: [0; 128] };
        let mut high = 0u16;
        for (s, (x, qs)) in sub_blocks.iter().zip(block.qs.as_chunks_mut::<16>().0).enumerate() {
            let scale = (round(fitted[s] * per_unit) as i32).clamp(-32, 31);
            let code = (scale + 32) as u8;
            block.scales_l[s / 2] |= (code & 15) << (4 * (s % 2));
            high |= u16::from(code >> 4) << (2 * s);
            let inverse = inverse_or_zero(d * scale as f32);
            *qs = join_nibbles(&x.map(|x| nearest(x * inverse)));
        }
        block.scales_h = high.to_le_bytes();
        block
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_six_bits_around_zero() {
        let block = Block {
            d: [0x00, 0x3c],
            scales_h: [0b10, 0b1100_0000],
            scales_l: [0x01, 0, 0, 0x50],
            qs: [0x88; 128],
        };
        assert_eq!(block.sub_scales(), [1, -32, -32, -32, -32, -32, -32, 21]);
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        assert_eq!((y[0], y[31], y[32], y[223], y[224]), (1.0, 1.0, -32.0, -32.0, 21.0));
    }
}
