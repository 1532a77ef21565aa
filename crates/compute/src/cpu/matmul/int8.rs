//! The inner loops that the 8-bit kernels share: a few vectors of weights in registers, by every row of a tile.
//!
//! The order in which an output element's products are added is the same for any number of rows and never depends on
//! what the other rows hold. Inside a block the sum is an exact integer.

use super::activations::Tile;
use crate::cpu::simd::{LANES, LINE, Simd};
use std::mem::MaybeUninit;

/// Rows that are in flight together, to hide the latency of the dot product.
const ROWS: usize = 4;

/// Room for [`ROWS`](Self) rows of 16 sums: aligned, because a vector that crosses two cache lines costs twice; not initialized, because
/// most products have one row.
#[repr(align(64))]
pub(super) struct Sums<const ROWS: usize>(MaybeUninit<[[f32; LANES]; ROWS]>);

impl<const ROWS: usize> Sums<ROWS> {
    pub(super) fn uninit() -> Self {
        Self(MaybeUninit::uninit())
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }

    /// Zeros for the first `rows` rows.
    pub(super) fn zeroed(&mut self, rows: usize) -> &mut [f32] {
        assert!(rows <= ROWS);
        let start = self.as_mut_ptr();
        // SAFETY: there is room, and zero bytes are floats.
        unsafe {
            start.write_bytes(0, rows * LANES);
            std::slice::from_raw_parts_mut(start, rows * LANES)
        }
    }
}

/// Where blocks with one F16 scale per row stand in a group: two blocks share a line of scales, which stands before them.
///
/// ```text
/// scales of block 0, F16 [16] | scales of block 1, F16 [16] | LINES lines of block 0 | LINES lines of block 1 | …
/// ```
///
/// The scales are part of the one stream: in a region of their own they would be a second one, too slow for the processor
/// to fetch ahead.
pub(super) struct Blocks<const LINES: usize>;

impl<const LINES: usize> Blocks<LINES> {
    /// Start of the scales of block `b`.
    #[inline(always)]
    pub(super) fn scales(b: usize) -> usize {
        b / 2 * (1 + 2 * LINES) * LINE + b % 2 * 2 * LANES
    }

    /// Start of the lines of block `b`.
    #[inline(always)]
    pub(super) fn lines(b: usize) -> usize {
        (b / 2 * (1 + 2 * LINES) + 1 + b % 2 * LINES) * LINE
    }

    /// Bytes of a group of `n_blocks` blocks.
    pub(super) fn group_bytes(n_blocks: usize) -> usize {
        n_blocks.div_ceil(2) * LINE + n_blocks * LINES * LINE
    }

    /// Writes the scale of one row and returns the block's lines.
    pub(super) fn put_scale<'a>(group: &'a mut [u8], b: usize, lane: usize, scale: &[u8]) -> &'a mut [u8] {
        group[Self::scales(b) + 2 * lane..][..2].copy_from_slice(scale);
        &mut group[Self::lines(b)..][..LINES * LINE]
    }

    /// Reads the scale of one row and returns the block's lines.
    pub(super) fn get_scale<'a>(scale: &mut [u8], group: &'a [u8], b: usize, lane: usize) -> &'a [u8] {
        scale.copy_from_slice(&group[Self::scales(b) + 2 * lane..][..2]);
        &group[Self::lines(b)..][..LINES * LINE]
    }
}

/// Bytes of the factors of `n_blocks` super-blocks in a region of their own: F16 [n_blocks, 16], filled up to a line.
pub(super) fn factors_bytes(n_blocks: usize) -> usize {
    (n_blocks * 2 * LANES).next_multiple_of(LINE)
}

/// How far ahead of their use the lines of a weight are asked for, in bytes, where a line has work to do for several rows: the
/// processor fetches too little by itself while it computes, and the two times would add up.
const AHEAD: usize = 4096;

/// Asks for `n` lines [`AHEAD`] of `lines`, unless there is one row: then the processor's own fetching is ahead anyway.
///
/// # Safety
/// [`Simd`]'s contract.
#[inline(always)]
pub(super) unsafe fn prefetch<S: Simd, const ONE: bool>(lines: *const u8, n: usize) {
    if !ONE {
        for i in 0..n {
            // SAFETY: the caller's promise; the address may be any.
            unsafe { S::prefetch(lines.wrapping_add(i * LINE + AHEAD)) }
        }
    }
}

/// Loads lines that are used later, each a little at a time, so that all lines of a weight are first met in the order in which they
/// stand.
///
/// # Safety
/// [`Simd`]'s contract; there are `n` lines.
#[inline(always)]
pub(super) unsafe fn touch<S: Simd>(lines: *const u8, n: usize) {
    for i in 0..n {
        // SAFETY: the caller's promise.
        unsafe {
            S::load_in_order(lines.add(i * LINE));
        }
    }
}

