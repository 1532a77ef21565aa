//! Super-blocks whose weights are codes of 2 to 4 bits for the bytes of a table: the I-quants, Q2_K, Q3_K and the ternary types.
//!
//! The points of their codebooks have few coordinates: IQ2 knows three magnitudes, IQ3 eight, and with the sign that is a code
//! of 3 or 4 bits per weight. So packing looks each point up once, and a matmul needs one byte shuffle for 64 weights instead of
//! a search in a codebook. Types that keep several weights under one index get larger by it, see docs/cpu.md.
//!
//! Panel: the factors, F16 [n_super_blocks, 16], twice as many for types with minimums (d, then dmin), filled up to a line; then per
//! super-block the scales of its sub-blocks, a byte each, [n_sub, 16 rows], and the codes. With minimums, a scale is the low nibble of
//! its byte and the minimum the high one. Inside a sub-block of 32, or a super-block of sub-blocks of 16, everything is summed in whole
//! numbers.
//!
//! Codes, where block k is weights 32·k to 32·k + 31 and line i has weights 4·i to 4·i + 3 of the 16 rows' block:
//!
//! - 4 bits: for each pair of blocks 8 lines, the first block in the low nibbles
//! - 2 bits: for each four blocks 8 lines, the first block in the lowest bits
//! - 3 bits: the low two bits as above, and 8 lines of high bits, one bit of each byte per block, which alternate with the low bits of the
//!   first four blocks: the order of first use
//!
//! A byte shuffle takes its index from the low four bits, so two bits need not be moved to the lowest place: where they stand at bit 2
//! a table in another order serves. High bits stand where they complete such an index (see [`HIGH_BITS`]), so that half of the blocks
//! need no shift and the others one by four.

use super::activations::{ActivationLayout, TILE, Tile};
use super::int8;
use super::layout::{Args, Packing, PanelKernel, put_dwords};
use super::sums::Sums;
use crate::DType;
use crate::cpu::simd::{LANES, LINE, Simd};
use half::f16;
use std::marker::PhantomData;

/// How a type keeps the scales of its sub-blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scales {
    /// One factor for the whole super-block
    None,
    /// `i8`
    Signed,
    /// Scale and minimum, each in 0..16
    WithMin,
}

/// What a kernel must know when it is compiled.
pub(super) trait Shape: Sync {
    /// Bits of a code: 2, 3 or 4.
    const BITS: usize;
    /// Weights of a sub-block: 16 or 32.
    const SUB: usize;
    /// Largest byte of the table, as [`Simd::dot`] wants it.
    const MAX: u8;
    const SCALES: Scales;

    /// Sub-blocks of a super-block.
    const N_SUB: usize = 256 / Self::SUB;
    /// Factors of a super-block.
    const N_FACTORS: usize = if matches!(Self::SCALES, Scales::WithMin) { 2 } else { 1 };
    const SCALE_LINES: usize =
        if matches!(Self::SCALES, Scales::None) { 0 } else { Self::N_SUB * LANES / LINE };
    /// What the table's bytes are above the numbers that they stand for, since the dot product takes unsigned weights. The numbers of a
    /// type with minimums are not negative.
    const ABOVE: u8 = if matches!(Self::SCALES, Scales::WithMin) { 0 } else { Self::MAX / 2 + 1 };
    const BLOCK_LINES: usize = Self::SCALE_LINES + 8 * Self::BITS;
    /// Blocks whose low bits share lines.
    const BLOCKS_OF_LINE: usize = if Self::BITS == 4 { 2 } else { 4 };
}

/// IQ4_XS
pub(super) struct Wide4x32;
/// IQ3_S, IQ3_XXS
pub(super) struct Signed4x32;
/// IQ2_XXS, IQ1_S
pub(super) struct Signed3x32;
/// IQ2_XS, IQ2_S, IQ1_M, Q3_K
pub(super) struct Signed3x16;
/// Q2_K
pub(super) struct WithMin2x16;
/// TQ1_0, TQ2_0
pub(super) struct Plain2x32;

