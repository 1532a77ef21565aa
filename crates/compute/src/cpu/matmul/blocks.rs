//! Blocks of 32 weights with a scale of their own: IQ4_NL and MXFP4, whose nibbles number the bytes of a table, and the older types
//! Q4_1, Q5_0 and Q5_1.
//!
//! Group: per block a header and its lines. Headers are scales only, two blocks to a line (see [`Blocks`]), or for Q4_1 and Q5_1 a
//! line of 16 scales and 16 minimums. Then 4 lines of nibbles, weights 0 to 15 of the block in the low ones and 16 to 31 in the high
//! ones, and for 5 bits a line of high bits: bit i of a row's byte j is that of weight 4·i + j.

use super::int8::{self, Blocks};
use super::layout::{Args, EachGroup, Product, get_dwords, put_dwords};
use super::{nvfp4, q1_0};
use crate::DType;
use crate::cpu::isa::Isa;
use crate::cpu::simd::{LANES, LINE, Simd, dispatch};
use crate::quant::bits::{join_nibbles, nibbles};
use crate::quant::fp4::DOUBLED_VALUES;
use crate::quant::iq4_nl::VALUES;
use crate::quant::{iq4_nl, mxfp4, q4_1, q5_0, q5_1};
use bytemuck::AnyBitPattern;
use half::{bf16, f16};
use std::marker::PhantomData;

/// What a type's blocks are like.
pub(super) trait Type: Copy {
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
    scale: [u8; 2],
    min: [u8; 2],
    codes: [u8; 32],
}

#[derive(Clone, Copy)]
pub(super) struct Iq4Nl;
#[derive(Clone, Copy)]
pub(super) struct Mxfp4;
#[derive(Clone, Copy)]
pub(super) struct Q4_1;
#[derive(Clone, Copy)]
pub(super) struct Q5_0;
#[derive(Clone, Copy)]
pub(super) struct Q5_1;

fn block<T: AnyBitPattern>(bytes: &[u8]) -> T {
    bytemuck::pod_read_unaligned(bytes)
}

impl Type for Iq4Nl {
    const DTYPE: DType = DType::IQ4_NL;
    const FIVE_BITS: bool = false;
    const TABLE: Option<[i8; 16]> = Some(VALUES);
    const MIN: Min = Min::None;

    fn read(bytes: &[u8]) -> Block {
        let b: iq4_nl::Block = block(bytes);
        Block { scale: b.d, min: [0; 2], codes: nibbles(&b.qs) }
    }
}

impl Type for Mxfp4 {
    const DTYPE: DType = DType::MXFP4;
    const FIVE_BITS: bool = false;
    const TABLE: Option<[i8; 16]> = Some(DOUBLED_VALUES);
    const BF16_SCALES: bool = true;
    const MIN: Min = Min::None;

    fn read(bytes: &[u8]) -> Block {
        let b: mxfp4::Block = block(bytes);
        // Powers of two from 2^-128 on are BF16 numbers.
        let scale = bf16::from_f32(mxfp4::half_scale(b.e)).to_le_bytes();
        Block { scale, min: [0; 2], codes: nibbles(&b.qs) }
    }
}

impl Type for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const FIVE_BITS: bool = false;
    const TABLE: Option<[i8; 16]> = None;
    const MIN: Min = Min::Stored;

    fn read(bytes: &[u8]) -> Block {
        let b: q4_1::Block = block(bytes);
        Block { scale: b.d, min: b.m, codes: nibbles(&b.qs) }
    }
}

impl Type for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const FIVE_BITS: bool = true;
    const TABLE: Option<[i8; 16]> = None;
    const MIN: Min = Min::Sixteen;

    fn read(bytes: &[u8]) -> Block {
        let b: q5_0::Block = block(bytes);
        Block { scale: b.d, min: [0; 2], codes: b.quants() }
    }
}

impl Type for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const FIVE_BITS: bool = true;
    const TABLE: Option<[i8; 16]> = None;
    const MIN: Min = Min::Stored;

    fn read(bytes: &[u8]) -> Block {
        let b: q5_1::Block = block(bytes);
        Block { scale: b.d, min: b.m, codes: b.quants() }
    }
}

/// The functions of one type.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) dtype: DType,
    /// Bytes of a group of 16 rows of so many elements.
    pub(super) group_bytes: fn(usize) -> usize,
    /// Writes a row, by its bytes in the file, into a lane of a group.
    pub(super) pack: fn(&mut [u8], usize, &[u8]),
    /// Reads a lane of a group back as numbers.
    pub(super) decode: fn(&mut [f32], &[u8], usize),
    /// Multiplies a group by a tile; unsafe as [`dispatch`] is.
    pub(super) multiply: unsafe fn(Isa, Args<'_>),
}

impl PartialEq for Kernels {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype
    }
}

impl Eq for Kernels {}

/// The functions of a type, if it is one of these.
pub(super) fn kernels(dtype: DType) -> Option<&'static Kernels> {
    KERNELS.iter().find(|k| k.dtype == dtype)
}

static KERNELS: [Kernels; 7] = [
    of_type::<Iq4Nl>(),
    of_type::<Mxfp4>(),
    of_type::<Q4_1>(),
    of_type::<Q5_0>(),
    of_type::<Q5_1>(),
    nvfp4::KERNELS,
    q1_0::KERNELS,
];

