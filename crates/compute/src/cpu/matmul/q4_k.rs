//! Q4_K: super-blocks of 8 sub-blocks of 32 unsigned nibbles, each with a 6-bit scale and minimum.
//!
//! Group, per super-block: a header of 4 lines (see [`k_scales`](super::k_scales)), then 32 lines of nibbles. Lines 8c to
//! 8c + 7 hold sub-block 2c in their low nibbles and sub-block 2c + 1 in their high ones.

use super::int8::{self, Sums};
use super::k_scales::{self, HEADER_BYTES, HEADER_LINES, Header};
use super::layout::{Args, get_dwords, put_dwords};
use crate::cpu::simd::{Kernel, LINE, Simd};

const BLOCK: usize = 144;
const BLOCK_LINES: usize = HEADER_LINES + 32;

pub(super) fn group_bytes(n_in: usize) -> usize {
    n_in / 256 * BLOCK_LINES * LINE
}

pub(super) fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    for (block, lines) in row.chunks_exact(BLOCK).zip(group.chunks_exact_mut(BLOCK_LINES * LINE)) {
        let (header, nibbles) = lines.split_at_mut(HEADER_LINES * LINE);
        k_scales::pack(header, lane, block);
        put_dwords(nibbles, lane, &block[HEADER_BYTES..]);
    }
}

pub(super) fn unpack(row: &mut [u8], group: &[u8], lane: usize) {
    for (block, lines) in row.chunks_exact_mut(BLOCK).zip(group.chunks_exact(BLOCK_LINES * LINE)) {
        let (header, nibbles) = lines.split_at(HEADER_LINES * LINE);
        k_scales::unpack(block, header, lane);
        get_dwords(&mut block[HEADER_BYTES..], nibbles, lane);
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
            let low = S::splat_i32(0x0f0f_0f0f);
            int8::clear::<S>(y, rows);
            int8::clear::<S>(t, rows);
            for b in 0..n_in / 256 {
                let block = w.as_ptr().add(b * BLOCK_LINES * LINE);
                let header = Header::<S>::load(block);
                for c in 0..4 {
                    let lines = block.add((HEADER_LINES + 8 * c) * LINE);
                    let q = x.q.as_ptr().add((8 * b + 2 * c) * rows * 32);
                    int8::prefetch::<S, ONE>(lines, 8 + c / 3 * HEADER_LINES);
                    let mut v = [low; 8];
                    for i in 0..8 {
                        v[i] = S::and(S::load_in_order(lines.add(i * LINE)), low);
                    }
                    int8::add_sub_block::<S, 8, 15>(t, &v, header.scales[2 * c], rows, q, std::ptr::null());
                    for i in 0..8 {
                        v[i] = S::and(S::shr::<4>(S::load_in_order(lines.add(i * LINE))), low);
                    }
                    let q = q.add(rows * 32);
                    int8::add_sub_block::<S, 8, 15>(
                        t,
                        &v,
                        header.scales[2 * c + 1],
                        rows,
                        q,
                        std::ptr::null(),
                    );
                }
                header.subtract_mins(t, &x, rows, b);
                int8::end_super_block::<S>(y, t, rows, x.scales.as_ptr().add(b * rows));
            }
        }
    }
}
