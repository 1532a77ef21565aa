//! The 12 bytes in which Q4_K and Q5_K keep eight scales and eight minimums of six bits each.
//!
//! Bytes 0..4 hold scales 0..4 in their low six bits, bytes 4..8 minimums 0..4 likewise. Bytes 8..12 hold the low
//! nibbles of scales 4..8 (low) and of minimums 4..8 (high). Their upper two bits fill the top of bytes 0..4 (scales)
//! and 4..8 (minimums).

use super::affine::{self, Affine, Grids};
use super::rounding::dot;

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

/// Finds scale and min of each 32 weights for `q` in `0..=MAX`.
///
/// A weight's squared error counts in proportion to its magnitude plus the root mean square of its sub-block.
pub(crate) fn fit<const MAX: u8>(x: &[f32; 256], grids: Grids) -> [Affine; 8] {
    let sub_blocks = x.as_chunks::<32>().0;
    std::array::from_fn(|s| {
        let x = &sub_blocks[s];
        let rms = (dot(x, x) / 32.0).sqrt();
        affine::fit::<32, MAX>(x, &x.map(|v| rms + v.abs()), grids, |e| e * e)
    })
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