macro_rules! shape {
    ($name:ident: $bits:literal, $sub:literal, $max:literal, $scales:ident) => {
        impl Shape for $name {
            const BITS: usize = $bits;
            const SUB: usize = $sub;
            const MAX: u8 = $max;
            const SCALES: Scales = Scales::$scales;
        }
    };
}
shape!(Wide4x32: 4, 32, 255, Signed);
shape!(Signed4x32: 4, 32, 127, Signed);
shape!(Signed3x32: 3, 32, 127, Signed);
shape!(Signed3x16: 3, 16, 127, Signed);
shape!(WithMin2x16: 2, 16, 15, WithMin);
shape!(Plain2x32: 2, 32, 127, None);

/// The layout of one type: a weight is `d · unit · scale · values[code]`, less `dmin · minimum` where there are minimums.
pub(super) struct Codes<T> {
    dtype: DType,
    /// What a code stands for.
    values: [i8; 16],
    /// A power of two, so that multiplying by it is exact.
    unit: f32,
    /// Takes one block of a file apart.
    read: fn(&[u8]) -> SuperBlock,
    /// `values` as the kernel looks them up.
    tables: Tables,
    shape: PhantomData<T>,
}

impl<T: Shape> Codes<T> {
    pub(super) const fn new(
        dtype: DType,
        values: [i8; 16],
        unit: f32,
        read: fn(&[u8]) -> SuperBlock,
    ) -> Self {
        Self { dtype, values, unit, read, tables: tables::<T>(values), shape: PhantomData }
    }
}

/// One row's super-block, taken apart.
pub(super) struct SuperBlock {
    /// Factors d and dmin, F16.
    pub(super) factors: [[u8; 2]; 2],
    /// One byte per sub-block; unused ones are 0.
    pub(super) scales: [u8; 16],
    pub(super) codes: [u8; 256],
}

/// The bit of a byte of high bits that belongs to each block: beside the block's low bits in their half of the byte.
const HIGH_BITS: [usize; 8] = [2, 0, 6, 4, 3, 1, 7, 5];

/// Tables for the indices of even and odd blocks among the first and the second four.
type Tables = [[[u8; 16]; 2]; 2];

/// The tables of a type whose codes stand for `values`. The low bits of an index of block 4·`half` + `j` stand at bit 0 or, for odd
/// `j`, at bit 2, its high bit where [`HIGH_BITS`] has it, both modulo 4.
const fn tables<T: Shape>(values: [i8; 16]) -> Tables {
    let mut tables = [[[0; 16]; 2]; 2];
    let mut at = 0;
    while at < 64 {
        let (half, j, index) = (at / 32, at / 16 % 2, at % 16);
        let code = match T::BITS {
            4 => index,
            2 => index >> (j * 2) & 3,
            _ => index >> (j * 2) & 3 | (index >> (HIGH_BITS[4 * half + j] % 4) & 1) << 2,
        };
        tables[half][j][index] = (values[code] as u8).wrapping_add(T::ABOVE);
        at += 1;
    }
    tables
}

/// Where the parts of a panel stand.
struct Parts<T>(PhantomData<T>);

impl<T: Shape> Parts<T> {
    #[inline(always)]
    fn factors_bytes(n_blocks: usize) -> usize {
        int8::factors_bytes(n_blocks * T::N_FACTORS)
    }

    /// Line after the scales, and lowest bit in its bytes, of the low two (or all four) bits of dword `i` of block `k`.
    #[inline(always)]
    fn low(k: usize, i: usize) -> (usize, usize) {
        match T::BITS {
            4 => (k / 2 * 8 + i, k % 2 * 4),
            3 => (if k < 4 { 2 * i } else { 16 + i }, k % 4 * 2),
            _ => (k / 4 * 8 + i, k % 4 * 2),
        }
    }

    /// Line after the scales of the high bits of dword `i`.
    #[inline(always)]
    fn high(i: usize) -> usize {
        2 * i + 1
    }
}

