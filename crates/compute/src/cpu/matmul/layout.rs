//! How the rows of a weight lie in memory for the kernels.
//!
//! Sixteen rows form a group. Inside a group the rows are interleaved four bytes at a time: a line of 64 bytes holds four
//! bytes of each row, so that one vector load feeds 16 output elements and a whole group is one sequential stream.
//!
//! ```text
//! line 0:  row 0 bytes 0..4 | row 1 bytes 0..4 | … | row 15 bytes 0..4
//! line 1:  row 0 bytes 4..8 | row 1 bytes 4..8 | … | row 15 bytes 4..8
//! ```
//!
//! Scales are interleaved number by number and stand before the lines that they scale. A group takes as many bytes as its
//! rows did, rounded up to lines. A last group with fewer rows is filled with zeros.

use super::activations::{Form, Tile};
use super::blocks::{self, Kernels};
use super::code_types::{Coding, coding};
use super::{float, q4_0, q4_k, q5_k, q6_k, q8_0};
use crate::DType;
use crate::cpu::isa::Isa;
use crate::cpu::memory::Line;
use crate::cpu::simd::{LANES, LINE, dispatch};
use bytemuck::Zeroable;

/// The interleaved form of 16 rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// Floats; also what types without a kernel of their own are decoded to.
    F32,
    /// Half-precision numbers, multiplied as `f32`.
    F16,
    /// Pairs of half-precision numbers, multiplied as BF16 numbers.
    F16Dot,
    /// Pairs of BF16 numbers, multiplied as `f32`.
    Bf16,
    /// Pairs of BF16 numbers, multiplied with activations rounded to BF16.
    Bf16Dot,
    Q8_0,
    Q4_0,
    Q4K,
    Q5K,
    Q6K,
    /// Blocks of 32 of further types.
    Blocks(&'static Kernels),
    /// Super-blocks of codes for the bytes of a table.
    Codes(&'static Coding),
}

/// One product: a group of 16 rows by a tile of activations.
#[derive(Clone, Copy)]
pub(super) struct Args<'a> {
    /// The group, `Layout::group_bytes` long.
    pub(super) w: &'a [u8],
    /// Length of a row.
    pub(super) n_in: usize,
    pub(super) x: Tile<'a>,
    /// Result, `f32` [x.rows, 16].
    pub(super) y: *mut f32,
}

impl Layout {
    /// The layout that serves a type best; `exact` keeps activations in `f32`.
    pub(super) fn of(dtype: DType, isa: Isa, exact: bool) -> Self {
        match dtype {
            DType::F16 if exact || isa < Isa::Avx512Bf16 => Layout::F16,
            DType::F16 => Layout::F16Dot,
            DType::BF16 if exact || isa < Isa::Avx512Bf16 => Layout::Bf16,
            DType::BF16 => Layout::Bf16Dot,
            DType::Q8_0 if !exact => Layout::Q8_0,
            DType::Q4_0 if !exact => Layout::Q4_0,
            DType::Q4_K if !exact => Layout::Q4K,
            DType::Q5_K if !exact => Layout::Q5K,
            DType::Q6_K if !exact => Layout::Q6K,
            _ if exact => Layout::F32,
            _ => {
                let codes = || coding(dtype).map(Layout::Codes);
                blocks::kernels(dtype).map(Layout::Blocks).or_else(codes).unwrap_or(Layout::F32)
            }
        }
    }

    /// Whether rows of `dtype` keep about their size in this layout, so that packing them ahead costs little memory.
    pub(super) fn keeps_size(self, dtype: DType) -> bool {
        self != Layout::F32 || dtype == DType::F32
    }

    /// What a group is brought into before it meets many rows.
    pub(super) fn for_many_rows(self) -> Self {
        if self == Layout::F16Dot { Layout::Bf16Dot } else { self }
    }

