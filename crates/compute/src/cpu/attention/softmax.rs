//! Online softmax: scores of a tile become weights.

use super::tile::{CHUNKS, ROWS, TILE, reduce};
use crate::cpu::activation::tanh;
use crate::cpu::simd::{LANES, Simd};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Weights of a tile's positions for four rows.
pub(super) struct Weights<S: Simd> {
    pub(super) weights: [[S::F; CHUNKS]; ROWS],
    /// What each row's weights have to be multiplied with.
    pub(super) shares: [f32; ROWS],
    /// What was summed before has to be multiplied with.
    pub(super) rescale: [f32; ROWS],
}

/// Turns four rows' scores, times `factors`, into weights. Updates the rows' maxima and sums. Weights are shares of the tile's largest where
/// `of_tile` says so, else of the largest so far. Where a row does not see a position, its weight is 0 or next to it.
///
/// # Safety
/// *Instructions*: those of [`Simd`].
#[inline(always)]
pub(super) unsafe fn softmax_tile<S: Simd>(
    scores: &mut [[f32; TILE]; ROWS],
    factors: &[f32; ROWS],
    seen: &[Range<usize>; ROWS],
    cap: Option<f32>,
    of_tile: bool,
    max: &mut [f32; ROWS],
    sum: &mut [f32; ROWS],
) -> Weights<S> {
    let whole = seen.iter().all(|seen| seen.len() == TILE);
    let mut factors = *factors;
    if cap.is_some() || !whole {
        for r in 0..ROWS {
            prepare(&mut scores[r], factors[r], &seen[r], cap);
        }
        factors = [1.0; ROWS];
    }
    // SAFETY: a row of `TILE` numbers has `CHUNKS` vectors; the instructions are this function's contract. Rows are written out, so that their vectors stay in registers.
    unsafe {
        let rows = [
            scaled::<S>(&scores[0], factors[0]),
            scaled::<S>(&scores[1], factors[1]),
            scaled::<S>(&scores[2], factors[2]),
            scaled::<S>(&scores[3], factors[3]),
        ];
        let largest =
            [largest::<S>(&rows[0]), largest::<S>(&rows[1]), largest::<S>(&rows[2]), largest::<S>(&rows[3])];
        let mut base = largest;
        // The shares' exponents, then those of what shrinks.
        let mut powers = [0.0; LANES];
        for r in 0..ROWS {
            let new = larger(max[r], largest[r]);
            if !of_tile {
                base[r] = new;
            }
            powers[r] = base[r] - new;
            powers[ROWS + r] = max[r] - new;
            if seen[r].is_empty() {
                // Scores of negative infinity get the least weight, and the rest stays as it is.
                (base[r], powers[r], powers[ROWS + r]) = (0.0, 0.0, 0.0);
            }
            max[r] = new;
        }
        S::store_f32(powers.as_mut_ptr(), exp2s::<S>(S::load_f32(powers.as_ptr())));
        let mut weights = [
            powers_of::<S>(&rows[0], base[0]),
            powers_of::<S>(&rows[1], base[1]),
            powers_of::<S>(&rows[2], base[2]),
            powers_of::<S>(&rows[3], base[3]),
        ];
        if !whole {
            for r in 0..ROWS {
                let mut ones = [0.0; TILE];
                ones[seen[r].clone()].fill(1.0);
                for c in 0..CHUNKS {
                    weights[r][c] = S::mul(weights[r][c], S::load_f32(ones[c * LANES..].as_ptr()));
                }
            }
        }
        let totals = [
            total::<S>(&weights[0]),
            total::<S>(&weights[1]),
            total::<S>(&weights[2]),
            total::<S>(&weights[3]),
        ];
        let (mut shares, mut rescale) = ([0.0; ROWS], [0.0; ROWS]);
        for r in 0..ROWS {
            (shares[r], rescale[r]) = (powers[r], powers[ROWS + r]);
            sum[r] = sum[r] * rescale[r] + shares[r] * totals[r];
        }
        Weights { weights, shares, rescale }
    }
}

/// A row's scores, which are not all taken as they are: capped, and negative infinity where the row does not see them.
fn prepare(scores: &mut [f32; TILE], factor: f32, seen: &Range<usize>, cap: Option<f32>) {
    scores.iter_mut().for_each(|s| *s *= factor);
    if let Some(cap) = cap {
        let (inv, units) = (1.0 / cap, cap * LOG2_E);
        scores.iter_mut().for_each(|s| *s = units * tanh(*s * inv));
    }
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
}

/// A row's scores times a factor.
///
/// # Safety
/// *Instructions*: those of [`Simd`].
#[inline(always)]
unsafe fn scaled<S: Simd>(scores: &[f32; TILE], factor: f32) -> [S::F; CHUNKS] {
    // SAFETY: a row of `TILE` numbers has `CHUNKS` vectors; the instructions are this function's contract.
    unsafe {
        let mut row = [S::splat(factor); CHUNKS];
        for c in 0..CHUNKS {
            row[c] = S::mul(row[c], S::load_f32(scores[c * LANES..].as_ptr()));
        }
        row
    }
}

