//! The types that [`codes`](super::codes) multiplies: how their blocks are taken apart, and what their codes stand for.

use super::codes::{self, Kernels, SuperBlock, Tables};
use crate::DType;
use crate::quant::bits::{nibbles, pairs_256};
use crate::quant::codebook::EVEN_SIGNS;
use crate::quant::iq4_nl::VALUES;
use crate::quant::{iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_xs, q2_k, q3_k, tq1_0, tq2_0};
use bytemuck::AnyBitPattern;
use std::fmt;

/// One type in terms of codes: a weight is `d · unit · scale · values[code]`, less `dmin · minimum` where there are minimums.
pub(super) struct Coding {
    pub(super) dtype: DType,
    /// What a code stands for.
    pub(super) values: [i8; 16],
    /// A power of two, so that multiplying by it is exact.
    pub(super) unit: f32,
    /// Takes one block of a file apart.
    pub(super) read: fn(&[u8]) -> SuperBlock,
    /// The code that was compiled for the type's shape.
    pub(super) kernels: Kernels,
    /// `values` as [`Kernels::multiply`] looks them up.
    pub(super) tables: Tables,
}

impl Coding {
    const fn new(
        dtype: DType,
        values: [i8; 16],
        unit: f32,
        read: fn(&[u8]) -> SuperBlock,
        kernels: Kernels,
    ) -> Self {
        Self { dtype, values, unit, read, tables: kernels.tables(values), kernels }
    }
}

impl PartialEq for Coding {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype
    }
}

impl Eq for Coding {}

impl fmt::Debug for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)
    }
}

/// The coding of a type, if it has one.
pub(super) fn coding(dtype: DType) -> Option<&'static Coding> {
    CODINGS.iter().find(|c| c.dtype == dtype)
}

static CODINGS: [Coding; 12] = [
    Coding::new(DType::IQ4_XS, VALUES, 1.0, iq4_xs, codes::WIDE_4X32),
    Coding::new(DType::IQ3_S, signed_8([1, 3, 5, 7, 9, 11, 13, 15]), 1.0, iq3_s, codes::SIGNED_4X32),
    Coding::new(DType::IQ3_XXS, signed_8([4, 12, 20, 28, 36, 44, 52, 62]), 0.25, iq3_xxs, codes::SIGNED_4X32),
    Coding::new(DType::IQ2_XXS, IQ2_VALUES, 0.125, iq2_xxs, codes::SIGNED_3X32),
    Coding::new(DType::IQ2_XS, IQ2_VALUES, 0.125, iq2_xs, codes::SIGNED_3X16),
    Coding::new(DType::IQ2_S, IQ2_VALUES, 0.125, iq2_s, codes::SIGNED_3X16),
    Coding::new(DType::IQ1_S, IQ1_VALUES, 0.125, iq1_s, codes::SIGNED_3X32),
    Coding::new(DType::IQ1_M, IQ1_VALUES, 0.125, iq1_m, codes::SIGNED_3X16),
    Coding::new(DType::Q3_K, counted(-4), 1.0, q3_k, codes::SIGNED_3X16),
    Coding::new(DType::Q2_K, counted(0), 1.0, q2_k, codes::WITH_MIN_2X16),
    Coding::new(DType::TQ1_0, counted(-1), 1.0, tq1_0, codes::PLAIN_2X32),
    Coding::new(DType::TQ2_0, counted(-1), 1.0, tq2_0, codes::PLAIN_2X32),
];

