//! Super-blocks whose weights are codes of 2 to 4 bits for the bytes of a table: the I-quants, Q2_K, Q3_K and the ternary types.
//!
//! The points of their codebooks have few coordinates: IQ2 knows three magnitudes, IQ3 eight, and with the sign that is a code
//! of 3 or 4 bits per weight. So packing looks each point up once, and a product needs one byte shuffle for 64 weights instead of
//! a search in a codebook. Types that keep several weights under one index get larger by it, see docs/cpu.md.
//!
//! Group: the factors, F16 [n_super_blocks, 16], twice as many for types with minimums (d, then dmin), filled up to a line; then per
//! super-block the scales of its sub-blocks, a byte each, [n_sub, 16 rows], and the codes. With minimums, a scale is the low nibble of
//! its byte and the minimum the high one. Inside a sub-block of 32, or a super-block of sub-blocks of 16, everything is summed in whole
//! numbers.
//!
//! Codes, where block k is weights 32·k to 32·k + 31 and line i has weights 4·i to 4·i + 3 of the 16 rows' block:
//!
//! - 4 bits: for each pair of blocks 8 lines, the first block in the low nibbles
//! - 2 bits: for each four blocks 8 lines, the first block in the lowest bits
//! - 3 bits: the low two bits as above, and 8 lines of high bits, one bit of each byte per block; in the order low bits of the first
//!   four blocks, high bits, low bits of the other four, for each of the 8 lines
//!
//! A byte shuffle takes its index from the low four bits, so two bits need not be moved to the lowest place: where they stand at bit 2
//! a table in another order serves. High bits stand where they complete such an index (see [`HIGH_BITS`]), so that half of the blocks
//! need no shift and the others one by four.

use super::activations::{Form, Tile};
use super::code_types::Coding;
use super::int8::{self, Sums};
use super::layout::{Args, put_dwords};
use crate::cpu::isa::Isa;
use crate::cpu::simd::{Kernel, LANES, LINE, Simd, dispatch};
use half::f16;
use std::marker::PhantomData;

/// How a type keeps the scales of its sub-blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scales {
    /// One factor for the whole super-block
    None,
    /// `i8`
    Signed,
    /// Scale and minimum, each in 0..16
    WithMin,
}

/// What a kernel must know when it is compiled.
trait Shape {
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
}

/// IQ4_XS
struct Wide4x32;
/// IQ3_S, IQ3_XXS
struct Signed4x32;
/// IQ2_XXS, IQ1_S
struct Signed3x32;
/// IQ2_XS, IQ2_S, IQ1_M, Q3_K
struct Signed3x16;
/// Q2_K
struct WithMin2x16;
/// TQ1_0, TQ2_0
struct Plain2x32;

macro_rules! shape {
    ($name:ident, $kernels:ident: $bits:literal, $sub:literal, $max:literal, $scales:ident) => {
        impl Shape for $name {
            const BITS: usize = $bits;
            const SUB: usize = $sub;
            const MAX: u8 = $max;
            const SCALES: Scales = Scales::$scales;
        }

        pub(super) const $kernels: Kernels = Kernels {
            form: if $sub == 32 { Form::Int8Block32 } else { Form::Int8Block256 },
            group_bytes: group_bytes::<$name>,
            pack: pack::<$name>,
            decode: decode::<$name>,
            multiply: multiply::<$name>,
        };
    };
}
shape!(Wide4x32, WIDE_4X32: 4, 32, 255, Signed);
shape!(Signed4x32, SIGNED_4X32: 4, 32, 127, Signed);
shape!(Signed3x32, SIGNED_3X32: 3, 32, 127, Signed);
shape!(Signed3x16, SIGNED_3X16: 3, 16, 127, Signed);
shape!(WithMin2x16, WITH_MIN_2X16: 2, 16, 15, WithMin);
shape!(Plain2x32, PLAIN_2X32: 2, 32, 127, None);

