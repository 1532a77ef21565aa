//! Q8_0: blocks of 32 signed bytes and a scale.
//!
//! Group: blocks of 8 lines with their scales (see [`Blocks`]), the weights stored as `byte + 128`, because the dot product
//! takes unsigned weights.

use super::activations::Tile;
use super::int8::{self, Blocks};
use super::layout::{Args, Product, get_dwords, put_dwords};
use crate::cpu::simd::{LINE, Simd};

const BLOCK: usize = 34;
const BLOCK_LINES: usize = 8;

type Lines = Blocks<BLOCK_LINES>;

pub(super) fn group_bytes(n_in: usize) -> usize {
    Lines::group_bytes(n_in / 32)
}

pub(super) fn pack(group: &mut [u8], lane: usize, row: &[u8]) {
    for (b, block) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
        let lines = Lines::put_scale(group, b, lane, &block[..2]);
        let mut q = [0; 32];
        for (q, byte) in q.iter_mut().zip(&block[2..]) {
            *q = byte ^ 0x80;
        }
        put_dwords(lines, lane, &q);
    }
}

pub(super) fn unpack(row: &mut [u8], group: &[u8], lane: usize) {
    for (b, block) in row.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let lines = Lines::get_scale(&mut block[..2], group, b, lane);
        get_dwords(&mut block[2..], lines, lane);
        for byte in &mut block[2..] {
            *byte ^= 0x80;
        }
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
            // Two blocks per turn, so that every load goes forward in equal steps.
            for pair in 0..n_blocks / 2 {
                add_block::<S, ONE>(y, group, rows, &x, 2 * pair);
                add_block::<S, ONE>(y, group, rows, &x, 2 * pair + 1);
            }
            if !n_blocks.is_multiple_of(2) {
                add_block::<S, ONE>(y, group, rows, &x, n_blocks - 1);
            }
        }
    }
}

/// Adds the products with block `b`.
///
/// # Safety
/// [`Simd`]'s contract; the group and the tile have the block; `y` is [rows, 16].
#[inline(always)]
unsafe fn add_block<S: Simd, const ONE: bool>(
    y: *mut f32,
    group: *const u8,
    rows: usize,
    x: &Tile<'_>,
    b: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let scale = S::load_f16(group.add(Lines::scales(b)));
        let lines = group.add(Lines::lines(b));
        let offsets = match S::CENTERS_BYTES {
            true => std::ptr::null(),
            false => x.offsets[0].as_ptr().add(b * rows),
        };
        if ONE {
            // Lines that are multiplied as they come are read 10 % faster than eight at a time.
            let mut sum = [S::splat_i32(if offsets.is_null() { 0 } else { *offsets })];
            for i in 0..8 {
                let line = S::load_in_order(lines.add(i * LINE));
                S::dot::<1, 255, 1>(&mut sum, &[line], x.q.as_ptr().add(32 * b + 4 * i));
            }
            let product = S::mul(S::to_f32(sum[0]), S::splat(*x.scales.as_ptr().add(b)));
            return S::store_f32(y, S::fma(product, scale, S::load_f32(y)));
        }
        let mut w = [S::splat_i32(0); 8];
        for i in 0..8 {
            w[i] = S::load_in_order(lines.add(i * LINE));
        }
        int8::add_block::<S, 255>(y, &w, scale, rows, int8::Block::of(x, rows, b, offsets));
    }
}