/// Three magnitudes, and from 4 on the same below zero.
const IQ2_VALUES: [i8; 16] = [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Eight times a coordinate in -1..=1 and its shift of an eighth, up and from 4 on down.
const IQ1_VALUES: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Eight magnitudes, and from 8 on the same below zero.
const fn signed_8(magnitudes: [i8; 8]) -> [i8; 16] {
    let mut values = [0; 16];
    let mut i = 0;
    while i < 8 {
        (values[i], values[i + 8]) = (magnitudes[i], -magnitudes[i]);
        i += 1;
    }
    values
}

/// Eight whole numbers in a row, of which 2-bit codes use four.
const fn counted(first: i8) -> [i8; 16] {
    let mut values = [0; 16];
    let mut i = 0;
    while i < 8 {
        values[i] = first + i as i8;
        i += 1;
    }
    values
}

/// A block of a file.
fn block<T: AnyBitPattern>(bytes: &[u8]) -> T {
    bytemuck::pod_read_unaligned(bytes)
}

/// One in byte `j` where bit `j` is set.
fn spread(bits: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let bits = (u64::from(bits) * ONES) & 0x8040_2010_0804_0201;
    ((bits + 0x7f * ONES) >> 7) & ONES
}

/// Codes of eight magnitudes 8, 25 and 43, which differ in their upper nibbles, and their signs.
fn iq2_codes(point: u64, signs: u8) -> [u8; 8] {
    ((point >> 4) & 0x0303_0303_0303_0303 | spread(signs) << 2).to_le_bytes()
}

/// Codes of two points of four magnitudes, of which bits `SHIFT` to `SHIFT + 2` count, and their signs.
fn iq3_codes<const SHIFT: u32>(points: [u32; 2], signs: u8) -> [u8; 8] {
    let points = u64::from(points[0]) | u64::from(points[1]) << 32;
    ((points >> SHIFT) & 0x0707_0707_0707_0707 | spread(signs) << 3).to_le_bytes()
}

/// Codes of eight coordinates in -1..=1.
fn iq1_codes(index: usize, down: bool) -> [u8; 8] {
    let down = if down { 4 } else { 0 };
    iq1_s::GRID[index].to_le_bytes().map(|v| v.wrapping_add(1) & 3 | down)
}

/// Collects the codes of groups of eight weights.
fn in_eights(codes: impl Fn(usize) -> [u8; 8]) -> [u8; 256] {
    let mut all = [0; 256];
    for (g, eight) in all.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *eight = codes(g);
    }
    all
}

/// Scales that are stored as half of themselves, rounded down: they are all odd.
fn odd(scales: [u8; 16]) -> [u8; 16] {
    scales.map(|s| 2 * s + 1)
}

/// The scales of a type that has fewer than 16.
fn first<const N: usize>(scales: [u8; N]) -> [u8; 16] {
    let mut all = [0; 16];
    all[..N].copy_from_slice(&scales);
    all
}

/// Both nibbles of each byte, the low one first.
fn in_order<const N: usize>(bytes: [u8; N]) -> [u8; 16] {
    let mut all = [0; 16];
    for (pair, byte) in all.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *pair = [byte & 15, byte >> 4];
    }
    all
}

fn iq4_xs(bytes: &[u8]) -> SuperBlock {
    let b: iq4_xs::Block = block(bytes);
    let mut codes = [0; 256];
    for (codes, qs) in codes.as_chunks_mut::<32>().0.iter_mut().zip(b.qs.as_chunks::<16>().0) {
        *codes = nibbles(qs);
    }
    SuperBlock { factors: [b.d, [0; 2]], scales: first(b.sub_scales().map(|s| s as u8)), codes }
}

