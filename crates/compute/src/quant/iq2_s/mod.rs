//! IQ2_S: 256 weights in groups of eight, each a point of a codebook of 1024 with signs.
//!
//! Each 16 weights have a scale of four bits: weights are `d * (scale + 0.5) / 4 * magnitude`, with a sign.

mod grid;
pub(crate) use grid::GRID;

use super::QuantSpec;
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::codebook::{scale_signed, split_signs};
use super::importance::error_weights;
use super::lattice::{Lattice, Layout};
use crate::DType;
use bytemuck::{Pod, Zeroable};
use std::sync::LazyLock;

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::IQ2_S,
    name: "IQ2_S",
    ggml_id: 22,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 82 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Low eight bits of the codebook index of each group of eight.
    pub(crate) qs: [u8; 32],
    /// Signs of each group of eight: bit `j` set makes weight `j` negative.
    pub(crate) signs: [u8; 32],
    /// Bits `2 * l` and `2 * l + 1` of byte `s`: the upper two bits of the index of group `4 * s + l`.
    pub(crate) qh: [u8; 8],
    /// Byte `s`: scale of weights `32 * s` onward in the low nibble, `32 * s + 16` onward in the high one.
    pub(crate) scales: [u8; 8],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (g, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let sub_scale = b.scales[g / 4] >> (4 * (g / 2 % 2)) & 15;
            let scale = d * (0.5 + f32::from(sub_scale)) * 0.25;
            let high = b.qh[g / 4] >> (2 * (g % 4)) & 3;
            let point = GRID[usize::from(b.qs[g]) | usize::from(high) << 8].to_le_bytes();
            scale_signed(y, scale, &point, b.signs[g]);
        }
    });
}

static LATTICE: LazyLock<Lattice<8>> = LazyLock::new(|| {
    let layout = Layout { sub_len: 16, max_code: 15, d_per_unit: 8.0, shifts: &[0.0], shift_groups: 1 };
    Lattice::new(&[8.0, 25.0, 43.0], GRID.iter().map(|point| point.to_le_bytes().map(f32::from)), layout)
});

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let w = error_weights(x, importance.unwrap_or(&[1.0; 256]));
        let (magnitudes, signs) = split_signs(x);
        let b = LATTICE.encode(&magnitudes, &w);
        let high = |g: usize| (b.groups[g].point >> 8) as u8;
        Block {
            d: b.d,
            qs: std::array::from_fn(|g| b.groups[g].point as u8),
            signs,
            qh: std::array::from_fn(|s| (0..4).fold(0, |bits, l| bits | high(4 * s + l) << (2 * l))),
            scales: std::array::from_fn(|s| b.codes[2 * s] | b.codes[2 * s + 1] << 4),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_ten_bits_and_signs_are_free() {
        let mut block = Block { d: [0x00, 0x3c], qs: [0; 32], signs: [0; 32], qh: [0; 8], scales: [0; 8] }; // d = 1
        block.qs[5] = 0xff;
        block.qh[1] = 0b1100; // group 5, weights 40..48: the last point, 43 eight times
        block.signs[5] = 1;
        block.scales[1] = 7; // weights 32..48
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [1.0; 256]; // 0.5 / 4 * 8
        want[32..40].fill(15.0); // 7.5 / 4 * 8
        want[40..48].fill(80.625); // 7.5 / 4 * 43
        want[40] = -80.625;
        assert_eq!(y, want);
    }
}
