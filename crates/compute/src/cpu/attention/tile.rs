//! Tiles of 64 positions: where their keys and values are read from, in which form, and the one matmul over them.
//!
//! Keys and values of a tile are both a matrix `[n, lanes]` that is multiplied from the left by rows of `n` numbers: keys are
//! `[head_dim, positions]`, values `[positions, head_dim]`. So both matmuls are one function, [`multiply`].

use crate::cpu::simd::{LANES, LINE, Simd};
use std::ops::Range;

/// Positions of a tile.
pub(super) const TILE: usize = 64;
/// A tile is made of chunks of 16 positions, each inside one block where keys lie by element.
pub(super) const CHUNKS: usize = TILE / LANES;
/// Rows that are multiplied together.
pub(super) const ROWS: usize = 4;
/// Elements along a head that share a scale, where numbers are codes of Q8_0.
pub(super) const SCALED: usize = 32;

/// How numbers are multiplied and summed.
///
/// # Safety
/// 1. *Instructions*, of every function: those of [`Simd`].
/// 2. *Memory*, of functions that take a pointer: what their own sections say.
pub(super) trait Arithmetic {
    /// Numbers of a sum that one instruction takes.
    const STEP: usize;
    /// 16 lanes of `STEP` numbers each; 64 bytes.
    type Words<S: Simd>: Copy;
    /// 16 sums.
    type Sums<S: Simd>: Copy;
    /// The largest number that `write` takes; none where numbers have a floating point.
    const LARGEST: Option<f32>;

    /// Loads words.
    ///
    /// # Safety
    /// `p` is readable for 64 bytes.
    unsafe fn load<S: Simd>(p: *const u8) -> Self::Words<S>;
    /// Stores words.
    ///
    /// # Safety
    /// `p` is writable for 64 bytes.
    unsafe fn store<S: Simd>(p: *mut u8, w: Self::Words<S>);
    /// Sums to which `start` will have been added by [`Arithmetic::end`].
    unsafe fn begin<S: Simd>(start: S::F) -> Self::Sums<S>;
    /// `sum + w · x`, where `x` holds `STEP` numbers, made by `write`.
    unsafe fn add<S: Simd>(sum: Self::Sums<S>, w: Self::Words<S>, x: f32) -> Self::Sums<S>;
    /// `start + factor ·` what was added since [`Arithmetic::begin`]; the factor is 1 where numbers are no integers.
    unsafe fn end<S: Simd>(sum: Self::Sums<S>, start: S::F, factor: S::F) -> S::F;
    /// Stores 16 numbers as words of `STEP`. Magnitudes are not above `LARGEST`.
    ///
    /// # Safety
    /// `p` is writable for 64 / `STEP` bytes.
    unsafe fn write<S: Simd>(p: *mut u8, numbers: S::F);
}

/// Arithmetic of floating point.
pub(super) trait Floats: Arithmetic {
    /// `STEP` vectors of numbers that lie `distance` bytes apart.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Memory*: `STEP` vectors of 16 `N`, the first at `p`, are readable.
    unsafe fn convert<S: Simd, N: Number>(p: *const u8, distance: usize) -> Self::Words<S>;
}

/// Single precision throughout.
pub(super) struct Single;

