//! Q8_0: blocks of 32 signed bytes and a scale.
//!
//! Group: the scales, F16 [n_blocks, 16], filled up to a line; then per block 8 lines of weights, stored as `byte + 128`,
//! because the dot product takes unsigned weights.

use super::int8;
use super::layout::{Args, get_dwords, put_dwords};
use crate::cpu::simd::{Kernel, LANES, LINE, Simd, stream};

const BLOCK: usize = 34;
const BLOCK_LINES: usize = 8;

pub(super) fn group_bytes(n_in: usize) -> usize {
    int8::scales_bytes(n_in / 32) + n_in / 32 * BLOCK_LINES * LINE
}

pub(super) fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    let blocks = row.as_chunks::<BLOCK>().0;
    let (scales, lines) = group.split_at_mut(int8::scales_bytes(blocks.len()));
    for (b, (block, lines)) in
        blocks.iter().zip(lines.as_chunks_mut::<{ BLOCK_LINES * LINE }>().0).enumerate()
    {
        scales[32 * b + 2 * lane..32 * b + 2 * lane + 2].copy_from_slice(&block[..2]);
        let mut q = [0; 32];
        for (q, byte) in q.iter_mut().zip(&block[2..]) {
            *q = byte ^ 0x80;
        }
        put_dwords(lines, lane, &q);
    }
}

pub(super) fn unpack(row: &mut [u8], group: &[u8], lane: usize) {
    let blocks = row.as_chunks_mut::<BLOCK>().0;
    let (scales, lines) = group.split_at(int8::scales_bytes(blocks.len()));
    for (b, (block, lines)) in
        blocks.iter_mut().zip(lines.as_chunks::<{ BLOCK_LINES * LINE }>().0).enumerate()
    {
        block[..2].copy_from_slice(&scales[32 * b + 2 * lane..32 * b + 2 * lane + 2]);
        get_dwords(&mut block[2..], lines, lane);
        for byte in &mut block[2..] {
            *byte ^= 0x80;
        }
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
        let n_blocks = n_in / 32;
        let (scales, lines) = (w.as_ptr(), w[int8::scales_bytes(n_blocks)..].as_ptr());
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to.
        unsafe {
            int8::clear::<S>(y, rows);
            for b in 0..n_blocks {
                let scale = S::load_f16(scales.add(b * 2 * LANES));
                let lines = lines.add(b * BLOCK_LINES * LINE);
                let mut w = [S::splat_i32(0); 8];
                for i in 0..8 {
                    w[i] = stream::<S>(lines.add(i * LINE));
                }
                let offsets = match S::CENTERS_BYTES {
                    true => std::ptr::null(),
                    false => x.offsets[0].as_ptr().add(b * rows),
                };
                int8::add_block::<S, 255>(y, &w, scale, rows, int8::Block::of(&x, rows, b, offsets));
            }
        }
    }
}
