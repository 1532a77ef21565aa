//! BF16, multiplied with `f32` activations, or with activations rounded to BF16 where there is a dot product of pairs.
//!
//! Panel, of both: pairs of neighbours, [n_in / 2, 16, 2].

use crate::cpu::matmul::activations::{ActivationLayout, Tile};
use crate::cpu::matmul::float::{FloatWeights, dequantize_pairs, pack_pairs, pair_bytes};
use crate::cpu::matmul::layout::Packing;
use crate::cpu::simd::{Kernel, LANES, LINE, Simd};
use half::bf16;

pub(super) static LAYOUT: Bf16 = Bf16;
pub(super) static DOT_LAYOUT: Bf16Dot = Bf16Dot;

/// BF16 numbers by floats.
pub(super) struct Bf16;
/// Pairs of BF16 numbers by pairs of activations rounded to BF16.
pub(super) struct Bf16Dot;

macro_rules! packing {
    ($type:ty, $activations:expr) => {
        impl Packing for $type {
            fn name(&self) -> &'static str {
                "BF16"
            }

            fn activations(&self) -> ActivationLayout {
                $activations
            }

            fn panel_bytes(&self, n_in: usize) -> usize {
                pair_bytes(n_in)
            }

            fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
                pack_pairs(panel, lane, row);
            }

            fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
                dequantize_pairs(out, panel, lane, |bytes| bf16::from_le_bytes(bytes).to_f32());
            }
        }
    };
}
packing!(Bf16, ActivationLayout::F32);
packing!(Bf16Dot, ActivationLayout::Bf16);

impl FloatWeights for Bf16 {
    type W<S: Simd> = S::F;
    const STEP_BYTES: usize = 2 * LANES;

    fn n_steps(n_in: usize) -> usize {
        n_in
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::F {
        // SAFETY: line `k / 2` of the panel, which starts at a line (2); the instructions are `Simd`'s (1).
        unsafe {
            let pair = S::load_in_order(w.add(k / 2 * LINE));
            if k.is_multiple_of(2) { S::bf16_low(pair) } else { S::bf16_high(pair) }
        }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::F, x: &Tile<'_>, i: usize) -> S::F {
        // SAFETY: `i` lies in the tile's floats (2); the instructions are `Simd`'s (1).
        unsafe { S::fma(w, S::splat(*x.floats.get_unchecked(i)), sum) }
    }
}

impl FloatWeights for Bf16Dot {
    type W<S: Simd> = S::I;
    const STEP_BYTES: usize = LINE;
    const USES_BF16: bool = true;

    fn n_steps(n_in: usize) -> usize {
        n_in.div_ceil(2)
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::I {
        // SAFETY: line `k` of the panel, which starts at a line (2); the instructions are `Simd`'s (1).
        unsafe { S::load_in_order(w.add(k * LINE)) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::I, x: &Tile<'_>, i: usize) -> S::F {
        // SAFETY: `i` lies in the tile's pairs (2); the instructions are `Simd`'s (1).
        unsafe { S::dot_bf16(sum, w, *x.pairs.get_unchecked(i)) }
    }
}

/// Rounds lines of half-precision numbers to BF16. `to` and `from` are equally long.
pub(super) struct FromF16<'a> {
    pub(super) to: &'a mut [u8],
    pub(super) from: &'a [u8],
}

impl Kernel for FromF16<'_> {
    const USES_BF16: bool = true;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (to, from) in self.to.as_chunks_mut::<LINE>().0.iter_mut().zip(self.from.as_chunks::<LINE>().0) {
            // SAFETY: both lines have the 64 bytes that are loaded and stored; the instructions are this function's contract.
            unsafe { S::store(to.as_mut_ptr(), S::load_f16_as_bf16(from.as_ptr())) }
        }
    }
}
