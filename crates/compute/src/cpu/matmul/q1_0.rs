//! Q1_0: blocks of 128 weights that are `d` or `-d`, a bit each.
//!
//! Group: blocks of 4 lines with their scales (see [`Blocks`]); a line has 32 weights of each row, bit i of a row's byte j is that of
//! weight 4·i + j.

use super::blocks::Kernels;
use super::int8::{self, Blocks};
use super::layout::{Args, EachGroup, Product, get_dwords, put_dwords};
use crate::DType;
use crate::cpu::isa::Isa;
use crate::cpu::simd::{LINE, Simd, dispatch};
use half::f16;

const BLOCK: usize = 18;
const BLOCK_LINES: usize = 4;

type Lines = Blocks<BLOCK_LINES>;

pub(super) const KERNELS: Kernels = Kernels { dtype: DType::Q1_0, group_bytes, pack, decode, multiply };

fn group_bytes(n_in: usize) -> usize {
    Lines::group_bytes(n_in / 128)
}

fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    for (b, block) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
        let lines = Lines::put_scale(group, b, lane, &block[..2]);
        let mut bytes = [0; 16];
        for w in 0..128 {
            let bit = block[2 + w / 8] >> (w % 8) & 1;
            bytes[w / 32 * 4 + w % 4] |= bit << (w % 32 / 4);
        }
        put_dwords(lines, lane, &bytes);
    }
}

fn decode(out: &mut [f32], group: &[u8], lane: usize) {
    for (b, out) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let (mut scale, mut bytes) = ([0; 2], [0; 16]);
        get_dwords(&mut bytes, Lines::get_scale(&mut scale, group, b, lane), lane);
        let d = f16::from_le_bytes(scale).to_f32();
        for (w, out) in out.iter_mut().enumerate() {
            let bit = bytes[w / 32 * 4 + w % 4] >> (w % 32 / 4) & 1;
            *out = if bit == 1 { d } else { -d };
        }
    }
}

/// # Safety
/// The processor has `isa`; sizes were checked by [`Layout::multiply`](super::layout::Layout::multiply).
unsafe fn multiply(isa: Isa, args: Args<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(isa, EachGroup(args, Multiply)) }
}

#[derive(Clone, Copy)]
struct Multiply;

impl Product for Multiply {
    #[inline(always)]
    unsafe fn add<S: Simd, const ONE: bool>(self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE { 1 } else { x.rows };
        let group = w.as_ptr();
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to.
        unsafe {
            // A set bit is moved to where it counts 16. The sums start at -8 times the activations' sum, so they end at 8 times
            // what bits of ±1 would give.
            let bit = S::splat_i32(0x1010_1010);
            for b in 0..n_in / 32 {
                let (block, line) = (b / BLOCK_LINES, b % BLOCK_LINES);
                let scale = S::mul(S::load_f16(group.add(Lines::scales(block))), S::splat(0.125));
                let line = S::load_in_order(group.add(Lines::lines(block) + line * LINE));
                let w = [
                    S::shl::<4>(line),
                    S::shl::<3>(line),
                    S::shl::<2>(line),
                    S::shl::<1>(line),
                    line,
                    S::shr::<1>(line),
                    S::shr::<2>(line),
                    S::shr::<3>(line),
                ]
                .map(|line| S::and(line, bit));
                let offsets = x.offsets[1].as_ptr().add(b * rows);
                int8::add_block::<S, 31>(y, &w, scale, rows, int8::Block::of(&x, rows, b, offsets));
            }
        }
    }
}