impl Arithmetic for Single {
    const STEP: usize = 1;
    type Words<S: Simd> = S::F;
    type Sums<S: Simd> = S::F;
    const LARGEST: Option<f32> = None;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: 64 readable bytes (`Arithmetic`, 2).
        unsafe { S::load_f32(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, w: S::F) {
        // SAFETY: 64 writable bytes (`Arithmetic`, 2).
        unsafe { S::store_f32(p.cast(), w) }
    }

    #[inline(always)]
    unsafe fn begin<S: Simd>(start: S::F) -> S::F {
        start
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::F, x: f32) -> S::F {
        // SAFETY: only registers; the instructions are there (`Arithmetic`, 1).
        unsafe { S::fma(S::splat(x), w, sum) }
    }

    #[inline(always)]
    unsafe fn end<S: Simd>(sum: S::F, _: S::F, _: S::F) -> S::F {
        sum
    }

    #[inline(always)]
    unsafe fn write<S: Simd>(p: *mut u8, numbers: S::F) {
        // SAFETY: 64 / `STEP` writable bytes (`Arithmetic`, 2).
        unsafe { S::store_f32(p.cast(), numbers) }
    }
}

impl Floats for Single {
    #[inline(always)]
    unsafe fn convert<S: Simd, N: Number>(p: *const u8, _: usize) -> S::F {
        // SAFETY: so many readable vectors (`Floats`, 2).
        unsafe { N::load::<S>(p) }
    }
}

/// Products of numbers rounded to BF16, summed in single precision.
pub(super) struct Bf16;

impl Arithmetic for Bf16 {
    const STEP: usize = 2;
    type Words<S: Simd> = S::I;
    type Sums<S: Simd> = S::F;
    const LARGEST: Option<f32> = None;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::I {
        // SAFETY: 64 readable bytes (`Arithmetic`, 2).
        unsafe { S::load(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, w: S::I) {
        // SAFETY: 64 writable bytes (`Arithmetic`, 2).
        unsafe { S::store(p, w) }
    }

    #[inline(always)]
    unsafe fn begin<S: Simd>(start: S::F) -> S::F {
        start
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::I, x: f32) -> S::F {
        // SAFETY: only registers; the instructions are there (`Arithmetic`, 1).
        unsafe { S::dot_bf16(sum, w, x.to_bits()) }
    }

    #[inline(always)]
    unsafe fn end<S: Simd>(sum: S::F, _: S::F, _: S::F) -> S::F {
        sum
    }

    #[inline(always)]
    unsafe fn write<S: Simd>(p: *mut u8, numbers: S::F) {
        // SAFETY: 64 / `STEP` writable bytes (`Arithmetic`, 2).
        unsafe { S::store_bf16(p, numbers) }
    }
}

impl Floats for Bf16 {
    #[inline(always)]
    unsafe fn convert<S: Simd, N: Number>(p: *const u8, distance: usize) -> S::I {
        // SAFETY: so many readable vectors (`Floats`, 2).
        unsafe { S::bf16_pairs(N::load::<S>(p), N::load::<S>(p.add(distance))) }
    }
}

/// Products of integers of 16 bits, summed exactly. The cache's codes have 8 bits, so that 64 of them stay below 2^31.
pub(super) struct Integers;

impl Arithmetic for Integers {
    const STEP: usize = 2;
    type Words<S: Simd> = S::I;
    type Sums<S: Simd> = S::I;
    const LARGEST: Option<f32> = Some(MAX_I16);

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::I {
        // SAFETY: 64 readable bytes (`Arithmetic`, 2).
        unsafe { S::load(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, w: S::I) {
        // SAFETY: 64 writable bytes (`Arithmetic`, 2).
        unsafe { S::store(p, w) }
    }

    #[inline(always)]
    unsafe fn begin<S: Simd>(_: S::F) -> S::I {
        // SAFETY: only registers; the instructions are there (`Arithmetic`, 1).
        unsafe { S::splat_i32(0) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::I, w: S::I, x: f32) -> S::I {
        // SAFETY: only registers; the instructions are there (`Arithmetic`, 1).
        unsafe { S::dot_i16(sum, w, x.to_bits().cast_signed()) }
    }

    #[inline(always)]
    unsafe fn end<S: Simd>(sum: S::I, start: S::F, factor: S::F) -> S::F {
        // SAFETY: only registers; the instructions are there (`Arithmetic`, 1).
        unsafe { S::fma(S::to_f32(sum), factor, start) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd>(p: *mut u8, numbers: S::F) {
        // SAFETY: 64 / `STEP` writable bytes (`Arithmetic`, 2).
        unsafe { S::store_i16(p, numbers) }
    }
}

/// The largest integer of 16 bits.
const MAX_I16: f32 = 32_767.0;
/// The least magnitude that rows are made as large as integers by: its inverse is still a number.
pub(super) const TINY: f32 = 1e-30;

/// Folds the lanes in halves, the same order on every instruction set. Every lane has the result.
///
/// # Safety
/// *Instructions*: those of [`Simd`].
#[inline(always)]
pub(super) unsafe fn reduce<S: Simd>(v: S::F, f: impl Fn(S::F, S::F) -> S::F) -> S::F {
    // SAFETY: only registers; the instructions are this function's contract.
    unsafe {
        let v = f(v, S::swap::<8>(v));
        let v = f(v, S::swap::<4>(v));
        let v = f(v, S::swap::<2>(v));
        f(v, S::swap::<1>(v))
    }
}

/// An element type of the cache whose vectors are loaded with one instruction.
pub(super) trait Number {
    /// Bytes of a number.
    const BYTES: usize;

    /// Loads 16 numbers.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Memory*: `p` is readable for 16 numbers.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
}

/// Single precision.
pub(super) struct F32Number;
/// Half precision.
pub(super) struct F16Number;
/// BF16.
pub(super) struct Bf16Number;

impl Number for F32Number {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: 64 readable bytes (`Number`, 2); the instructions are there (1).
        unsafe { S::load_f32(p.cast()) }
    }
}

impl Number for F16Number {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: 32 readable bytes (`Number`, 2); the instructions are there (1).
        unsafe { S::load_f16(p) }
    }
}

impl Number for Bf16Number {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: 32 readable bytes (`Number`, 2); the instructions are there (1).
        unsafe { S::load_bf16(p) }
    }
}

/// Where vectors of words come from.
pub(super) trait Source<A: Arithmetic> {
    /// Bytes of a number.
    const BYTES: usize;
    /// Bytes of a vector along the values of a step's positions.
    const VECTOR: usize;

    /// Words of one step, which takes `step` bytes.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Memory*: the step's vectors are readable, the first at `p`, the others `step / STEP` bytes apart.
    unsafe fn load<S: Simd>(p: *const u8, step: usize) -> A::Words<S>;

    /// Prefetches what `load` of the same arguments will read; `p` may be any address.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    unsafe fn prefetch<S: Simd>(p: *const u8, step: usize);
}

/// Numbers, converted as they are read.
pub(super) struct Numbers<N>(N);
/// Codes of Q8_0 in pairs: of two elements of a key, or of two positions' values.
pub(super) struct Codes;
/// Words that were converted before.
pub(super) struct Words;

impl<A: Floats, N: Number> Source<A> for Numbers<N> {
    const BYTES: usize = N::BYTES;
    const VECTOR: usize = LANES * N::BYTES;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, step: usize) -> A::Words<S> {
        // SAFETY: the step's `STEP` vectors are readable (`Source::load`, 2), at the distance that is given.
        unsafe { A::convert::<S, N>(p, step / A::STEP) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(p: *const u8, step: usize) {
        for i in 0..A::STEP {
            // SAFETY: a prefetch takes any address; the instructions are there (`Source::prefetch`).
            unsafe { S::prefetch_l2(p.wrapping_add(i * (step / A::STEP))) }
        }
    }
}

impl Source<Integers> for Codes {
    const BYTES: usize = 1;
    const VECTOR: usize = 2 * LANES;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _: usize) -> S::I {
        // SAFETY: a step is one vector of 32 bytes, which are readable (`Source::load`, 2).
        unsafe { S::load_i8_as_i16(p) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(p: *const u8, _: usize) {
        // SAFETY: a prefetch takes any address; the instructions are there (`Source::prefetch`).
        unsafe { S::prefetch_l2(p) }
    }
}

impl<A: Arithmetic> Source<A> for Words {
    const BYTES: usize = 4 / A::STEP;
    const VECTOR: usize = LINE;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _: usize) -> A::Words<S> {
        // SAFETY: a step is one vector of 64 bytes, which are readable (`Source::load`, 2).
        unsafe { A::load::<S>(p) }
    }

    /// Words were written a moment ago.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(_: *const u8, _: usize) {}
}

/// Keys and values of a tile, chunk by chunk.
///
/// Whoever makes one sees to it that the pointers of the first `n_chunks` chunks, `next` apart, are readable for what their comments say
/// in the form of the [`Source`] that reads them, and all of `scales`; the contracts of its functions call that *Tile*.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Chunks of which a row attends to a part; the first ones.
    pub(super) n_chunks: usize,
    /// Numbers of a head, padded to whole vectors.
    pub(super) dim: usize,
    /// Keys, `[dim, 16]` each.
    pub(super) k: [*const u8; CHUNKS],
    /// Bytes from one step along `dim` to the next.
    pub(super) k_step: usize,
    /// Values, `[16, dim]` each; zeros where no row attends to them.
    pub(super) v: [*const u8; CHUNKS],
    /// Bytes from one step along the positions to the next.
    pub(super) v_step: usize,
    /// `k` and `v` of the tile that comes next: the memory can begin to fetch it.
    pub(super) next: ([*const u8; CHUNKS], [*const u8; CHUNKS]),
    /// What sums have to be multiplied with, where keys and values are codes.
    pub(super) scales: Option<Scales>,
}

/// Scales of a tile's codes, one for [`SCALED`] elements of a position.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    /// Of keys, F16, `[dim / SCALED, 16]` each.
    pub(super) k: [*const u8; CHUNKS],
    /// Of values, the same; arbitrary where no row attends to them.
    pub(super) v: [*const u8; CHUNKS],
    /// Bytes from one step along `dim` to the next.
    pub(super) step: usize,
}

impl Scales {
    /// Scales of elements from `SCALED · b` on of the values that a row sees, as shares of the largest integer, and what these have to be
    /// multiplied with: by what others see they would depend on the batch.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Memory*: the scales `v` are readable, b < dim / [`SCALED`].
    #[inline(always)]
    pub(super) unsafe fn of_values<S: Simd>(&self, b: usize, seen: &Range<usize>) -> ([S::F; CHUNKS], f32) {
        // SAFETY: step `b` of each chunk's scales is readable (2); an array of `TILE` numbers has `CHUNKS` vectors.
        unsafe {
            let mut scales = [S::splat(0.0); CHUNKS];
            for c in 0..CHUNKS {
                scales[c] = S::load_f16(self.v[c].add(b * self.step));
            }
            if seen.len() < TILE {
                // A weight of 0 does not hide what is no number.
                let mut numbers = [0.0; TILE];
                for c in 0..CHUNKS {
                    S::store_f32(numbers[c * LANES..].as_mut_ptr(), scales[c]);
                }
                numbers[..seen.start].fill(0.0);
                numbers[seen.end..].fill(0.0);
                for c in 0..CHUNKS {
                    scales[c] = S::load_f32(numbers[c * LANES..].as_ptr());
                }
            }
            let mut lanes = S::splat(TINY);
            for scale in scales {
                lanes = S::max_magnitude(lanes, scale);
            }
            let factor = S::first(reduce::<S>(lanes, |a, b| S::max_magnitude(a, b))) / MAX_I16;
            let inv = S::splat(1.0 / factor);
            for scale in &mut scales {
                *scale = S::mul(*scale, inv);
            }
            (scales, factor)
        }
    }
}

impl Tile {
    /// Converts all numbers to words: `[dim / STEP, 64]` keys and `[64 / STEP, dim]` values.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Tile*: its vectors are readable in the form of `L`.
    /// 3. *Memory*: `k` and `v` are writable for `64 · dim / STEP` words of 32 bits.
    #[inline(always)]
    pub(super) unsafe fn convert<S: Simd, A: Arithmetic, L: Source<A>>(self, k: *mut u8, v: *mut u8) -> Self {
        let (k_step, v_step) = (TILE * 4, self.dim * 4);
        let mut to = Self { k_step, v_step, ..self };
        // SAFETY: chunks below `n_chunks` have dim / STEP steps of keys and 16 / STEP steps of dim / 16 vectors of values (2); the words'
        // matrices have four chunks (3).
        unsafe {
            for c in 0..self.n_chunks {
                let (k, v) = (k.add(c * LINE), v.add(c * LANES / A::STEP * v_step));
                (to.k[c], to.v[c]) = (k, v);
                for i in 0..self.dim / A::STEP {
                    L::prefetch::<S>(self.next.0[c].wrapping_add(i * self.k_step), self.k_step);
                    A::store::<S>(
                        k.add(i * k_step),
                        L::load::<S>(self.k[c].add(i * self.k_step), self.k_step),
                    );
                }
                for i in 0..LANES / A::STEP {
                    for d in 0..self.dim / LANES {
                        let at = i * self.v_step + d * L::VECTOR;
                        let from = self.v[c].add(at);
                        L::prefetch::<S>(self.next.1[c].wrapping_add(at), self.v_step);
                        A::store::<S>(v.add(i * v_step + d * LINE), L::load::<S>(from, self.v_step));
                    }
                }
            }
        }
        to
    }

    /// `scores[r, position] = q[r] · k[position]` for four rows: `q` is `[4, q_stride]` words, `scores` `[4, 64]`.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Tile*: its keys are readable in the form of `L`.
    /// 3. *Memory*: `q` is readable for four rows of `dim / STEP` words, `scores` writable for [4, 64] floats.
    #[inline(always)]
    pub(super) unsafe fn scores<S: Simd, A: Arithmetic, L: Source<A>>(
        &self,
        scores: *mut f32,
        q: *const f32,
        q_stride: usize,
    ) {
        // SAFETY: the contract of `scores_at` is this one's, for chunks below `n_chunks`.
        unsafe {
            if S::REGISTERS >= 32 && self.n_chunks == CHUNKS {
                self.scores_at::<S, A, L, CHUNKS>(scores, q, q_stride, 0);
            } else {
                for c in 0..self.n_chunks {
                    self.scores_at::<S, A, L, 1>(scores, q, q_stride, c);
                }
            }
        }
    }

    /// [`Tile::scores`] for chunks `c..c + V`.
    ///
    /// # Safety
    /// As [`Tile::scores`]; c + V is at most `n_chunks`.
    #[inline(always)]
    unsafe fn scores_at<S: Simd, A: Arithmetic, L: Source<A>, const V: usize>(
        &self,
        scores: *mut f32,
        q: *const f32,
        q_stride: usize,
        c: usize,
    ) {
        let per_block = if self.scales.is_some() { SCALED } else { self.dim };
        let n = per_block / A::STEP;
        // SAFETY: the blocks' steps together are the dim / STEP steps of the keys (2) and of `q` (3); a block has a scale per chunk, and a
        // row of `scores` a vector.
        unsafe {
            let mut scored = [[S::splat(0.0); V]; ROWS];
            for b in 0..self.dim / per_block {
                let (mut k, mut next) = ([std::ptr::null(); V], [std::ptr::null(); V]);
                for v in 0..V {
                    k[v] = self.k[c + v].add(b * n * self.k_step);
                    next[v] = self.next.0[c + v].wrapping_add(b * n * self.k_step);
                }
                let mut sums = begin::<S, A, V>(&scored);
                multiply::<S, A, L, V>(&mut sums, q.add(b * n), q_stride, k, next, self.k_step, n);
                for v in 0..V {
                    let factor = match &self.scales {
                        Some(scales) => S::load_f16(scales.k[c + v].add(b * scales.step)),
                        None => S::splat(1.0),
                    };
                    for r in 0..ROWS {
                        scored[r][v] = A::end::<S>(sums[r][v], scored[r][v], factor);
                    }
                }
            }
            store::<S, V>(scores.add(c * LANES), TILE, scored);
        }
    }

    /// `out[r] = out[r] · rescale[r] + factors[r] · Σ weights[r, position] · v[position]` for four rows: `weights` is `[4, 64]`, of
    /// which the first `64 / STEP` of each row are words; `out` is `[4, dim]`, of which elements `range`, whole vectors, are computed.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Tile*: its values are readable in the form of `L`.
    /// 3. *Memory*: `weights` is readable, `out` readable and writable, for what was said above; `range` ends at `dim` at most.
    #[inline(always)]
    pub(super) unsafe fn values<S: Simd, A: Arithmetic, L: Source<A>>(
        &self,
        out: *mut f32,
        rescale: &[f32; ROWS],
        factors: &[f32; ROWS],
        weights: *const f32,
        range: Range<usize>,
    ) {
        let (mut d, end) = (range.start / LANES, range.end / LANES);
        // SAFETY: the contract of `values_at` is this one's, for vectors up to d + V, which is at most `end`.
        unsafe {
            while S::REGISTERS >= 32 && d + 4 <= end {
                self.values_at::<S, A, L, 4>(out, rescale, factors, weights, d);
                d += 4;
            }
            while S::REGISTERS >= 32 && d + 2 <= end {
                self.values_at::<S, A, L, 2>(out, rescale, factors, weights, d);
                d += 2;
            }
            while d < end {
                self.values_at::<S, A, L, 1>(out, rescale, factors, weights, d);
                d += 1;
            }
        }
    }

    /// [`Tile::values`] for vectors `d..d + V` of the head.
    ///
    /// # Safety
    /// As [`Tile::values`]; d + V is at most `dim / 16`.
    #[inline(always)]
    unsafe fn values_at<S: Simd, A: Arithmetic, L: Source<A>, const V: usize>(
        &self,
        out: *mut f32,
        rescale: &[f32; ROWS],
        factors: &[f32; ROWS],
        weights: *const f32,
        d: usize,
    ) {
        // SAFETY: vectors d..d + V of each of the four rows of `out` are there (3), and of each step of the first `n_chunks` chunks' values
        // (2); these chunks have 16 / STEP words in each row of `weights`.
        unsafe {
            let out = out.add(d * LANES);
            let mut total = [[S::splat(0.0); V]; ROWS];
            for r in 0..ROWS {
                for v in 0..V {
                    let old = S::load_f32(out.add(r * self.dim + v * LANES));
                    total[r][v] = S::mul(old, S::splat(rescale[r]));
                }
            }
            let mut sums = begin::<S, A, V>(&total);
            for c in 0..self.n_chunks {
                let (mut from, mut next) = ([self.v[c]; V], [self.next.1[c]; V]);
                for v in 0..V {
                    from[v] = from[v].add((d + v) * L::VECTOR);
                    next[v] = next[v].wrapping_add((d + v) * L::VECTOR);
                }
                let x = weights.add(c * LANES / A::STEP);
                multiply::<S, A, L, V>(&mut sums, x, TILE, from, next, self.v_step, LANES / A::STEP);
            }
            for r in 0..ROWS {
                for v in 0..V {
                    total[r][v] = A::end::<S>(sums[r][v], total[r][v], S::splat(factors[r]));
                }
            }
            store::<S, V>(out, self.dim, total);
        }
    }
}

/// Sums that begin with what `start` has.
///
/// # Safety
/// *Instructions*: those of [`Simd`].
#[inline(always)]
unsafe fn begin<S: Simd, A: Arithmetic, const V: usize>(
    start: &[[S::F; V]; ROWS],
) -> [[A::Sums<S>; V]; ROWS] {
    // SAFETY: only registers; the instructions are this function's contract.
    unsafe {
        let mut sums = [[A::begin::<S>(start[0][0]); V]; ROWS];
        for r in 0..ROWS {
            for v in 0..V {
                sums[r][v] = A::begin::<S>(start[r][v]);
            }
        }
        sums
    }
}

/// `sums[r][v] += Σ x[r, i] · w[v][i]` over `n` steps: four rows of words, `stride` apart, by `V` vectors, `step` bytes apart.
/// Meanwhile prefetches the same places of `next`.
///
/// # Safety
/// 1. *Instructions*: those of [`Simd`].
/// 2. *Memory*: `x` is readable for four rows of `n` words, each of `w` for `n` steps in the form of `L`.
#[inline(always)]
unsafe fn multiply<S: Simd, A: Arithmetic, L: Source<A>, const V: usize>(
    sums: &mut [[A::Sums<S>; V]; ROWS],
    x: *const f32,
    stride: usize,
    w: [*const u8; V],
    next: [*const u8; V],
    step: usize,
    n: usize,
) {
    let mut acc = *sums;
    for i in 0..n {
        // SAFETY: step i < n of the vectors and words is readable (2).
        unsafe {
            let mut words = [L::load::<S>(w[0].add(i * step), step); V];
            for v in 1..V {
                words[v] = L::load::<S>(w[v].add(i * step), step);
            }
            for next in next {
                L::prefetch::<S>(next.wrapping_add(i * step), step);
            }
            for r in 0..ROWS {
                let x = *x.add(r * stride + i);
                for v in 0..V {
                    acc[r][v] = A::add::<S>(acc[r][v], words[v], x);
                }
            }
        }
    }
    *sums = acc;
}

/// Writes four rows, `stride` floats apart.
///
/// # Safety
/// 1. *Instructions*: those of [`Simd`].
/// 2. *Memory*: each row is writable for `V` vectors.
#[inline(always)]
unsafe fn store<S: Simd, const V: usize>(to: *mut f32, stride: usize, sums: [[S::F; V]; ROWS]) {
    for r in 0..ROWS {
        for v in 0..V {
            // SAFETY: vector v < V of row r (2).
            unsafe { S::store_f32(to.add(r * stride + v * LANES), sums[r][v]) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::simd::{Kernel, dispatch};
    use half::bf16;

    /// Pairs two vectors as BF16 numbers, writes the second, and reads BF16 numbers of it back.
    struct Pairs<'a> {
        numbers: &'a [[f32; LANES]; 2],
        pairs: &'a mut [u32; LANES],
        wide: &'a mut [f32; LANES],
        narrow: &'a mut [u16; LANES],
    }

    impl Kernel for Pairs<'_> {
        const USES_BF16: bool = true;

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let narrow = self.numbers[1].map(bf16::from_f32);
            // SAFETY: all arrays have a vector's size.
            unsafe {
                let first = S::load_f32(self.numbers[0].as_ptr());
                let second = S::load_f32(self.numbers[1].as_ptr());
                S::store(self.pairs.as_mut_ptr().cast(), S::bf16_pairs(first, second));
                Bf16::write::<S>(self.narrow.as_mut_ptr().cast(), second);
                S::store_f32(self.wide.as_mut_ptr(), Bf16Number::load::<S>(narrow.as_ptr().cast()));
            }
        }
    }

    #[test]
    fn every_instruction_set_rounds_to_the_nearest_bf16_number() {
        let first = std::array::from_fn(|i| (i as f32 - 7.5) * 1.234_567_9e3f32.powi(i as i32 % 5 - 2));
        // Ties to even, a carry into the exponent, the ends of the range.
        let bits =
            [0x3f80_8000, 0x3f81_8000, 0x3fff_ffff, 0x3f80_8001, 0xbf80_7fff, 0x7f7f_0000, 0, 0x8000_0000];
        let second = std::array::from_fn(|i| f32::from_bits(bits[i % 8]));
        let numbers = [first, second];
        for &isa in Isa::available() {
            let (mut pairs, mut wide, mut row) = ([0; LANES], [0.0; LANES], [0; LANES]);
            // SAFETY: the instruction set is available; the kernel has no pointers of its own.
            unsafe {
                dispatch(
                    isa,
                    Pairs { numbers: &numbers, pairs: &mut pairs, wide: &mut wide, narrow: &mut row },
                )
            }
            for i in 0..LANES {
                let [a, b] = numbers.map(|n| u32::from(bf16::from_f32(n[i]).to_bits()));
                assert_eq!(pairs[i], a | b << 16, "{isa}, lane {i}");
                assert_eq!(u32::from(row[i]), b, "{isa}, lane {i}");
                assert_eq!(wide[i].to_bits(), b << 16, "{isa}, lane {i}");
            }
        }
    }
}
