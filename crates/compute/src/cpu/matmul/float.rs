//! F32, F16 and BF16 weights, and through F32 every type that has no kernel of its own.
//!
//! Groups: F32 and F16 as [n_in, 16]; BF16, and F16 that is multiplied as BF16, as pairs, [n_in / 2, 16, 2]. An output element is the sum of two chains, one
//! over the even and one over the odd steps, for any number of rows: one chain alone would wait for its own additions.

use super::activations::{BAND, Tile, band};
use super::layout::{Args, Product, get_dwords, put_dwords};
use crate::DType;
use crate::cpu::simd::{Kernel, LANES, LINE, Simd};
use std::marker::PhantomData;

/// How far ahead of their use the lines of a weight are asked for, in bytes, where a line has work to do for several rows: the
/// processor fetches too little by itself while it computes.
const AHEAD: usize = 4096;

/// Decodes a row of any type into its lane of floats.
pub(super) fn pack_f32(group: &mut [u8], lane: usize, row: &[u8], dtype: DType) {
    if dtype == DType::F32 {
        return put_dwords(group, lane, row);
    }
    let spec = dtype.spec();
    // Every block length divides 256.
    let mut floats = [0_f32; 256];
    let step = 256 / spec.block_len;
    for (blocks, lines) in row.chunks(step * spec.block_bytes).zip(group.chunks_mut(256 * LINE)) {
        let floats = &mut floats[..blocks.len() / spec.block_bytes * spec.block_len];
        (spec.dequantize)(blocks, floats);
        for (line, x) in lines.as_chunks_mut::<LINE>().0.iter_mut().zip(floats) {
            line[4 * lane..4 * lane + 4].copy_from_slice(&x.to_ne_bytes());
        }
    }
}

pub(super) fn pack_f16(group: &mut [u8], lane: usize, row: &[u8]) {
    for (line, x) in group.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().zip(row.as_chunks::<2>().0) {
        line[2 * lane..2 * lane + 2].copy_from_slice(x);
    }
}

pub(super) fn unpack_f16(row: &mut [u8], group: &[u8], lane: usize) {
    for (x, line) in row.as_chunks_mut::<2>().0.iter_mut().zip(group.as_chunks::<{ 2 * LANES }>().0) {
        x.copy_from_slice(&line[2 * lane..2 * lane + 2]);
    }
}

pub(super) fn pack_pairs(group: &mut [u8], lane: usize, row: &[u8]) {
    put_dwords(group, lane, row);
    // An odd last element pairs with a zero.
    if let Some(last) = row.as_chunks::<4>().1.first_chunk::<2>() {
        let at = row.len() / 4 * LINE + 4 * lane;
        group[at..at + 2].copy_from_slice(last);
        group[at + 2..at + 4].fill(0);
    }
}

pub(super) fn unpack_pairs(row: &mut [u8], group: &[u8], lane: usize) {
    get_dwords(row, group, lane);
    let at = row.len() / 4 * LINE + 4 * lane;
    if let Some(last) = row.as_chunks_mut::<4>().1.first_chunk_mut::<2>() {
        last.copy_from_slice(&group[at..at + 2]);
    }
}

/// One kind of weights: what a step along the inputs reads, and how it meets the activations.
pub(super) trait Step: Copy {
    /// The weights of a step, in registers.
    type W<S: Simd>: Copy;
    /// Bytes of a step of a group, on average: Bf16 has two steps in each line.
    const STEP_BYTES: usize;

    /// Steps of a row of `n_in` elements.
    fn n_steps(n_in: usize) -> usize;

    /// Asks for the lines of steps `k` and `k + 1` of what begins at `w`.
    ///
    /// # Safety
    /// [`Simd`]'s contract.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(w: *const u8, k: usize) {
        for i in 0..2 * Self::STEP_BYTES / LINE {
            // SAFETY: the caller's promise; the address may be any.
            unsafe { S::prefetch_l2(w.wrapping_add(k * Self::STEP_BYTES + i * LINE)) }
        }
    }

    /// Loads step `k`.
    ///
    /// # Safety
    /// [`Simd`]'s contract; `w` is a group with more than `k` steps.
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> Self::W<S>;

    /// Adds the products with the activation at index `i`.
    ///
    /// # Safety
    /// [`Simd`]'s contract; `i` lies in the tile.
    unsafe fn add<S: Simd>(sum: S::F, w: Self::W<S>, x: &Tile<'_>, i: usize) -> S::F;
}

/// Floats by floats.
#[derive(Clone, Copy)]
pub(super) struct F32;
/// Half-precision numbers by floats.
#[derive(Clone, Copy)]
pub(super) struct F16;
/// BF16 numbers by floats.
#[derive(Clone, Copy)]
pub(super) struct Bf16;
/// Pairs of BF16 numbers by pairs of activations rounded to BF16.
#[derive(Clone, Copy)]
pub(super) struct Bf16Dot;
/// Pairs of half-precision numbers and of activations, both rounded to BF16.
#[derive(Clone, Copy)]
pub(super) struct F16Dot;

