//! Q6_K: super-blocks of 16 sub-blocks of 16 weights of 6 bits, to be lowered by 32, each with an 8-bit scale.
//!
//! Panel: the factors d, F16 [n_super_blocks, 16], filled up to a line; then per super-block 4 lines of scales, `i8` [16
//! sub-blocks, 16 rows], and 3 lines for each sub-block. Line i has weights 4·i to 4·i + 3 in the low six bits of its bytes, and above
//! them bits 2·i and 2·i + 1 of weights 12 to 15: all of a sub-block is read once and in order.

use crate::DType;
use crate::cpu::matmul::activations::{ActivationLayout, TILE};
use crate::cpu::matmul::int8::{self, SubBlock};
use crate::cpu::matmul::layout::{Args, Packing, PanelKernel, get_dwords, put_dwords};
use crate::cpu::matmul::sums::Sums;
use crate::cpu::simd::{LANES, LINE, Simd};
use crate::quant::q6_k::Block;
use bytemuck::Zeroable;

pub(super) static LAYOUT: Q6K = Q6K;

pub(super) struct Q6K;

const BLOCK: usize = size_of::<Block>();
const SUBS: usize = 16;
const SCALE_LINES: usize = SUBS * LANES / LINE;
const SUB_LINES: usize = 3;
const BLOCK_LINES: usize = SCALE_LINES + SUBS * SUB_LINES;

impl Packing for Q6K {
    fn name(&self) -> &'static str {
        "Q6_K"
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::Int8Block256
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        int8::factors_bytes(n_in / 256) + n_in / 256 * BLOCK_LINES * LINE
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        let blocks = row.as_chunks::<BLOCK>().0;
        let (factors, lines) = panel.split_at_mut(int8::factors_bytes(blocks.len()));
        for (b, (block, lines)) in blocks.iter().zip(lines.chunks_exact_mut(BLOCK_LINES * LINE)).enumerate() {
            let block: Block = bytemuck::pod_read_unaligned(block);
            factors[2 * (b * LANES + lane)..][..2].copy_from_slice(&block.d);
            let (scales, lines) = lines.split_at_mut(SCALE_LINES * LINE);
            let lines = lines.as_chunks_mut::<{ SUB_LINES * LINE }>().0;
            for (j, (codes, lines)) in block.quants().as_chunks::<16>().0.iter().zip(lines).enumerate() {
                scales[j * LANES + lane] = block.scales[j] as u8;
                let byte = |i: usize| codes[i] | (codes[12 + i % 4] >> (i / 4 * 2)) << 6;
                put_dwords(lines, lane, &std::array::from_fn::<u8, { 4 * SUB_LINES }, _>(byte));
            }
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        let outs = out.as_chunks_mut::<256>().0;
        let (factors, lines) = panel.split_at(int8::factors_bytes(outs.len()));
        for (b, (out, lines)) in outs.iter_mut().zip(lines.chunks_exact(BLOCK_LINES * LINE)).enumerate() {
            let mut block = Block::zeroed();
            block.d.copy_from_slice(&factors[2 * (b * LANES + lane)..][..2]);
            let (scales, lines) = lines.split_at(SCALE_LINES * LINE);
            let lines = lines.as_chunks::<{ SUB_LINES * LINE }>().0;
            let mut codes = [0; 256];
            for (j, (codes, lines)) in codes.as_chunks_mut::<16>().0.iter_mut().zip(lines).enumerate() {
                block.scales[j] = scales[j * LANES + lane] as i8;
                let mut bytes = [0; 4 * SUB_LINES];
                get_dwords(&mut bytes, lines, lane);
                for (i, byte) in bytes.into_iter().enumerate() {
                    codes[i] = byte & 63;
                    codes[12 + i % 4] |= byte >> 6 << (i / 4 * 2);
                }
            }
            block.set_quants(&codes);
            (DType::Q6_K.spec().dequantize)(bytemuck::bytes_of(&block), out);
        }
    }
}

impl PanelKernel for Q6K {
    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE_ROW { 1 } else { x.rows };
        let mut t = Sums::<TILE>::uninit();
        let t = t.as_mut_ptr().cast::<i32>();
        let (factors, blocks) = (w.as_ptr(), w[int8::factors_bytes(n_in / 256)..].as_ptr());
        // SAFETY: super-blocks below n_in / 256 have their factors and lines in the panel (2) and their activations in the tile (3); `y` has its rows
        // (4), and `t` too, since a tile has at most TILE. Codes are at most 63.
        unsafe {
            let byte = |b: u8| S::splat_i32(i32::from_ne_bytes([b; 4]));
            let (six, pairs) = (byte(0x3f), [byte(0x03), byte(0x0c), byte(0x30)]);
            int8::clear::<S>(t.cast(), rows);
            for b in 0..n_in / 256 {
                let block = blocks.add(b * BLOCK_LINES * LINE);
                // The lines of scales, which serve a little at a time, are first loaded in the order in which they stand.
                int8::touch::<S>(block, SCALE_LINES);
                for k in 0..8 {
                    let q = x.q.as_ptr().add((8 * b + k) * rows * 32);
                    for half in 0..2 {
                        let j = 2 * k + half;
                        let lines = block.add((SCALE_LINES + SUB_LINES * j) * LINE);
                        int8::prefetch::<S, ONE_ROW>(lines, SUB_LINES + usize::from(j % 4 == 0));
                        let l0 = S::load_in_order(lines);
                        let l1 = S::load_in_order(lines.add(LINE));
                        let l2 = S::load_in_order(lines.add(2 * LINE));
                        let high =
                            S::or(S::and(S::shr::<6>(l0), pairs[0]), S::and(S::shr::<4>(l1), pairs[1]));
                        let high = S::or(high, S::and(S::shr::<2>(l2), pairs[2]));
                        let v = [S::and(l0, six), S::and(l1, six), S::and(l2, six), high];
                        let scale = S::load_i8(block.add(j * LANES));
                        let offsets = x.offsets[1].as_ptr().add((16 * b + j) * rows);
                        let x = SubBlock { q: q.add(16 * half), offsets };
                        int8::add_sub_block::<S, 4, 63>(t, &v, scale, rows, x);
                    }
                }
                let d = S::load_f16(factors.add(b * 2 * LANES));
                for r in 0..rows {
                    let sum = S::mul(S::to_f32(int8::take::<S>(t, r)), d);
                    let y = y.add(r * LANES);
                    S::store_f32(
                        y,
                        S::fma(sum, S::splat(*x.scales.as_ptr().add(b * rows + r)), S::load_f32(y)),
                    );
                }
            }
        }
    }
}
