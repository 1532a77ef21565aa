//! Tiles of 64 positions: where their keys and values are read from, in which form, and the one product over them.
//!
//! Keys and values of a tile are both a matrix `[n, lanes]` that is multiplied from the left by rows of `n` numbers: keys are
//! `[head_dim, positions]`, values `[positions, head_dim]`. So both products are one function, [`multiply`].

use crate::cpu::simd::{LANES, LINE, Simd};

/// Positions of a tile.
pub(super) const TILE: usize = 64;
/// A tile is made of chunks of 16 positions, each inside one block where keys lie by element.
pub(super) const CHUNKS: usize = TILE / LANES;
/// Rows that are multiplied together.
pub(super) const ROWS: usize = 4;

/// How numbers are multiplied and summed.
pub(super) trait Arithmetic {
    /// Numbers of a sum that one instruction takes.
    const STEP: usize;
    /// 16 lanes of `STEP` numbers each; 64 bytes.
    type Words<S: Simd>: Copy;

    /// # Safety
    /// [`Simd`]'s contract; 64 readable bytes.
    unsafe fn load<S: Simd>(p: *const u8) -> Self::Words<S>;
    /// # Safety
    /// [`Simd`]'s contract; 64 writable bytes.
    unsafe fn store<S: Simd>(p: *mut u8, w: Self::Words<S>);
    /// `STEP` vectors of numbers that lie `distance` bytes apart.
    ///
    /// # Safety
    /// [`Simd`]'s contract; readable vectors of `N`.
    unsafe fn convert<S: Simd, N: Number>(p: *const u8, distance: usize) -> Self::Words<S>;
    /// `sum + w · x`, where `x` holds `STEP` numbers, made by `encode`.
    ///
    /// # Safety
    /// [`Simd`]'s contract.
    unsafe fn add<S: Simd>(sum: S::F, w: Self::Words<S>, x: f32) -> S::F;
    /// Turns a row of numbers, a multiple of 16, into words of `STEP` numbers at its front.
    fn encode(row: &mut [f32]);
}

/// Single precision throughout.
pub(super) struct Single;

#[allow(clippy::undocumented_unsafe_blocks)] // SAFETY: each function's contract is the trait's.
impl Arithmetic for Single {
    const STEP: usize = 1;
    type Words<S: Simd> = S::F;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        unsafe { S::load_f32(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, w: S::F) {
        unsafe { S::store_f32(p.cast(), w) }
    }

    #[inline(always)]
    unsafe fn convert<S: Simd, N: Number>(p: *const u8, _: usize) -> S::F {
        unsafe { N::load::<S>(p) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::F, x: f32) -> S::F {
        unsafe { S::fma(S::splat(x), w, sum) }
    }

    #[inline(always)]
    fn encode(_: &mut [f32]) {}
}

/// Products of numbers rounded to BF16, summed in single precision.
pub(super) struct Bf16;

#[allow(clippy::undocumented_unsafe_blocks)] // SAFETY: each function's contract is the trait's.
impl Arithmetic for Bf16 {
    const STEP: usize = 2;
    type Words<S: Simd> = S::I;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::I {
        unsafe { S::load(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, w: S::I) {
        unsafe { S::store(p, w) }
    }

    #[inline(always)]
    unsafe fn convert<S: Simd, N: Number>(p: *const u8, distance: usize) -> S::I {
        unsafe { S::bf16_pairs(N::load::<S>(p), N::load::<S>(p.add(distance))) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::I, x: f32) -> S::F {
        unsafe { S::dot_bf16(sum, w, x.to_bits()) }
    }

    #[inline(always)]
    fn encode(row: &mut [f32]) {
        for i in 0..row.len() / LANES {
            let numbers: [f32; LANES] = row[i * LANES..][..LANES].try_into().expect("16 numbers");
            // To the nearest, ties to even. Our NaNs are quiet, so that the sum does not run over.
            let rounded = numbers.map(|x| {
                let bits = x.to_bits();
                bits.wrapping_add(0x7fff + (bits >> 16 & 1))
            });
            for (j, word) in row[i * LANES / 2..][..LANES / 2].iter_mut().enumerate() {
                *word = f32::from_bits(rounded[2 * j] >> 16 | rounded[2 * j + 1] & 0xffff_0000);
            }
        }
    }
}

/// An element type of the cache whose vectors are loaded with one instruction.
pub(super) trait Number {
    /// Bytes of a number.
    const BYTES: usize;

    /// # Safety
    /// [`Simd`]'s contract; 16 readable numbers.
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
        // SAFETY: the caller's promise.
        unsafe { S::load_f32(p.cast()) }
    }
}

impl Number for F16Number {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(p) }
    }
}

impl Number for Bf16Number {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(p) }
    }
}

