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
//!
//! Weights that meet 8-bit activations are cut along their inputs: first come all groups of the first slice of columns, then all of the
//! second. A slice of a group is a group with shorter rows.

use super::activations::{Form, Tile};
use super::blocks::{self, Kernels};
use super::code_types::{Coding, coding};
use super::int8::Sums;
use super::{float, q4_0, q4_k, q5_k, q6_k, q8_0};
use crate::DType;
use crate::cpu::isa::Isa;
use crate::cpu::memory::Line;
use crate::cpu::simd::{Kernel, LANES, LINE, Simd, dispatch};
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

/// One product: groups of 16 rows, one after the other, by a tile of activations.
#[derive(Clone, Copy)]
pub(super) struct Args<'a> {
    /// The groups, `Layout::group_bytes` each.
    pub(super) w: &'a [u8],
    /// Where reading goes on after these groups, if that is not right behind them; else null.
    pub(super) next: *const u8,
    pub(super) n_groups: usize,
    /// Length of a row.
    pub(super) n_in: usize,
    pub(super) x: Tile<'a>,
    /// What the products are added to, `f32` [n_groups, x.rows, 16].
    pub(super) y: *mut f32,
}

/// Lines that are asked for ahead of a run of groups for one row, until the processor sees by itself where reading goes on.
const NEXT_LINES: usize = 16;

/// How the groups of a layout are multiplied.
pub(super) trait Product: Copy {
    /// Adds the products of a group. With the number of rows known, for `ONE` row, its sums stay in registers.
    ///
    /// # Safety
    /// [`Simd`]'s contract; [`Layout::multiply`] has checked the sizes; `args` has one group, and one row if it says so.
    unsafe fn add<S: Simd, const ONE: bool>(self, args: Args<'_>);
}

/// The product of group after group.
pub(super) struct EachGroup<'a, P>(pub(super) Args<'a>, pub(super) P);

impl<P: Product> EachGroup<'_, P> {
    /// # Safety
    /// As [`Product::add`].
    #[inline(always)]
    unsafe fn add<S: Simd, const ONE: bool>(self) {
        let Self(args, product) = self;
        let rows = if ONE { 1 } else { args.x.rows };
        for (g, w) in args.w.chunks_exact(args.w.len() / args.n_groups).enumerate() {
            // SAFETY: the caller's promise; y is [n_groups, rows, 16].
            unsafe {
                if ONE && g + 1 == args.n_groups && !args.next.is_null() {
                    for i in 0..NEXT_LINES {
                        S::prefetch(args.next.wrapping_add(i * LINE));
                    }
                }
                let y = args.y.add(g * rows * LANES);
                if ONE {
                    // Nobody else knows this address, so that the sums stay in a register.
                    let mut own = Sums::<1>::uninit();
                    let own = own.as_mut_ptr();
                    S::store_f32(own, S::load_f32(y));
                    product.add::<S, ONE>(Args { w, n_groups: 1, y: own, ..args });
                    S::store_f32(y, S::load_f32(own));
                } else {
                    product.add::<S, ONE>(Args { w, n_groups: 1, y, ..args });
                }
            }
        }
    }
}

impl<P: Product> Kernel for EachGroup<'_, P> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe { if self.0.x.rows == 1 { self.add::<S, true>() } else { self.add::<S, false>() } }
    }
}

/// Columns of a slice. One row's activations for so many, with their scales and sums, stay in the first-level cache (32 KiB) while the
/// slice's lines of a group, at most 17 KiB, pass through it. Were they fetched anew for each group, those fetches would come between
/// those of the weights, which cost a third of the speed at which one core reads memory.
const SLICE: usize = 1024;

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

    /// Columns of the slices that rows of `n_in` elements are cut into; the last one may have fewer.
    pub(super) fn slice(self, n_in: usize) -> usize {
        if self.form().is_int8() { SLICE.min(n_in) } else { n_in }
    }

    /// Interleaves a row of `dtype`, or a slice of it, into its lane of a group.
    pub(super) fn pack(self, group: &mut [u8], lane: usize, row: &[u8], dtype: DType) {
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

    /// Multiplies groups by a tile and adds the products to `y` [n_groups, x.rows, 16]. `next` is that of [`Args`].
    ///
    /// Panics if the sizes disagree.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub(super) unsafe fn multiply(
        self,
        isa: Isa,
        y: &mut [f32],
        w: &[u8],
        next: *const u8,
        n_groups: usize,
        n_in: usize,
        x: Tile<'_>,
    ) {
        // The kernels read and write without bounds checks; these are the bounds.
        assert_eq!(
            (w.len(), y.len()),
            (n_groups * self.group_bytes(n_in), n_groups * x.rows * LANES),
            "{self:?}"
        );
        assert!(w.as_ptr().addr().is_multiple_of(LINE), "{self:?}");
        assert_eq!((x.form, x.n_in), (self.form(), n_in), "{self:?}");
        if w.is_empty() {
            return;
        }
        let args = Args { w, next, n_groups, n_in, x, y: y.as_mut_ptr() };
        // SAFETY: the sizes were checked, the rest is the caller's promise.
        unsafe {
            match self {
                Layout::F32 => dispatch(isa, EachGroup(args, float::Multiply::<float::F32>::NEW)),
                Layout::F16 => dispatch(isa, EachGroup(args, float::Multiply::<float::F16>::NEW)),
                Layout::F16Dot => dispatch(isa, EachGroup(args, float::Multiply::<float::F16Dot>::NEW)),
                Layout::Bf16 => dispatch(isa, EachGroup(args, float::Multiply::<float::Bf16>::NEW)),
                Layout::Bf16Dot => dispatch(isa, EachGroup(args, float::Multiply::<float::Bf16Dot>::NEW)),
                Layout::Q8_0 => dispatch(isa, EachGroup(args, q8_0::Multiply)),
                Layout::Q4_0 => dispatch(isa, EachGroup(args, q4_0::Multiply)),
                Layout::Q4K => dispatch(isa, EachGroup(args, q4_k::Multiply)),
                Layout::Q5K => dispatch(isa, EachGroup(args, q5_k::Multiply)),
                Layout::Q6K => dispatch(isa, EachGroup(args, q6_k::Multiply)),
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
