//! The 12 bytes in which Q4_K and Q5_K keep eight scales and eight minimums of six bits each.
//!
//! Bytes 0..4 hold scales 0..4 in their low six bits, bytes 4..8 minimums 0..4 likewise. Bytes 8..12 hold the low
//! nibbles of scales 4..8 (low) and of minimums 4..8 (high). Their upper two bits fill the top of bytes 0..4 (scales)
//! and 4..8 (minimums).

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
