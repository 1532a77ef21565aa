//! Q4_K: super-blocks of 8 sub-blocks of 32 unsigned nibbles, each with a 6-bit scale and minimum.
//!
//! Group, per super-block: a header of 4 lines (see [`k_scales`](super::k_scales)), then 4 lines of nibbles for each sub-block: weights 0
//! to 15 in the low ones, 16 to 31 in the high ones.

use super::activations::TILE;
use super::int8::{self, Sums};
use super::k_scales::{self, HEADER_BYTES, HEADER_LINES, Header};
use super::layout::{Args, Product, get_dwords, put_dwords};
use crate::cpu::simd::{LINE, Simd};
use crate::quant::bits::{self, join_nibbles, join_nibbles_256, nibbles_256};

const BLOCK: usize = 144;
const SUB_LINES: usize = 4;
const BLOCK_LINES: usize = HEADER_LINES + 8 * SUB_LINES;

pub(super) fn group_bytes(n_in: usize) -> usize {
    n_in / 256 * BLOCK_LINES * LINE
}

pub(super) fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    for (block, lines) in row.chunks_exact(BLOCK).zip(group.chunks_exact_mut(BLOCK_LINES * LINE)) {
        let (header, nibbles) = lines.split_at_mut(HEADER_LINES * LINE);
        k_scales::pack(header, lane, block);
        let codes = nibbles_256(block[HEADER_BYTES..].first_chunk().expect("128 bytes"));
        let lines = nibbles.as_chunks_mut::<{ SUB_LINES * LINE }>().0;
        for (codes, lines) in codes.as_chunks::<32>().0.iter().zip(lines) {
            put_dwords(lines, lane, &join_nibbles(codes));
        }
    }
}

pub(super) fn unpack(row: &mut [u8], group: &[u8], lane: usize) {
    for (block, lines) in row.chunks_exact_mut(BLOCK).zip(group.chunks_exact(BLOCK_LINES * LINE)) {
        let (header, nibbles) = lines.split_at(HEADER_LINES * LINE);
        k_scales::unpack(block, header, lane);
        let mut codes = [0; 256];
        let lines = nibbles.as_chunks::<{ SUB_LINES * LINE }>().0;
        for (codes, lines) in codes.as_chunks_mut::<32>().0.iter_mut().zip(lines) {
            let mut bytes = [0; 16];
            get_dwords(&mut bytes, lines, lane);
            *codes = bits::nibbles(&bytes);
        }
        block[HEADER_BYTES..].copy_from_slice(&join_nibbles_256(&codes));
    }
}

#[derive(Clone, Copy)]
pub(super) struct Multiply;

impl Product for Multiply {
    #[inline(always)]
    unsafe fn add<S: Simd, const ONE: bool>(self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE { 1 } else { x.rows };
        let mut t = Sums::<TILE>::uninit();
        let t = t.as_mut_ptr().cast::<i32>();
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to; a tile has at most TILE rows.
        unsafe {
            let low = S::splat_i32(0x0f0f_0f0f);
            int8::clear::<S>(t.cast(), rows);
            for b in 0..n_in / 256 {
                let block = w.as_ptr().add(b * BLOCK_LINES * LINE);
                let header = Header::<S>::load(block);
                for j in 0..8 {
                    let lines = block.add((HEADER_LINES + SUB_LINES * j) * LINE);
                    int8::prefetch::<S, ONE>(lines, SUB_LINES + j % 2);
                    let mut v = [low; 8];
                    for i in 0..SUB_LINES {
                        let line = S::load_in_order(lines.add(i * LINE));
                        v[i] = S::and(line, low);
                        v[SUB_LINES + i] = S::and(S::shr::<4>(line), low);
                    }
                    let q = x.q.as_ptr().add((8 * b + j) * rows * 32);
                    int8::add_sub_block::<S, 8, 15>(t, &v, header.scales[j], rows, q, std::ptr::null());
                }
                header.end_super_block(y, t, &x, rows, b);
            }
        }
    }
}