    /// Writes a group as [`Layout::for_many_rows`] says.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub(super) unsafe fn convert_for_many_rows(self, isa: Isa, to: &mut [u8], from: &[u8]) {
        assert_eq!((self, to.len()), (Layout::F16Dot, from.len()));
        // SAFETY: the caller's promise.
        unsafe { dispatch(isa, float::ToBf16 { from, to }) }
    }

    /// What the kernel wants the activations as.
    pub(super) fn form(self) -> Form {
        match self {
            Layout::F32 | Layout::F16 | Layout::Bf16 => Form::F32,
            Layout::F16Dot | Layout::Bf16Dot => Form::Bf16,
            Layout::Q8_0 | Layout::Q4_0 | Layout::Blocks(_) => Form::Int8Block32,
            Layout::Q4K | Layout::Q5K | Layout::Q6K => Form::Int8Block256,
            Layout::Codes(coding) => coding.kernels.form,
        }
    }

    /// Bytes of a group of 16 rows of `n_in` elements; a whole number of lines.
    pub(super) fn group_bytes(self, n_in: usize) -> usize {
        let bytes = match self {
            Layout::F32 => n_in * 4 * LANES,
            Layout::F16 => n_in * 2 * LANES,
            Layout::F16Dot | Layout::Bf16 | Layout::Bf16Dot => n_in.div_ceil(2) * 4 * LANES,
            Layout::Q8_0 => q8_0::group_bytes(n_in),
            Layout::Q4_0 => q4_0::group_bytes(n_in),
            Layout::Q4K => q4_k::group_bytes(n_in),
            Layout::Q5K => q5_k::group_bytes(n_in),
            Layout::Q6K => q6_k::group_bytes(n_in),
            Layout::Blocks(kernels) => (kernels.group_bytes)(n_in),
            Layout::Codes(coding) => (coding.kernels.group_bytes)(n_in),
        };
        bytes.next_multiple_of(LINE)
    }

    /// Interleaves up to 16 rows of `dtype`, which lie one after the other in `rows`, into `group`.
    pub(super) fn pack(self, group: &mut [u8], rows: &[u8], dtype: DType, n_in: usize) {
        let row_bytes = n_in / dtype.block_len() * dtype.spec().block_bytes;
        if rows.len() < LANES * row_bytes {
            group.fill(0);
        }
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            match self {
                Layout::F32 => float::pack_f32(group, lane, row, dtype),
                Layout::F16 => float::pack_f16(group, lane, row),
                Layout::F16Dot | Layout::Bf16 | Layout::Bf16Dot => float::pack_pairs(group, lane, row),
                Layout::Q8_0 => q8_0::pack(group, lane, row),
                Layout::Q4_0 => q4_0::pack(group, lane, row),
                Layout::Q4K => q4_k::pack(group, lane, row),
                Layout::Q5K => q5_k::pack(group, lane, row),
                Layout::Q6K => q6_k::pack(group, lane, row),
                Layout::Blocks(kernels) => (kernels.pack)(group, lane, row),
                Layout::Codes(coding) => (coding.kernels.pack)(group, lane, row, coding),
            }
        }
    }

    /// Decodes one row of a packed group of `dtype`, as the type's own decoder would; `scratch` is for the row's bytes.
    pub(super) fn decode(
        self,
        out: &mut [f32],
        group: &[u8],
        lane: usize,
        dtype: DType,
        scratch: &mut Vec<Line>,
    ) {
        let spec = dtype.spec();
        let row_bytes = out.len() / spec.block_len * spec.block_bytes;
        scratch.resize(scratch.len().max(row_bytes.div_ceil(LINE)), Line::zeroed());
        let row = &mut bytemuck::cast_slice_mut(scratch)[..row_bytes];
        match self {
            Layout::F32 => get_dwords(row, group, lane),
            Layout::F16 => float::unpack_f16(row, group, lane),
            Layout::F16Dot | Layout::Bf16 | Layout::Bf16Dot => float::unpack_pairs(row, group, lane),
            Layout::Q8_0 => q8_0::unpack(row, group, lane),
            Layout::Q4_0 => q4_0::unpack(row, group, lane),
            Layout::Q4K => q4_k::unpack(row, group, lane),
            Layout::Q5K => q5_k::unpack(row, group, lane),
            Layout::Q6K => q6_k::unpack(row, group, lane),
            Layout::Blocks(kernels) => return (kernels.decode)(out, group, lane),
            Layout::Codes(coding) => return (coding.kernels.decode)(out, group, lane, coding),
        }
        (spec.dequantize)(row, out);
    }

    /// Multiplies a group by a tile; writes every element of `args.y`.
    ///
    /// # Safety
    /// The processor has `isa`; `args.y` is writable for `args.x.rows * 16` floats and shared with nobody.
    pub(super) unsafe fn multiply(self, isa: Isa, args: Args<'_>) {
        // The kernels read without bounds checks; these are the bounds.
        assert_eq!(args.w.len(), self.group_bytes(args.n_in), "{self:?}");
        assert!(args.w.as_ptr().addr().is_multiple_of(LINE), "{self:?}");
        args.x.check(self.form(), args.n_in);
        // SAFETY: the sizes were checked, the rest is the caller's promise.
        unsafe {
            match self {
                Layout::F32 => dispatch(isa, float::Multiply::<float::F32>::new(args)),
                Layout::F16 => dispatch(isa, float::Multiply::<float::F16>::new(args)),
                Layout::F16Dot => dispatch(isa, float::Multiply::<float::F16Dot>::new(args)),
                Layout::Bf16 => dispatch(isa, float::Multiply::<float::Bf16>::new(args)),
                Layout::Bf16Dot => dispatch(isa, float::Multiply::<float::Bf16Dot>::new(args)),
                Layout::Q8_0 => dispatch(isa, q8_0::Multiply(args)),
                Layout::Q4_0 => dispatch(isa, q4_0::Multiply(args)),
                Layout::Q4K => dispatch(isa, q4_k::Multiply(args)),
                Layout::Q5K => dispatch(isa, q5_k::Multiply(args)),
                Layout::Q6K => dispatch(isa, q6_k::Multiply(args)),
                Layout::Blocks(kernels) => (kernels.multiply)(isa, args),
                Layout::Codes(coding) => (coding.kernels.multiply)(isa, args, coding),
            }
        }
    }
}

/// Spreads the bytes of one row over lines, four per line.
#[inline]
pub(super) fn put_dwords(lines: &mut [u8], lane: usize, src: &[u8]) {
    for (line, dword) in lines.as_chunks_mut::<LINE>().0.iter_mut().zip(src.as_chunks::<4>().0) {
        line[4 * lane..4 * lane + 4].copy_from_slice(dword);
    }
}

/// Collects what [`put_dwords`] spread.
#[inline]
pub(super) fn get_dwords(dst: &mut [u8], lines: &[u8], lane: usize) {
    for (dword, line) in dst.as_chunks_mut::<4>().0.iter_mut().zip(lines.as_chunks::<LINE>().0) {
        dword.copy_from_slice(&line[4 * lane..4 * lane + 4]);
    }
}
