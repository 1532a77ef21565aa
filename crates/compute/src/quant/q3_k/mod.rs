//! Q3_K: 256 weights `d * (scale - 32) * (q - 4)`, `q` of three bits.
//!
//! Each of 16 sub-blocks of 16 weights has its own scale of six bits.

use super::QuantSpec;
use super::bits::{bits_256, join_bits_256, join_pairs_256, pairs_256};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::importance::error_weights;
use super::rounding::{largest, round, sum};
use super::symmetric::{self, TINY};
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q3_K,
    name: "Q3_K",
    ggml_id: 11,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
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

/// The inverse of [`Block::sub_scales`].
fn pack_scales(scales: &[i8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (s, scale) in scales.iter().enumerate() {
        let scale = (scale + 32) as u8;
        packed[s % 8] |= (scale & 15) << (4 * (s / 8));
        packed[8 + s % 4] |= scale >> 4 << (2 * (s / 4));
    }
    packed
}

/// Finds a scale of `x` that makes the sum of `x² * (x - scale * q)²` small, for `q` in -4..4.
///
/// For fixed `q` the best scale is `Σ w x q / Σ w q²`, and it lowers the error by `(Σ w x q)² / Σ w q²`. Starting with
/// the grid that maps the largest weight to -4, one `q` at a time is rounded again on the scale that fits all the
/// others, and kept where that lowers the error. With so few levels this beats trying many grids, whose best one is
/// often too coarse for the small weights.
fn fit(x: &[f32; 16]) -> f32 {
    let extreme = largest(x);
    if extreme.abs() < TINY || !extreme.is_finite() {
        return 0.0;
    }
    let nearest = |v: f32| round(v.clamp(-4.0, 3.0));
    let w = x.map(|v| v * v);
    let mut q = x.map(|v| nearest(v * (-4.0 / extreme)));
    let (mut sum_xq, mut sum_qq) = (0.0, 0.0);
    for i in 0..16 {
        sum_xq += w[i] * x[i] * q[i];
        sum_qq += w[i] * q[i] * q[i];
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..16 {
            let others_xq = sum_xq - w[i] * x[i] * q[i];
            let others_qq = sum_qq - w[i] * q[i] * q[i];
            if others_xq <= 0.0 {
                continue;
            }
            let new = nearest(x[i] * others_qq / others_xq);
            let new_xq = others_xq + w[i] * x[i] * new;
            let new_qq = others_qq + w[i] * new * new;
            if new != q[i] && new_qq > 0.0 && new_xq * new_xq * sum_qq > sum_xq * sum_xq * new_qq {
                (q[i], sum_xq, sum_qq) = (new, new_xq, new_qq);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    if sum_qq > 0.0 { sum_xq / sum_qq } else { 0.0 }
}

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let sub_blocks = x.as_chunks::<16>().0;
        let b = if let Some(importance) = importance {
            let w = error_weights(x, importance);
            let w = w.as_chunks::<16>().0;
            let fits = std::array::from_fn(|s| symmetric::fit(&sub_blocks[s], &w[s], -4.0, 3.0));
            let d = symmetric::fit(&fits, &std::array::from_fn(|s| sum(&w[s])), -32.0, 31.0);
            symmetric::encode_super_block::<32, 4>(x, &fits, d)
        } else {
            let fits = std::array::from_fn(|s| fit(&sub_blocks[s]));
            symmetric::encode_super_block::<32, 4>(x, &fits, largest(&fits) / -32.0)
        };
        Block {
            hmask: join_bits_256(&b.q.map(|q| q >> 2)),
            qs: join_pairs_256(&b.q.map(|q| q & 3)),
            scales: pack_scales(&b.scales),
            d: b.d,
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
