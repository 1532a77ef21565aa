//! What the readers of code types share: what their codes stand for, and how points of a codebook become codes.

use crate::quant::iq1_s;

/// Three magnitudes, and from 4 on the same below zero.
pub(super) const IQ2_VALUES: [i8; 16] = [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Eight times a coordinate in -1..=1 and its shift of an eighth, up and from 4 on down.
pub(super) const IQ1_VALUES: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Eight magnitudes, and from 8 on the same below zero.
pub(super) const fn signed_8(magnitudes: [i8; 8]) -> [i8; 16] {
    let mut values = [0; 16];
    let mut i = 0;
    while i < 8 {
        (values[i], values[i + 8]) = (magnitudes[i], -magnitudes[i]);
        i += 1;
    }
    values
}

/// Eight whole numbers in a row, of which 2-bit codes use four.
pub(super) const fn counted(first: i8) -> [i8; 16] {
    let mut values = [0; 16];
    let mut i = 0;
    while i < 8 {
        values[i] = first + i as i8;
        i += 1;
    }
    values
}

/// One in byte `j` where bit `j` is set.
fn spread(bits: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let bits = (u64::from(bits) * ONES) & 0x8040_2010_0804_0201;
    ((bits + 0x7f * ONES) >> 7) & ONES
}

/// Codes of eight magnitudes 8, 25 and 43, which differ in their upper nibbles, and their signs.
pub(super) fn iq2_codes(point: u64, signs: u8) -> [u8; 8] {
    ((point >> 4) & 0x0303_0303_0303_0303 | spread(signs) << 2).to_le_bytes()
}

/// Codes of two points of four magnitudes, of which bits `SHIFT` to `SHIFT + 2` count, and their signs.
pub(super) fn iq3_codes<const SHIFT: u32>(points: [u32; 2], signs: u8) -> [u8; 8] {
    let points = u64::from(points[0]) | u64::from(points[1]) << 32;
    ((points >> SHIFT) & 0x0707_0707_0707_0707 | spread(signs) << 3).to_le_bytes()
}

/// Codes of eight coordinates in -1..=1.
pub(super) fn iq1_codes(index: usize, down: bool) -> [u8; 8] {
    let down = if down { 4 } else { 0 };
    iq1_s::GRID[index].to_le_bytes().map(|v| v.wrapping_add(1) & 3 | down)
}

/// Collects the codes of groups of eight weights.
pub(super) fn in_eights(codes: impl Fn(usize) -> [u8; 8]) -> [u8; 256] {
    let mut all = [0; 256];
    for (g, eight) in all.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *eight = codes(g);
    }
    all
}

/// Scales that are stored as half of themselves, rounded down: they are all odd.
pub(super) fn odd(scales: [u8; 16]) -> [u8; 16] {
    scales.map(|s| 2 * s + 1)
}

/// The scales of a type that has fewer than 16.
pub(super) fn first<const N: usize>(scales: [u8; N]) -> [u8; 16] {
    let mut all = [0; 16];
    all[..N].copy_from_slice(&scales);
    all
}

/// Both nibbles of each byte, the low one first.
pub(super) fn in_order<const N: usize>(bytes: [u8; N]) -> [u8; 16] {
    let mut all = [0; 16];
    for (pair, byte) in all.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *pair = [byte & 15, byte >> 4];
    }
    all
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
