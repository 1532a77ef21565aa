//! Q6_K: 256 weights `d * scale * (q - 32)`, `q` of six bits.
//!
//! Each of 16 sub-blocks of 16 weights has its own signed scale of eight bits.

use super::QuantSpec;
use super::bits::{join_pairs_256, pairs_256};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::rounding::largest;
use super::symmetric;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q6_K,
    name: "Q6_K",
    ggml_id: 14,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 210 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Byte `64 * h + l`, `l` in 0..64: the low four bits of `q[128 * h + l]` in the low nibble, of
    /// `q[128 * h + 64 + l]` in the high one.
    pub(crate) ql: [u8; 128],
    /// Byte `32 * h + l`: the upper two bits of `q[128 * h + 32 * k + l]` in bits `2 * k` and `2 * k + 1`, for `k` in
    /// 0..4.
    pub(crate) qh: [u8; 64],
    /// Scales of the sub-blocks, in order.
    pub(crate) scales: [i8; 16],
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
}

impl Block {
    /// All `q`, each in 0..64.
    #[inline]
    pub(crate) fn quants(&self) -> [u8; 256] {
        let mut q = pairs_256(&self.qh);
        for (low, q) in self.ql.as_chunks::<64>().0.iter().zip(q.as_chunks_mut::<128>().0) {
            for (l, b) in low.iter().enumerate() {
                q[l] = q[l] << 4 | b & 15;
                q[l + 64] = q[l + 64] << 4 | b >> 4;
            }
        }
        q
    }

    /// The inverse of [`Block::quants`].
    #[inline]
    pub(crate) fn set_quants(&mut self, q: &[u8; 256]) {
        for (q, low) in q.as_chunks::<128>().0.iter().zip(self.ql.as_chunks_mut::<64>().0) {
            for (l, low) in low.iter_mut().enumerate() {
                *low = q[l] & 15 | (q[l + 64] & 15) << 4;
            }
        }
        self.qh = join_pairs_256(&q.map(|q| q >> 4));
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        let q = b.quants();
        for (s, (y, q)) in y.as_chunks_mut::<16>().0.iter_mut().zip(q.as_chunks::<16>().0).enumerate() {
            let scale = d * f32::from(b.scales[s]);
            for (y, q) in y.iter_mut().zip(q) {
                *y = scale * (f32::from(*q) - 32.0);
            }
        }
    });
}

/// With 64 levels the importance is weight enough; without it, errors of large weights count more.
fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let w = importance.copied().unwrap_or_else(|| x.map(|v| v * v));
        let (sub_blocks, w) = (x.as_chunks::<16>().0, w.as_chunks::<16>().0);
        let fits = std::array::from_fn(|s| symmetric::fit(&sub_blocks[s], &w[s], -32.0, 31.0));
        let b = symmetric::encode_super_block::<128, 32>(x, &fits, largest(&fits) / -128.0);
        let mut block = Block { ql: [0; 128], qh: [0; 64], scales: b.scales, d: b.d };
        block.set_quants(&b.q);
        block
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bits_come_from_a_nibble_and_a_pair() {
        let mut block = Block { ql: [0; 128], qh: [0xaa; 64], scales: [0; 16], d: [0x00, 0x38] }; // q = 32, d = 0.5
        block.scales[2] = -3; // weights 32..48
        block.scales[15] = 1; // weights 240..256
        block.ql[32] = 0x05; // weights 32 and 96
        block.qh[0] = 0b10_10_01_10; // weights 0, 32, 64, 96: weight 32 is 16 + 5
        block.ql[127] = 0xf0; // weights 191 and 255
        block.qh[63] = 0b11_10_10_10; // weight 255 is 48 + 15
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [0.0; 256];
        (want[32], want[255]) = (16.5, 15.5);
        assert_eq!(y, want);
    }
}