const fn of_type<T: Type>() -> Kernels {
    Kernels {
        dtype: T::DTYPE,
        group_bytes: At::<T>::group_bytes,
        pack: pack::<T>,
        decode: decode::<T>,
        multiply: multiply::<T>,
    }
}

/// Where the parts of a group stand.
struct At<T>(PhantomData<T>);

impl<T: Type> At<T> {
    const LINES: usize = if T::FIVE_BITS { 5 } else { 4 };

    #[inline(always)]
    fn scales(b: usize) -> usize {
        match (T::MIN, T::FIVE_BITS) {
            (Min::Stored, _) => b * (1 + Self::LINES) * LINE,
            (_, false) => Blocks::<4>::scales(b),
            (_, true) => Blocks::<5>::scales(b),
        }
    }

    #[inline(always)]
    fn lines(b: usize) -> usize {
        match (T::MIN, T::FIVE_BITS) {
            (Min::Stored, _) => (b * (1 + Self::LINES) + 1) * LINE,
            (_, false) => Blocks::<4>::lines(b),
            (_, true) => Blocks::<5>::lines(b),
        }
    }

    fn group_bytes(n_in: usize) -> usize {
        match (T::MIN, T::FIVE_BITS) {
            (Min::Stored, _) => n_in / 32 * (1 + Self::LINES) * LINE,
            (_, false) => Blocks::<4>::group_bytes(n_in / 32),
            (_, true) => Blocks::<5>::group_bytes(n_in / 32),
        }
    }
}

fn pack<T: Type>(group: &mut [u8], lane: usize, row: &[u8]) {
    for (b, block) in row.chunks_exact(T::DTYPE.spec().block_bytes).enumerate() {
        let block = T::read(block);
        group[At::<T>::scales(b) + 2 * lane..][..2].copy_from_slice(&block.scale);
        if T::MIN == Min::Stored {
            group[At::<T>::scales(b) + 2 * (LANES + lane)..][..2].copy_from_slice(&block.min);
        }
        let lines = &mut group[At::<T>::lines(b)..][..At::<T>::LINES * LINE];
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

fn decode<T: Type>(out: &mut [f32], group: &[u8], lane: usize) {
    for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let number = |lane: usize| {
            let at = At::<T>::scales(b) + 2 * lane;
            let bytes = [group[at], group[at + 1]];
            if T::BF16_SCALES {
                bf16::from_le_bytes(bytes).to_f32()
            } else {
                f16::from_le_bytes(bytes).to_f32()
            }
        };
        let lines = &group[At::<T>::lines(b)..][..At::<T>::LINES * LINE];
        let (mut packed, mut high) = ([0; 16], [0; 4]);
        get_dwords(&mut packed, lines, lane);
        get_dwords(&mut high, &lines[4 * LINE..], lane);
        let codes = nibbles(&packed);
        let scale = number(lane);
        for (w, out) in out.iter_mut().enumerate() {
            let code = codes[w] | (high[w % 4] >> (w / 4) & 1) << 4;
            let value = T::TABLE.map_or(f32::from(code), |table| f32::from(table[usize::from(codes[w])]));
            *out = match T::MIN {
                Min::None => value * scale,
                Min::Sixteen => (value - 16.0) * scale,
                Min::Stored => value * scale + number(LANES + lane),
            };
        }
    }
}

/// # Safety
/// The processor has `isa`; sizes were checked by [`Layout::multiply`](super::layout::Layout::multiply).
unsafe fn multiply<T: Type>(isa: Isa, args: Args<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(isa, EachGroup(args, Multiply::<T>(PhantomData))) }
}

/// The product of a group by a tile.
#[derive(Clone, Copy)]
struct Multiply<T>(PhantomData<T>);

impl<T: Type> Product for Multiply<T> {
    #[inline(always)]
    unsafe fn add<S: Simd, const ONE: bool>(self, args: Args<'_>) {
        let Args { w, n_in, x, y, .. } = args;
        let rows = if ONE { 1 } else { x.rows };
        let group = w.as_ptr();
        // The dot product takes unsigned weights: the table's bytes are 128 above its numbers.
        let table = T::TABLE.unwrap_or_default().map(|v| v as u8 ^ 0x80);
        // SAFETY: `Layout::multiply` checked the sizes that the loops run to.
        unsafe {
            let table = S::table(&table);
            let (low, one) = (S::splat_i32(0x0f0f_0f0f), S::splat_i32(0x0101_0101));
            for b in 0..n_in / 32 {
                let scales = group.add(At::<T>::scales(b));
                let scale = if T::BF16_SCALES { S::load_bf16(scales) } else { S::load_f16(scales) };
                let lines = group.add(At::<T>::lines(b));
                int8::prefetch::<S, ONE>(lines, At::<T>::LINES + b % 2);
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
                for r in 0..rows {
                    let at = b * rows + r;
                    let sum = *x.scales.as_ptr().add(at) * *x.offsets[1].as_ptr().add(at) as f32;
                    let y = y.add(r * LANES);
                    S::store_f32(y, S::fma(S::splat(sum), min, S::load_f32(y)));
                }
            }
        }
    }
}