impl<T: Shape> Packing for Codes<T> {
    fn name(&self) -> &'static str {
        self.dtype.name()
    }

    /// Activations have a scale of their own for each 32, where sub-blocks have.
    fn activations(&self) -> ActivationLayout {
        if T::SUB == 32 { ActivationLayout::Int8Block32 } else { ActivationLayout::Int8Block256 }
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        Parts::<T>::factors_bytes(n_in / 256) + n_in / 256 * T::BLOCK_LINES * LINE
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        let block_bytes = self.dtype.spec().block_bytes;
        let n_blocks = row.len() / block_bytes;
        let (factors, blocks) = panel.split_at_mut(Parts::<T>::factors_bytes(n_blocks));
        for (b, (block, lines)) in
            row.chunks_exact(block_bytes).zip(blocks.chunks_exact_mut(T::BLOCK_LINES * LINE)).enumerate()
        {
            let block = (self.read)(block);
            for (f, factor) in block.factors[..T::N_FACTORS].iter().enumerate() {
                factors[2 * ((b * T::N_FACTORS + f) * LANES + lane)..][..2].copy_from_slice(factor);
            }
            let (scales, lines) = lines.split_at_mut(T::SCALE_LINES * LINE);
            for (scales, scale) in scales.chunks_exact_mut(LANES).zip(block.scales) {
                scales[lane] = scale;
            }
            pack_codes::<T>(lines, lane, &block.codes);
        }
    }

    /// Every product of a factor, a scale and a table's number is exact in `f32`, so the result has the same bits as the type's own
    /// decoder gives.
    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        let (blocks, _) = out.as_chunks_mut::<256>();
        let (factors, lines) = panel.split_at(Parts::<T>::factors_bytes(blocks.len()));
        for (b, (out, lines)) in blocks.iter_mut().zip(lines.chunks_exact(T::BLOCK_LINES * LINE)).enumerate()
        {
            let factor = |f: usize| {
                let at = 2 * ((b * T::N_FACTORS + f) * LANES + lane);
                f16::from_le_bytes([factors[at], factors[at + 1]]).to_f32()
            };
            let (scales, lines) = lines.split_at(T::SCALE_LINES * LINE);
            for (j, out) in out.chunks_exact_mut(T::SUB).enumerate() {
                let (scale, min) = match T::SCALES {
                    Scales::None => (1.0, 0.0),
                    Scales::Signed => (f32::from(scales[j * LANES + lane] as i8), 0.0),
                    Scales::WithMin => {
                        let byte = scales[j * LANES + lane];
                        (f32::from(byte & 15), factor(T::N_FACTORS - 1) * f32::from(byte >> 4))
                    }
                };
                let scale = factor(0) * self.unit * scale;
                for (w, out) in out.iter_mut().enumerate() {
                    let code = code::<T>(lines, lane, j * T::SUB + w);
                    *out = scale * f32::from(self.values[usize::from(code)]) - min;
                }
            }
        }
    }
}

/// Writes the codes of a super-block.
fn pack_codes<T: Shape>(lines: &mut [u8], lane: usize, codes: &[u8; 256]) {
    let codes = codes.as_chunks::<32>().0;
    let mut words = [[0_u8; 32]; 8];
    if T::BITS == 4 {
        for (word, pair) in words.iter_mut().zip(codes.as_chunks::<2>().0) {
            *word = std::array::from_fn(|i| pair[0][i] | pair[1][i] << 4);
        }
    } else {
        for (word, four) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
            *word = std::array::from_fn(|i| {
                four[0][i] & 3 | (four[1][i] & 3) << 2 | (four[2][i] & 3) << 4 | (four[3][i] & 3) << 6
            });
        }
    }
    let n_words = if T::BITS == 4 { 4 } else { 2 };
    for (w, word) in words[..n_words].iter().enumerate() {
        let first = w * 8 / n_words;
        for (i, dword) in word.as_chunks::<4>().0.iter().enumerate() {
            put_dwords(&mut lines[Parts::<T>::low(first, i).0 * LINE..][..LINE], lane, dword);
        }
    }
    if T::BITS == 3 {
        let mut high = [0_u8; 32];
        for (k, codes) in codes.iter().enumerate() {
            high.iter_mut().zip(codes).for_each(|(high, code)| *high |= (code >> 2) << HIGH_BITS[k]);
        }
        for (i, dword) in high.as_chunks::<4>().0.iter().enumerate() {
            put_dwords(&mut lines[Parts::<T>::high(i) * LINE..][..LINE], lane, dword);
        }
    }
}

