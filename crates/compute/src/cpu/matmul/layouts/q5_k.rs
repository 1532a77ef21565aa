//! Q5_K: Q4_K with a fifth bit per weight.
//!
//! Panel, per super-block: a header of 4 lines (see [`k_scales`]), then 5 lines for each sub-block. Line i has weights
//! 4·i to 4·i + 3 in the low five bits of its bytes; the three bits above hold the weights from 20 on, so that all of a sub-block is
//! read once and in order:
//!
//! ```text
//! line   bits 5 to 7
//! 0      low three bits of weights 20 to 23
//! 1      high two bits of weights 20 to 23, bit 3 of weights 28 to 31
//! 2      low three bits of weights 24 to 27
//! 3      high two bits of weights 24 to 27, bit 4 of weights 28 to 31
//! 4      low three bits of weights 28 to 31
//! ```

use crate::DType;
use crate::cpu::matmul::activations::{ActivationLayout, TILE};
use crate::cpu::matmul::int8::{self, SubBlock};
use crate::cpu::matmul::k_scales::{self, HEADER_BYTES, HEADER_LINES, Header};
use crate::cpu::matmul::layout::{Args, Packing, PanelKernel, get_dwords, put_dwords};
use crate::cpu::matmul::sums::Sums;
use crate::cpu::simd::{LINE, Simd};
use crate::quant::bits::{bits_256, join_bits_256, join_nibbles_256, nibbles_256};

pub(super) static LAYOUT: Q5K = Q5K;

pub(super) struct Q5K;

const BLOCK: usize = 176;
const HIGH: usize = 32;
const SUB_LINES: usize = 5;
const BLOCK_LINES: usize = HEADER_LINES + 8 * SUB_LINES;

impl Packing for Q5K {
    fn name(&self) -> &'static str {
        "Q5_K"
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::Int8Block256
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        n_in / 256 * BLOCK_LINES * LINE
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        for (block, lines) in
            row.as_chunks::<BLOCK>().0.iter().zip(panel.chunks_exact_mut(BLOCK_LINES * LINE))
        {
            let (header, lines) = lines.split_at_mut(HEADER_LINES * LINE);
            k_scales::pack(header, lane, block);
            let (high, low) = block[HEADER_BYTES..].split_at(HIGH);
            let mut codes = nibbles_256(low.first_chunk().expect("128 bytes"));
            let high = bits_256(high.first_chunk().expect("32 bytes"));
            codes.iter_mut().zip(high).for_each(|(code, high)| *code |= high << 4);
            let lines = lines.as_chunks_mut::<{ SUB_LINES * LINE }>().0;
            for (codes, lines) in codes.as_chunks::<32>().0.iter().zip(lines) {
                put_dwords(lines, lane, &join(codes));
            }
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        let outs = out.as_chunks_mut::<256>().0;
        for (out, lines) in outs.iter_mut().zip(panel.chunks_exact(BLOCK_LINES * LINE)) {
            let mut block = [0; BLOCK];
            let (header, lines) = lines.split_at(HEADER_LINES * LINE);
            k_scales::unpack(&mut block, header, lane);
            let mut codes = [0; 256];
            let lines = lines.as_chunks::<{ SUB_LINES * LINE }>().0;
            for (codes, lines) in codes.as_chunks_mut::<32>().0.iter_mut().zip(lines) {
                let mut bytes = [0; 4 * SUB_LINES];
                get_dwords(&mut bytes, lines, lane);
                *codes = split(&bytes);
            }
            let (high, low) = block[HEADER_BYTES..].split_at_mut(HIGH);
            high.copy_from_slice(&join_bits_256(&codes.map(|code| code >> 4)));
            low.copy_from_slice(&join_nibbles_256(&codes.map(|code| code & 15)));
            (DType::Q5_K.spec().dequantize)(&block, out);
        }
    }
}

/// The bytes of a row's sub-block, four for each line.
fn join(codes: &[u8; 32]) -> [u8; 4 * SUB_LINES] {
    std::array::from_fn(|i| {
        let (line, c) = (i / 4, i % 4);
        let [fifth, sixth, last] = [codes[20 + c], codes[24 + c], codes[28 + c]];
        let high = match line {
            0 => fifth & 7,
            1 => fifth >> 3 | (last >> 3 & 1) << 2,
            2 => sixth & 7,
            3 => sixth >> 3 | (last >> 4) << 2,
            _ => last & 7,
        };
        codes[i] | high << 5
    })
}

/// The inverse of [`join`].
fn split(bytes: &[u8; 4 * SUB_LINES]) -> [u8; 32] {
    std::array::from_fn(|i| {
        let high = |line: usize| bytes[4 * line + i % 4] >> 5;
        match i / 4 {
            0..SUB_LINES => bytes[i] & 31,
            5 => high(0) | (high(1) & 3) << 3,
            6 => high(2) | (high(3) & 3) << 3,
            _ => high(4) | (high(1) >> 2) << 3 | (high(3) >> 2) << 4,
        }
    })
}

impl PanelKernel for Q5K {
    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE_ROW { 1 } else { x.rows };
        let mut t = Sums::<TILE>::uninit();
        let t = t.as_mut_ptr().cast::<i32>();
        // SAFETY: super-blocks below n_in / 256 have their lines in the panel (2) and their activations in the tile (3); `y` has its rows
        // (4), and `t` too, since a tile has at most TILE. Codes are at most 31.
        unsafe {
            let byte = |b: u8| S::splat_i32(i32::from_ne_bytes([b; 4]));
            let (five, low, high) = (byte(0x1f), byte(0x07), byte(0x18));
            let (third, fourth) = (byte(0x08), byte(0x10));
            int8::clear::<S>(t.cast(), rows);
            for b in 0..n_in / 256 {
                let block = w.as_ptr().add(b * BLOCK_LINES * LINE);
                let header = Header::<S>::load(block);
                for j in 0..8 {
                    let lines = block.add((HEADER_LINES + SUB_LINES * j) * LINE);
                    int8::prefetch::<S, ONE_ROW>(lines, SUB_LINES + j % 2);
                    let mut l = [five; SUB_LINES];
                    for i in 0..SUB_LINES {
                        l[i] = S::load_in_order(lines.add(i * LINE));
                    }
                    let both = |a, b| S::or(S::and(S::shr::<5>(a), low), S::and(S::shr::<2>(b), high));
                    let last = S::or(S::and(S::shr::<5>(l[4]), low), S::and(S::shr::<4>(l[1]), third));
                    let v = [
                        S::and(l[0], five),
                        S::and(l[1], five),
                        S::and(l[2], five),
                        S::and(l[3], five),
                        S::and(l[4], five),
                        both(l[0], l[1]),
                        both(l[2], l[3]),
                        S::or(last, S::and(S::shr::<3>(l[3]), fourth)),
                    ];
                    let q = x.q.as_ptr().add((8 * b + j) * rows * 32);
                    let x = SubBlock { q, offsets: std::ptr::null() };
                    int8::add_sub_block::<S, 8, 31>(t, &v, header.scales[j], rows, x);
                }
                header.end_super_block(y, t, &x, rows, b);
            }
        }
    }
}
