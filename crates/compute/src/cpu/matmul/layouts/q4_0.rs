//! Q4_0: blocks of 32 unsigned nibbles, to be lowered by 8, and a scale.
//!
//! Panel: blocks of 4 lines with their scales (see [`BlockOffsets`]). The low nibbles of the lines are weights 0 to 15 of the
//! block, the high nibbles weights 16 to 31.

use crate::DType;
use crate::cpu::matmul::activations::ActivationLayout;
use crate::cpu::matmul::int8::{self, BlockOffsets};
use crate::cpu::matmul::layout::{Args, Packing, PanelKernel, get_dwords, put_dwords};
use crate::cpu::simd::{LINE, Simd};

pub(super) static LAYOUT: Q4_0 = Q4_0;

pub(super) struct Q4_0;

const BLOCK: usize = 18;
const BLOCK_LINES: usize = 4;

type Offsets = BlockOffsets<BLOCK_LINES>;

impl Packing for Q4_0 {
    fn name(&self) -> &'static str {
        "Q4_0"
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::Int8Block32
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        Offsets::panel_bytes(n_in / 32)
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        for (b, block) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
            let lines = Offsets::put_scale(panel, b, lane, &block[..2]);
            put_dwords(lines, lane, &block[2..]);
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let mut block = [0; BLOCK];
            let lines = Offsets::get_scale(&mut block[..2], panel, b, lane);
            get_dwords(&mut block[2..], lines, lane);
            (DType::Q4_0.spec().dequantize)(&block, out);
        }
    }
}

impl PanelKernel for Q4_0 {
    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE_ROW { 1 } else { x.rows };
        let panel = w.as_ptr();
        // SAFETY: blocks below n_in / 32 have their scales and lines in the panel (2) and their activations in the tile (3); `y` has its
        // rows (4). Codes are below 16.
        unsafe {
            let low = S::splat_i32(0x0f0f_0f0f);
            for b in 0..n_in / 32 {
                let scale = S::load_f16(panel.add(Offsets::scales(b)));
                let lines = panel.add(Offsets::lines(b));
                int8::prefetch::<S, ONE_ROW>(lines, BLOCK_LINES + b % 2);
                let mut w = [S::splat_i32(0); 8];
                for i in 0..4 {
                    let line = S::load_in_order(lines.add(i * LINE));
                    w[i] = S::and(line, low);
                    w[4 + i] = S::and(S::shr::<4>(line), low);
                }
                let offsets = x.offsets[1].as_ptr().add(b * rows);
                int8::add_block::<S, 15>(y, &w, scale, rows, int8::Block::of(&x, rows, b, offsets));
            }
        }
    }
}