// SAFETY of the blocks below: the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Step for F32 {
    type W<S: Simd> = S::F;
    const STEP_BYTES: usize = LINE;

    fn n_steps(n_in: usize) -> usize {
        n_in
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::F {
        unsafe { S::load_f32(w.add(k * LINE).cast()) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::F, x: &Tile<'_>, i: usize) -> S::F {
        unsafe { S::fma(w, S::splat(*x.floats.get_unchecked(i)), sum) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Step for F16 {
    type W<S: Simd> = S::F;
    const STEP_BYTES: usize = 2 * LANES;

    fn n_steps(n_in: usize) -> usize {
        n_in
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::F {
        unsafe { S::load_f16(w.add(k * 2 * LANES)) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::F, x: &Tile<'_>, i: usize) -> S::F {
        unsafe { S::fma(w, S::splat(*x.floats.get_unchecked(i)), sum) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Step for Bf16 {
    type W<S: Simd> = S::F;
    const STEP_BYTES: usize = 2 * LANES;

    fn n_steps(n_in: usize) -> usize {
        n_in
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::F {
        unsafe {
            let pair = S::load_in_order(w.add(k / 2 * LINE));
            if k.is_multiple_of(2) { S::bf16_low(pair) } else { S::bf16_high(pair) }
        }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::F, x: &Tile<'_>, i: usize) -> S::F {
        unsafe { S::fma(w, S::splat(*x.floats.get_unchecked(i)), sum) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Step for Bf16Dot {
    type W<S: Simd> = S::I;
    const STEP_BYTES: usize = LINE;

    fn n_steps(n_in: usize) -> usize {
        n_in.div_ceil(2)
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::I {
        unsafe { S::load_in_order(w.add(k * LINE)) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::I, x: &Tile<'_>, i: usize) -> S::F {
        unsafe { S::dot_bf16(sum, w, *x.pairs.get_unchecked(i)) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Step for F16Dot {
    type W<S: Simd> = S::I;
    const STEP_BYTES: usize = LINE;

    fn n_steps(n_in: usize) -> usize {
        n_in.div_ceil(2)
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::I {
        unsafe { S::load_f16_as_bf16(w.add(k * LINE)) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::I, x: &Tile<'_>, i: usize) -> S::F {
        unsafe { S::dot_bf16(sum, w, *x.pairs.get_unchecked(i)) }
    }
}

/// How groups of one kind of weights are multiplied.
#[derive(Clone, Copy)]
pub(super) struct Multiply<T>(PhantomData<T>);

impl<T: Step> Multiply<T> {
    pub(super) const NEW: Self = Self(PhantomData);

    /// Multiplies rows `r..r + N`, which lie side by side in a band, and returns how many they are. Their sums stay in registers from
    /// the first step to the last.
    ///
    /// # Safety
    /// [`Simd`]'s contract; the tile has these rows.
    #[inline(always)]
    unsafe fn rows<S: Simd, const N: usize>(args: &Args<'_>, r: usize) -> usize {
        let Args { w, next, n_in, x, y, .. } = args;
        let n_steps = T::n_steps(*n_in);
        let (start, step) = band(r, x.rows, n_steps);
        let w = w.as_ptr();
        let ahead = if next.is_null() { w.wrapping_add(AHEAD) } else { *next };
        // SAFETY: the caller's promise.
        unsafe {
            let mut even = [S::splat(0.0); N];
            let mut odd = even;
            let mut k = 0;
            while k + 2 <= n_steps {
                if N > 1 {
                    T::prefetch::<S>(ahead, k);
                }
                let (first, second) = (T::load::<S>(w, k), T::load::<S>(w, k + 1));
                for i in 0..N {
                    even[i] = T::add::<S>(even[i], first, x, start + k * step + i);
                }
                for i in 0..N {
                    odd[i] = T::add::<S>(odd[i], second, x, start + (k + 1) * step + i);
                }
                k += 2;
            }
            if k < n_steps {
                let last = T::load::<S>(w, k);
                for i in 0..N {
                    even[i] = T::add::<S>(even[i], last, x, start + k * step + i);
                }
            }
            for i in 0..N {
                let y = y.add((r + i) * LANES);
                S::store_f32(y, S::add(S::load_f32(y), S::add(even[i], odd[i])));
            }
        }
        N
    }
}

impl<T: Step> Product for Multiply<T> {
    #[inline(always)]
    unsafe fn add<S: Simd, const ONE: bool>(self, args: Args<'_>) {
        let rows = if ONE { 1 } else { args.x.rows };
        let many = S::REGISTERS >= 32;
        let mut r = 0;
        while r < rows {
            let left_of_band = rows.min(r / BAND * BAND + BAND) - r;
            // SAFETY: `Layout::multiply` checked the sizes; these rows are of one band.
            r += unsafe {
                match left_of_band {
                    BAND.. if many => Self::rows::<S, BAND>(&args, r),
                    8.. if many => Self::rows::<S, 8>(&args, r),
                    4.. if many => Self::rows::<S, 4>(&args, r),
                    3.. => Self::rows::<S, 3>(&args, r),
                    2 => Self::rows::<S, 2>(&args, r),
                    _ => Self::rows::<S, 1>(&args, r),
                }
            };
        }
    }
}

/// Half-precision weights rounded to BF16 once, for products with so many rows that doing it at each would cost more.
pub(super) struct ToBf16<'a> {
    /// A group of [`F16Dot`].
    pub(super) from: &'a [u8],
    /// A group of [`Bf16Dot`], as long.
    pub(super) to: &'a mut [u8],
}

impl Kernel for ToBf16<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (to, from) in self.to.as_chunks_mut::<LINE>().0.iter_mut().zip(self.from.as_chunks::<LINE>().0) {
            // SAFETY: both lines have 64 bytes.
            unsafe { S::store(to.as_mut_ptr(), S::load_f16_as_bf16(from.as_ptr())) }
        }
    }
}