/// The functions of one shape.
pub(super) struct Kernels {
    /// What [`Kernels::multiply`] wants the activations as: they have a scale of their own for each 32, where sub-blocks have.
    pub(super) form: Form,
    /// Bytes of a group of 16 rows of so many elements.
    pub(super) group_bytes: fn(usize) -> usize,
    /// Writes a row, by its bytes in the file, into a lane of a group.
    pub(super) pack: fn(&mut [u8], usize, &[u8], &Coding),
    /// Reads a lane of a group back as numbers.
    pub(super) decode: fn(&mut [f32], &[u8], usize, &Coding),
    /// Multiplies a group by a tile; unsafe as [`dispatch`] is.
    pub(super) multiply: unsafe fn(Isa, Args<'_>, &'static Coding),
}

/// # Safety
/// The processor has `isa`; sizes were checked by [`Layout::multiply`](super::layout::Layout::multiply).
unsafe fn multiply<T: Shape>(isa: Isa, args: Args<'_>, coding: &'static Coding) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(isa, Multiply::<T> { args, coding, shape: PhantomData }) }
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

/// The table for indices of block 4·`half` + `j`: its low bits stand at bit 0 or, for odd `j`, at bit 2, its high bit where
/// [`HIGH_BITS`] has it, both modulo 4.
fn table(values: [i8; 16], bits: usize, above: u8, half: usize, j: usize) -> [u8; 16] {
    std::array::from_fn(|index| {
        let code = match bits {
            4 => index,
            2 => index >> (j % 2 * 2) & 3,
            _ => index >> (j % 2 * 2) & 3 | (index >> (HIGH_BITS[4 * half + j] % 4) & 1) << 2,
        };
        (values[code] as u8).wrapping_add(above)
    })
}

/// Where the parts of a group stand.
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
            3 => (3 * i + k / 4 * 2, k % 4 * 2),
            _ => (k / 4 * 8 + i, k % 4 * 2),
        }
    }

    /// Line after the scales of the high bits of dword `i`.
    #[inline(always)]
    fn high(i: usize) -> usize {
        3 * i + 1
    }
}

fn group_bytes<T: Shape>(n_in: usize) -> usize {
    Parts::<T>::factors_bytes(n_in / 256) + n_in / 256 * T::BLOCK_LINES * LINE
}

fn pack<T: Shape>(group: &mut [u8], lane: usize, row: &[u8], coding: &Coding) {
    let block_bytes = coding.dtype.spec().block_bytes;
    let n_blocks = row.len() / block_bytes;
    let (factors, blocks) = group.split_at_mut(Parts::<T>::factors_bytes(n_blocks));
    for (b, (block, lines)) in
        row.chunks_exact(block_bytes).zip(blocks.chunks_exact_mut(T::BLOCK_LINES * LINE)).enumerate()
    {
        let block = (coding.read)(block);
        for (f, factor) in block.factors[..T::N_FACTORS].iter().enumerate() {
            factors[2 * ((b * T::N_FACTORS + f) * LANES + lane)..][..2].copy_from_slice(factor);
        }
        let (scales, lines) = lines.split_at_mut(T::SCALE_LINES * LINE);
        for (scales, scale) in scales.chunks_exact_mut(LANES).zip(block.scales) {
            scales[lane] = scale;
        }
        let codes = block.codes.as_chunks::<32>().0;
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
}

/// Decodes one row of a packed group. Every product of a factor, a scale and a table's number is exact in `f32`, so the result has
/// the same bits as the type's own decoder gives.
fn decode<T: Shape>(out: &mut [f32], group: &[u8], lane: usize, coding: &Coding) {
    let (blocks, _) = out.as_chunks_mut::<256>();
    let (factors, lines) = group.split_at(Parts::<T>::factors_bytes(blocks.len()));
    for (b, (out, lines)) in blocks.iter_mut().zip(lines.chunks_exact(T::BLOCK_LINES * LINE)).enumerate() {
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
            let scale = factor(0) * coding.unit * scale;
            for (w, out) in out.iter_mut().enumerate() {
                let (k, within) = ((j * T::SUB + w) / 32, (j * T::SUB + w) % 32);
                let at = 4 * lane + within % 4;
                let (line, bit) = Parts::<T>::low(k, within / 4);
                let mut code = lines[line * LINE + at] >> bit & if T::BITS == 4 { 15 } else { 3 };
                if T::BITS == 3 {
                    code |= (lines[Parts::<T>::high(within / 4) * LINE + at] >> HIGH_BITS[k] & 1) << 2;
                }
                *out = scale * f32::from(coding.values[usize::from(code)]) - min;
            }
        }
    }
}

