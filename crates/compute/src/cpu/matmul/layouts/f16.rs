//! F16, multiplied with `f32` activations, or rounded to BF16 where there is a dot product of BF16 pairs.

use super::bf16;
use crate::cpu::isa::Isa;
use crate::cpu::matmul::activations::{ActivationLayout, Tile};
use crate::cpu::matmul::float::{FloatWeights, dequantize_pairs, pack_pairs, pair_bytes};
use crate::cpu::matmul::layout::{Converted, Packing};
use crate::cpu::simd::{LANES, LINE, Simd, dispatch};
use half::f16;

pub(super) static LAYOUT: F16 = F16;
pub(super) static DOT_LAYOUT: F16Dot = F16Dot;

/// Half-precision numbers by floats. Panel: [n_in, 16].
pub(super) struct F16;

/// Bytes of one element of 16 rows.
const STEP: usize = 2 * LANES;

impl Packing for F16 {
    fn name(&self) -> &'static str {
        "F16"
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::F32
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        (n_in * STEP).next_multiple_of(LINE)
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        for (step, x) in panel.as_chunks_mut::<STEP>().0.iter_mut().zip(row.as_chunks::<2>().0) {
            step[2 * lane..2 * lane + 2].copy_from_slice(x);
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        for (out, step) in out.iter_mut().zip(panel.as_chunks::<STEP>().0) {
            *out = f16::from_le_bytes([step[2 * lane], step[2 * lane + 1]]).to_f32();
        }
    }
}

impl FloatWeights for F16 {
    type W<S: Simd> = S::F;
    const STEP_BYTES: usize = STEP;

    fn n_steps(n_in: usize) -> usize {
        n_in
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::F {
        // SAFETY: the 32 bytes of step `k` of the panel (2); the instructions are `Simd`'s (1).
        unsafe { S::load_f16(w.add(k * STEP)) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::F, x: &Tile<'_>, i: usize) -> S::F {
        // SAFETY: `i` lies in the tile's floats (2); the instructions are `Simd`'s (1).
        unsafe { S::fma(w, S::splat(*x.floats.get_unchecked(i)), sum) }
    }
}

/// Pairs of half-precision numbers and of activations, both rounded to BF16. Panel: [n_in / 2, 16, 2].
pub(super) struct F16Dot;

impl Packing for F16Dot {
    fn name(&self) -> &'static str {
        "F16"
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::Bf16
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        pair_bytes(n_in)
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        pack_pairs(panel, lane, row);
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        dequantize_pairs(out, panel, lane, |bytes| f16::from_le_bytes(bytes).to_f32());
    }

    /// Rounding to BF16 once costs less than at each of several bands.
    fn for_many_rows(&self) -> Option<&'static dyn Converted> {
        Some(&bf16::DOT_LAYOUT)
    }
}

impl FloatWeights for F16Dot {
    type W<S: Simd> = S::I;
    const STEP_BYTES: usize = LINE;
    const USES_BF16: bool = true;

    fn n_steps(n_in: usize) -> usize {
        n_in.div_ceil(2)
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::I {
        // SAFETY: line `k` of the panel (2); the instructions are `Simd`'s (1).
        unsafe { S::load_f16_as_bf16(w.add(k * LINE)) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::I, x: &Tile<'_>, i: usize) -> S::F {
        // SAFETY: `i` lies in the tile's pairs (2); the instructions are `Simd`'s (1).
        unsafe { S::dot_bf16(sum, w, *x.pairs.get_unchecked(i)) }
    }
}

/// Panels of [`F16Dot`] become those of BF16 pairs.
impl Converted for bf16::Bf16Dot {
    unsafe fn convert(&self, isa: Isa, to: &mut [u8], from: &[u8]) {
        // SAFETY: the processor has `isa` by this function's contract; the kernel has no other.
        unsafe { dispatch(isa, bf16::FromF16 { to, from }) }
    }
}
