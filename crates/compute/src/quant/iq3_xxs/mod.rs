//! IQ3_XXS: 256 weights in groups of four, each a point of a codebook of 256 with signs.
//!
//! Each 32 weights have a scale of four bits: weights are `d * (scale + 0.5) / 2 * magnitude`, with a sign.

mod grid;
pub(crate) use grid::GRID;

use super::QuantSpec;
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::codebook::{EVEN_SIGNS, scale_signed, split_even_signs};
use super::importance::error_weights;
use super::lattice::{Lattice, Layout};
use crate::DType;
use bytemuck::{Pod, Zeroable};
use std::sync::LazyLock;

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::IQ3_XXS,
    name: "IQ3_XXS",
    ggml_id: 18,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 98 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Codebook index of each group of four.
    pub(crate) qs: [u8; 64],
    /// Per 32 weights a little-endian u32: four sign codes of seven bits, each for eight weights (the first lowest), and
    /// the scale in the top four bits.
    pub(crate) scales_and_signs: [[u8; 4]; 8],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (g, (y, q)) in y.as_chunks_mut::<8>().0.iter_mut().zip(b.qs.as_chunks::<2>().0).enumerate() {
            let word = u32::from_le_bytes(b.scales_and_signs[g / 4]);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
            let signs = EVEN_SIGNS[(word >> (7 * (g % 4)) & 127) as usize];
            let (first, second) = y.split_at_mut(4);
            scale_signed(first, scale, &GRID[usize::from(q[0])].to_le_bytes(), signs);
            scale_signed(second, scale, &GRID[usize::from(q[1])].to_le_bytes(), signs >> 4);
        }
    });
}

static LATTICE: LazyLock<Lattice<4>> = LazyLock::new(|| {
    let layout = Layout { sub_len: 32, max_code: 15, d_per_unit: 4.0, shifts: &[0.0], shift_groups: 1 };
    Lattice::new(
        &[4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0],
        GRID.iter().map(|point| point.to_le_bytes().map(f32::from)),
        layout,
    )
});

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let w = error_weights(x, importance.unwrap_or(&[1.0; 256]));
        let (magnitudes, signs) = split_even_signs(x, &w);
        let b = LATTICE.encode(&magnitudes, &w);
        let word = |s: usize| {
            let signs =
                signs[4 * s..][..4].iter().rev().fold(0, |word, signs| word << 7 | u32::from(signs & 127));
            u32::from(b.codes[s]) << 28 | signs
        };
        Block {
            d: b.d,
            qs: b.groups.map(|group| group.point as u8),
            scales_and_signs: std::array::from_fn(|s| word(s).to_le_bytes()),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_points_share_a_sign_code() {
        let mut block = Block { d: [0x00, 0x3c], qs: [0; 64], scales_and_signs: [[0; 4]; 8] }; // d = 1
        let word = 7 << 28 | 0b001_0001 << 14; // scale 7, third group: weights 0 and 4 negative
        block.scales_and_signs[1] = u32::to_le_bytes(word);
        block.qs[13] = 1; // weights 52..56: point 1 is 20 4 4 4
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [1.0; 256]; // 0.5 / 2 * 4
        want[32..64].fill(15.0); // 7.5 / 2 * 4
        (want[48], want[52]) = (-15.0, -75.0);
        assert_eq!(y, want);
    }
}
