//! Q6_K: super-blocks of 16 sub-blocks of 16 weights of 6 bits, to be lowered by 32, each with an 8-bit scale.
//!
//! Group: the factors d, F16 [n_super_blocks, 16], filled up to a line; then per super-block 4 lines of scales, `i8` [16
//! sub-blocks, 16 rows], and for each half (128 weights) 16 lines of nibbles and 8 of high bits. The high bits alternate with
//! the first 8 lines of nibbles, so that the lines stand in the order of their first use.

use super::int8::{self, Sums};
use super::layout::{Args, get_dwords, put_dwords};
use crate::cpu::simd::{Kernel, LANES, LINE, Simd};

const BLOCK: usize = 210;
const LOW: usize = 128;
const HIGH: usize = 64;
const SCALES: usize = 16;
const SCALE_LINES: usize = SCALES * LANES / LINE;
const BLOCK_LINES: usize = SCALE_LINES + (LOW + HIGH) / 4;

pub(super) fn group_bytes(n_in: usize) -> usize {
    int8::factors_bytes(n_in / 256) + n_in / 256 * BLOCK_LINES * LINE
}

pub(super) fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    let blocks = row.as_chunks::<BLOCK>().0;
    let (factors, lines) = group.split_at_mut(int8::factors_bytes(blocks.len()));
    for (b, (block, lines)) in blocks.iter().zip(lines.chunks_exact_mut(BLOCK_LINES * LINE)).enumerate() {
        factors[2 * (b * LANES + lane)..][..2].copy_from_slice(&block[BLOCK - 2..]);
        let (scales, lines) = lines.split_at_mut(SCALE_LINES * LINE);
        for j in 0..SCALES {
            scales[j * LANES + lane] = block[LOW + HIGH + j];
        }
        for (i, dword) in block[..LOW + HIGH].as_chunks::<4>().0.iter().enumerate() {
            put_dwords(&mut lines[line(i) * LINE..][..LINE], lane, dword);
        }
    }
}

pub(super) fn unpack(row: &mut [u8], group: &[u8], lane: usize) {
    let blocks = row.as_chunks_mut::<BLOCK>().0;
    let (factors, lines) = group.split_at(int8::factors_bytes(blocks.len()));
    for (b, (block, lines)) in blocks.iter_mut().zip(lines.chunks_exact(BLOCK_LINES * LINE)).enumerate() {
        block[BLOCK - 2..].copy_from_slice(&factors[2 * (b * LANES + lane)..][..2]);
        let (scales, lines) = lines.split_at(SCALE_LINES * LINE);
        for j in 0..SCALES {
            block[LOW + HIGH + j] = scales[j * LANES + lane];
        }
        for (i, dword) in block[..LOW + HIGH].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            get_dwords(dword, &lines[line(i) * LINE..][..LINE], lane);
        }
    }
}

/// The line after the scales that holds four bytes `i` of the original block: 32 times nibbles, then 16 times high bits.
fn line(i: usize) -> usize {
    let (half, within) = if i < 32 { (i / 16, i % 16) } else { ((i - 32) / 8, (i - 32) % 8) };
    24 * half
        + match i {
            0..32 if within < 8 => 2 * within,
            0..32 => 8 + within,
            _ => 2 * within + 1,
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
        let (factors, blocks) = (w.as_ptr(), w[int8::factors_bytes(n_in / 256)..].as_ptr());
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to; a tile has at most TILE rows.
        unsafe {
            int8::clear::<S>(y, rows);
            int8::clear::<S>(t, rows);
            for b in 0..n_in / 256 {
                let block = blocks.add(b * BLOCK_LINES * LINE);
                let d = S::load_f16(factors.add(b * 2 * LANES));
                // All scales first, and so in the order in which they stand in memory.
                let mut scales = [d; SCALES];
                for (j, scale) in scales.iter_mut().enumerate() {
                    *scale = S::mul(d, S::to_f32(S::load_i8(block.add(j * LANES))));
                }
                for half in 0..2 {
                    let at = Half {
                        lines: block.add((SCALE_LINES + 24 * half) * LINE),
                        q: x.q.as_ptr().add((8 * b + 4 * half) * rows * 32),
                        offsets: x.offsets[1].as_ptr().add((16 * b + 8 * half) * rows),
                        rows,
                    };
                    // Quarter of the half: 32 weights.
                    at.add_quarter::<S, ONE, 0, 0, 4, 0>(t, &scales[8 * half..]);
                    at.add_quarter::<S, ONE, 1, 0, 2, 0>(t, &scales[8 * half + 2..]);
                    at.add_quarter::<S, ONE, 2, 4, 0, 0>(t, &scales[8 * half + 4..]);
                    at.add_quarter::<S, ONE, 3, 4, 0, 2>(t, &scales[8 * half + 6..]);
                }
                int8::end_super_block::<S>(y, t, rows, x.scales.as_ptr().add(b * rows));
            }
        }
    }
}

/// 128 weights of 16 rows and their activations.
struct Half {
    /// 8 times a line of nibbles and one of high bits, then 8 lines of nibbles.
    lines: *const u8,
    q: *const i8,
    offsets: *const i32,
    rows: usize,
}

impl Half {
    /// Adds 32 weights: nibbles shifted right by `NIBBLE`, pairs of high bits moved to bit 4 by shifts left and right.
    /// `scales`: those of its two sub-blocks, and maybe more.
    ///
    /// # Safety
    /// [`Simd`]'s contract; `t` is [rows, 16].
    #[inline(always)]
    unsafe fn add_quarter<
        S: Simd,
        const ONE: bool,
        const QUARTER: usize,
        const NIBBLE: u32,
        const LEFT: u32,
        const RIGHT: u32,
    >(
        &self,
        t: *mut f32,
        scales: &[S::F],
    ) {
        // SAFETY: the caller's promise; a half has 16 lines of nibbles and 8 of high bits.
        unsafe {
            let (nibble, two) = (S::splat_i32(0x0f0f_0f0f), S::splat_i32(0x3030_3030));
            // A quarter of half a super-block in each: asked for all at once, its lines wait for each other.
            let lines = BLOCK_LINES / 2;
            let (from, to) = (QUARTER * lines / 4, (QUARTER + 1) * lines / 4);
            int8::prefetch::<S, ONE>(self.lines.add(from * LINE), to - from);
            for part in 0..2 {
                let mut v = [nibble; 4];
                for i in 0..4 {
                    let at = 4 * part + i;
                    let line = if QUARTER.is_multiple_of(2) { 2 * at } else { 16 + at };
                    let low = S::load_in_order(self.lines.add(line * LINE));
                    let high = S::load_in_order(self.lines.add((2 * at + 1) * LINE));
                    let high = S::and(S::shr::<RIGHT>(S::shl::<LEFT>(high)), two);
                    v[i] = S::or(S::and(S::shr::<NIBBLE>(low), nibble), high);
                }
                let j = 2 * QUARTER + part;
                let q = self.q.add(QUARTER * self.rows * 32 + 16 * part);
                let offsets = self.offsets.add(j * self.rows);
                int8::add_sub_block::<S, 4, 63>(t, &v, scales[part], self.rows, q, offsets);
            }
        }
    }
}
