//! NVFP4: blocks of 64 weights in FP4, each 16 of them with a scale in unsigned E4M3.
//!
//! Panel: per block a line of scales, a byte each, [4 sub-blocks, 16 rows], and for each half of the block 4 lines of nibbles, of which
//! the low ones are the half's first sub-block. It is as large as its rows.

use crate::cpu::matmul::activations::ActivationLayout;
use crate::cpu::matmul::int8;
use crate::cpu::matmul::layout::{Args, Packing, PanelKernel, get_dwords, put_dwords};
use crate::cpu::simd::{LANES, LINE, Simd};
use crate::quant::bits::nibbles;
use crate::quant::fp4::DOUBLED_VALUES;
use crate::quant::nvfp4::Block;
use half::bf16;

pub(super) static LAYOUT: Nvfp4 = Nvfp4;

pub(super) struct Nvfp4;

const HALF_LINES: usize = 4;
const BLOCK_LINES: usize = 1 + 2 * HALF_LINES;

/// Exponent and mantissa of E4M3 are the low bits of those of BF16; this is between the two biases, and halves the scale for
/// [`DOUBLED_VALUES`].
const SCALE_UNIT: f32 = f32::from_bits((127 + 119) << 23);

/// The dot product takes unsigned weights.
const ABOVE: i8 = 16;

/// Rows that are in flight together, to hide the latency of the dot product.
const ROWS: usize = 4;

impl Packing for Nvfp4 {
    fn name(&self) -> &'static str {
        "NVFP4"
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::Int8Block32
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        n_in / 64 * BLOCK_LINES * LINE
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        let blocks = row.as_chunks::<{ size_of::<Block>() }>().0;
        for (block, lines) in blocks.iter().zip(panel.as_chunks_mut::<{ BLOCK_LINES * LINE }>().0) {
            let block: Block = bytemuck::pod_read_unaligned(block);
            let (scales, lines) = lines.split_at_mut(LINE);
            for (scales, d) in scales.as_chunks_mut::<LANES>().0.iter_mut().zip(block.d) {
                // The code for not-a-number stands for 0, the top bit for nothing.
                scales[lane] = if d == 0x7f { 0 } else { d & 0x7f };
            }
            // In a file 8 bytes hold a sub-block, here 16 bytes hold two.
            for (lines, two) in lines.chunks_exact_mut(HALF_LINES * LINE).zip(block.qs.as_chunks::<16>().0) {
                let code = |sub: usize, i: usize| two[8 * sub + i % 8] >> (i / 8 * 4) & 15;
                let bytes: [u8; 16] = std::array::from_fn(|i| code(0, i) | code(1, i) << 4);
                put_dwords(lines, lane, &bytes);
            }
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        let blocks = panel.as_chunks::<{ BLOCK_LINES * LINE }>().0;
        for (out, lines) in out.as_chunks_mut::<64>().0.iter_mut().zip(blocks) {
            for (half, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let mut packed = [0; 16];
                get_dwords(&mut packed, &lines[(1 + half * HALF_LINES) * LINE..], lane);
                for (w, (out, code)) in out.iter_mut().zip(nibbles(&packed)).enumerate() {
                    let byte = lines[(2 * half + w / 16) * LANES + lane];
                    let scale = bf16::from_bits(u16::from(byte) << 4).to_f32() * SCALE_UNIT;
                    *out = f32::from(DOUBLED_VALUES[usize::from(code)]) * scale;
                }
            }
        }
    }
}

impl PanelKernel for Nvfp4 {
    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE_ROW { 1 } else { x.rows };
        let table = DOUBLED_VALUES.map(|v| (v + ABOVE) as u8);
        // SAFETY: n_in is a multiple of 64, so halves of blocks below n_in / 32 have their scales and lines in the panel (2) and their
        // activations in the tile (3); `y` has its rows (4). The table's bytes are at most 28.
        unsafe {
            let (table, low) = (S::table(&table), S::splat_i32(0x0f0f_0f0f));
            for b in 0..n_in / 32 {
                let block = w.as_ptr().add(b / 2 * BLOCK_LINES * LINE);
                let scale = |sub: usize| {
                    let byte = S::load_u8(block.add((b % 2 * 2 + sub) * LANES));
                    let bf16 = S::shl::<4>(S::pair(S::splat_i32(0), byte));
                    S::mul(S::bf16_high(bf16), S::splat(SCALE_UNIT))
                };
                let scales = [scale(0), scale(1)];
                let lines = block.add((1 + b % 2 * HALF_LINES) * LINE);
                int8::prefetch::<S, ONE_ROW>(lines, HALF_LINES + b % 2);
                let mut subs = [[low; HALF_LINES]; 2];
                for i in 0..HALF_LINES {
                    let line = S::load_in_order(lines.add(i * LINE));
                    subs[0][i] = S::lookup(table, S::and(line, low));
                    subs[1][i] = S::lookup(table, S::and(S::shr::<4>(line), low));
                }
                let offsets = x.offsets[3].as_ptr().add(2 * b * rows);
                let at = Half {
                    q: x.q.as_ptr().add(b * rows * 32),
                    scales: x.scales.as_ptr().add(b * rows),
                    offsets: [offsets, offsets.add(rows)],
                };
                let mut r = 0;
                while r + ROWS <= rows {
                    at.add::<S, ROWS>(y, &subs, scales, r);
                    r += ROWS;
                }
                while r < rows {
                    at.add::<S, 1>(y, &subs, scales, r);
                    r += 1;
                }
            }
        }
    }
}

/// The activations of half a block, 32 of every row of a tile.
struct Half {
    /// [rows, 32]
    q: *const i8,
    /// [rows]
    scales: *const f32,
    /// What the sums of each sub-block start from, [rows]
    offsets: [*const i32; 2],
}

impl Half {
    /// Adds the products of two sub-blocks with `R` rows from row `r` on.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Weights*: at most 31.
    /// 3. *Activations*: the pointers have rows up to r + R.
    /// 4. *Sums*: `y` is readable and writable for so many rows of 16 floats.
    #[inline(always)]
    unsafe fn add<S: Simd, const R: usize>(
        &self,
        y: *mut f32,
        subs: &[[S::I; HALF_LINES]; 2],
        scales: [S::F; 2],
        r: usize,
    ) {
        // SAFETY: rows r..r + R of the activations (3) and of `y` (4) are there; `dot` reads 16 activations of each for either half.
        unsafe {
            let mut sums = [[S::splat_i32(0); R]; 2];
            for sub in 0..2 {
                for i in 0..R {
                    sums[sub][i] = S::splat_i32(*self.offsets[sub].add(r + i));
                }
                S::dot::<HALF_LINES, 31, R>(&mut sums[sub], &subs[sub], self.q.add(r * 32 + sub * 16));
            }
            for i in 0..R {
                let [first, second] = [S::to_f32(sums[0][i]), S::to_f32(sums[1][i])];
                let product = S::fma(second, scales[1], S::mul(first, scales[0]));
                let y = y.add((r + i) * LANES);
                S::store_f32(y, S::fma(product, S::splat(*self.scales.add(r + i)), S::load_f32(y)));
            }
        }
    }
}
