//! IQ2_XXS: 256 weights in groups of eight, each a point of a codebook of 256 with signs.
//!
//! Each 32 weights have a scale of four bits: weights are `d * (scale + 0.5) / 4 * magnitude`, with a sign.

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
    dtype: DType::IQ2_XXS,
    name: "IQ2_XXS",
    ggml_id: 16,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 66 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Per 32 weights: four codebook indices, then a little-endian u32 with four sign codes of seven bits (the first
    /// lowest) and the scale in the top four bits.
    pub(crate) qs: [[u8; 8]; 8],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (y, &[i0, i1, i2, i3, w0, w1, w2, w3]) in y.as_chunks_mut::<32>().0.iter_mut().zip(&b.qs) {
            let word = u32::from_le_bytes([w0, w1, w2, w3]);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (l, (y, i)) in y.as_chunks_mut::<8>().0.iter_mut().zip([i0, i1, i2, i3]).enumerate() {
                let signs = EVEN_SIGNS[(word >> (7 * l) & 127) as usize];
                scale_signed(y, scale, &GRID[usize::from(i)].to_le_bytes(), signs);
            }
        }
    });
}

static LATTICE: LazyLock<Lattice<8>> = LazyLock::new(|| {
    let layout = Layout { sub_len: 32, max_code: 15, d_per_unit: 8.0, shifts: &[0.0], shift_groups: 1 };
    Lattice::new(&[8.0, 25.0, 43.0], GRID.iter().map(|point| point.to_le_bytes().map(f32::from)), layout)
});

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let w = error_weights(x, importance.unwrap_or(&[1.0; 256]));
        let (magnitudes, signs) = split_even_signs(x, &w);
        let b = LATTICE.encode(&magnitudes, &w);
        let qs = std::array::from_fn(|s| {
            let mut word = u32::from(b.codes[s]) << 28;
            let [i0, i1, i2, i3] = std::array::from_fn(|l| {
                word |= u32::from(signs[4 * s + l] & 127) << (7 * l);
                b.groups[4 * s + l].point as u8
            });
            let [w0, w1, w2, w3] = word.to_le_bytes();
            [i0, i1, i2, i3, w0, w1, w2, w3]
        });
        Block { d: b.d, qs }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_signs_and_scale() {
        let mut block = Block { d: [0x00, 0x3c], qs: [[0; 8]; 8] }; // d = 1
        let word = 7 << 28 | 0b000_0011 << 7; // scale 7, second group: weights 0 and 1 negative
        block.qs[1][..4].copy_from_slice(&[0, 1, 0, 0]); // point 1 is 43 8 8 8 8 8 8 8
        block.qs[1][4..].copy_from_slice(&u32::to_le_bytes(word));
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [1.0; 256]; // 0.5 / 4 * 8
        want[32..64].fill(15.0); // 7.5 / 4 * 8
        (want[40], want[41]) = (-80.625, -15.0);
        assert_eq!(y, want);
    }
}