/// Where vectors of words come from.
pub(super) trait Source<A: Arithmetic> {
    /// Bytes of a lane.
    const LANE_BYTES: usize;

    /// Words of one step, which takes `step` bytes.
    ///
    /// # Safety
    /// [`Simd`]'s contract; readable vectors.
    unsafe fn load<S: Simd>(p: *const u8, step: usize) -> A::Words<S>;
}

/// Numbers, converted as they are read.
pub(super) struct Numbers<N>(N);
/// Words that were converted before.
pub(super) struct Words;

impl<A: Arithmetic, N: Number> Source<A> for Numbers<N> {
    const LANE_BYTES: usize = N::BYTES;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, step: usize) -> A::Words<S> {
        // SAFETY: the caller's promise.
        unsafe { A::convert::<S, N>(p, step / A::STEP) }
    }
}

impl<A: Arithmetic> Source<A> for Words {
    const LANE_BYTES: usize = LINE / LANES;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _: usize) -> A::Words<S> {
        // SAFETY: the caller's promise.
        unsafe { A::load::<S>(p) }
    }
}

/// Keys and values of a tile, chunk by chunk.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Chunks that somebody sees part of; the first ones.
    pub(super) n_chunks: usize,
    /// Numbers of a head, padded to whole vectors.
    pub(super) dim: usize,
    /// Keys, `[dim, 16]` each.
    pub(super) k: [*const u8; CHUNKS],
    /// Bytes from one step along `dim` to the next.
    pub(super) k_step: usize,
    /// Values, `[16, dim]` each; zeros where nobody sees them.
    pub(super) v: [*const u8; CHUNKS],
    /// Bytes from one step along the positions to the next.
    pub(super) v_step: usize,
}

