//! Q8_0: blocks of 32 signed bytes and a scale.
//!
//! Panel: blocks of 8 lines with their scales (see [`BlockOffsets`]), the weights stored as `byte + 128`, because the dot product
//! takes unsigned weights.

use crate::DType;
use crate::cpu::matmul::activations::ActivationLayout;
use crate::cpu::matmul::int8::{self, BlockOffsets};
use crate::cpu::matmul::layout::{Args, Packing, PanelKernel, get_dwords, put_dwords};
use crate::cpu::simd::{LINE, Simd};

pub(super) static LAYOUT: Q8_0 = Q8_0;

pub(super) struct Q8_0;

const BLOCK: usize = 34;
const BLOCK_LINES: usize = 8;

type Offsets = BlockOffsets<BLOCK_LINES>;

impl Packing for Q8_0 {
    fn name(&self) -> &'static str {
        "Q8_0"
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
            let mut q = [0; 32];
            for (q, byte) in q.iter_mut().zip(&block[2..]) {
                *q = byte ^ 0x80;
            }
            put_dwords(lines, lane, &q);
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let mut block = [0; BLOCK];
            let lines = Offsets::get_scale(&mut block[..2], panel, b, lane);
            get_dwords(&mut block[2..], lines, lane);
            for byte in &mut block[2..] {
                *byte ^= 0x80;
            }
            (DType::Q8_0.spec().dequantize)(&block, out);
        }
    }
}

impl PanelKernel for Q8_0 {
    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let n_blocks = args.n_in / 32;
        let rows = if ONE_ROW { 1 } else { args.x.rows };
        // SAFETY: `add_block`'s contract is this one's, for blocks below `n_blocks`.
        unsafe {
            // Two blocks per iteration, so that all addresses advance in equal steps.
            for pair in 0..n_blocks / 2 {
                add_block::<S, ONE_ROW>(&args, rows, 2 * pair);
                add_block::<S, ONE_ROW>(&args, rows, 2 * pair + 1);
            }
            if !n_blocks.is_multiple_of(2) {
                add_block::<S, ONE_ROW>(&args, rows, n_blocks - 1);
            }
        }
    }
}

/// Adds the products with block `b`.
///
/// # Safety
/// As [`PanelKernel::add_panel`], where the panel has that block; `rows` are the tile's.
#[inline(always)]
unsafe fn add_block<S: Simd, const ONE_ROW: bool>(args: &Args<'_>, rows: usize, b: usize) {
    let Args { w, ref x, y, .. } = *args;
    // SAFETY: block `b` has its scales and lines in the panel (2) and its activations in the tile (3); `y` has its rows (4). Weights may
    // be any bytes.
    unsafe {
        let scale = S::load_f16(w.as_ptr().add(Offsets::scales(b)));
        let lines = w.as_ptr().add(Offsets::lines(b));
        let offsets = match S::CENTERS_BYTES {
            true => std::ptr::null(),
            false => x.offsets[0].as_ptr().add(b * rows),
        };
        if ONE_ROW {
            // Lines that are multiplied as they come are read 10 % faster than eight at a time.
            let mut sum = [S::splat_i32(if offsets.is_null() { 0 } else { *offsets })];
            for i in 0..8 {
                let line = S::load_in_order(lines.add(i * LINE));
                S::dot::<1, 255, 1>(&mut sum, &[line], x.q.as_ptr().add(32 * b + 4 * i));
            }
            let product = S::mul(S::to_f32(sum[0]), S::splat(*x.scales.as_ptr().add(b)));
            return S::store_f32(y, S::fma(product, scale, S::load_f32(y)));
        }
        let mut w = [S::splat_i32(0); 8];
        for i in 0..8 {
            w[i] = S::load_in_order(lines.add(i * LINE));
        }
        int8::add_block::<S, 255>(y, &w, scale, rows, int8::Block::of(x, rows, b, offsets));
    }
}
