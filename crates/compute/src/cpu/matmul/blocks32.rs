//! What the layouts of types with blocks of 32 weights share: 4 or 5 bits each, a scale per block, perhaps a minimum or a table.
//!
//! Panel: per block a header and its lines. Headers are scales only, two blocks to a line (see [`BlockOffsets`]), or, where there are
//! minimums, a line of 16 scales and 16 minimums. Then 4 lines of nibbles, weights 0 to 15 of the block in the low ones and 16 to 31 in
//! the high ones, and for 5 bits a line of high bits: bit i of a row's byte j is that of weight 4·i + j.

use super::activations::{ActivationLayout, Tile};
use super::int8::{self, BlockOffsets};
use super::layout::{Args, Packing, PanelKernel, get_dwords, put_dwords};
use crate::DType;
use crate::cpu::simd::{LANES, LINE, Simd};
use crate::quant::bits::{join_nibbles, nibbles};
use half::{bf16, f16};
use std::marker::PhantomData;

/// What a type's blocks are like.
pub(super) trait BlockType: Sync {
    const DTYPE: DType;
    /// Whether weights have a fifth bit.
    const FIVE_BITS: bool;
    /// Numbers that the codes stand for; the codes themselves if there is no table.
    const TABLE: Option<[i8; 16]>;
    /// Scales are BF16 instead of F16, for exponents that F16 does not have.
    const BF16_SCALES: bool = false;
    const MIN: Min;

    /// Takes a block of a file apart.
    fn read(bytes: &[u8]) -> Block;
}

/// What is added to `scale · code`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Min {
    None,
    /// -16 · scale
    Sixteen,
    /// A number beside the scale
    Stored,
}

/// One row's block, taken apart.
pub(super) struct Block {
    pub(super) scale: [u8; 2],
    /// Zeros unless [`Min::Stored`]
    pub(super) min: [u8; 2],
    pub(super) codes: [u8; 32],
}

/// The layout of a type.
pub(super) struct Blocks32<T>(PhantomData<T>);

impl<T: BlockType> Blocks32<T> {
    pub(super) const NEW: Self = Self(PhantomData);

    const LINES: usize = if T::FIVE_BITS { 5 } else { 4 };

    /// Offset of the scales of block `b` in a panel, in bytes.
    #[inline(always)]
    fn scales(b: usize) -> usize {
        match (T::MIN, T::FIVE_BITS) {
            (Min::Stored, _) => b * (1 + Self::LINES) * LINE,
            (_, false) => BlockOffsets::<4>::scales(b),
            (_, true) => BlockOffsets::<5>::scales(b),
        }
    }

    /// Offset of the lines of block `b` in a panel, in bytes.
    #[inline(always)]
    fn lines(b: usize) -> usize {
        match (T::MIN, T::FIVE_BITS) {
            (Min::Stored, _) => (b * (1 + Self::LINES) + 1) * LINE,
            (_, false) => BlockOffsets::<4>::lines(b),
            (_, true) => BlockOffsets::<5>::lines(b),
        }
    }

    /// A lane's scale of block `b`, or its minimum for lane + 16.
    fn number(panel: &[u8], b: usize, lane: usize) -> f32 {
        let at = Self::scales(b) + 2 * lane;
        let bytes = [panel[at], panel[at + 1]];
        if T::BF16_SCALES { bf16::from_le_bytes(bytes).to_f32() } else { f16::from_le_bytes(bytes).to_f32() }
    }
}

impl<T: BlockType> Packing for Blocks32<T> {
    fn name(&self) -> &'static str {
        T::DTYPE.name()
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::Int8Block32
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        match (T::MIN, T::FIVE_BITS) {
            (Min::Stored, _) => n_in / 32 * (1 + Self::LINES) * LINE,
            (_, false) => BlockOffsets::<4>::panel_bytes(n_in / 32),
            (_, true) => BlockOffsets::<5>::panel_bytes(n_in / 32),
        }
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        for (b, block) in row.chunks_exact(T::DTYPE.spec().block_bytes).enumerate() {
            let block = T::read(block);
            panel[Self::scales(b) + 2 * lane..][..2].copy_from_slice(&block.scale);
            if T::MIN == Min::Stored {
                panel[Self::scales(b) + 2 * (LANES + lane)..][..2].copy_from_slice(&block.min);
            }
            let lines = &mut panel[Self::lines(b)..][..Self::LINES * LINE];
            put_dwords(lines, lane, &join_nibbles(&block.codes));
            if T::FIVE_BITS {
                let mut high = [0; 4];
                for (i, four) in block.codes.as_chunks::<4>().0.iter().enumerate() {
                    high.iter_mut().zip(four).for_each(|(high, code)| *high |= (code >> 4) << i);
                }
                put_dwords(&mut lines[4 * LINE..], lane, &high);
            }
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let lines = &panel[Self::lines(b)..][..Self::LINES * LINE];
            let (mut packed, mut high) = ([0; 16], [0; 4]);
            get_dwords(&mut packed, lines, lane);
            get_dwords(&mut high, &lines[4 * LINE..], lane);
            let codes = nibbles(&packed);
            let scale = Self::number(panel, b, lane);
            for (w, out) in out.iter_mut().enumerate() {
                let code = codes[w] | (high[w % 4] >> (w / 4) & 1) << 4;
                let value = T::TABLE.map_or(f32::from(code), |table| f32::from(table[usize::from(codes[w])]));
                *out = match T::MIN {
                    Min::None => value * scale,
                    Min::Sixteen => (value - 16.0) * scale,
                    Min::Stored => value * scale + Self::number(panel, b, LANES + lane),
                };
            }
        }
    }
}

