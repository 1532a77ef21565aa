//! F32, F16 and BF16 weights, and through F32 every type that has no kernel of its own.
//!
//! Groups: F32 and F16 as [n_in, 16]; BF16 as pairs, [n_in / 2, 16, 2]. An output element is the sum of two chains, one
//! over the even and one over the odd steps, for any number of rows: one chain alone would wait for its own additions.

use super::layout::{Args, get_dwords, put_dwords};
use crate::DType;
use crate::cpu::simd::{Kernel, LANES, LINE, Simd};

/// Rows of a tile that are multiplied together.
const ROWS: usize = 8;

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

pub(super) fn pack_bf16(group: &mut [u8], lane: usize, row: &[u8]) {
    put_dwords(group, lane, row);
    // An odd last element pairs with a zero.
    if let Some(last) = row.as_chunks::<4>().1.first_chunk::<2>() {
        let at = row.len() / 4 * LINE + 4 * lane;
        group[at..at + 2].copy_from_slice(last);
        group[at + 2..at + 4].fill(0);
    }
}

pub(super) fn unpack_bf16(row: &mut [u8], group: &[u8], lane: usize) {
    get_dwords(row, group, lane);
    let at = row.len() / 4 * LINE + 4 * lane;
    if let Some(last) = row.as_chunks_mut::<4>().1.first_chunk_mut::<2>() {
        last.copy_from_slice(&group[at..at + 2]);
    }
}

/// Multiplies step by step: `STEP(w, x, sums)` adds step `k` of `N` rows to their sums.
macro_rules! kernel {
    ($name:ident, $doc:literal, |$n_in:ident| $n_steps:expr, |$s:ident, $w:ident, $k:ident| $load:expr,
     |$sum:ident, $weights:ident, $x:ident, $i:ident| $add:expr) => {
        #[doc = $doc]
        pub(super) struct $name<'a>(pub(super) Args<'a>);

        impl Kernel for $name<'_> {
            #[inline(always)]
            unsafe fn run<S: Simd>(self) {
                let mut r = 0;
                // SAFETY: `Layout::multiply` checked the sizes; r + N <= rows.
                unsafe {
                    while r + ROWS <= self.0.x.rows {
                        self.rows::<S, ROWS>(r);
                        r += ROWS;
                    }
                    while r < self.0.x.rows {
                        self.rows::<S, 1>(r);
                        r += 1;
                    }
                }
            }
        }

        impl $name<'_> {
            #[inline(always)]
            unsafe fn rows<$s: Simd, const N: usize>(&self, r: usize) {
                let Args { w, n_in: $n_in, x, y } = self.0;
                let n_steps = $n_steps;
                let $w = w.as_ptr();
                // SAFETY: the caller's promise.
                unsafe {
                    let mut even = [$s::splat(0.0); N];
                    let mut odd = even;
                    let mut k = 0;
                    while k + 2 <= n_steps {
                        for (k, sums) in [(k, &mut even), (k + 1, &mut odd)] {
                            let $k = k;
                            let $weights = $load;
                            for ($i, $sum) in sums.iter_mut().enumerate() {
                                let ($x, $i) = (&x, k * x.rows + r + $i);
                                *$sum = $add;
                            }
                        }
                        k += 2;
                    }
                    if k < n_steps {
                        let $k = k;
                        let $weights = $load;
                        for ($i, $sum) in even.iter_mut().enumerate() {
                            let ($x, $i) = (&x, k * x.rows + r + $i);
                            *$sum = $add;
                        }
                    }
                    for i in 0..N {
                        $s::store_f32(y.add((r + i) * LANES), $s::add(even[i], odd[i]));
                    }
                }
            }
        }
    };
}

kernel!(MultiplyF32, "F32 by F32.", |n_in| n_in, |S, w, k| S::load_f32(w.add(k * LINE).cast()), |sum, w, x, i| {
    S::fma(w, S::splat(*x.floats.get_unchecked(i)), *sum)
});

kernel!(MultiplyF16, "F16 by F32.", |n_in| n_in, |S, w, k| S::load_f16(w.add(k * 2 * LANES)), |sum, w, x, i| {
    S::fma(w, S::splat(*x.floats.get_unchecked(i)), *sum)
});

kernel!(
    MultiplyBf16Dot,
    "BF16 by BF16.",
    |n_in| n_in.div_ceil(2),
    |S, w, k| S::load(w.add(k * LINE)),
    |sum, w, x, i| S::dot_bf16(*sum, w, *x.pairs.get_unchecked(i))
);

kernel!(
    MultiplyBf16,
    "BF16 by F32.",
    |n_in| n_in,
    |S, w, k| {
        let pair = S::load(w.add(k / 2 * LINE));
        if k % 2 == 0 { S::bf16_low(pair) } else { S::bf16_high(pair) }
    },
    |sum, w, x, i| S::fma(w, S::splat(*x.floats.get_unchecked(i)), *sum)
);