/// Code `w` of a super-block.
fn code<T: Shape>(lines: &[u8], lane: usize, w: usize) -> u8 {
    let (k, within) = (w / 32, w % 32);
    let at = 4 * lane + within % 4;
    let (line, bit) = Parts::<T>::low(k, within / 4);
    let code = lines[line * LINE + at] >> bit & if T::BITS == 4 { 15 } else { 3 };
    if T::BITS == 3 {
        code | (lines[Parts::<T>::high(within / 4) * LINE + at] >> HIGH_BITS[k] & 1) << 2
    } else {
        code
    }
}

impl<T: Shape> PanelKernel for Codes<T> {
    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let multiply = Multiply { args, layout: self };
        // SAFETY: the contract of both is `add_panel`'s own; `ONE_ROW` says which number of rows there is (3).
        unsafe { if ONE_ROW { multiply.one_row::<S>() } else { multiply.rows::<S>() } }
    }
}

/// The matmul of a panel with a tile.
struct Multiply<'a, T> {
    args: Args<'a>,
    layout: &'a Codes<T>,
}

impl<T: Shape> Multiply<'_, T> {
    /// One row: each line is loaded once, for all blocks that it holds, and the sums stay in registers.
    ///
    /// # Safety
    /// As [`PanelKernel::add_panel`] for one row.
    #[inline(always)]
    unsafe fn one_row<S: Simd>(self) {
        let Args { w, x, y, .. } = self.args;
        let n_blocks = self.args.n_in / 256;
        // SAFETY: super-blocks below n_in / 256 have their factors and lines in the panel (2) and their activations in the tile (3); `y`
        // has one row (4).
        unsafe {
            let tables = self.tables::<S>();
            let mut total = S::load_f32(y);
            int8::touch::<S>(w.as_ptr(), Parts::<T>::factors_bytes(n_blocks) / LINE);
            for b in 0..n_blocks {
                let at = self.block::<S>(b, tables);
                int8::touch::<S>(at.scales, T::SCALE_LINES);
                let d = S::mul(S::load_f16(self.factors(b)), S::splat(self.layout.unit));
                let mut sums = OneRow { total, whole: S::splat_i32(0) };
                if T::BITS == 4 {
                    at.add_lines::<S, T, 0>(&mut sums, &x, b, d);
                    at.add_lines::<S, T, 2>(&mut sums, &x, b, d);
                    at.add_lines::<S, T, 4>(&mut sums, &x, b, d);
                    at.add_lines::<S, T, 6>(&mut sums, &x, b, d);
                } else {
                    at.add_lines::<S, T, 0>(&mut sums, &x, b, d);
                    at.add_lines::<S, T, 4>(&mut sums, &x, b, d);
                }
                let OneRow { whole, .. } = sums;
                total = sums.total;
                if T::SUB == 16 {
                    let mins = at.mins::<S, T>();
                    total = self.end_super_block::<S>(total, whole, d, mins, b, 0);
                }
            }
            S::store_f32(y, total);
        }
    }

    /// Several rows, whose sums are in memory.
    ///
    /// # Safety
    /// As [`PanelKernel::add_panel`].
    #[inline(always)]
    unsafe fn rows<S: Simd>(self) {
        let Args { n_in, x, y, .. } = self.args;
        let rows = x.rows;
        let mut t = Sums::<TILE>::uninit();
        let t = t.as_mut_ptr().cast::<u8>();
        // SAFETY: super-blocks below n_in / 256 have their factors and lines in the panel (2) and their activations in the tile (3); `y`
        // has its rows (4), and `t` too, since a tile has at most TILE.
        unsafe {
            let tables = self.tables::<S>();
            for b in 0..n_in / 256 {
                let at = self.block::<S>(b, tables);
                let d = S::mul(S::load_f16(self.factors(b)), S::splat(self.layout.unit));
                if T::SUB == 32 {
                    for half in 0..2 {
                        at.add_block::<S, T, 0>(y, &x, b, d, half);
                        at.add_block::<S, T, 1>(y, &x, b, d, half);
                        at.add_block::<S, T, 2>(y, &x, b, d, half);
                        at.add_block::<S, T, 3>(y, &x, b, d, half);
                    }
                    continue;
                }
                for r in 0..rows {
                    S::store(t.add(r * LINE), S::splat_i32(0));
                }
                for half in 0..2 {
                    at.add::<S, T, 0>(t, half);
                    at.add::<S, T, 1>(t, half);
                    at.add::<S, T, 2>(t, half);
                    at.add::<S, T, 3>(t, half);
                }
                let mins = at.mins::<S, T>();
                for r in 0..rows {
                    let y = y.add(r * LANES);
                    let sum = S::load(t.add(r * LINE));
                    S::store_f32(y, self.end_super_block::<S>(S::load_f32(y), sum, d, mins, b, r));
                }
            }
        }
    }

    /// The factors of super-block `b`.
    fn factors(&self, b: usize) -> *const u8 {
        self.args.w[b * T::N_FACTORS * 2 * LANES..].as_ptr()
    }

    /// [`Codes::tables`] in registers.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn tables<S: Simd>(&self) -> [[S::I; 2]; 2] {
        let [[a, b], [c, d]] = &self.layout.tables;
        // SAFETY: the instructions are this function's contract; a table is a reference.
        unsafe { [[S::table(a), S::table(b)], [S::table(c), S::table(d)]] }
    }

    /// Super-block `b`.
    ///
    /// # Safety
    /// *Weights and activations*: panel and tile have that super-block.
    #[inline(always)]
    unsafe fn block<S: Simd>(&self, b: usize, tables: [[S::I; 2]; 2]) -> Block<S::I> {
        let Args { w, n_in, x, .. } = &self.args;
        let start = Parts::<T>::factors_bytes(n_in / 256) + b * T::BLOCK_LINES * LINE;
        // SAFETY: block `b` starts at `start` and has scales and lines (the contract); `q` and the offsets are [n_blocks, rows, …].
        unsafe {
            let scales = w.as_ptr().add(start);
            let offsets = if T::MAX == 255 { x.offsets[0] } else { x.offsets[2] };
            Block {
                scales,
                lines: scales.add(T::SCALE_LINES * LINE),
                q: x.q.as_ptr().add(8 * b * x.rows * 32),
                offsets: offsets.as_ptr().add(T::N_SUB * b * x.rows),
                rows: x.rows,
                tables,
            }
        }
    }

    /// `total` and the whole number that row `r` of super-block `b` came to, with its minimums.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Weights and activations*: panel and tile have that super-block, the tile has that row.
    #[inline(always)]
    unsafe fn end_super_block<S: Simd>(
        &self,
        total: S::F,
        whole: S::I,
        d: S::F,
        mins: [S::I; 8],
        b: usize,
        r: usize,
    ) -> S::F {
        let x = &self.args.x;
        let at = b * x.rows + r;
        // SAFETY: the tile's offsets are [n_super_blocks, rows, 8] and its scales [n_super_blocks, rows], and row `r` of super-block `b` is
        // there; the factors are d and, with minimums, dmin (2).
        unsafe {
            let mut product = S::mul(S::to_f32(whole), d);
            if T::SCALES == Scales::WithMin {
                let sums = x.offsets[3].as_ptr().add(at * 8);
                let mut sum = S::splat_i32(0);
                for p in 0..8 {
                    sum = S::dot_i16(sum, mins[p], *sums.add(p));
                }
                let dmin = S::load_f16(self.factors(b).add(2 * LANES));
                product = S::fnma(S::to_f32(sum), dmin, product);
            }
            S::fma(product, S::splat(*x.scales.as_ptr().add(at)), total)
        }
    }
}

