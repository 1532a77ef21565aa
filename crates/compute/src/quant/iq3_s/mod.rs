//! IQ3_S: 256 weights in groups of four, each a point of a codebook of 512 with signs.
//!
//! Each 32 weights have a scale of four bits: weights are `d * (2 * scale + 1) * magnitude`, with a sign.

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
    dtype: DType::IQ3_S,
    name: "IQ3_S",
    ggml_id: 21,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 110 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Low eight bits of the codebook index of each group of four.
    pub(crate) qs: [u8; 64],
    /// Bit `g % 8` of byte `g / 8`: the highest bit of the index of group `g`.
    pub(crate) qh: [u8; 8],
    /// Signs of each eight weights: bit `j` set makes weight `j` negative.
    pub(crate) signs: [u8; 32],
    /// The scale of weights `32 * s` onward in nibble `s % 2` of byte `s / 2`.
    pub(crate) scales: [u8; 4],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (g, y) in y.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let sub_scale = b.scales[g / 16] >> (4 * (g / 8 % 2)) & 15;
            let scale = d * f32::from(1 + 2 * sub_scale);
            let high = b.qh[g / 8] >> (g % 8) & 1;
            let point = GRID[usize::from(b.qs[g]) | usize::from(high) << 8].to_le_bytes();
            scale_signed(y, scale, &point, b.signs[g / 2] >> (4 * (g % 2)));
        }
    });
}

static LATTICE: LazyLock<Lattice<4>> = LazyLock::new(|| {
    let layout = Layout { sub_len: 32, max_code: 15, d_per_unit: 1.0, shifts: &[0.0], shift_groups: 1 };
    Lattice::new(
        &[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0],
        GRID.iter().map(|point| point.to_le_bytes().map(f32::from)),
        layout,
    )
});

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let w = error_weights(x, importance.unwrap_or(&[1.0; 256]));
        let (magnitudes, signs) = split_signs(x);
        let b = LATTICE.encode(&magnitudes, &w);
        let high = |g: usize| (b.groups[g].point >> 8) as u8;
        Block {
            d: b.d,
            qs: b.groups.map(|group| group.point as u8),
            qh: std::array::from_fn(|s| (0..8).fold(0, |bits, l| bits | high(8 * s + l) << l)),
            signs,
            scales: std::array::from_fn(|s| b.codes[2 * s] | b.codes[2 * s + 1] << 4),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_nine_bits_and_scales_are_odd() {
        let mut block = Block { d: [0x00, 0x38], qs: [0; 64], qh: [0; 8], signs: [0; 32], scales: [0; 4] }; // d = 0.5
        block.scales[0] = 0x50; // weights 32..64: times 11
        block.qs[9] = 0xff;
        block.qh[1] = 0b10; // group 9, weights 36..40: the last point, 15 15 9 13
        block.signs[4] = 0b0001_0001; // weights 32 and 36
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let last = GRID[511].to_le_bytes().map(|m| 5.5 * f32::from(m));
        let mut want = [0.5; 256];
        want[32..64].fill(5.5);
        want[32] = -5.5;
        want[36..40].copy_from_slice(&last);
        want[36] = -last[0];
        assert_eq!(y, want);
    }
}
