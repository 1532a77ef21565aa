//! Q5_K: Q4_K with a fifth bit per weight.
//!
//! Group, per super-block: a header of 4 lines (see [`k_scales`](super::k_scales)), 8 lines of high bits, whose bit `j` of
//! every byte belongs to sub-block `j`, then 32 lines of nibbles as in Q4_K.

use super::int8::{self, Sums};
use super::k_scales::{self, HEADER_BYTES, HEADER_LINES, Header};
use super::layout::{Args, get_dwords, put_dwords};
use crate::cpu::simd::{Kernel, LINE, Simd, stream};

const BLOCK: usize = 176;
const BLOCK_LINES: usize = HEADER_LINES + 8 + 32;

pub(super) fn group_bytes(n_in: usize) -> usize {
    n_in / 256 * BLOCK_LINES * LINE
}

pub(super) fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    for (block, lines) in row.chunks_exact(BLOCK).zip(group.chunks_exact_mut(BLOCK_LINES * LINE)) {
        let (header, bits) = lines.split_at_mut(HEADER_LINES * LINE);
        k_scales::pack(header, lane, block);
        // The original order, high bits before nibbles, is kept.
        put_dwords(bits, lane, &block[HEADER_BYTES..]);
    }
}

pub(super) fn unpack(row: &mut [u8], group: &[u8], lane: usize) {
    for (block, lines) in row.chunks_exact_mut(BLOCK).zip(group.chunks_exact(BLOCK_LINES * LINE)) {
        let (header, bits) = lines.split_at(HEADER_LINES * LINE);
        k_scales::unpack(block, header, lane);
        get_dwords(&mut block[HEADER_BYTES..], bits, lane);
    }
}

pub(super) struct Multiply<'a>(pub(super) Args<'a>);

impl Kernel for Multiply<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe { if self.0.x.rows == 1 { self.multiply::<S, true>() } else { self.multiply::<S, false>() } }
    }
}

impl Multiply<'_> {
    /// With the number of rows known, for one row, the sums stay in registers.
    ///
    /// # Safety
    /// [`Simd`]'s contract; [`Layout::multiply`](super::layout::Layout::multiply) has checked the sizes.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const ONE: bool>(self) {
        let Args { w, n_in, x, y } = self.0;
        let rows = if ONE { 1 } else { x.rows };
        let mut t = Sums::uninit();
        let t = t.as_mut_ptr();
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to; a tile has at most TILE rows.
        unsafe {
            int8::clear::<S>(y, rows);
            int8::clear::<S>(t, rows);
            for b in 0..n_in / 256 {
                let block = w.as_ptr().add(b * BLOCK_LINES * LINE);
                let header = Header::<S>::load(block);
                let high = block.add(HEADER_LINES * LINE);
                let nibbles = high.add(8 * LINE);
                let q = x.q.as_ptr().add(8 * b * rows * 32);
                let next = rows * 32;
                // Sub-block j: lines from 8 · (j / 2), low nibbles if j is even; bit j moved to bit 4.
                let (n, s) = (|c: usize| nibbles.add(8 * c * LINE), &header.scales);
                sub_block::<S, 4, 0, 0>(t, n(0), high, s[0], rows, q);
                sub_block::<S, 3, 0, 4>(t, n(0), high, s[1], rows, q.add(next));
                sub_block::<S, 2, 0, 0>(t, n(1), high, s[2], rows, q.add(2 * next));
                sub_block::<S, 1, 0, 4>(t, n(1), high, s[3], rows, q.add(3 * next));
                sub_block::<S, 0, 0, 0>(t, n(2), high, s[4], rows, q.add(4 * next));
                sub_block::<S, 0, 1, 4>(t, n(2), high, s[5], rows, q.add(5 * next));
                sub_block::<S, 0, 2, 0>(t, n(3), high, s[6], rows, q.add(6 * next));
                sub_block::<S, 0, 3, 4>(t, n(3), high, s[7], rows, q.add(7 * next));
                header.subtract_mins(t, &x, rows, b);
                int8::end_super_block::<S>(y, t, rows, x.scales.as_ptr().add(b * rows));
            }
        }
    }
}

/// Adds one sub-block: nibbles shifted right by `NIBBLE`, high bits shifted left by `LEFT` and right by `RIGHT`.
///
/// # Safety
/// [`Simd`]'s contract; `nibbles` and `high` have 8 lines; as [`int8::add_sub_block`].
#[inline(always)]
unsafe fn sub_block<S: Simd, const LEFT: u32, const RIGHT: u32, const NIBBLE: u32>(
    t: *mut f32,
    nibbles: *const u8,
    high: *const u8,
    scale: S::F,
    rows: usize,
    q: *const i8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, bit) = (S::splat_i32(0x0f0f_0f0f), S::splat_i32(0x1010_1010));
        let mut v = [low; 8];
        for i in 0..8 {
            let (nibbles, high) = (nibbles.add(i * LINE), high.add(i * LINE));
            // Sub-block 0 is the first to read the high bits, and even ones the first to read their nibbles.
            let high = if LEFT == 4 { stream::<S>(high) } else { S::load(high) };
            let nibbles = if NIBBLE == 0 { stream::<S>(nibbles) } else { S::load(nibbles) };
            let nibble = S::and(S::shr::<NIBBLE>(nibbles), low);
            let high = S::and(S::shr::<RIGHT>(S::shl::<LEFT>(high)), bit);
            v[i] = S::or(nibble, high);
        }
        int8::add_sub_block::<S, 8, 31>(t, &v, scale, rows, q, std::ptr::null());
    }
}
