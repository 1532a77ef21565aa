//! Products of plain numbers: F32, F16 and BF16 weights, and through floats every type that has no kernel of its own.
//!
//! An output element is the sum of two chains, one over the even and one over the odd steps along the inputs, for any number of rows:
//! one chain alone would wait for its own additions.

use super::activations::{BAND, Tile, band};
use super::layout::{Args, Packing, PanelKernel, get_dwords, put_dwords};
use crate::cpu::simd::{LANES, LINE, Simd};

/// How far ahead of their use the lines of a weight are prefetched, in bytes, where a line is multiplied with several rows: the
/// processor prefetches too little by itself while it computes.
const AHEAD: usize = 4096;

/// Writes the 16-bit numbers of a row as pairs, [n_in / 2, 16 rows, 2].
pub(super) fn pack_pairs(panel: &mut [u8], lane: usize, row: &[u8]) {
    put_dwords(panel, lane, row);
    // An odd last element pairs with a zero.
    if let Some(last) = row.as_chunks::<4>().1.first_chunk::<2>() {
        let at = row.len() / 4 * LINE + 4 * lane;
        panel[at..at + 2].copy_from_slice(last);
        panel[at + 2..at + 4].fill(0);
    }
}

/// Restores what [`pack_pairs`] wrote and decodes it with `decode`.
pub(super) fn dequantize_pairs(out: &mut [f32], panel: &[u8], lane: usize, decode: fn([u8; 2]) -> f32) {
    for (line, out) in panel.as_chunks::<LINE>().0.iter().zip(out.chunks_mut(2)) {
        let mut pair = [0; 4];
        get_dwords(&mut pair, line, lane);
        for (out, number) in out.iter_mut().zip(pair.as_chunks::<2>().0) {
            *out = decode(*number);
        }
    }
}

/// Bytes of a panel of pairs.
pub(super) fn pair_bytes(n_in: usize) -> usize {
    n_in.div_ceil(2) * LINE
}

/// Plain weights: what a step along the inputs reads, and how it is multiplied with the activations.
pub(super) trait FloatWeights: Packing {
    /// The weights of a step, in registers.
    type W<S: Simd>: Copy;
    /// Bytes of a step of a panel, on average: BF16 that is multiplied as `f32` has two steps in each line.
    const STEP_BYTES: usize;
    /// [`Kernel::USES_BF16`](crate::cpu::simd::Kernel::USES_BF16)
    const USES_BF16: bool = false;

    /// Steps of a row of `n_in` elements.
    fn n_steps(n_in: usize) -> usize;

    /// Prefetches the lines of steps `k` and `k + 1` of what begins at `w`, which may be any address.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(w: *const u8, k: usize) {
        for i in 0..2 * Self::STEP_BYTES / LINE {
            // SAFETY: a prefetch takes any address; the instructions are this function's contract.
            unsafe { S::prefetch_l2(w.wrapping_add(k * Self::STEP_BYTES + i * LINE)) }
        }
    }

    /// Loads step `k` of the panel at `w`.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Weights*: `w` is a multiple of 64 and a panel of more than `k` steps.
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> Self::W<S>;

    /// `sum` plus the products with element `i` of the tile's floats or pairs.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Activations*: the tile has more than `i` floats, or pairs, in the layout that `activations()` says.
    unsafe fn add<S: Simd>(sum: S::F, w: Self::W<S>, x: &Tile<'_>, i: usize) -> S::F;
}

/// Multiplies rows `r..r + N` of the tile, which lie side by side in a band, and returns N. Their sums stay in registers from the first
/// step to the last.
///
/// # Safety
/// As [`PanelKernel::add_panel`]; the tile has these rows, in one band.
#[inline(always)]
unsafe fn multiply_rows<T: FloatWeights, S: Simd, const N: usize>(args: &Args<'_>, r: usize) -> usize {
    let Args { w, next, n_in, x, y, .. } = args;
    let n_steps = T::n_steps(*n_in);
    let (start, step) = band(r, x.rows, n_steps);
    let w = w.as_ptr();
    let ahead = if next.is_null() { w.wrapping_add(AHEAD) } else { *next };
    // SAFETY: `k` and `k + 1` are below the panel's `n_steps`. Step `k` of row r + i is element start + k · step + i of the tile, as
    // `band` says, and `y` has these rows (contract 4).
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

impl<T: FloatWeights> PanelKernel for T {
    const USES_BF16: bool = T::USES_BF16;

    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let rows = if ONE_ROW { 1 } else { args.x.rows };
        let many = S::REGISTERS >= 32;
        let mut r = 0;
        while r < rows {
            let left_of_band = rows.min(r / BAND * BAND + BAND) - r;
            // SAFETY: the contract is `add_panel`'s own; so many rows from `r` on are left in the band.
            r += unsafe {
                match left_of_band {
                    BAND.. if many => multiply_rows::<T, S, BAND>(&args, r),
                    8.. if many => multiply_rows::<T, S, 8>(&args, r),
                    4.. if many => multiply_rows::<T, S, 4>(&args, r),
                    3.. => multiply_rows::<T, S, 3>(&args, r),
                    2 => multiply_rows::<T, S, 2>(&args, r),
                    _ => multiply_rows::<T, S, 1>(&args, r),
                }
            };
        }
    }
}