/// Whether sums start from what the table is above its numbers, times the activations.
fn from_offsets<S: Simd, T: Shape>() -> bool {
    T::ABOVE != 0 && !(T::MAX == 255 && S::CENTERS_BYTES)
}

/// What one row has come to: all super-blocks so far, and the current one where it is summed in whole numbers.
struct OneRow<S: Simd> {
    total: S::F,
    whole: S::I,
}

/// Adds the products of 4·N weights with each of `R` rows, which are 32 bytes apart.
///
/// # Safety
/// 1. *Instructions*: those of [`Simd`].
/// 2. *Weights*: at most `T::MAX`.
/// 3. *Activations*: `q` is readable for 4·N bytes of each row.
#[inline(always)]
unsafe fn dot<S: Simd, T: Shape, const N: usize, const R: usize>(
    mut sums: [S::I; R],
    v: &[S::I; N],
    q: *const i8,
) -> [S::I; R] {
    // SAFETY: weights (2) and activations (3) are as `Simd::dot` asks.
    unsafe {
        match T::MAX {
            15 => S::dot::<N, 15, R>(&mut sums, v, q),
            255 => S::dot::<N, 255, R>(&mut sums, v, q),
            _ => S::dot::<N, 127, R>(&mut sums, v, q),
        }
    }
    sums
}