/// The product of a group by a tile.
struct Multiply<'a, T> {
    args: Args<'a>,
    coding: &'static Coding,
    shape: PhantomData<T>,
}

impl<T: Shape> Kernel for Multiply<'_, T> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.args.x.rows == 1 { self.multiply::<S, true>() } else { self.multiply::<S, false>() }
        }
    }
}

impl<T: Shape> Multiply<'_, T> {
    /// With the number of rows known, for one row, the sums stay in registers.
    ///
    /// # Safety
    /// [`Simd`]'s contract; [`Layout::multiply`](super::layout::Layout::multiply) has checked the sizes.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const ONE: bool>(self) {
        let Args { w, n_in, x, y, .. } = self.args;
        let rows = if ONE { 1 } else { x.rows };
        let n_blocks = n_in / 256;
        let mut t: Sums = Sums::uninit();
        let t = t.as_mut_ptr().cast::<u8>();
        let (factors, blocks) = (w.as_ptr(), w[Parts::<T>::factors_bytes(n_blocks)..].as_ptr());
        let [a, b, c, d] = [[0, 0], [0, 1], [1, 0], [1, 1]]
            .map(|[half, j]| table(self.coding.values, T::BITS, T::ABOVE, half, j));
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to; a tile has at most TILE rows.
        unsafe {
            let tables = [[S::table(&a), S::table(&b)], [S::table(&c), S::table(&d)]];
            int8::clear::<S>(y, rows);
            for b in 0..n_blocks {
                let factors = factors.add(b * T::N_FACTORS * 2 * LANES);
                let scales = blocks.add(b * T::BLOCK_LINES * LINE);
                let at = Block {
                    scales,
                    lines: scales.add(T::SCALE_LINES * LINE),
                    q: x.q.as_ptr().add(8 * b * rows * 32),
                    offsets: x.offsets[2].as_ptr().add(256 / T::SUB * b * rows),
                    rows,
                    tables,
                };
                let d = S::mul(S::load_f16(factors), S::splat(self.coding.unit));
                if T::SUB == 32 {
                    for half in 0..2 {
                        at.add_block::<S, T, ONE, 0>(y, &x, b, d, half);
                        at.add_block::<S, T, ONE, 1>(y, &x, b, d, half);
                        at.add_block::<S, T, ONE, 2>(y, &x, b, d, half);
                        at.add_block::<S, T, ONE, 3>(y, &x, b, d, half);
                    }
                    continue;
                }
                for r in 0..rows {
                    S::store(t.add(r * LINE), S::splat_i32(0));
                }
                let mut sum = S::splat_i32(0);
                for half in 0..2 {
                    sum = at.add::<S, T, ONE, 0>(sum, t, half);
                    sum = at.add::<S, T, ONE, 1>(sum, t, half);
                    sum = at.add::<S, T, ONE, 2>(sum, t, half);
                    sum = at.add::<S, T, ONE, 3>(sum, t, half);
                }
                let mins = if T::SCALES == Scales::WithMin { at.mins::<S>() } else { [sum; 8] };
                for r in 0..rows {
                    let sum = if ONE { sum } else { S::load(t.add(r * LINE)) };
                    let mut product = S::mul(S::to_f32(sum), d);
                    if T::SCALES == Scales::WithMin {
                        let sums = x.offsets[3].as_ptr().add((b * rows + r) * 8);
                        let mut sum = S::splat_i32(0);
                        for p in 0..8 {
                            sum = S::dot_i16(sum, mins[p], *sums.add(p));
                        }
                        let dmin = S::load_f16(factors.add(2 * LANES));
                        product = S::fnma(S::to_f32(sum), dmin, product);
                    }
                    let scale = S::splat(*x.scales.as_ptr().add(b * rows + r));
                    let y = y.add(r * LANES);
                    S::store_f32(y, S::fma(product, scale, S::load_f32(y)));
                }
            }
        }
    }
}

