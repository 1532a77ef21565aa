//! The super-block header that Q4_K and Q5_K share: two F16 factors, and 8 scales and 8 minimums of 6 bits per row.
//!
//! Packed header, 4 lines per super-block of 16 rows (as many bytes as 16 original headers):
//!
//! ```text
//! line 0:  d, F16 [16]; dmin, F16 [16]
//! line 1:  byte 4·row + j: low nibble = low 4 bits of scale j, high nibble = those of scale j + 4       (j in 0..4)
//! line 2:  the same for the minimums
//! line 3:  byte 4·row + j: from bit 0, two bits each: the high bits of scale j, scale j + 4, minimum j, minimum j + 4
//! ```

#[cfg(doc)]
use super::activations::ActivationLayout;
use super::activations::Tile;
use super::int8;
use crate::cpu::simd::{LANES, LINE, Simd};

/// Lines of a packed header.
pub(super) const HEADER_LINES: usize = 4;
/// Bytes of an original header: d, dmin, 12 bytes of scales.
pub(super) const HEADER_BYTES: usize = 16;

/// Packs the header of one row's super-block.
pub(super) fn pack(lines: &mut [u8], lane: usize, header: &[u8]) {
    lines[2 * lane..2 * lane + 2].copy_from_slice(&header[..2]);
    lines[32 + 2 * lane..32 + 2 * lane + 2].copy_from_slice(&header[2..4]);
    let s = &header[4..HEADER_BYTES];
    for j in 0..4 {
        // Original: bytes 0..4 and 4..8 hold 6 bits of scale j and minimum j and, on top, the high two bits of scale j + 4
        // and minimum j + 4, whose low nibbles are byte 8 + j.
        let (scale, min) = (s[j], s[4 + j]);
        let at = 4 * lane + j;
        lines[LINE + at] = scale & 15 | (s[8 + j] & 15) << 4;
        lines[2 * LINE + at] = min & 15 | s[8 + j] & 0xf0;
        lines[3 * LINE + at] = scale >> 4 & 3 | (scale >> 6) << 2 | (min >> 4 & 3) << 4 | min >> 6 << 6;
    }
}

/// Restores the header of one row's super-block.
pub(super) fn unpack(header: &mut [u8], lines: &[u8], lane: usize) {
    header[..2].copy_from_slice(&lines[2 * lane..2 * lane + 2]);
    header[2..4].copy_from_slice(&lines[32 + 2 * lane..32 + 2 * lane + 2]);
    let s = &mut header[4..HEADER_BYTES];
    for j in 0..4 {
        let at = 4 * lane + j;
        let (scale, min, high) = (lines[LINE + at], lines[2 * LINE + at], lines[3 * LINE + at]);
        s[j] = scale & 15 | (high & 3) << 4 | (high >> 2 & 3) << 6;
        s[4 + j] = min & 15 | (high >> 4 & 3) << 4 | high >> 6 << 6;
        s[8 + j] = scale >> 4 | min & 0xf0;
    }
}

/// The decoded header of 16 rows.
pub(super) struct Header<S: Simd> {
    /// Of the 8 sub-blocks, as integers.
    pub(super) scales: [S::I; 8],
    d: S::F,
    dmin: S::F,
    /// Minimums as pairs of 16-bit numbers, of the same sub-blocks as the activations' sums.
    mins: [S::I; 4],
}

impl<S: Simd> Header<S> {
    /// Decodes a packed header.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Weights*: `p` is a multiple of 64 and readable for [`HEADER_LINES`] lines.
    #[inline(always)]
    pub(super) unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the loads are of lines 0 to 3 (2); the instructions are `Simd`'s (1).
        unsafe {
            let (d, dmin) = (S::load_f16(p), S::load_f16(p.add(32)));
            let (nibble, two) = (S::splat_i32(0x0f0f_0f0f), S::splat_i32(0x3030_3030));
            let (s, m, high) = (
                S::load_in_order(p.add(LINE)),
                S::load_in_order(p.add(2 * LINE)),
                S::load_in_order(p.add(3 * LINE)),
            );
            let scales = [
                S::or(S::and(s, nibble), S::and(S::shl::<4>(high), two)),
                S::or(S::and(S::shr::<4>(s), nibble), S::and(S::shl::<2>(high), two)),
            ];
            let mins = [
                S::or(S::and(m, nibble), S::and(high, two)),
                S::or(S::and(S::shr::<4>(m), nibble), S::and(S::shr::<2>(high), two)),
            ];
            let even = S::splat_i32(0x00ff_00ff);
            Self {
                scales: [
                    S::byte::<0>(scales[0]),
                    S::byte::<1>(scales[0]),
                    S::byte::<2>(scales[0]),
                    S::byte::<3>(scales[0]),
                    S::byte::<0>(scales[1]),
                    S::byte::<1>(scales[1]),
                    S::byte::<2>(scales[1]),
                    S::byte::<3>(scales[1]),
                ],
                d,
                dmin,
                mins: [
                    S::and(mins[0], even),
                    S::shr::<8>(mins[0]),
                    S::and(mins[1], even),
                    S::shr::<8>(mins[1]),
                ],
            }
        }
    }

    /// Ends super-block `b`: `y += (d · t - dmin · Σ minimum · sum of its 32 activations) · x.scale`, and sets `t` back to zero.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Activations*: the tile is of [`ActivationLayout::Int8Block256`], with that super-block and so many rows.
    /// 3. *Sums*: `y` and `t` are readable and writable for [rows, 16] numbers.
    #[inline(always)]
    pub(super) unsafe fn end_super_block(
        &self,
        y: *mut f32,
        t: *mut i32,
        x: &Tile<'_>,
        rows: usize,
        b: usize,
    ) {
        // SAFETY: the tile holds [n_super_blocks, rows, 4] sums and [n_super_blocks, rows] scales (2); r < rows, so row `r` of `y` and of
        // `t` is there (3).
        unsafe {
            let sums = x.offsets[0].as_ptr().add(b * rows * 4);
            for r in 0..rows {
                let mut min = S::splat_i32(0);
                for p in 0..4 {
                    min = S::dot_i16(min, self.mins[p], *sums.add(4 * r + p));
                }
                let t = int8::take::<S>(t, r);
                let sum = S::fnma(S::to_f32(min), self.dmin, S::mul(S::to_f32(t), self.d));
                let y = y.add(r * LANES);
                S::store_f32(y, S::fma(sum, S::splat(*x.scales.as_ptr().add(b * rows + r)), S::load_f32(y)));
            }
        }
    }
}
