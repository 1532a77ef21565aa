//! Q4_0: blocks of 32 unsigned nibbles, to be lowered by 8, and a scale.
//!
//! Group: blocks of 4 lines with their scales (see [`Blocks`]). The low nibbles of the lines are weights 0 to 15 of the
//! block, the high nibbles weights 16 to 31.

use super::int8::{self, Blocks};
use super::layout::{Args, Product, get_dwords, put_dwords};
use crate::cpu::simd::{LINE, Simd};

const BLOCK: usize = 18;
const BLOCK_LINES: usize = 4;

type Lines = Blocks<BLOCK_LINES>;

pub(super) fn group_bytes(n_in: usize) -> usize {
    Lines::group_bytes(n_in / 32)
}

pub(super) fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    for (b, block) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
        let lines = Lines::put_scale(group, b, lane, &block[..2]);
        put_dwords(lines, lane, &block[2..]);
    }
}

pub(super) fn unpack(row: &mut [u8], group: &[u8], lane: usize) {
    for (b, block) in row.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let lines = Lines::get_scale(&mut block[..2], group, b, lane);
        get_dwords(&mut block[2..], lines, lane);
    }
}

#[derive(Clone, Copy)]
pub(super) struct Multiply;

impl Product for Multiply {
    #[inline(always)]
    unsafe fn add<S: Simd, const ONE: bool>(self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE { 1 } else { x.rows };
        let n_blocks = n_in / 32;
        let group = w.as_ptr();
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to.
        unsafe {
            let low = S::splat_i32(0x0f0f_0f0f);
            for b in 0..n_blocks {
                let scale = S::load_f16(group.add(Lines::scales(b)));
                let lines = group.add(Lines::lines(b));
                int8::prefetch::<S, ONE>(lines, BLOCK_LINES + b % 2);
                let mut w = [S::splat_i32(0); 8];
                for i in 0..4 {
                    let line = S::load_in_order(lines.add(i * LINE));
                    w[i] = S::and(line, low);
                    w[4 + i] = S::and(S::shr::<4>(line), low);
                }
                let offsets = x.offsets[1].as_ptr().add(b * rows);
                int8::add_block::<S, 15>(y, &w, scale, rows, int8::Block::of(&x, rows, b, offsets));
            }
        }
    }
}
