//! IQ2_XS: 256 weights in groups of eight, each a point of a codebook of 512 with signs.
//!
//! Each 16 weights have a scale of four bits: weights are `d * (scale + 0.5) / 4 * magnitude`, with a sign.

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
    dtype: DType::IQ2_XS,
    name: "IQ2_XS",
    ggml_id: 17,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 74 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Per group of eight a little-endian u16: codebook index in the low nine bits, sign code in the upper seven.
    pub(crate) qs: [[u8; 2]; 32],
    /// Byte `s`: scale of weights `32 * s` onward in the low nibble, `32 * s + 16` onward in the high one.
    pub(crate) scales: [u8; 8],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (g, (y, q)) in y.as_chunks_mut::<8>().0.iter_mut().zip(b.qs).enumerate() {
            let sub_scale = b.scales[g / 4] >> (4 * (g / 2 % 2)) & 15;
            let scale = d * (0.5 + f32::from(sub_scale)) * 0.25;
            let q = usize::from(u16::from_le_bytes(q));
            scale_signed(y, scale, &GRID[q & 511].to_le_bytes(), EVEN_SIGNS[q >> 9]);
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
        let (magnitudes, signs) = split_even_signs(x, &w);
        let b = LATTICE.encode(&magnitudes, &w);
        let q = |g: usize| b.groups[g].point | u16::from(signs[g] & 127) << 9;
        Block {
            d: b.d,
            qs: std::array::from_fn(|g| q(g).to_le_bytes()),
            scales: std::array::from_fn(|s| b.codes[2 * s] | b.codes[2 * s + 1] << 4),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_groups_share_a_scale() {
        let mut block = Block { d: [0x00, 0x3c], qs: [[0; 2]; 32], scales: [0; 8] }; // d = 1
        block.scales[1] = 0x70; // weights 48..64
        block.qs[7] = u16::to_le_bytes(1 | 1 << 9); // point 1 is 43 8 8 8 8 8 8 8; weights 0 and 7 negative
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [1.0; 256]; // 0.5 / 4 * 8
        want[48..64].fill(15.0); // 7.5 / 4 * 8
        (want[56], want[63]) = (-80.625, -15.0);
        assert_eq!(y, want);
    }
}