impl<T: BlockType> PanelKernel for Blocks32<T> {
    #[inline(always)]
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE_ROW { 1 } else { x.rows };
        let panel = w.as_ptr();
        // The dot product takes unsigned weights: the table's bytes are 128 above its numbers.
        let table = T::TABLE.unwrap_or_default().map(|v| v as u8 ^ 0x80);
        // SAFETY: blocks below n_in / 32 have their scales and lines in the panel (2) and their activations in the tile (3); `y` has its
        // rows (4). Codes are below 32, the table's bytes any.
        unsafe {
            let table = S::table(&table);
            for b in 0..n_in / 32 {
                let scales = panel.add(Self::scales(b));
                let scale = if T::BF16_SCALES { S::load_bf16(scales) } else { S::load_f16(scales) };
                let lines = panel.add(Self::lines(b));
                int8::prefetch::<S, ONE_ROW>(lines, Self::LINES + b % 2);
                let mut w = Self::codes::<S>(lines);
                if T::TABLE.is_some() {
                    for w in &mut w {
                        *w = S::lookup(table, *w);
                    }
                    let offsets = match S::CENTERS_BYTES {
                        true => std::ptr::null(),
                        false => x.offsets[0].as_ptr().add(b * rows),
                    };
                    int8::add_block::<S, 255>(y, &w, scale, rows, int8::Block::of(&x, rows, b, offsets));
                    continue;
                }
                let x_block = int8::Block::of(&x, rows, b, std::ptr::null());
                int8::add_block::<S, 31>(y, &w, scale, rows, x_block);
                // The activations' sums come times -8.
                let min = match T::MIN {
                    Min::Stored => S::mul(S::load_f16(scales.add(2 * LANES)), S::splat(-0.125)),
                    _ => S::mul(scale, S::splat(2.0)),
                };
                Self::add_mins::<S>(y, min, &x, rows, b);
            }
        }
    }
}

impl<T: BlockType> Blocks32<T> {
    /// The codes of a block.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Weights*: `lines` is a multiple of 64 and readable for `Self::LINES` lines.
    #[inline(always)]
    unsafe fn codes<S: Simd>(lines: *const u8) -> [S::I; 8] {
        // SAFETY: lines below `Self::LINES` are there (2); the instructions are `Simd`'s (1).
        unsafe {
            let (low, one) = (S::splat_i32(0x0f0f_0f0f), S::splat_i32(0x0101_0101));
            let mut w = [low; 8];
            for i in 0..4 {
                let line = S::load_in_order(lines.add(i * LINE));
                w[i] = S::and(line, low);
                w[4 + i] = S::and(S::shr::<4>(line), low);
            }
            if T::FIVE_BITS {
                let high = S::load_in_order(lines.add(4 * LINE));
                for i in 0..8 {
                    w[i] = S::or(w[i], S::shl::<4>(S::and(S::shr_by(high, i as u32), one)));
                }
            }
            w
        }
    }

    /// `y += min · x.scale · sum of block b's activations`, of which the tile keeps -8 times the sum.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Activations*: the tile has that block and so many rows.
    /// 3. *Sums*: `y` is readable and writable for [rows, 16] floats.
    #[inline(always)]
    unsafe fn add_mins<S: Simd>(y: *mut f32, min: S::F, x: &Tile<'_>, rows: usize, b: usize) {
        for r in 0..rows {
            let at = b * rows + r;
            // SAFETY: the tile's scales and offsets are [n_blocks, rows] (2), and row `r` of `y` is there (3).
            unsafe {
                let sum = *x.scales.as_ptr().add(at) * *x.offsets[1].as_ptr().add(at) as f32;
                let y = y.add(r * LANES);
                S::store_f32(y, S::fma(S::splat(sum), min, S::load_f32(y)));
            }
        }
    }
}
