//! The inner loops that the 8-bit kernels share: a few vectors of weights in registers, by every row of a tile.
//!
//! The order in which an output element's products are added is the same for any number of rows and never depends on
//! what the other rows hold. Inside a block the sum is an exact integer.

use super::activations::Tile;
use crate::cpu::simd::{LANES, LINE, Simd};

/// Rows that are in flight together, to hide the latency of the dot product.
const ROWS: usize = 4;

/// Offsets, in bytes, of blocks with one F16 scale per row in a panel: two blocks share a line of scales, which stands before them.
///
/// ```text
/// scales of block 0, F16 [16] | scales of block 1, F16 [16] | LINES lines of block 0 | LINES lines of block 1 | …
/// ```
///
/// The scales are part of the one stream: in a region of their own they would be a second one, too slow for the processor
/// to prefetch.
pub(super) struct BlockOffsets<const LINES: usize>;

impl<const LINES: usize> BlockOffsets<LINES> {
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

    /// Bytes of a panel of `n_blocks` blocks.
    pub(super) fn panel_bytes(n_blocks: usize) -> usize {
        n_blocks.div_ceil(2) * LINE + n_blocks * LINES * LINE
    }

    /// Writes the scale of one row and returns the block's lines.
    pub(super) fn put_scale<'a>(panel: &'a mut [u8], b: usize, lane: usize, scale: &[u8]) -> &'a mut [u8] {
        panel[Self::scales(b) + 2 * lane..][..2].copy_from_slice(scale);
        &mut panel[Self::lines(b)..][..LINES * LINE]
    }

    /// Reads the scale of one row and returns the block's lines.
    pub(super) fn get_scale<'a>(scale: &mut [u8], panel: &'a [u8], b: usize, lane: usize) -> &'a [u8] {
        scale.copy_from_slice(&panel[Self::scales(b) + 2 * lane..][..2]);
        &panel[Self::lines(b)..][..LINES * LINE]
    }
}

/// Bytes of the factors of `n_blocks` super-blocks in a region of their own: F16 [n_blocks, 16], filled up to a line.
pub(super) fn factors_bytes(n_blocks: usize) -> usize {
    (n_blocks * 2 * LANES).next_multiple_of(LINE)
}

/// How far ahead of their use the lines of a weight are prefetched, in bytes, where a line is multiplied with several rows: the
/// processor prefetches too little by itself while it computes, and the two times would add up.
const AHEAD: usize = 4096;

/// Prefetches `n` lines [`AHEAD`] of `lines`, which may be any address, unless there is one row: then the processor's own prefetchers are
/// ahead anyway.
///
/// # Safety
/// *Instructions*: those of [`Simd`].
#[inline(always)]
pub(super) unsafe fn prefetch<S: Simd, const ONE_ROW: bool>(lines: *const u8, n: usize) {
    if !ONE_ROW {
        for i in 0..n {
            // SAFETY: a prefetch takes any address; the instructions are this function's contract.
            unsafe { S::prefetch(lines.wrapping_add(i * LINE + AHEAD)) }
        }
    }
}

/// Loads lines that are used later, each a little at a time, so that all lines of a weight are first loaded in the order in which they
/// stand.
///
/// # Safety
/// 1. *Instructions*: those of [`Simd`].
/// 2. *Weights*: `lines` is a multiple of 64 and readable for `n` lines.
#[inline(always)]
pub(super) unsafe fn touch<S: Simd>(lines: *const u8, n: usize) {
    for i in 0..n {
        // SAFETY: line i < n (2), at a multiple of 64; the instructions are `Simd`'s (1).
        unsafe {
            S::load_in_order(lines.add(i * LINE));
        }
    }
}