/// The largest number of a row.
///
/// # Safety
/// *Instructions*: those of [`Simd`].
#[inline(always)]
unsafe fn largest<S: Simd>(row: &[S::F; CHUNKS]) -> f32 {
    // SAFETY: only registers; the instructions are this function's contract.
    unsafe {
        let mut lanes = row[0];
        for c in 1..CHUNKS {
            lanes = S::max(lanes, row[c]);
        }
        S::first(reduce::<S>(lanes, |a, b| S::max(a, b)))
    }
}

/// The sum of a row.
///
/// # Safety
/// *Instructions*: those of [`Simd`].
#[inline(always)]
unsafe fn total<S: Simd>(row: &[S::F; CHUNKS]) -> f32 {
    // SAFETY: only registers; the instructions are this function's contract.
    unsafe {
        let mut lanes = row[0];
        for c in 1..CHUNKS {
            lanes = S::add(lanes, row[c]);
        }
        S::first(reduce::<S>(lanes, |a, b| S::add(a, b)))
    }
}

/// `2^(x - base)` of a row.
///
/// # Safety
/// *Instructions*: those of [`Simd`].
#[inline(always)]
unsafe fn powers_of<S: Simd>(row: &[S::F; CHUNKS], base: f32) -> [S::F; CHUNKS] {
    // SAFETY: only registers; the instructions are this function's contract.
    unsafe {
        let mut weights = *row;
        for c in 0..CHUNKS {
            weights[c] = exp2s::<S>(S::sub(row[c], S::splat(base)));
        }
        weights
    }
}

/// The larger number, in one instruction; the first unless the second is larger.
#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Coefficients of `2^f` for `|f| ≤ 1/2`, from the fifth power down to the first, fitted for the least relative error, 9.1e-8.
#[expect(clippy::approx_constant, reason = "a fitted coefficient, near ln 2 and not it")]
const EXP2: [f32; 5] = [0.001_326_472_7, 0.009_671_51, 0.055_507_34, 0.240_222_42, 0.693_147];
/// Adding 1.5 · 2^23 leaves the nearest whole number in the lowest bits.
const ROUND: f32 = 12_582_912.0;

/// `2^x` for `x ≤ 0` within 2 units in the last place, without branches, so that loops over it vectorize; below -126 it is
/// `2^-126`.
///
/// `x = n + f` with `|f| ≤ 1/2`; `2^f` by a polynomial.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    // NaN passes, since the comparison fails.
    let x = if x < -126.0 { -126.0 } else { x };
    let n = x + ROUND;
    let f = x - (n - ROUND);
    let p = EXP2[1..].iter().fold(EXP2[0], |p, c| p * f + c) * f + 1.0;
    // The power's exponent, from those lowest bits; a NaN is in `p` too.
    p * f32::from_bits((n.to_bits() << 23).wrapping_add(127 << 23))
}

/// [`exp2`] of every lane.
///
/// # Safety
/// *Instructions*: those of [`Simd`].
#[inline(always)]
unsafe fn exp2s<S: Simd>(x: S::F) -> S::F {
    // SAFETY: only registers; the instructions are this function's contract.
    unsafe {
        let x = S::max(x, S::splat(-126.0));
        let n = S::sub(S::add(x, S::splat(ROUND)), S::splat(ROUND));
        let f = S::sub(x, n);
        let mut p = S::splat(EXP2[0]);
        for c in &EXP2[1..] {
            p = S::fma(p, f, S::splat(*c));
        }
        S::scale(S::fma(p, f, S::splat(1.0)), n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::simd::{Kernel, dispatch};

    /// `2^x` of a vector.
    struct Powers<'a>(&'a mut [f32; LANES]);

    impl Kernel for Powers<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: the array has a vector's size.
            unsafe { S::store_f32(self.0.as_mut_ptr(), exp2s::<S>(S::load_f32(self.0.as_ptr()))) }
        }
    }

    #[test]
    fn exp2_is_within_two_units_in_the_last_place() {
        let on_all = |x: f32| {
            let vectors = Isa::available().iter().map(|&isa| {
                let mut lanes = [x; LANES];
                // SAFETY: the instruction set is available; the kernel has no pointers of its own.
                unsafe { dispatch(isa, Powers(&mut lanes)) }
                lanes[3]
            });
            vectors.chain([exp2(x)]).collect::<Vec<_>>()
        };
        let mut x = 0.0f32;
        while x > -126.0 {
            for got in on_all(x) {
                let want = f64::from(x).exp2();
                assert!((f64::from(got) / want - 1.0).abs() < 2.5e-7, "2^{x} = {got}, not {want}");
            }
            x -= 0.0137;
        }
        assert!(on_all(0.0).iter().all(|got| *got == 1.0));
        assert!(on_all(-3.0).iter().all(|got| *got == 0.125));
        assert!(on_all(f32::NEG_INFINITY).iter().all(|got| *got < 1.2e-38));
        assert!(on_all(f32::NAN).iter().all(|got| got.is_nan()));
    }
}
