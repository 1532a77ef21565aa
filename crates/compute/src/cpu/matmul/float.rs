//! F32, F16 and BF16 weights, and through F32 every type that has no kernel of its own.
//!
//! Groups: F32 and F16 as [n_in, 16]; BF16, and F16 that is multiplied as BF16, as pairs, [n_in / 2, 16, 2]. An output element is the sum of two chains, one
//! over the even and one over the odd steps, for any number of rows: one chain alone would wait for its own additions.

use super::activations::{BAND, Tile, band};
use super::int8::{self, PairSums};
use super::layout::{Args, get_dwords, put_dwords};
use crate::DType;
use crate::cpu::simd::{Kernel, LANES, LINE, Simd};
use std::marker::PhantomData;

/// Steps after which the next band of rows has its turn, so that the weights come from the first-level cache; even.
const RUN: usize = 128;

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
pub(super) trait Step {
    /// The weights of a step, in registers.
    type W<S: Simd>: Copy;

    /// Steps of a row of `n_in` elements.
    fn n_steps(n_in: usize) -> usize;

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
pub(super) struct F32;
/// Half-precision numbers by floats.
pub(super) struct F16;
/// BF16 numbers by floats.
pub(super) struct Bf16;
/// Pairs of BF16 numbers by pairs of activations rounded to BF16.
pub(super) struct Bf16Dot;
/// Pairs of half-precision numbers and of activations, both rounded to BF16.
pub(super) struct F16Dot;

// SAFETY of the blocks below: the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Step for F32 {
    type W<S: Simd> = S::F;

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