/// Sets `rows` rows of 16 floats to zero.
///
/// # Safety
/// 1. *Instructions*: those of [`Simd`].
/// 2. *Sums*: `y` is writable for [rows, 16] floats.
#[inline(always)]
pub(super) unsafe fn clear<S: Simd>(y: *mut f32, rows: usize) {
    for r in 0..rows {
        // SAFETY: row r < rows (2); the instructions are `Simd`'s (1).
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
    /// Block `b` of a tile of `rows` rows that has a scale for each block of 32.
    ///
    /// # Safety
    /// *Activations*: the tile is of 8-bit integers and has that block and so many rows.
    #[inline(always)]
    pub(super) unsafe fn of(x: &Tile<'_>, rows: usize, b: usize, offsets: *const i32) -> Self {
        // SAFETY: the tile's `q` is [n_blocks, rows, 32] and its scales [n_blocks, rows], and b < n_blocks.
        unsafe {
            Self { q: x.q.as_ptr().add(b * rows * 32), scales: x.scales.as_ptr().add(b * rows), offsets }
        }
    }
}

/// Adds the products of a block of 32 weights, in 8 vectors, with every row of the tile: `y += sum · x.scale · scale`.
///
/// # Safety
/// 1. *Instructions*: those of [`Simd`].
/// 2. *Weights*: in `0..=MAX`, as [`Simd::dot`] asks.
/// 3. *Activations*: the pointers of `x` have `rows` rows.
/// 4. *Sums*: `y` is readable and writable for [rows, 16] floats.
#[inline(always)]
pub(super) unsafe fn add_block<S: Simd, const MAX: u8>(
    y: *mut f32,
    w: &[S::I; 8],
    scale: S::F,
    rows: usize,
    x: Block,
) {
    let mut r = 0;
    // SAFETY: the contract of `add_block_rows` is this one's for rows r..r + ROWS or r..r + 1, which are below `rows`.
    unsafe {
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

/// [`add_block`] for rows `r..r + N`.
///
/// # Safety
/// As [`add_block`], of which rows up to r + N are there.
#[inline(always)]
unsafe fn add_block_rows<S: Simd, const MAX: u8, const N: usize>(
    y: *mut f32,
    w: &[S::I; 8],
    scale: S::F,
    r: usize,
    x: Block,
) {
    // SAFETY: rows r..r + N of the activations (3) and of `y` (4) are there; N rows of 32 activations from row `r` on are what `dot` reads.
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

/// Activations of a sub-block of every row of a tile.
#[derive(Clone, Copy)]
pub(super) struct SubBlock {
    /// The first row's; rows are 32 bytes apart.
    pub(super) q: *const i8,
    /// [rows]; what the sums start from, or null for zero.
    pub(super) offsets: *const i32,
}

/// Adds the products of a sub-block of 4·N weights with every row of the tile, times a whole scale: `t += sum · scale`.
///
/// # Safety
/// 1. *Instructions*: those of [`Simd`].
/// 2. *Weights*: in `0..=MAX`, as [`Simd::dot`] asks.
/// 3. *Activations*: the pointers of `x` have `rows` rows, of 4·N bytes.
/// 4. *Sums*: `t` is readable and writable for [rows, 16] integers.
#[inline(always)]
pub(super) unsafe fn add_sub_block<S: Simd, const N: usize, const MAX: u8>(
    t: *mut i32,
    w: &[S::I; N],
    scale: S::I,
    rows: usize,
    x: SubBlock,
) {
    let mut r = 0;
    // SAFETY: the contract of `add_sub_block_rows` is this one's for rows r..r + ROWS or r..r + 1, which are below `rows`.
    unsafe {
        while r + ROWS <= rows {
            add_sub_block_rows::<S, N, MAX, ROWS>(t, w, scale, r, x);
            r += ROWS;
        }
        while r < rows {
            add_sub_block_rows::<S, N, MAX, 1>(t, w, scale, r, x);
            r += 1;
        }
    }
}

/// [`add_sub_block`] for rows `r..r + R`.
///
/// # Safety
/// As [`add_sub_block`], of which rows up to r + R are there.
#[inline(always)]
unsafe fn add_sub_block_rows<S: Simd, const N: usize, const MAX: u8, const R: usize>(
    t: *mut i32,
    w: &[S::I; N],
    scale: S::I,
    r: usize,
    x: SubBlock,
) {
    // SAFETY: rows r..r + R of the activations (3) and of `t` (4) are there; R rows of 4·N activations from row `r` on are what `dot` reads.
    unsafe {
        let mut sums = [S::splat_i32(0); R];
        if !x.offsets.is_null() {
            for i in 0..R {
                sums[i] = S::splat_i32(*x.offsets.add(r + i));
            }
        }
        S::dot::<N, MAX, R>(&mut sums, w, x.q.add(r * 32));
        for i in 0..R {
            let t = t.add((r + i) * LANES).cast::<u8>();
            S::store(t, S::add_i32(S::load(t), S::mul_i32(sums[i], scale)));
        }
    }
}

/// What [`add_sub_block`] came to for row `r`, which is set back to zero.
///
/// # Safety
/// 1. *Instructions*: those of [`Simd`].
/// 2. *Sums*: `t` is readable and writable for more than `r` rows of 16 integers.
#[inline(always)]
pub(super) unsafe fn take<S: Simd>(t: *mut i32, r: usize) -> S::I {
    // SAFETY: row `r` is there (2), 64 bytes; the instructions are `Simd`'s (1).
    unsafe {
        let t = t.add(r * LANES).cast::<u8>();
        let sum = S::load(t);
        S::store(t, S::splat_i32(0));
        sum
    }
}