/// A super-block of 16 rows, and its activations.
struct Block<I> {
    /// [n_sub, 16]
    scales: *const u8,
    lines: *const u8,
    /// [8, rows, 32]
    q: *const i8,
    /// What the sums of a table that is 64 above start from: [n_sub, rows]
    offsets: *const i32,
    rows: usize,
    /// For the first and second four blocks, for even and odd ones.
    tables: [[I; 2]; 2],
}

impl<I: Copy> Block<I> {
    /// Asks for what block `k` needs some super-blocks ahead.
    ///
    /// # Safety
    /// [`Simd`]'s contract.
    #[inline(always)]
    unsafe fn prefetch<S: Simd<I = I>, T: Shape, const ONE: bool>(&self, k: usize) {
        let scale_lines = if k == 7 { T::SCALE_LINES } else { 0 };
        // SAFETY: the caller's promise.
        unsafe {
            int8::prefetch::<S, ONE>(self.lines.wrapping_add(k * T::BITS * LINE), T::BITS + scale_lines)
        }
    }

    /// Adds block 4·`half` + `J` of super-block `b` to `y` [rows, 16], where it is a sub-block.
    ///
    /// # Safety
    /// [`Simd`]'s contract; `x` has the super-block.
    #[inline(always)]
    unsafe fn add_block<S: Simd<I = I>, T: Shape, const ONE: bool, const J: usize>(
        &self,
        y: *mut f32,
        x: &Tile<'_>,
        b: usize,
        d: S::F,
        half: usize,
    ) {
        let k = 4 * half + J;
        // SAFETY: the caller's promise.
        unsafe {
            self.prefetch::<S, T, ONE>(k);
            let v = self.weights::<S, T, J>(half);
            let scale = match T::SCALES {
                Scales::None => d,
                _ => S::mul(d, S::to_f32(S::load_i8(self.scales.add(k * LANES)))),
            };
            let at = 8 * b + k;
            if T::MAX == 255 {
                let all = x.offsets[0].as_ptr().add(at * self.rows);
                let offsets = if S::CENTERS_BYTES { std::ptr::null() } else { all };
                let x = int8::Block::of(x, self.rows, at, offsets);
                int8::add_block::<S, 255>(y, &v, scale, self.rows, x);
            } else {
                let x = int8::Block::of(x, self.rows, at, self.offsets.add(k * self.rows));
                int8::add_block::<S, 127>(y, &v, scale, self.rows, x);
            }
        }
    }

    /// Adds block 4·`half` + `J`, which has two sub-blocks: to `sum`, if there is one row, else to `t`.
    ///
    /// # Safety
    /// [`Simd`]'s contract; `t` is `i32` [rows, 16].
    #[inline(always)]
    unsafe fn add<S: Simd<I = I>, T: Shape, const ONE: bool, const J: usize>(
        &self,
        sum: I,
        t: *mut u8,
        half: usize,
    ) -> I {
        let k = 4 * half + J;
        // SAFETY: the caller's promise.
        unsafe {
            self.prefetch::<S, T, ONE>(k);
            let q = self.q.add(k * self.rows * 32);
            let [a, b, c, d, e, f, g, h] = self.weights::<S, T, J>(half);
            let sum = self.add_sub::<S, T, ONE>(sum, t, &[a, b, c, d], 2 * k, q);
            self.add_sub::<S, T, ONE>(sum, t, &[e, f, g, h], 2 * k + 1, q.add(16))
        }
    }

