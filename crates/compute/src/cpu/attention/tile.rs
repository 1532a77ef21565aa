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
            let words = &mut row[i * LANES / 2..][..LANES / 2];
            for j in 0..LANES / 2 {
                let (first, second) = (rounded(numbers[2 * j]), rounded(numbers[2 * j + 1]));
                words[j] = f32::from_bits(first >> 16 | second & 0xffff_0000);
            }
        }
    }
}

/// Bits of a number whose upper half is the nearest BF16 number, ties to even. Our NaNs are quiet, so the sum does not run over.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    bits.wrapping_add(0x7fff + (bits >> 16 & 1))
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

    /// Asks for what `load` of the same arguments will read.
    ///
    /// # Safety
    /// [`Simd`]'s contract; `p` may be any address.
    unsafe fn prefetch<S: Simd>(p: *const u8, step: usize);
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

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(p: *const u8, step: usize) {
        for i in 0..A::STEP {
            // SAFETY: the caller's promise.
            unsafe { S::prefetch_l2(p.wrapping_add(i * (step / A::STEP))) }
        }
    }
}

impl<A: Arithmetic> Source<A> for Words {
    const LANE_BYTES: usize = LINE / LANES;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _: usize) -> A::Words<S> {
        // SAFETY: the caller's promise.
        unsafe { A::load::<S>(p) }
    }

    /// Words were written a moment ago.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(_: *const u8, _: usize) {}
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
    /// `k` and `v` of the tile that comes next: the memory can begin to fetch it.
    pub(super) next: ([*const u8; CHUNKS], [*const u8; CHUNKS]),
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
                    L::prefetch::<S>(self.next.0[c].wrapping_add(i * self.k_step), self.k_step);
                    A::store::<S>(
                        k.add(i * k_step),
                        L::load::<S>(self.k[c].add(i * self.k_step), self.k_step),
                    );
                }
                for i in 0..LANES / A::STEP {
                    for d in 0..self.dim / LANES {
                        let at = i * self.v_step + d * LANES * L::LANE_BYTES;
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
            if S::REGISTERS >= 32 && self.n_chunks == CHUNKS {
                let mut sums = [[S::splat(0.0); CHUNKS]; ROWS];
                multiply::<S, A, L, CHUNKS>(&mut sums, q, q_stride, self.k, self.next.0, self.k_step, n);
                store::<S, CHUNKS>(scores, TILE, sums);
            } else {
                for c in 0..self.n_chunks {
                    let mut sums = [[S::splat(0.0); 1]; ROWS];
                    let (k, next) = ([self.k[c]], [self.next.0[c]]);
                    multiply::<S, A, L, 1>(&mut sums, q, q_stride, k, next, self.k_step, n);
                    store::<S, 1>(scores.add(c * LANES), TILE, sums);
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
                let (mut from, mut next) = ([self.v[c]; V], [self.next.1[c]; V]);
                for v in 0..V {
                    from[v] = from[v].add((d + v) * LANES * L::LANE_BYTES);
                    next[v] = next[v].wrapping_add((d + v) * LANES * L::LANE_BYTES);
                }
                let x = weights.add(c * LANES / A::STEP);
                multiply::<S, A, L, V>(&mut sums, x, TILE, from, next, self.v_step, LANES / A::STEP);
            }
            store::<S, V>(out, self.dim, sums);
        }
    }
}

/// `sums[r][v] += Σ x[r, i] · w[v][i]` over `n` steps: four rows of words, `stride` apart, by `V` vectors, `step` bytes apart.
/// Meanwhile asks for the same places of `next`.
///
/// # Safety
/// [`Simd`]'s contract; the words and vectors are readable.
#[inline(always)]
unsafe fn multiply<S: Simd, A: Arithmetic, L: Source<A>, const V: usize>(
    sums: &mut [[S::F; V]; ROWS],
    x: *const f32,
    stride: usize,
    w: [*const u8; V],
    next: [*const u8; V],
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::simd::{Kernel, dispatch};
    use half::bf16;

    /// Pairs two vectors as BF16 numbers, and reads BF16 numbers of the second back.
    struct Pairs<'a> {
        numbers: &'a [[f32; LANES]; 2],
        pairs: &'a mut [u32; LANES],
        wide: &'a mut [f32; LANES],
    }

    impl Kernel for Pairs<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let narrow = self.numbers[1].map(bf16::from_f32);
            // SAFETY: all arrays have a vector's size.
            unsafe {
                let first = S::load_f32(self.numbers[0].as_ptr());
                let second = S::load_f32(self.numbers[1].as_ptr());
                S::store(self.pairs.as_mut_ptr().cast(), S::bf16_pairs(first, second));
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
            let (mut pairs, mut wide) = ([0; LANES], [0.0; LANES]);
            // SAFETY: the instruction set is available; the kernel has no pointers of its own.
            unsafe { dispatch(isa, Pairs { numbers: &numbers, pairs: &mut pairs, wide: &mut wide }) }
            for i in 0..LANES {
                let [a, b] = numbers.map(|n| u32::from(bf16::from_f32(n[i]).to_bits()));
                assert_eq!(pairs[i], a | b << 16, "{isa}, lane {i}");
                assert_eq!(wide[i].to_bits(), b << 16, "{isa}, lane {i}");
            }
        }
        let mut row = numbers.concat();
        Bf16::encode(&mut row);
        for (word, pair) in row.iter().zip(numbers.concat().as_chunks::<2>().0) {
            let [a, b] = pair.map(|x| u32::from(bf16::from_f32(x).to_bits()));
            assert_eq!(word.to_bits(), a | b << 16);
        }
    }
}
