//! Q3_K: 256 weights `d * (scale - 32) * (q - 4)`, `q` of three bits.
//!
//! Each of 16 sub-blocks of 16 weights has its own scale of six bits.

use super::QuantSpec;
use super::bits::{bits_256, pairs_256};
use super::blocks::{decode, f16_to_f32};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q3_K,
    name: "Q3_K",
    ggml_id: 11,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: None,
};

/// 110 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Byte `l`: the highest bit of `q[32 * k + l]` in bit `k`.
    pub(crate) hmask: [u8; 32],
    /// Byte `32 * h + l`: the low bits of `q[128 * h + 32 * k + l]` in bits `2 * k` and `2 * k + 1`, for `k` in 0..4.
    pub(crate) qs: [u8; 64],
    /// Low four bits of scale `s` in nibble `s / 8` of byte `s % 8`; its upper two in bits `2 * (s / 4)` and
    /// `2 * (s / 4) + 1` of byte `8 + s % 4`.
    pub(crate) scales: [u8; 12],
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
}

impl Block {
    /// Scales of the 16 sub-blocks, each in -32..32.
    #[inline]
    pub(crate) fn sub_scales(&self) -> [i8; 16] {
        std::array::from_fn(|s| {
            let low = self.scales[s % 8] >> (4 * (s / 8)) & 15;
            let high = self.scales[8 + s % 4] >> (2 * (s / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }

    /// All `q`, each in 0..8.
    #[inline]
    pub(crate) fn quants(&self) -> [u8; 256] {
        let mut q = pairs_256(&self.qs);
        for (q, high) in q.iter_mut().zip(bits_256(&self.hmask)) {
            *q |= high << 2;
        }
        q
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        let (q, scales) = (b.quants(), b.sub_scales());
        for (s, (y, q)) in y.as_chunks_mut::<16>().0.iter_mut().zip(q.as_chunks::<16>().0).enumerate() {
            let scale = d * f32::from(scales[s]);
            for (y, q) in y.iter_mut().zip(q) {
                *y = scale * (f32::from(*q) - 4.0);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_gathered_from_twelve_bytes() {
        let mut block = Block { hmask: [0xff; 32], qs: [0; 64], scales: [0; 12], d: [0x00, 0x3c] };
        block.scales[5] = 0x21; // low bits: scale 5 is 1, scale 13 is 2
        block.scales[9] = 0b11_00_10_00; // upper bits: scale 13 gets 3, scale 5 gets 2
        let mut want = [-32; 16];
        (want[5], want[13]) = (1, 18);
        assert_eq!(block.sub_scales(), want);
    }

    #[test]
    fn the_third_bit_adds_four() {
        let mut block = Block { hmask: [0; 32], qs: [0; 64], scales: [0; 12], d: [0x00, 0xbc] }; // d = -1
        block.hmask[3] = 0b1000_0001; // weights 3 and 227
        block.qs[3] = 0b11; // weight 3
        let mut y = [0.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y); // scale -32 everywhere
        let mut want = [-128.0; 256];
        (want[3], want[227]) = (96.0, 0.0);
        assert_eq!(y, want);
    }
}