fn iq3_s(bytes: &[u8]) -> SuperBlock {
    let b: iq3_s::Block = block(bytes);
    let codes = in_eights(|g| {
        let point = |i: usize| {
            let high = b.qh[i / 8] >> (i % 8) & 1;
            iq3_s::GRID[usize::from(b.qs[i]) | usize::from(high) << 8]
        };
        iq3_codes::<1>([point(2 * g), point(2 * g + 1)], b.signs[g])
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(in_order(b.scales)), codes }
}

fn iq3_xxs(bytes: &[u8]) -> SuperBlock {
    let b: iq3_xxs::Block = block(bytes);
    let words = b.scales_and_signs.map(u32::from_le_bytes);
    let codes = in_eights(|g| {
        let signs = EVEN_SIGNS[(words[g / 4] >> (7 * (g % 4)) & 127) as usize];
        iq3_codes::<3>([2 * g, 2 * g + 1].map(|i| iq3_xxs::GRID[usize::from(b.qs[i])]), signs)
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(first(words.map(|w| (w >> 28) as u8))), codes }
}

fn iq2_xxs(bytes: &[u8]) -> SuperBlock {
    let b: iq2_xxs::Block = block(bytes);
    let words = b.qs.map(|[.., w0, w1, w2, w3]| u32::from_le_bytes([w0, w1, w2, w3]));
    let codes = in_eights(|g| {
        let signs = EVEN_SIGNS[(words[g / 4] >> (7 * (g % 4)) & 127) as usize];
        iq2_codes(iq2_xxs::GRID[usize::from(b.qs[g / 4][g % 4])], signs)
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(first(words.map(|w| (w >> 28) as u8))), codes }
}

fn iq2_xs(bytes: &[u8]) -> SuperBlock {
    let b: iq2_xs::Block = block(bytes);
    let codes = in_eights(|g| {
        let q = usize::from(u16::from_le_bytes(b.qs[g]));
        iq2_codes(iq2_xs::GRID[q & 511], EVEN_SIGNS[q >> 9])
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(in_order(b.scales)), codes }
}

fn iq2_s(bytes: &[u8]) -> SuperBlock {
    let b: iq2_s::Block = block(bytes);
    let codes = in_eights(|g| {
        let high = b.qh[g / 4] >> (2 * (g % 4)) & 3;
        iq2_codes(iq2_s::GRID[usize::from(b.qs[g]) | usize::from(high) << 8], b.signs[g])
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(in_order(b.scales)), codes }
}

fn iq1_s(bytes: &[u8]) -> SuperBlock {
    let b: iq1_s::Block = block(bytes);
    let words = b.qh.map(u16::from_le_bytes);
    let codes = in_eights(|g| {
        let word = words[g / 4];
        let high = usize::from(word >> (3 * (g % 4)) & 7);
        iq1_codes(usize::from(b.qs[g]) | high << 8, word >> 15 == 1)
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(first(words.map(|w| (w >> 12 & 7) as u8))), codes }
}

fn iq1_m(bytes: &[u8]) -> SuperBlock {
    let b: iq1_m::Block = block(bytes);
    let codes = in_eights(|g| {
        let high = b.qh[g / 2] >> (4 * (g % 2)) & 15;
        iq1_codes(usize::from(b.qs[g]) | usize::from(high & 7) << 8, high & 8 == 8)
    });
    let scales = std::array::from_fn(|j| (u16::from_le_bytes(b.scales[j / 4]) >> (3 * (j % 4)) & 7) as u8);
    SuperBlock { factors: [b.d(), [0; 2]], scales: odd(scales), codes }
}

fn q3_k(bytes: &[u8]) -> SuperBlock {
    let b: q3_k::Block = block(bytes);
    SuperBlock { factors: [b.d, [0; 2]], scales: b.sub_scales().map(|s| s as u8), codes: b.quants() }
}

fn q2_k(bytes: &[u8]) -> SuperBlock {
    let b: q2_k::Block = block(bytes);
    SuperBlock { factors: [b.d, b.dmin], scales: b.scales, codes: pairs_256(&b.qs) }
}

fn tq1_0(bytes: &[u8]) -> SuperBlock {
    let b: tq1_0::Block = block(bytes);
    SuperBlock { factors: [b.d, [0; 2]], scales: [0; 16], codes: b.trits() }
}

fn tq2_0(bytes: &[u8]) -> SuperBlock {
    let b: tq2_0::Block = block(bytes);
    SuperBlock { factors: [b.d, [0; 2]], scales: [0; 16], codes: pairs_256(&b.qs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_spread_to_bytes() {
        for bits in 0..=255_u8 {
            let bytes = spread(bits).to_le_bytes();
            assert!((0..8).all(|j| bytes[j] == bits >> j & 1), "{bits:08b}");
        }
    }
}
