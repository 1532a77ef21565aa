//! Q6_K: super-blocks of 16 sub-blocks of 16 weights of 6 bits, to be lowered by 32, each with an 8-bit scale.
//!
//! Group: the factors d, F16 [n_super_blocks, 16], filled up to a line; then per super-block 4 lines of scales, `i8` [16
//! sub-blocks, 16 rows], 32 lines of nibbles and 16 lines of high bits. Each half of a super-block (128 weights) has 16
//! lines of nibbles and 8 of high bits, in the original order.

use super::int8::{self, Sums};
use super::layout::{Args, get_dwords, put_dwords};
use crate::cpu::simd::{Kernel, LANES, LINE, Simd, stream};

const BLOCK: usize = 210;
const LOW: usize = 128;
const HIGH: usize = 64;
const SCALES: usize = 16;
const SCALE_LINES: usize = SCALES * LANES / LINE;
const BLOCK_LINES: usize = SCALE_LINES + (LOW + HIGH) / 4;

pub(super) fn group_bytes(n_in: usize) -> usize {
    int8::scales_bytes(n_in / 256) + n_in / 256 * BLOCK_LINES * LINE
}

pub(super) fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    let blocks = row.as_chunks::<BLOCK>().0;
    let (factors, lines) = group.split_at_mut(int8::scales_bytes(blocks.len()));
    for (b, (block, lines)) in
        blocks.iter().zip(lines.as_chunks_mut::<{ BLOCK_LINES * LINE }>().0).enumerate()
    {
        let (scales, lines) = lines.split_at_mut(SCALE_LINES * LINE);
        factors[32 * b + 2 * lane..32 * b + 2 * lane + 2].copy_from_slice(&block[BLOCK - 2..]);
        for j in 0..SCALES {
            scales[j * LANES + lane] = block[LOW + HIGH + j];
        }
        put_dwords(lines, lane, &block[..LOW + HIGH]);
    }
}

pub(super) fn unpack(row: &mut [u8], group: &[u8], lane: usize) {
    let blocks = row.as_chunks_mut::<BLOCK>().0;
    let (factors, lines) = group.split_at(int8::scales_bytes(blocks.len()));
    for (b, (block, lines)) in
        blocks.iter_mut().zip(lines.as_chunks::<{ BLOCK_LINES * LINE }>().0).enumerate()
    {
        let (scales, lines) = lines.split_at(SCALE_LINES * LINE);
        block[BLOCK - 2..].copy_from_slice(&factors[32 * b + 2 * lane..32 * b + 2 * lane + 2]);
        for j in 0..SCALES {
            block[LOW + HIGH + j] = scales[j * LANES + lane];
        }
        get_dwords(&mut block[..LOW + HIGH], lines, lane);
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
        let (factors, blocks) = (w.as_ptr(), w[int8::scales_bytes(n_in / 256)..].as_ptr());
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to; a tile has at most TILE rows.
        unsafe {
            int8::clear::<S>(y, rows);
            int8::clear::<S>(t, rows);
            for b in 0..n_in / 256 {
                let block = blocks.add(b * BLOCK_LINES * LINE);
                let d = S::load_f16(factors.add(b * 2 * LANES));
                for half in 0..2 {
                    let at = Half {
                        low: block.add((SCALE_LINES + 16 * half) * LINE),
                        high: block.add((SCALE_LINES + 32 + 8 * half) * LINE),
                        scales: block.add(8 * half * LANES),
                        q: x.q.as_ptr().add((8 * b + 4 * half) * rows * 32),
                        offsets: x.offsets[1].as_ptr().add((16 * b + 8 * half) * rows),
                        rows,
                    };
                    // Quarter of the half: 32 weights.
                    at.add_quarter::<S, 0, 0, 4, 0>(t, d);
                    at.add_quarter::<S, 1, 0, 2, 0>(t, d);
                    at.add_quarter::<S, 2, 4, 0, 0>(t, d);
                    at.add_quarter::<S, 3, 4, 0, 2>(t, d);
                }
                int8::end_super_block::<S>(y, t, rows, x.scales.as_ptr().add(b * rows));
            }
        }
    }
}

/// 128 weights of 16 rows and their activations.
struct Half {
    low: *const u8,
    high: *const u8,
    scales: *const u8,
    q: *const i8,
    offsets: *const i32,
    rows: usize,
}

impl Half {
    /// Adds 32 weights: nibbles shifted right by `NIBBLE`, pairs of high bits moved to bit 4 by shifts left and right.
    ///
    /// # Safety
    /// [`Simd`]'s contract; `t` is [rows, 16].
    #[inline(always)]
    unsafe fn add_quarter<
        S: Simd,
        const QUARTER: usize,
        const NIBBLE: u32,
        const LEFT: u32,
        const RIGHT: u32,
    >(
        &self,
        t: *mut f32,
        d: S::F,
    ) {
        // SAFETY: the caller's promise; a half has 16 lines of nibbles, 8 of high bits and 8 scales per row.
        unsafe {
            let (nibble, two) = (S::splat_i32(0x0f0f_0f0f), S::splat_i32(0x3030_3030));
            for part in 0..2 {
                let mut v = [nibble; 4];
                for i in 0..4 {
                    let low = self.low.add((8 * (QUARTER % 2) + 4 * part + i) * LINE);
                    let high = self.high.add((4 * part + i) * LINE);
                    // The first quarter to read a line asks for the ones to come.
                    let low = if QUARTER < 2 { stream::<S>(low) } else { S::load(low) };
                    let high = if QUARTER == 0 { stream::<S>(high) } else { S::load(high) };
                    let high = S::and(S::shr::<RIGHT>(S::shl::<LEFT>(high)), two);
                    v[i] = S::or(S::and(S::shr::<NIBBLE>(low), nibble), high);
                }
                let j = 2 * QUARTER + part;
                let scale = S::mul(d, S::to_f32(S::load_i8(self.scales.add(j * LANES))));
                let q = self.q.add(QUARTER * self.rows * 32 + 16 * part);
                let offsets = self.offsets.add(j * self.rows);
                int8::add_sub_block::<S, 4, 63>(t, &v, scale, self.rows, q, offsets);
            }
        }
    }
}
