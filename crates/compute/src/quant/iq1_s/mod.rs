//! IQ1_S: 256 weights in groups of eight, each a point of a codebook of 2048 with values -1, 0, 1.
//!
//! Each 32 weights have a scale of three bits and a shift: weights are `d * (2 * scale + 1) * (value ± 0.125)`.

mod grid;
pub(crate) use grid::GRID;

use super::QuantSpec;
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::importance::error_weights;
use super::lattice::{Lattice, Layout};
use crate::DType;
use bytemuck::{Pod, Zeroable};
use std::sync::LazyLock;

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::IQ1_S,
    name: "IQ1_S",
    ggml_id: 19,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// What is added to or subtracted from each value of a point.
pub(crate) const SHIFT: f32 = 0.125;

/// What is added by the bit of a shift, clear or set.
pub(super) const SHIFTS: &[f32] = &[SHIFT, -SHIFT];

/// The codebook, to be searched.
pub(super) fn lattice(layout: Layout) -> Lattice<8> {
    let points = GRID.iter().map(|point| point.to_le_bytes().map(|v| f32::from(v as i8)));
    Lattice::new(&[-1.0, 0.0, 1.0], points, layout)
}

/// 50 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Low eight bits of the codebook index of each group of eight.
    pub(crate) qs: [u8; 32],
    /// Per 32 weights a little-endian u16: the upper three bits of the four indices (the first lowest), the scale in
    /// bits 12 to 14, and bit 15, set where the shift is negative.
    pub(crate) qh: [[u8; 2]; 8],
}

/// Writes `scale * (value + shift)` for the eight values of point `index`.
#[inline]
pub(crate) fn scale_shifted(y: &mut [f32; 8], scale: f32, index: usize, shift: f32) {
    for (y, v) in y.iter_mut().zip(GRID[index].to_le_bytes()) {
        *y = scale * (f32::from(v as i8) + shift);
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (g, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = u16::from_le_bytes(b.qh[g / 4]);
            let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
            let shift = if word >> 15 == 1 { -SHIFT } else { SHIFT };
            let high = usize::from(word >> (3 * (g % 4)) & 7);
            scale_shifted(y, scale, usize::from(b.qs[g]) | high << 8, shift);
        }
    });
}

static LATTICE: LazyLock<Lattice<8>> = LazyLock::new(|| {
    lattice(Layout { sub_len: 32, max_code: 7, d_per_unit: 1.0, shifts: SHIFTS, shift_groups: 4 })
});

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let b = LATTICE.encode(x, &error_weights(x, importance.unwrap_or(&[1.0; 256])));
        let word = |s: usize| {
            let groups = &b.groups[4 * s..][..4];
            let high = groups.iter().rev().fold(0, |bits, group| bits << 3 | group.point >> 8);
            u16::from(groups[0].shift) << 15 | u16::from(b.codes[s]) << 12 | high
        };
        Block {
            d: b.d,
            qs: std::array::from_fn(|g| b.groups[g].point as u8),
            qh: std::array::from_fn(|s| word(s).to_le_bytes()),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_index_bits_scale_and_shift() {
        let mut block = Block { d: [0x00, 0x3c], qs: [0; 32], qh: [[0; 2]; 8] }; // d = 1
        block.qs[5] = 0xff;
        block.qh[1] = u16::to_le_bytes(0x8000 | 3 << 12 | 7 << 3); // group 5: the last point, all 1; scale 7
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [-0.875; 256]; // the first point is all -1
        want[32..64].fill(-7.875);
        want[40..48].fill(6.125);
        assert_eq!(y, want);
    }
}
