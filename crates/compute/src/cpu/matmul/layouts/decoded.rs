//! Floats that any type is decoded to: the layout of F32, and of the other types where activations stay in `f32` or a kernel of their
//! own is missing. The value is the type's row of `QUANTS`.
//!
//! Panel: `f32` [n_in, 16].

use crate::DType;
use crate::cpu::matmul::activations::{ActivationLayout, Tile};
use crate::cpu::matmul::float::FloatWeights;
use crate::cpu::matmul::layout::Packing;
use crate::cpu::simd::{LINE, Simd};
use crate::quant::QuantSpec;

/// Numbers that are decoded at a time; every type's block length divides it.
const STEP: usize = 256;

impl Packing for QuantSpec {
    fn name(&self) -> &'static str {
        self.name
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::F32
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        n_in * LINE
    }

    fn keeps_size(&self) -> bool {
        self.dtype == DType::F32
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        let mut floats = [0_f32; STEP];
        let step_bytes = STEP / self.block_len * self.block_bytes;
        for (blocks, lines) in row.chunks(step_bytes).zip(panel.chunks_mut(STEP * LINE)) {
            let floats = &mut floats[..blocks.len() / self.block_bytes * self.block_len];
            (self.dequantize)(blocks, floats);
            for (line, x) in lines.as_chunks_mut::<LINE>().0.iter_mut().zip(floats) {
                line[4 * lane..4 * lane + 4].copy_from_slice(&x.to_ne_bytes());
            }
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        for (out, line) in out.iter_mut().zip(panel.as_chunks::<LINE>().0) {
            let number = line[4 * lane..].first_chunk().expect("a lane has four bytes");
            *out = f32::from_ne_bytes(*number);
        }
    }
}

impl FloatWeights for QuantSpec {
    type W<S: Simd> = S::F;
    const STEP_BYTES: usize = LINE;

    fn n_steps(n_in: usize) -> usize {
        n_in
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(w: *const u8, k: usize) -> S::F {
        // SAFETY: line `k` of the panel (2); the instructions are `Simd`'s (1).
        unsafe { S::load_f32(w.add(k * LINE).cast()) }
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(sum: S::F, w: S::F, x: &Tile<'_>, i: usize) -> S::F {
        // SAFETY: `i` lies in the tile's floats (2); the instructions are `Simd`'s (1).
        unsafe { S::fma(w, S::splat(*x.floats.get_unchecked(i)), sum) }
    }
}
