//! Q1_0: blocks of 128 weights that are `d` or `-d`, a bit each.
//!
//! Panel: blocks of 4 lines with their scales (see [`BlockOffsets`]); a line has 32 weights of each row, bit i of a row's byte j is that of
//! weight 4·i + j.

use crate::cpu::matmul::activations::ActivationLayout;
use crate::cpu::matmul::int8::{self, BlockOffsets};
use crate::cpu::matmul::layout::{Args, Packing, PanelKernel, get_dwords, put_dwords};
use crate::cpu::simd::{LINE, Simd};
use half::f16;

pub(super) static LAYOUT: Q1_0 = Q1_0;

pub(super) struct Q1_0;

const BLOCK: usize = 18;
const BLOCK_LINES: usize = 4;

type Offsets = BlockOffsets<BLOCK_LINES>;

impl Packing for Q1_0 {
    fn name(&self) -> &'static str {
        "Q1_0"
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::Int8Block32
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        Offsets::panel_bytes(n_in / 128)
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        for (b, block) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
            let lines = Offsets::put_scale(panel, b, lane, &block[..2]);
            let mut bytes = [0; 16];
            for w in 0..128 {
                let bit = block[2 + w / 8] >> (w % 8) & 1;
                bytes[w / 32 * 4 + w % 4] |= bit << (w % 32 / 4);
            }
            put_dwords(lines, lane, &bytes);
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        for (b, out) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let (mut scale, mut bytes) = ([0; 2], [0; 16]);
            get_dwords(&mut bytes, Offsets::get_scale(&mut scale, panel, b, lane), lane);
            let d = f16::from_le_bytes(scale).to_f32();
            for (w, out) in out.iter_mut().enumerate() {
                let bit = bytes[w / 32 * 4 + w % 4] >> (w % 32 / 4) & 1;
                *out = if bit == 1 { d } else { -d };
            }
        }
    }
}

impl PanelKernel for Q1_0 {
    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE_ROW { 1 } else { x.rows };
        let panel = w.as_ptr();
        // SAFETY: n_in is a multiple of 128, so blocks of 32 below n_in / 32 have their scales and lines in the panel (2) and their
        // activations in the tile (3); `y` has its rows (4). Weights are 0 or 16.
        unsafe {
            // A set bit is moved to where it counts 16. The sums start at -8 times the activations' sum, so they end at 8 times
            // what bits of ±1 would give.
            let bit = S::splat_i32(0x1010_1010);
            for b in 0..n_in / 32 {
                let (block, line) = (b / BLOCK_LINES, b % BLOCK_LINES);
                let scale = S::mul(S::load_f16(panel.add(Offsets::scales(block))), S::splat(0.125));
                let line = S::load_in_order(panel.add(Offsets::lines(block) + line * LINE));
                let w = [
                    S::and(S::shl::<4>(line), bit),
                    S::and(S::shl::<3>(line), bit),
                    S::and(S::shl::<2>(line), bit),
                    S::and(S::shl::<1>(line), bit),
                    S::and(line, bit),
                    S::and(S::shr::<1>(line), bit),
                    S::and(S::shr::<2>(line), bit),
                    S::and(S::shr::<3>(line), bit),
                ];
                let offsets = x.offsets[1].as_ptr().add(b * rows);
                int8::add_block::<S, 31>(y, &w, scale, rows, int8::Block::of(&x, rows, b, offsets));
            }
        }
    }
}