/// Sets `rows` rows of 16 floats to zero.
///
/// # Safety
/// [`Simd`]'s contract; `y` is writable.
#[inline(always)]
pub(super) unsafe fn clear<S: Simd>(y: *mut f32, rows: usize) {
    for r in 0..rows {
        // SAFETY: the caller's promise.
        unsafe { S::store_f32(y.add(r * LANES), S::splat(0.0)) }
    }
}

/// A block of 32 activations of every row of a tile.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// [rows, 32]
    q: *const i8,
    /// [rows]
    scales: *const f32,
    /// [rows]; what each integer sum starts from, or null for zero.
    offsets: *const i32,
}

impl Block {
    /// Block `b` of a tile of `rows` rows whose scales stand per block of 32.
    ///
    /// # Safety
    /// The tile has that block.
    #[inline(always)]
    pub(super) unsafe fn of(x: &Tile<'_>, rows: usize, b: usize, offsets: *const i32) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self { q: x.q.as_ptr().add(b * rows * 32), scales: x.scales.as_ptr().add(b * rows), offsets }
        }
    }
}

/// Adds the products of a block of 32 weights, in 8 vectors, with every row of the tile: `y += sum · x.scale · scale`.
///
/// # Safety
/// [`Simd`]'s contract; `y` is [rows, 16] and the pointers of `x` have `rows` rows.
#[inline(always)]
pub(super) unsafe fn add_block<S: Simd, const MAX: u8>(
    y: *mut f32,
    w: &[S::I; 8],
    scale: S::F,
    rows: usize,
    x: Block,
) {
    // SAFETY: the caller's promise; r + ROWS <= rows.
    unsafe {
        let mut r = 0;
        while r + ROWS <= rows {
            add_block_rows::<S, MAX, ROWS>(y, w, scale, r, x);
            r += ROWS;
        }
        while r < rows {
            add_block_rows::<S, MAX, 1>(y, w, scale, r, x);
            r += 1;
        }
    }
}

#[inline(always)]
unsafe fn add_block_rows<S: Simd, const MAX: u8, const N: usize>(
    y: *mut f32,
    w: &[S::I; 8],
    scale: S::F,
    r: usize,
    x: Block,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [S::splat_i32(0); N];
        if !x.offsets.is_null() {
            for i in 0..N {
                sums[i] = S::splat_i32(*x.offsets.add(r + i));
            }
        }
        S::dot::<8, MAX, N>(&mut sums, w, x.q.add(r * 32));
        for i in 0..N {
            let product = S::mul(S::to_f32(sums[i]), S::splat(*x.scales.add(r + i)));
            let y = y.add((r + i) * LANES);
            S::store_f32(y, S::fma(product, scale, S::load_f32(y)));
        }
    }
}

/// Adds the products of 4·N weights with every row of the tile, times a whole scale: `t += sum · scale`.
///
/// `q` is the first row's activations and rows are 32 bytes apart; `offsets` [rows] is what the sums start from, or null
/// for zero.
///
/// # Safety
/// [`Simd`]'s contract; `t` is [rows, 16].
#[inline(always)]
pub(super) unsafe fn add_sub_block<S: Simd, const N: usize, const MAX: u8>(
    t: *mut i32,
    w: &[S::I; N],
    scale: S::I,
    rows: usize,
    q: *const i8,
    offsets: *const i32,
) {
    // SAFETY: the caller's promise; r + ROWS <= rows.
    unsafe {
        let mut r = 0;
        while r + ROWS <= rows {
            add_sub_block_rows::<S, N, MAX, ROWS>(t, w, scale, r, q, offsets);
            r += ROWS;
        }
        while r < rows {
            add_sub_block_rows::<S, N, MAX, 1>(t, w, scale, r, q, offsets);
            r += 1;
        }
    }
}

#[inline(always)]
unsafe fn add_sub_block_rows<S: Simd, const N: usize, const MAX: u8, const R: usize>(
    t: *mut i32,
    w: &[S::I; N],
    scale: S::I,
    r: usize,
    q: *const i8,
    offsets: *const i32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [S::splat_i32(0); R];
        if !offsets.is_null() {
            for i in 0..R {
                sums[i] = S::splat_i32(*offsets.add(r + i));
            }
        }
        S::dot::<N, MAX, R>(&mut sums, w, q.add(r * 32));
        for i in 0..R {
            let t = t.add((r + i) * LANES).cast::<u8>();
            S::store(t, S::add_i32(S::load(t), S::mul_i32(sums[i], scale)));
        }
    }
}

/// What [`add_sub_block`] came to for row `r`, which is set back to zero.
///
/// # Safety
/// [`Simd`]'s contract; `t` has that row.
#[inline(always)]
pub(super) unsafe fn take<S: Simd>(t: *mut i32, r: usize) -> S::I {
    // SAFETY: the caller's promise.
    unsafe {
        let t = t.add(r * LANES).cast::<u8>();
        let sum = S::load(t);
        S::store(t, S::splat_i32(0));
        sum
    }
}
