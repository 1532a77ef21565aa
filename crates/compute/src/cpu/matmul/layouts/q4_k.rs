//! Q4_K: super-blocks of 8 sub-blocks of 32 unsigned nibbles, each with a 6-bit scale and minimum.
//!
//! Panel, per super-block: a header of 4 lines (see [`k_scales`]), then 4 lines of nibbles for each sub-block: weights 0
//! to 15 in the low ones, 16 to 31 in the high ones.

use crate::DType;
use crate::cpu::matmul::activations::{ActivationLayout, TILE};
use crate::cpu::matmul::int8::{self, SubBlock};
use crate::cpu::matmul::k_scales::{self, HEADER_BYTES, HEADER_LINES, Header};
use crate::cpu::matmul::layout::{Args, Packing, PanelKernel, get_dwords, put_dwords};
use crate::cpu::matmul::sums::Sums;
use crate::cpu::simd::{LINE, Simd};
use crate::quant::bits::{self, join_nibbles, join_nibbles_256, nibbles_256};

pub(super) static LAYOUT: Q4K = Q4K;

pub(super) struct Q4K;

const BLOCK: usize = 144;
const SUB_LINES: usize = 4;
const BLOCK_LINES: usize = HEADER_LINES + 8 * SUB_LINES;

impl Packing for Q4K {
    fn name(&self) -> &'static str {
        "Q4_K"
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::Int8Block256
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        n_in / 256 * BLOCK_LINES * LINE
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        for (block, lines) in row.chunks_exact(BLOCK).zip(panel.chunks_exact_mut(BLOCK_LINES * LINE)) {
            let (header, nibbles) = lines.split_at_mut(HEADER_LINES * LINE);
            k_scales::pack(header, lane, block);
            let codes = nibbles_256(block[HEADER_BYTES..].first_chunk().expect("128 bytes"));
            let lines = nibbles.as_chunks_mut::<{ SUB_LINES * LINE }>().0;
            for (codes, lines) in codes.as_chunks::<32>().0.iter().zip(lines) {
                put_dwords(lines, lane, &join_nibbles(codes));
            }
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        let outs = out.as_chunks_mut::<256>().0;
        for (out, lines) in outs.iter_mut().zip(panel.chunks_exact(BLOCK_LINES * LINE)) {
            let mut block = [0; BLOCK];
            let (header, nibbles) = lines.split_at(HEADER_LINES * LINE);
            k_scales::unpack(&mut block, header, lane);
            let mut codes = [0; 256];
            let lines = nibbles.as_chunks::<{ SUB_LINES * LINE }>().0;
            for (codes, lines) in codes.as_chunks_mut::<32>().0.iter_mut().zip(lines) {
                let mut bytes = [0; 16];
                get_dwords(&mut bytes, lines, lane);
                *codes = bits::nibbles(&bytes);
            }
            block[HEADER_BYTES..].copy_from_slice(&join_nibbles_256(&codes));
            (DType::Q4_K.spec().dequantize)(&block, out);
        }
    }
}

impl PanelKernel for Q4K {
    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE_ROW { 1 } else { x.rows };
        let mut t = Sums::<TILE>::uninit();
        let t = t.as_mut_ptr().cast::<i32>();
        // SAFETY: super-blocks below n_in / 256 have their lines in the panel (2) and their activations in the tile (3); `y` has its rows
        // (4), and `t` too, since a tile has at most TILE. Codes are at most 15.
        unsafe {
            let low = S::splat_i32(0x0f0f_0f0f);
            int8::clear::<S>(t.cast(), rows);
            for b in 0..n_in / 256 {
                let block = w.as_ptr().add(b * BLOCK_LINES * LINE);
                let header = Header::<S>::load(block);
                for j in 0..8 {
                    let lines = block.add((HEADER_LINES + SUB_LINES * j) * LINE);
                    int8::prefetch::<S, ONE_ROW>(lines, SUB_LINES + j % 2);
                    let mut v = [low; 8];
                    for i in 0..SUB_LINES {
                        let line = S::load_in_order(lines.add(i * LINE));
                        v[i] = S::and(line, low);
                        v[SUB_LINES + i] = S::and(S::shr::<4>(line), low);
                    }
                    let q = x.q.as_ptr().add((8 * b + j) * rows * 32);
                    let x = SubBlock { q, offsets: std::ptr::null() };
                    int8::add_sub_block::<S, 8, 15>(t, &v, header.scales[j], rows, x);
                }
                header.end_super_block(y, t, &x, rows, b);
            }
        }
    }
}
