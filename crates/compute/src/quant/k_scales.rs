//! The 12 bytes in which Q4_K and Q5_K keep eight scales and eight minimums of six bits each.
//!
//! Bytes 0..4 hold scales 0..4 in their low six bits, bytes 4..8 minimums 0..4 likewise. Bytes 8..12 hold the low
//! nibbles of scales 4..8 (low) and of minimums 4..8 (high). Their upper two bits fill the top of bytes 0..4 (scales)
//! and 4..8 (minimums).

use super::affine::{self, Grids, SuperBlock};
use super::importance::error_weights;
use super::rounding::{dot, sum};

/// Scales and minimums of the eight sub-blocks, each in 0..64.
#[inline]
pub(crate) fn unpack(bytes: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = bytes[j] & 63;
        mins[j] = bytes[j + 4] & 63;
        scales[j + 4] = bytes[j + 8] & 15 | bytes[j] >> 6 << 4;
        mins[j + 4] = bytes[j + 8] >> 4 | bytes[j + 4] >> 6 << 4;
    }
    (scales, mins)
}

/// The inverse of [`unpack`].
#[inline]
pub(crate) fn pack(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] | scales[i + 4] >> 4 << 6,
        4..8 => mins[i - 4] | mins[i] >> 4 << 6,
        _ => scales[i - 4] & 15 | mins[i - 4] << 4,
    })
}

/// Finds scale and min of each 32 weights, and rounds them and the weights, those to `0..=MAX`.
///
/// Without importance, a weight's squared error counts in proportion to its magnitude plus the root mean square of its sub-block.
pub(crate) fn encode<const MAX: u8>(
    x: &[f32; 256],
    importance: Option<&[f32; 256]>,
    grids: Grids,
) -> SuperBlock<8> {
    let sub_blocks = x.as_chunks::<32>().0;
    let w: [f32; 256] = match importance {
        Some(importance) => error_weights(x, importance),
        None => {
            let rms: [f32; 8] = std::array::from_fn(|s| (dot(&sub_blocks[s], &sub_blocks[s]) / 32.0).sqrt());
            std::array::from_fn(|i| rms[i / 32] + x[i].abs())
        }
    };
    let w = w.as_chunks::<32>().0;
    let fits = std::array::from_fn(|s| affine::fit::<32, MAX>(&sub_blocks[s], &w[s], grids, |e| e * e));
    let sums = importance.map(|_| std::array::from_fn(|s| sum(&w[s])));
    affine::encode_super_block::<8, 63, MAX>(x, &fits, sums.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_all_six_bits() {
        for k in 0..64 {
            let scales = std::array::from_fn(|j| (k + 9 * j as u8) & 63);
            let mins = std::array::from_fn(|j| (k * 3 + 7 * j as u8) & 63);
            assert_eq!(unpack(&pack(&scales, &mins)), (scales, mins));
        }
    }
}
