//! IQ1_M: 256 weights in groups of eight, each a point of IQ1_S's codebook with a shift of its own.
//!
//! Each 16 weights have a scale of three bits: weights are `d * (2 * scale + 1) * (value ± 0.125)`.

use super::QuantSpec;
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::importance::error_weights;
use super::iq1_s::{SHIFT, SHIFTS, lattice, scale_shifted};
use super::lattice::{Lattice, Layout};
use crate::DType;
use bytemuck::{Pod, Zeroable};
use std::sync::LazyLock;

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::IQ1_M,
    name: "IQ1_M",
    ggml_id: 29,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 56 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Low eight bits of the codebook index of each group of eight.
    pub(crate) qs: [u8; 32],
    /// Nibble `g % 2` of byte `g / 2`: the upper three bits of the index of group `g`, and bit 3, set where its shift is
    /// negative.
    pub(crate) qh: [u8; 16],
    /// Four little-endian u16: word `w` has the scales of weights `64 * w + 16 * i` onward in bits `3 * i` to
    /// `3 * i + 2` for `i` in 0..4, and in its top four bits nibble `w` of the f16 scale of the scales.
    pub(crate) scales: [[u8; 2]; 4],
}

impl Block {
    /// Scale of the scales `d`, f16, gathered from its four nibbles.
    #[inline]
    pub(crate) fn d(&self) -> [u8; 2] {
        let [n0, n1, n2, n3] = self.scales.map(|w| w[1] >> 4);
        [n0 | n1 << 4, n2 | n3 << 4]
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d());
        for (g, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let sub_scale = u16::from_le_bytes(b.scales[g / 8]) >> (3 * (g / 2 % 4)) & 7;
            let scale = d * f32::from(2 * sub_scale + 1);
            let high = b.qh[g / 2] >> (4 * (g % 2)) & 15;
            let shift = if high & 8 == 8 { -SHIFT } else { SHIFT };
            scale_shifted(y, scale, usize::from(b.qs[g]) | usize::from(high & 7) << 8, shift);
        }
    });
}

static LATTICE: LazyLock<Lattice<8>> = LazyLock::new(|| {
    lattice(Layout { sub_len: 16, max_code: 7, d_per_unit: 1.0, shifts: SHIFTS, shift_groups: 1 })
});

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let b = LATTICE.encode(x, &error_weights(x, importance.unwrap_or(&[1.0; 256])));
        let high = |g: usize| (b.groups[g].point >> 8) as u8 | b.groups[g].shift << 3;
        let d = u16::from_le_bytes(b.d);
        let word = |w: usize| {
            let codes = (0..4).fold(0, |bits, i| bits | u16::from(b.codes[4 * w + i]) << (3 * i));
            codes | (d >> (4 * w) & 15) << 12
        };
        Block {
            qs: std::array::from_fn(|g| b.groups[g].point as u8),
            qh: std::array::from_fn(|s| high(2 * s) | high(2 * s + 1) << 4),
            scales: std::array::from_fn(|w| word(w).to_le_bytes()),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_of_the_scales_is_spread_over_four_words() {
        let mut block = Block { qs: [0; 32], qh: [0; 16], scales: [[0; 2]; 4] };
        block.scales = [0x0000, 0x0000, 0xc000, 0x3000].map(u16::to_le_bytes); // d = 1
        block.scales[1][0] = 3 << 3; // weights 80..96: times 7
        block.qs[11] = 0xff;
        block.qh[5] = 0xf0; // group 11, weights 88..96: the last point, all 1, shifted down
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [-0.875; 256]; // the first point is all -1
        want[80..88].fill(-6.125);
        want[88..96].fill(6.125);
        assert_eq!(y, want);
    }
}
