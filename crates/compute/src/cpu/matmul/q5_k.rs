//! Q5_K: Q4_K with a fifth bit per weight.
//!
//! Group, per super-block: a header of 4 lines (see [`k_scales`](super::k_scales)), then 8 times a line of nibbles and one of
//! high bits, then 24 lines of nibbles: the order of their first use. Nibbles are as in Q4_K; bit `j` of every byte of high
//! bits belongs to sub-block `j`.

use super::int8::{self, Sums};
use super::k_scales::{self, HEADER_BYTES, HEADER_LINES, Header};
use super::layout::{Args, get_dwords, put_dwords};
use crate::cpu::simd::{Kernel, LINE, Simd};

const BLOCK: usize = 176;
const BLOCK_LINES: usize = HEADER_LINES + 8 + 32;

pub(super) fn group_bytes(n_in: usize) -> usize {
    n_in / 256 * BLOCK_LINES * LINE
}

pub(super) fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    for (block, lines) in row.chunks_exact(BLOCK).zip(group.chunks_exact_mut(BLOCK_LINES * LINE)) {
        let (header, bits) = lines.split_at_mut(HEADER_LINES * LINE);
        k_scales::pack(header, lane, block);
        for (i, dword) in block[HEADER_BYTES..].as_chunks::<4>().0.iter().enumerate() {
            put_dwords(&mut bits[line(i) * LINE..][..LINE], lane, dword);
        }
    }
}

pub(super) fn unpack(row: &mut [u8], group: &[u8], lane: usize) {
    for (block, lines) in row.chunks_exact_mut(BLOCK).zip(group.chunks_exact(BLOCK_LINES * LINE)) {
        let (header, bits) = lines.split_at(HEADER_LINES * LINE);
        k_scales::unpack(block, header, lane);
        for (i, dword) in block[HEADER_BYTES..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            get_dwords(dword, &bits[line(i) * LINE..][..LINE], lane);
        }
    }
}

/// The line after the header that holds four bytes `i` of the original block: 8 times high bits, then 32 times nibbles.
fn line(i: usize) -> usize {
    match i {
        0..8 => 2 * i + 1,
        8..16 => 2 * (i - 8),
        _ => i,
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
        let Args { w, n_in, x, y, .. } = self.0;
        let rows = if ONE { 1 } else { x.rows };
        let mut t: Sums = Sums::uninit();
        let t = t.as_mut_ptr();
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to; a tile has at most TILE rows.
        unsafe {
            int8::clear::<S>(y, rows);
            int8::clear::<S>(t, rows);
            for b in 0..n_in / 256 {
                let block = w.as_ptr().add(b * BLOCK_LINES * LINE);
                let header = Header::<S>::load(block);
                let lines = block.add(HEADER_LINES * LINE);
                let q = x.q.as_ptr().add(8 * b * rows * 32);
                let next = rows * 32;
                // Sub-block j: nibbles of pair j / 2, low ones if j is even; bit j moved to bit 4.
                let s = &header.scales;
                sub_block::<S, ONE, 0, 0, 4, 0, 0>(t, lines, s[0], rows, q);
                sub_block::<S, ONE, 1, 0, 3, 0, 4>(t, lines, s[1], rows, q.add(next));
                sub_block::<S, ONE, 2, 1, 2, 0, 0>(t, lines, s[2], rows, q.add(2 * next));
                sub_block::<S, ONE, 3, 1, 1, 0, 4>(t, lines, s[3], rows, q.add(3 * next));
                sub_block::<S, ONE, 4, 2, 0, 0, 0>(t, lines, s[4], rows, q.add(4 * next));
                sub_block::<S, ONE, 5, 2, 0, 1, 4>(t, lines, s[5], rows, q.add(5 * next));
                sub_block::<S, ONE, 6, 3, 0, 2, 0>(t, lines, s[6], rows, q.add(6 * next));
                sub_block::<S, ONE, 7, 3, 0, 3, 4>(t, lines, s[7], rows, q.add(7 * next));
                header.subtract_mins(t, &x, rows, b);
                int8::end_super_block::<S>(y, t, rows, x.scales.as_ptr().add(b * rows));
            }
        }
    }
}

/// Adds sub-block `J`, of pair `PAIR`: nibbles shifted right by `NIBBLE`, high bits left by `LEFT` and right by `RIGHT`.
///
/// # Safety
/// [`Simd`]'s contract; `lines` is what follows a header; as [`int8::add_sub_block`].
#[inline(always)]
unsafe fn sub_block<
    S: Simd,
    const ONE: bool,
    const J: usize,
    const PAIR: usize,
    const LEFT: u32,
    const RIGHT: u32,
    const NIBBLE: u32,
>(
    t: *mut f32,
    lines: *const u8,
    scale: S::F,
    rows: usize,
    q: *const i8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, bit) = (S::splat_i32(0x0f0f_0f0f), S::splat_i32(0x1010_1010));
        // An eighth of a super-block in each: asked for all at once, its lines wait for each other.
        let (from, to) = (J * BLOCK_LINES / 8, (J + 1) * BLOCK_LINES / 8);
        int8::prefetch::<S, ONE>(lines.add(from * LINE), to - from);
        let mut v = [low; 8];
        for i in 0..8 {
            let nibbles = if PAIR == 0 { 2 * i } else { 8 + 8 * PAIR + i };
            let nibble = S::and(S::shr::<NIBBLE>(S::load_in_order(lines.add(nibbles * LINE))), low);
            let high = S::load_in_order(lines.add((2 * i + 1) * LINE));
            v[i] = S::or(nibble, S::and(S::shr::<RIGHT>(S::shl::<LEFT>(high)), bit));
        }
        int8::add_sub_block::<S, 8, 31>(t, &v, scale, rows, q, std::ptr::null());
    }
}