    fn n_steps(n_in: usize) -> usize {
        n_in
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::F {
        unsafe {
            let pair = S::load(w.add(k / 2 * LINE));
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

    fn n_steps(n_in: usize) -> usize {
        n_in.div_ceil(2)
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::I {
        unsafe { S::load(w.add(k * LINE)) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::I, x: &Tile<'_>, i: usize) -> S::F {
        unsafe { S::dot_bf16(sum, w, *x.pairs.get_unchecked(i)) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Step for F16Dot {
    type W<S: Simd> = S::I;

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

/// The product of one or two groups of one kind of weights by a tile.
pub(super) struct Multiply<'a, T>(Args<'a>, PhantomData<T>);

impl<'a, T: Step> Multiply<'a, T> {
    pub(super) fn new(args: Args<'a>) -> Self {
        Self(args, PhantomData)
    }

    /// Adds steps `from..to` of rows `r..r + N`, which lie side by side in a band, to their chains.
    ///
    /// # Safety
    /// [`Simd`]'s contract; the tile has these rows and steps; `from` is even; `sums` are [x.rows, 16].
    #[inline(always)]
    unsafe fn run_steps<S: Simd, const N: usize>(
        &self,
        sums: [*mut f32; 2],
        r: usize,
        from: usize,
        to: usize,
    ) {
        let Args { w, n_in, x, .. } = &self.0;
        let (start, step) = band(r, x.rows, T::n_steps(*n_in));
        let w = w.as_ptr();
        // SAFETY: the caller's promise.
        unsafe {
            let [even_sums, odd_sums] = sums.map(|sums| sums.add(r * LANES));
            let mut even = [S::splat(0.0); N];
            let mut odd = even;
            for i in 0..N {
                even[i] = S::load_f32(even_sums.add(i * LANES));
                odd[i] = S::load_f32(odd_sums.add(i * LANES));
            }
            let mut k = from;
            while k + 2 <= to {
                let (first, second) = (T::load::<S>(w, k), T::load::<S>(w, k + 1));
                for i in 0..N {
                    even[i] = T::add::<S>(even[i], first, x, start + k * step + i);
                    odd[i] = T::add::<S>(odd[i], second, x, start + (k + 1) * step + i);
                }
                k += 2;
            }
            if k < to {
                let last = T::load::<S>(w, k);
                for i in 0..N {
                    even[i] = T::add::<S>(even[i], last, x, start + k * step + i);
                }
            }
            for i in 0..N {
                S::store_f32(even_sums.add(i * LANES), even[i]);
                S::store_f32(odd_sums.add(i * LANES), odd[i]);
            }
        }
    }
}

impl<T: Step> Multiply<'_, T> {
    /// Adds steps `from..to` of a band's rows from `r` on to their chains, for two groups at once and chain by chain: so many sums
    /// fit into registers, and each activation that is loaded serves twice.
    ///
    /// # Safety
    /// As [`Multiply::run_steps`]; `sums` are [2, x.rows, 16].
    #[inline(always)]
    unsafe fn run_pair<S: Simd>(&self, sums: [*mut f32; 2], r: usize, from: usize, to: usize) {
        let Args { w, n_in, x, .. } = &self.0;
        let (start, step) = band(r, x.rows, T::n_steps(*n_in));
        let (first, second) = (w.as_ptr(), w[w.len() / 2..].as_ptr());
        // SAFETY: the caller's promise.
        unsafe {
            for (chain, sums) in sums.into_iter().enumerate() {
                let (a, b) = (sums.add(r * LANES), sums.add((x.rows + r) * LANES));
                let mut a_sums = [S::splat(0.0); BAND];
                let mut b_sums = a_sums;
                for i in 0..BAND {
                    a_sums[i] = S::load_f32(a.add(i * LANES));
                    b_sums[i] = S::load_f32(b.add(i * LANES));
                }
                let mut k = from + chain;
                while k < to {
                    let (first, second) = (T::load::<S>(first, k), T::load::<S>(second, k));
                    for i in 0..BAND {
                        let at = start + k * step + i;
                        a_sums[i] = T::add::<S>(a_sums[i], first, x, at);
                        b_sums[i] = T::add::<S>(b_sums[i], second, x, at);
                    }
                    k += 2;
                }
                for i in 0..BAND {
                    S::store_f32(a.add(i * LANES), a_sums[i]);
                    S::store_f32(b.add(i * LANES), b_sums[i]);
                }
            }
        }
    }

    /// The part of the product that one group is.
    fn one(&self, group: usize) -> Self {
        let Args { w, n_groups, x, y, .. } = self.0;
        let len = w.len() / n_groups;
        let w = &w[group * len..][..len];
        Self(Args { w, n_groups: 1, y: y.wrapping_add(group * x.rows * LANES), ..self.0 }, PhantomData)
    }
}

impl<T: Step> Kernel for Multiply<'_, T> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Args { n_in, n_groups, x, y, .. } = self.0;
        let (rows, n_steps) = (x.rows, T::n_steps(n_in));
        let mut even = PairSums::uninit();
        let mut odd = PairSums::uninit();
        let sums = [even.as_mut_ptr(), odd.as_mut_ptr()];
        let of_group = |group: usize| sums.map(|sums| sums.wrapping_add(group * rows * LANES));
        // Fewer registers hold one group's sums only.
        let pairs = n_groups == 2 && S::REGISTERS >= 32;
        let mut from = 0;
        // SAFETY: `Layout::multiply` checked the sizes; r + N <= rows.
        unsafe {
            int8::clear::<S>(sums[0], n_groups * rows);
            int8::clear::<S>(sums[1], n_groups * rows);
            while from < n_steps {
                let to = n_steps.min(from + RUN);
                let mut r = 0;
                while r + BAND <= rows {
                    if pairs {
                        self.run_pair::<S>(sums, r, from, to);
                    } else {
                        for group in 0..n_groups {
                            self.one(group).run_steps::<S, BAND>(of_group(group), r, from, to);
                        }
                    }
                    r += BAND;
                }
                while r < rows {
                    for group in 0..n_groups {
                        self.one(group).run_steps::<S, 1>(of_group(group), r, from, to);
                    }
                    r += 1;
                }
                from = to;
            }
            for r in 0..n_groups * rows {
                let [even, odd] = sums.map(|sums| S::load_f32(sums.add(r * LANES)));
                S::store_f32(y.add(r * LANES), S::add(even, odd));
            }
        }
    }
}