    /// Adds sub-block `j`.
    ///
    /// # Safety
    /// As [`Block::add`].
    #[inline(always)]
    unsafe fn add_sub<S: Simd<I = I>, T: Shape, const ONE: bool>(
        &self,
        sum: I,
        t: *mut u8,
        v: &[I; 4],
        j: usize,
        q: *const i8,
    ) -> I {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = match T::SCALES {
                Scales::None | Scales::Signed => S::load_i8(self.scales.add(j * LANES)),
                Scales::WithMin => S::and(S::load_u8(self.scales.add(j * LANES)), S::splat_i32(15)),
            };
            if ONE {
                let [product] = self.dot::<S, T, 1>(v, j, q, 0);
                return S::add_i32(sum, S::mul_i32(product, scale));
            }
            let mut r = 0;
            while r + ROWS <= self.rows {
                let products = self.dot::<S, T, ROWS>(v, j, q, r);
                for i in 0..ROWS {
                    let t = t.add((r + i) * LINE);
                    S::store(t, S::add_i32(S::load(t), S::mul_i32(products[i], scale)));
                }
                r += ROWS;
            }
            while r < self.rows {
                let [product] = self.dot::<S, T, 1>(v, j, q, r);
                let t = t.add(r * LINE);
                S::store(t, S::add_i32(S::load(t), S::mul_i32(product, scale)));
                r += 1;
            }
        }
        sum
    }

    /// Sums of the products of sub-block `j` with `R` rows from row `r` on.
    ///
    /// # Safety
    /// As [`Block::add`].
    #[inline(always)]
    unsafe fn dot<S: Simd<I = I>, T: Shape, const R: usize>(
        &self,
        v: &[I; 4],
        j: usize,
        q: *const i8,
        r: usize,
    ) -> [I; R] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [S::splat_i32(0); R];
            if T::ABOVE != 0 {
                for i in 0..R {
                    sums[i] = S::splat_i32(*self.offsets.add(j * self.rows + r + i));
                }
            }
            let q = q.add(r * 32);
            match T::MAX {
                15 => S::dot::<4, 15, R>(&mut sums, v, q),
                _ => S::dot::<4, 127, R>(&mut sums, v, q),
            }
            sums
        }
    }

    /// The weights of block 4·`half` + `J`, as the table has them.
    ///
    /// # Safety
    /// [`Simd`]'s contract.
    #[inline(always)]
    unsafe fn weights<S: Simd<I = I>, T: Shape, const J: usize>(&self, half: usize) -> [I; 8] {
        let (line, bit) = Parts::<T>::low(4 * half + J, 0);
        let step = Parts::<T>::low(0, 1).0;
        let bytes = |mask: usize| (mask as u32 * 0x0101_0101) as i32;
        // SAFETY: the caller's promise; the super-block has these lines.
        unsafe {
            let lines = self.lines.add(line * LINE);
            let mask = S::splat_i32(bytes(if T::BITS == 4 { 15 << (J % 2 * 4) } else { 3 << bit }));
            let high_mask = S::splat_i32(bytes(1 << HIGH_BITS[4 * half + J]));
            let table = self.tables[half][J % 2];
            let mut v = [mask; 8];
            for i in 0..8 {
                let mut code = S::and(S::load_in_order(lines.add(i * step * LINE)), mask);
                if T::BITS == 3 {
                    let high = S::load_in_order(self.lines.add(Parts::<T>::high(i) * LINE));
                    code = S::or(code, S::and(high, high_mask));
                }
                let upper = if T::BITS == 4 { J % 2 == 1 } else { J >= 2 };
                v[i] = S::lookup(table, if upper { S::shr::<4>(code) } else { code });
            }
            v
        }
    }

    /// The minimums of all sub-blocks, two in each lane.
    ///
    /// # Safety
    /// [`Simd`]'s contract; the type has minimums.
    #[inline(always)]
    unsafe fn mins<S: Simd<I = I>>(&self) -> [I; 8] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut mins = [S::splat_i32(0); 8];
            for (p, pair) in mins.iter_mut().enumerate() {
                let min = |j: usize| S::shr::<4>(S::load_u8(self.scales.add(j * LANES)));
                *pair = S::pair(min(2 * p), min(2 * p + 1));
            }
            mins
        }
    }
}

/// Rows that are in flight together, to hide the latency of the dot product.
const ROWS: usize = 4;