/// A super-block of 16 rows, and its activations. Made by [`Multiply::block`] alone, so that the pointers have the sizes that their
/// comments say.
struct Block<I> {
    /// [n_sub, 16]
    scales: *const u8,
    /// 8 · [`Shape::BITS`] lines
    lines: *const u8,
    /// [8, rows, 32]
    q: *const i8,
    /// What the sums start from where [`from_offsets`] says so: [n_sub, rows]
    offsets: *const i32,
    rows: usize,
    /// For the first and second four blocks, for even and odd ones.
    tables: [[I; 2]; 2],
}

impl<I: Copy> Block<I> {
    /// Prefetches what block `k` needs some super-blocks ahead.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn prefetch<S: Simd<I = I>, T: Shape>(&self, k: usize) {
        let scale_lines = if k == 7 { T::SCALE_LINES } else { 0 };
        // SAFETY: a prefetch takes any address; the instructions are this function's contract.
        unsafe {
            let lines = self.lines.wrapping_add(k * T::BITS * LINE);
            int8::prefetch::<S, false>(lines, T::BITS + scale_lines)
        }
    }

    /// What the sums of sub-block `j` start from, [rows], or null for zero.
    #[inline(always)]
    fn offsets<S: Simd<I = I>, T: Shape>(&self, j: usize) -> *const i32 {
        if from_offsets::<S, T>() { self.offsets.wrapping_add(j * self.rows) } else { std::ptr::null() }
    }

    /// Adds the blocks of one row whose low bits begin in the lines of block `FIRST`: two of 4 bits, else four. Those that are
    /// sub-blocks are added to the total, others in whole numbers.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Activations*: `x` is a tile of one row with super-block `b`, which `self` is made of.
    #[inline(always)]
    unsafe fn add_lines<S: Simd<I = I>, T: Shape, const FIRST: usize>(
        &self,
        to: &mut OneRow<S>,
        x: &Tile<'_>,
        b: usize,
        d: S::F,
    ) {
        // SAFETY: the super-block has blocks 0 to 7, each with its lines, scales, offsets and 32 activations; the tile has a scale for each
        // where `T::SUB` is 32 (2). The table's bytes are at most `T::MAX`.
        unsafe {
            let mut sums = [S::splat_i32(0); 4];
            for part in 0..2 {
                let v = self.four_lines::<S, T>(FIRST, part);
                for j in 0..T::BLOCKS_OF_LINE {
                    let k = FIRST + j;
                    let sub = (32 * k + 16 * part) / T::SUB;
                    if T::SUB == 16 || part == 0 {
                        let start = if from_offsets::<S, T>() { *self.offsets.add(sub) } else { 0 };
                        sums[j] = S::splat_i32(start);
                    }
                    [sums[j]] = dot::<S, T, 4, 1>([sums[j]], &v[j], self.q.add(32 * k + 16 * part));
                    if T::SUB == 16 {
                        to.whole = S::add_i32(to.whole, S::mul_i32(sums[j], self.scale::<S, T>(sub)));
                    }
                }
            }
            if T::SUB == 32 {
                for j in 0..T::BLOCKS_OF_LINE {
                    let k = FIRST + j;
                    let scale = self.float_scale::<S, T>(k, d);
                    let product = S::mul(S::to_f32(sums[j]), S::splat(*x.scales.as_ptr().add(8 * b + k)));
                    to.total = S::fma(product, scale, to.total);
                }
            }
        }
    }

    /// Scale of sub-block `j`, which is below `T::N_SUB`.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn scale<S: Simd<I = I>, T: Shape>(&self, j: usize) -> I {
        debug_assert!(j < T::N_SUB);
        // SAFETY: a super-block's scales are [n_sub, 16], and `j` is below `n_sub`; the instructions are this function's contract.
        unsafe {
            match T::SCALES {
                Scales::None | Scales::Signed => S::load_i8(self.scales.add(j * LANES)),
                Scales::WithMin => S::and(S::load_u8(self.scales.add(j * LANES)), S::splat_i32(15)),
            }
        }
    }

    /// `d` times the scale of sub-block `j`, if they have scales.
    ///
    /// # Safety
    /// As [`Block::scale`].
    #[inline(always)]
    unsafe fn float_scale<S: Simd<I = I>, T: Shape>(&self, j: usize, d: S::F) -> S::F {
        // SAFETY: the contract of `scale` is this one's.
        unsafe {
            match T::SCALES {
                Scales::None => d,
                _ => S::mul(d, S::to_f32(self.scale::<S, T>(j))),
            }
        }
    }

    /// Adds block 4·`half` + `J` of super-block `b` to `y` [rows, 16], where it is a sub-block.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Activations*: `x` is the tile that `self` was made of.
    /// 3. *Sums*: `y` is readable and writable.
    #[inline(always)]
    unsafe fn add_block<S: Simd<I = I>, T: Shape, const J: usize>(
        &self,
        y: *mut f32,
        x: &Tile<'_>,
        b: usize,
        d: S::F,
        half: usize,
    ) {
        let k = 4 * half + J;
        // SAFETY: the super-block has blocks 0 to 7, and `half` is 0 or 1; the tile has it too (2), and `y` its rows (3). The table's bytes
        // are at most `T::MAX`.
        unsafe {
            self.prefetch::<S, T>(k);
            let v = self.weights::<S, T, J>(half);
            let scale = self.float_scale::<S, T>(k, d);
            let x = int8::Block::of(x, self.rows, 8 * b + k, self.offsets::<S, T>(k));
            match T::MAX {
                255 => int8::add_block::<S, 255>(y, &v, scale, self.rows, x),
                _ => int8::add_block::<S, 127>(y, &v, scale, self.rows, x),
            }
        }
    }

    /// Adds block 4·`half` + `J`, which has two sub-blocks, to `t`.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Sums*: `t` is readable and writable for `i32` [rows, 16].
    #[inline(always)]
    unsafe fn add<S: Simd<I = I>, T: Shape, const J: usize>(&self, t: *mut u8, half: usize) {
        let k = 4 * half + J;
        // SAFETY: the super-block has blocks 0 to 7, and `half` is 0 or 1, so its 32 activations of each row are there; a sub-block takes 16.
        unsafe {
            self.prefetch::<S, T>(k);
            let q = self.q.add(k * self.rows * 32);
            let [a, b, c, d, e, f, g, h] = self.weights::<S, T, J>(half);
            self.add_sub::<S, T>(t, &[a, b, c, d], 2 * k, q);
            self.add_sub::<S, T>(t, &[e, f, g, h], 2 * k + 1, q.add(16));
        }
    }

    /// Adds sub-block `j`, whose activations of the first row are at `q`.
    ///
    /// # Safety
    /// As [`Block::add`].
    /// 3. *Activations*: `q` is readable for 16 bytes of each row.
    #[inline(always)]
    unsafe fn add_sub<S: Simd<I = I>, T: Shape>(&self, t: *mut u8, v: &[I; 4], j: usize, q: *const i8) {
        // SAFETY: the contract of `add_sub_rows` is this one's for rows r..r + ROWS or r..r + 1, which are below `self.rows`.
        unsafe {
            let scale = self.scale::<S, T>(j);
            let mut r = 0;
            while r + ROWS <= self.rows {
                self.add_sub_rows::<S, T, ROWS>(t, v, scale, j, q, r);
                r += ROWS;
            }
            while r < self.rows {
                self.add_sub_rows::<S, T, 1>(t, v, scale, j, q, r);
                r += 1;
            }
        }
    }

    /// Adds sub-block `j` of `R` rows from row `r` on.
    ///
    /// # Safety
    /// As [`Block::add_sub`]; rows up to r + R are there.
    #[inline(always)]
    unsafe fn add_sub_rows<S: Simd<I = I>, T: Shape, const R: usize>(
        &self,
        t: *mut u8,
        v: &[I; 4],
        scale: I,
        j: usize,
        q: *const i8,
        r: usize,
    ) {
        // SAFETY: offsets are [n_sub, rows]; rows r..r + R of them, of the activations (3) and of `t` (2) are there. The table's bytes are at
        // most `T::MAX`.
        unsafe {
            let mut sums = [S::splat_i32(0); R];
            if T::ABOVE != 0 {
                for i in 0..R {
                    sums[i] = S::splat_i32(*self.offsets.add(j * self.rows + r + i));
                }
            }
            let sums = dot::<S, T, 4, R>(sums, v, q.add(r * 32));
            for i in 0..R {
                let t = t.add((r + i) * LINE);
                S::store(t, S::add_i32(S::load(t), S::mul_i32(sums[i], scale)));
            }
        }
    }

    /// The weights of block 4·`half` + `J` in a line, as the table has them, from their low and high bits.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn line<S: Simd<I = I>, T: Shape, const J: usize>(&self, half: usize, low: I, high: I) -> I {
        let (_, bit) = Parts::<T>::low(J, 0);
        let bytes = |mask: usize| (mask as u32 * 0x0101_0101) as i32;
        // SAFETY: only registers; the instructions are this function's contract.
        unsafe {
            let mut code = S::and(low, S::splat_i32(bytes(if T::BITS == 4 { 15 } else { 3 } << bit)));
            if T::BITS == 3 {
                code = S::or(code, S::and(high, S::splat_i32(bytes(1 << HIGH_BITS[4 * half + J]))));
            }
            S::lookup(self.tables[half][J % 2], if bit >= 4 { S::shr::<4>(code) } else { code })
        }
    }

    /// The weights of block 4·`half` + `J`.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn weights<S: Simd<I = I>, T: Shape, const J: usize>(&self, half: usize) -> [I; 8] {
        // SAFETY: `Parts` numbers lines below the 8 · `T::BITS` that a super-block has; the instructions are this function's contract.
        unsafe {
            let mut v = [S::splat_i32(0); 8];
            for i in 0..8 {
                let low = S::load_in_order(self.lines.add(Parts::<T>::low(4 * half + J, i).0 * LINE));
                let high = if T::BITS == 3 {
                    S::load_in_order(self.lines.add(Parts::<T>::high(i) * LINE))
                } else {
                    low
                };
                v[i] = self.line::<S, T, J>(half, low, high);
            }
            v
        }
    }

    /// Half `part` of each block that begins in the lines of block `first`: two blocks of 4 bits, else four.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn four_lines<S: Simd<I = I>, T: Shape>(&self, first: usize, part: usize) -> [[I; 4]; 4] {
        let half = first / 4;
        // SAFETY: `Parts` numbers lines below the 8 · `T::BITS` that a super-block has; the instructions are this function's contract.
        unsafe {
            let mut v = [[S::splat_i32(0); 4]; 4];
            for n in 0..4 {
                let i = 4 * part + n;
                let low = S::load_in_order(self.lines.add(Parts::<T>::low(first, i).0 * LINE));
                let high = if T::BITS == 3 {
                    S::load_in_order(self.lines.add(Parts::<T>::high(i) * LINE))
                } else {
                    low
                };
                v[0][n] = self.line::<S, T, 0>(half, low, high);
                v[1][n] = self.line::<S, T, 1>(half, low, high);
                if T::BLOCKS_OF_LINE == 4 {
                    v[2][n] = self.line::<S, T, 2>(half, low, high);
                    v[3][n] = self.line::<S, T, 3>(half, low, high);
                }
            }
            v
        }
    }

    /// The minimums of all sub-blocks, two in each lane, if the type has any.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn mins<S: Simd<I = I>, T: Shape>(&self) -> [I; 8] {
        // SAFETY: with minimums a super-block's scales are [16, 16] bytes; the instructions are this function's contract.
        unsafe {
            let mut mins = [S::splat_i32(0); 8];
            if T::SCALES == Scales::WithMin {
                for (p, pair) in mins.iter_mut().enumerate() {
                    let min = |j: usize| S::shr::<4>(S::load_u8(self.scales.add(j * LANES)));
                    *pair = S::pair(min(2 * p), min(2 * p + 1));
                }
            }
            mins
        }
    }
}

/// Rows that are in flight together, to hide the latency of the dot product.
const ROWS: usize = 4;