impl Tile {
    /// Converts all numbers to words: `[dim / STEP, 64]` keys and `[64 / STEP, dim]` values.
    ///
    /// # Safety
    /// [`Simd`]'s contract. The tile's vectors are readable; `k` and `v` have room for `64 · dim` words of 32 bits.
    #[inline(always)]
    pub(super) unsafe fn convert<S: Simd, A: Arithmetic, L: Source<A>>(self, k: *mut u8, v: *mut u8) -> Self {
        let (k_step, v_step) = (TILE * 4, self.dim * 4);
        let mut to = Self { k_step, v_step, ..self };
        // SAFETY: the caller's promise.
        unsafe {
            for c in 0..self.n_chunks {
                let (k, v) = (k.add(c * LINE), v.add(c * LANES / A::STEP * v_step));
                (to.k[c], to.v[c]) = (k, v);
                for i in 0..self.dim / A::STEP {
                    A::store::<S>(
                        k.add(i * k_step),
                        L::load::<S>(self.k[c].add(i * self.k_step), self.k_step),
                    );
                }
                for i in 0..LANES / A::STEP {
                    for d in 0..self.dim / LANES {
                        let from = self.v[c].add(i * self.v_step + d * LANES * L::LANE_BYTES);
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
    /// [`Simd`]'s contract, and what the names say is there.
    #[inline(always)]
    pub(super) unsafe fn scores<S: Simd, A: Arithmetic, L: Source<A>>(
        &self,
        scores: *mut f32,
        q: *const f32,
        q_stride: usize,
    ) {
        let n = self.dim / A::STEP;
        // SAFETY: the caller's promise; `c + V <= CHUNKS`.
        unsafe {
            let block = |c: usize| (scores.add(c * LANES), self.k.as_ptr().add(c));
            if S::REGISTERS >= 32 && self.n_chunks == CHUNKS {
                let (scores, k) = block(0);
                let mut sums = [[S::splat(0.0); CHUNKS]; ROWS];
                multiply::<S, A, L, CHUNKS>(&mut sums, q, q_stride, *k.cast(), self.k_step, n);
                store::<S, CHUNKS>(scores, TILE, sums);
            } else {
                for c in 0..self.n_chunks {
                    let (scores, k) = block(c);
                    let mut sums = [[S::splat(0.0); 1]; ROWS];
                    multiply::<S, A, L, 1>(&mut sums, q, q_stride, [*k], self.k_step, n);
                    store::<S, 1>(scores, TILE, sums);
                }
            }
        }
    }

    /// `out[r] = out[r] · shrink[r] + Σ weights[r, position] · v[position]` for four rows: `weights` is `[4, 64]`, of which
    /// the first `64 / STEP` of each row are words; `out` is `[4, dim]`.
    ///
    /// # Safety
    /// As [`Tile::scores`].
    #[inline(always)]
    pub(super) unsafe fn values<S: Simd, A: Arithmetic, L: Source<A>>(
        &self,
        out: *mut f32,
        shrink: &[f32; ROWS],
        weights: *const f32,
    ) {
        // SAFETY: the caller's promise; `d + V <= dim / LANES`.
        unsafe {
            let mut d = 0;
            while S::REGISTERS >= 32 && d + 4 <= self.dim / LANES {
                self.values_at::<S, A, L, 4>(out, shrink, weights, d);
                d += 4;
            }
            while d < self.dim / LANES {
                self.values_at::<S, A, L, 1>(out, shrink, weights, d);
                d += 1;
            }
        }
    }

    /// [`Tile::values`] for vectors `d..d + V` of the head.
    ///
    /// # Safety
    /// As [`Tile::scores`].
    #[inline(always)]
    unsafe fn values_at<S: Simd, A: Arithmetic, L: Source<A>, const V: usize>(
        &self,
        out: *mut f32,
        shrink: &[f32; ROWS],
        weights: *const f32,
        d: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let out = out.add(d * LANES);
            let mut sums = [[S::splat(0.0); V]; ROWS];
            for r in 0..ROWS {
                for v in 0..V {
                    let old = S::load_f32(out.add(r * self.dim + v * LANES));
                    sums[r][v] = S::mul(old, S::splat(shrink[r]));
                }
            }
            for c in 0..self.n_chunks {
                let mut from = [self.v[c].add(d * LANES * L::LANE_BYTES); V];
                for v in 1..V {
                    from[v] = from[v].add(v * LANES * L::LANE_BYTES);
                }
                let x = weights.add(c * LANES / A::STEP);
                multiply::<S, A, L, V>(&mut sums, x, TILE, from, self.v_step, LANES / A::STEP);
            }
            store::<S, V>(out, self.dim, sums);
        }
    }
}

/// `sums[r][v] += Σ x[r, i] · w[v][i]` over `n` steps: four rows of words, `stride` apart, by `V` vectors, `step` bytes apart.
///
/// # Safety
/// [`Simd`]'s contract; the words and vectors are readable.
#[inline(always)]
unsafe fn multiply<S: Simd, A: Arithmetic, L: Source<A>, const V: usize>(
    sums: &mut [[S::F; V]; ROWS],
    x: *const f32,
    stride: usize,
    w: [*const u8; V],
    step: usize,
    n: usize,
) {
    let mut acc = *sums;
    for i in 0..n {
        // SAFETY: the caller's promise.
        unsafe {
            let mut words = [L::load::<S>(w[0].add(i * step), step); V];
            for v in 1..V {
                words[v] = L::load::<S>(w[v].add(i * step), step);
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
/// [`Simd`]'s contract; the rows are writable.
#[inline(always)]
unsafe fn store<S: Simd, const V: usize>(to: *mut f32, stride: usize, sums: [[S::F; V]; ROWS]) {
    for r in 0..ROWS {
        for v in 0..V {
            // SAFETY: the caller's promise.
            unsafe { S::store_f32(to.add(r * stride + v * LANES), sums[r][v]) }
        }
    }
}
