//! Products of activations with weights of any element type.
//!
//! A [`Matrix`] is made once from the rows of a file: types with kernels of their own are interleaved 16 rows at a time (one
//! layout for any number of activation rows and any processor), the others stay as they are and are decoded as they are
//! used. [`matmul`] brings the activations into the form that the kernel wants (8-bit integers for quantized weights) and
//! shares the groups of rows among the threads.
//!
//! Every output element is computed by the same operations in the same order whatever the number of rows, of threads, or of
//! neighbours in the batch, and whether weights were packed ahead or not.

mod activations;
mod blocks;
mod code_types;
mod codes;
mod float;
mod int8;
mod k_scales;
mod layout;
mod nvfp4;
mod q1_0;
mod q4_0;
mod q4_k;
mod q5_k;
mod q6_k;
mod q8_0;
#[cfg(test)]
mod tests;

pub use activations::Activations;

use super::isa::Isa;
use super::memory::{Line, Memory};
use super::simd::{LANES, LINE};
use super::threads::Pool;
use crate::MatrixPart;
use crate::{DType, Error, Result};
use activations::{BAND, TILE, Tile};
use bytemuck::Zeroable;
use bytes::Bytes;
use int8::Sums;
use layout::Layout;
use std::cell::RefCell;
use std::ops::Range;

/// How a matrix is prepared.
#[derive(Clone, Copy, Debug)]
pub struct MatrixOptions {
    /// Instructions to multiply with; must be available.
    pub isa: Isa,
    /// Keep activations in `f32` and multiply with decoded weights, for results that can be compared.
    pub exact: bool,
    /// Interleave the rows now, into memory of our own; otherwise at each product, from the file's pages.
    pub repack: bool,
}

/// A weight: one or several matrices stacked along their outputs, once or once per expert.
pub struct Matrix {
    parts: Vec<Part>,
    n_experts: usize,
    n_out: usize,
    n_in: usize,
    isa: Isa,
}

struct Part {
    dtype: DType,
    layout: Layout,
    n_out: usize,
    /// Outputs of the parts before this one.
    first_row: usize,
    /// Groups of the parts before this one, and of this one.
    first_group: usize,
    n_groups: usize,
    row_bytes: usize,
    /// Of a group with all its slices.
    group_bytes: usize,
    weights: Weights,
}

enum Weights {
    /// Slices of groups of 16 rows: [n_experts, n_slices, n_groups, bytes of the slice of a group]
    Packed(Memory),
    /// Rows as in the file: [n_experts, n_out, row_bytes]
    Rows(Bytes),
}

impl Matrix {
    /// Makes a weight from parts stacked along their outputs.
    ///
    /// Errors: `WrongSize` or `PartialBlock` where bytes disagree with type and shape or parts with each other;
    /// `OutOfMemory`; `Device` if the instruction set is not available.
    pub fn new(parts: Vec<MatrixPart>, options: MatrixOptions, pool: &Pool) -> Result<Self> {
        if !options.isa.is_available() {
            let message = format!("this processor has no {} instructions", options.isa);
            return Err(Error::Device { device: "cpu".into(), message });
        }
        let (n_experts, n_in) = parts.first().map_or((1, 0), |p| (p.n_experts, p.n_in));
        let mut made: Vec<Part> = Vec::with_capacity(parts.len());
        let (mut n_out, mut n_groups) = (0, 0);
        for part in parts {
            check(&part, n_experts, n_in)?;
            let part = Part::new(part, n_out, n_groups, options);
            (n_out, n_groups) = (n_out + part.n_out, n_groups + part.n_groups);
            made.push(part);
        }
        let mut this = Self { parts: made, n_experts, n_out, n_in, isa: options.isa };
        if options.repack {
            this.pack(n_groups, pool)?;
        }
        Ok(this)
    }

    /// Interleaves the rows of the parts that gain by it.
    ///
    /// The groups of all parts are shared out as [`matmul`] does: where memory has several nodes, who writes a page has it near, and
    /// reads it later.
    fn pack(&mut self, n_groups: usize, pool: &Pool) -> Result<()> {
        let mut packed = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let len =
                if part.gains_by_packing() { self.n_experts * part.n_groups * part.group_bytes } else { 0 };
            packed.push(Memory::zeroed(len, || "packed weights".into())?);
        }
        let outs: Vec<SharedMut<u8>> =
            packed.iter_mut().map(|memory| SharedMut(memory.as_mut_slice().as_mut_ptr())).collect();
        pool.for_each_chunk(n_groups, if self.n_experts == 1 { 4 } else { 1 }, |range| {
            for g in range {
                let p = self.part_of(g);
                let part = &self.parts[p];
                if !part.gains_by_packing() {
                    continue;
                }
                let g = g - part.first_group;
                for expert in 0..self.n_experts {
                    for slice in part.slices(self.n_in) {
                        let at =
                            expert * part.n_groups * part.group_bytes + slice.start + g * slice.group_bytes;
                        // SAFETY: each slice of a group is written by the one call whose range holds the group, inside the buffer.
                        let group =
                            unsafe { std::slice::from_raw_parts_mut(outs[p].0.add(at), slice.group_bytes) };
                        part.pack(group, slice.columns, expert, g);
                    }
                }
            }
        });
        for (part, packed) in self.parts.iter_mut().zip(packed) {
            if part.gains_by_packing() {
                part.weights = Weights::Packed(packed);
            }
        }
        Ok(())
    }

    /// Number of the part that has group `g` of all.
    fn part_of(&self, g: usize) -> usize {
        self.parts.partition_point(|p| p.first_group + p.n_groups <= g)
    }

    /// Output features: rows of all parts.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Input features.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Number of experts; 1 for a plain matrix.
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Bytes of the weights of all experts: what stays in memory, and for a plain matrix what one product reads.
    pub fn bytes(&self) -> usize {
        self.parts
            .iter()
            .map(|p| match &p.weights {
                Weights::Packed(_) => self.n_experts * p.n_groups * p.group_bytes,
                Weights::Rows(bytes) => bytes.len(),
            })
            .sum()
    }

    /// Decodes row `row` of expert `expert` into `out` `[n_in]`.
    ///
    /// Panics if there is no such expert or row, or `out` has another length.
    pub fn dequantize_row(&self, out: &mut [f32], expert: usize, row: usize) {
        assert!(expert < self.n_experts, "expert {expert} of {}", self.n_experts);
        assert!(row < self.n_out, "row {row} of {}", self.n_out);
        assert_eq!(out.len(), self.n_in);
        let part = &self.parts[self.parts.partition_point(|p| p.first_row + p.n_out <= row)];
        let row = row - part.first_row;
        let dequantize = part.dtype.spec().dequantize;
        match &part.weights {
            Weights::Rows(bytes) => {
                dequantize(&bytes[(expert * part.n_out + row) * part.row_bytes..][..part.row_bytes], out);
            }
            Weights::Packed(packed) => SCRATCH.with_borrow_mut(|scratch| {
                let packed = &packed.as_slice()[expert * part.n_groups * part.group_bytes..];
                for slice in part.slices(self.n_in) {
                    let at = slice.start + row / LANES * slice.group_bytes;
                    let group = &packed[at..][..slice.group_bytes];
                    part.layout.decode(&mut out[slice.columns], group, row % LANES, part.dtype, scratch);
                }
            }),
        }
    }
}

/// Checks a part against its own type and the first part's shape.
fn check(part: &MatrixPart, n_experts: usize, n_in: usize) -> Result<()> {
    let shape = || vec![part.n_experts, part.n_out, part.n_in];
    let what = || "matrix".to_string();
    let Some(row_bytes) = part.dtype.bytes_for(part.n_in) else {
        return Err(Error::PartialBlock {
            what: what(),
            dtype: part.dtype,
            len: part.n_in,
            block_len: part.dtype.block_len(),
        });
    };
    let expected = row_bytes.checked_mul(part.n_out).and_then(|n| n.checked_mul(part.n_experts));
    if part.n_in != n_in || part.n_experts != n_experts || expected != Some(part.bytes.len()) {
        return Err(Error::WrongSize {
            what: what(),
            dtype: part.dtype,
            shape: shape(),
            expected: expected.unwrap_or(usize::MAX),
            found: part.bytes.len(),
        });
    }
    Ok(())
}

impl Part {
    fn new(part: MatrixPart, first_row: usize, first_group: usize, options: MatrixOptions) -> Self {
        let MatrixPart { dtype, n_out, n_in, bytes, .. } = part;
        let layout = Layout::of(dtype, options.isa, options.exact);
        Self {
            dtype,
            layout,
            n_out,
            first_row,
            first_group,
            n_groups: n_out.div_ceil(LANES),
            row_bytes: n_in / dtype.block_len() * dtype.spec().block_bytes,
            group_bytes: slices(layout, n_in).map(|columns| layout.group_bytes(columns.len())).sum(),
            weights: Weights::Rows(bytes),
        }
    }

    /// The slices of rows of `n_in` elements.
    fn slices(&self, n_in: usize) -> impl Iterator<Item = Slice> {
        let mut start = 0;
        slices(self.layout, n_in).map(move |columns| {
            let group_bytes = self.layout.group_bytes(columns.len());
            let slice = Slice { columns, start, group_bytes };
            start += self.n_groups * group_bytes;
            slice
        })
    }

    fn gains_by_packing(&self) -> bool {
        self.layout.keeps_size(self.dtype) && self.group_bytes > 0
    }

    /// Interleaves a slice of the rows of one group, from the file's rows.
    fn pack(&self, group: &mut [u8], columns: Range<usize>, expert: usize, g: usize) {
        let Weights::Rows(bytes) = &self.weights else { return };
        let first = g * LANES;
        let n = LANES.min(self.n_out - first);
        if n < LANES {
            group.fill(0);
        }
        let spec = self.dtype.spec();
        let bytes_of = |columns: usize| columns / spec.block_len * spec.block_bytes;
        let rows = &bytes[(expert * self.n_out + first) * self.row_bytes..][..n * self.row_bytes];
        for (lane, row) in rows.chunks_exact(self.row_bytes).enumerate() {
            let row = &row[bytes_of(columns.start)..][..bytes_of(columns.len())];
            self.layout.pack(group, lane, row, self.dtype);
        }
    }
}

/// Columns of a part, and where they stand in the memory of an expert.
struct Slice {
    columns: Range<usize>,
    /// Bytes before its first group.
    start: usize,
    /// Bytes of each of its groups.
    group_bytes: usize,
}

/// The columns of the slices of a row of `n_in` elements.
fn slices(layout: Layout, n_in: usize) -> impl Iterator<Item = Range<usize>> {
    let step = layout.slice(n_in).max(1);
    (0..n_in).step_by(step).map(move |start| start..n_in.min(start + step))
}

/// A pointer that several threads write through, each to addresses of its own.
struct SharedMut<T>(*mut T);

// SAFETY: whoever uses it writes disjoint elements per thread.
unsafe impl<T: Send> Sync for SharedMut<T> {}

thread_local! {
    /// Room for one packed group, or one row, of a weight that was not packed ahead.
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// `y[i, o] = Σ_k x[i, k] · w[expert, o, k] + bias[o]` for `m` rows.
///
/// `x`: [m, n_in], row-major without gaps. `y`: rows of `n_out` elements, `y_stride` elements apart; what lies between stays
/// as it is. `bias`: `[n_out]`.
///
/// Panics if the slices are too short for the shapes, or if a worker panicked.
pub fn matmul(
    pool: &Pool,
    y: &mut [f32],
    y_stride: usize,
    x: &[f32],
    m: usize,
    w: &Matrix,
    expert: usize,
    bias: Option<&[f32]>,
    scratch: &mut Activations,
) {
    assert_eq!(x.len(), m * w.n_in, "activations [{m}, {}]", w.n_in);
    assert!(expert < w.n_experts, "expert {expert} of {}", w.n_experts);
    if m == 0 || w.n_out == 0 {
        return;
    }
    assert!(y_stride >= w.n_out && y.len() >= (m - 1) * y_stride + w.n_out, "result [{m}, {}]", w.n_out);
    if let Some(bias) = bias {
        assert_eq!(bias.len(), w.n_out, "bias");
    }
    let mut forms = Vec::new();
    for part in &w.parts {
        let form = part.layout.form();
        if !forms.contains(&form) {
            scratch.prepare(form, w.isa, pool, x, m);
            forms.push(form);
        }
    }

    let last = &w.parts[w.parts.len() - 1];
    let n_groups = last.first_group + last.n_groups;
    let n_tiles = m.div_ceil(TILE);
    let elements = if forms.iter().all(|form| form.is_int8()) { INT8_BLOCK } else { FLOAT_BLOCK };
    let n_blocks = n_tiles.div_ceil((elements / (TILE * w.n_in.max(1))).max(1));
    let block_tiles = n_tiles.div_ceil(n_blocks);
    let scratch = &*scratch;
    let tasks: Vec<Task<'_>> = w
        .parts
        .iter()
        .map(|part| {
            let form = part.layout.form();
            let tiles = |columns: Range<usize>| {
                (0..n_tiles).map(move |t| scratch.get(form).tile(form, t, columns.clone()))
            };
            Task { w, part, expert, x: slices(part.layout, w.n_in).flat_map(tiles).collect(), n_tiles }
        })
        .collect();
    let result = Output { y: SharedMut(y.as_mut_ptr()), stride: y_stride, bias };
    // The last of several blocks has fewer tiles.
    let quarters = if n_blocks == 1 { 3 } else { 2 };
    pool.for_each_share(n_blocks * n_groups, quarters, |range| {
        let mut item = range.start;
        while item < range.end {
            let (block, g) = (item / n_groups, item % n_groups);
            let groups = g..n_groups.min(g + range.end - item);
            item += groups.len();
            let tiles = block * block_tiles..n_tiles.min((block + 1) * block_tiles);
            for task in &tasks {
                let first = task.part.first_group;
                let own = groups.start.max(first)..groups.end.min(first + task.part.n_groups);
                if !own.is_empty() {
                    task.run(own.start - first..own.end - first, tiles.clone(), &result);
                }
            }
        }
    });
}

/// Activations (in elements) that a block of tiles holds, of 8 bits: they stay in a core's second-level cache while the weights of a
/// chunk pass by.
const INT8_BLOCK: usize = 512 << 10;

/// The same for floats and BF16 numbers. A band of these has so much to do with each line that it may come from the third-level
/// cache; what counts is that the weights pass rarely.
const FLOAT_BLOCK: usize = 4 << 20;

/// Rows of 16 sums that are kept at a time for one tile: they stay in the first-level cache.
const SUMS: usize = 256;

/// Tiles whose sums are kept at a time, where a group is packed or converted for them.
const TILES: usize = 16;

/// The product with one part of a weight.
struct Task<'a> {
    w: &'a Matrix,
    part: &'a Part,
    expert: usize,
    /// Activations: [n_slices, n_tiles]
    x: Vec<Tile<'a>>,
    n_tiles: usize,
}

/// Where a product goes.
struct Output<'a> {
    y: SharedMut<f32>,
    stride: usize,
    bias: Option<&'a [f32]>,
}

impl Task<'_> {
    /// Multiplies groups of the part by a block of tiles.
    fn run(&self, groups: Range<usize>, tiles: Range<usize>, result: &Output<'_>) {
        if tiles.len() == 1 {
            let step = SUMS / self.x[tiles.start].rows;
            for start in groups.clone().step_by(step) {
                self.panel::<SUMS>(start..groups.end.min(start + step), tiles.clone(), result);
            }
            return;
        }
        // A group stays in the caches while the tiles pass by, one after the other, so that the sums of one stay there too. Without slices
        // a tile's are met once; and what is packed or converted for this product is so once for many.
        let packed = matches!(self.part.weights, Weights::Packed(_));
        for g in groups {
            if packed && self.x.len() > self.n_tiles {
                tiles.clone().for_each(|t| self.panel::<SUMS>(g..g + 1, t..t + 1, result));
                continue;
            }
            for start in tiles.clone().step_by(TILES) {
                self.panel::<{ TILES * TILE }>(g..g + 1, start..tiles.end.min(start + TILES), result);
            }
        }
    }

    /// Multiplies groups and tiles that together have at most `N` rows of sums.
    fn panel<const N: usize>(&self, groups: Range<usize>, tiles: Range<usize>, result: &Output<'_>) {
        let rows: usize = self.x[tiles.clone()].iter().map(|x| x.rows).sum();
        let mut sums = Sums::<N>::uninit();
        // [tiles][groups, rows of the tile, 16]
        let sums = sums.zeroed(groups.len() * rows);
        for (slice, x) in self.part.slices(self.w.n_in).zip(self.x.chunks_exact(self.n_tiles)) {
            self.for_runs(groups.clone(), &slice, |layout, run, weights, next| {
                let mut sums = &mut sums[..];
                for x in &x[tiles.clone()] {
                    let (of_tile, rest) = sums.split_at_mut(groups.len() * x.rows * LANES);
                    sums = rest;
                    let first = (run.start - groups.start) * x.rows * LANES;
                    let y = &mut of_tile[first..][..run.len() * x.rows * LANES];
                    // SAFETY: `Matrix::new` checked that the instruction set is available.
                    unsafe {
                        layout.multiply(self.w.isa, y, weights, next, run.len(), slice.columns.len(), *x)
                    }
                }
            });
        }
        let mut sums = &sums[..];
        for t in tiles {
            let rows = self.x[t].rows;
            for g in groups.clone() {
                for r in 0..rows {
                    let (of_row, rest) = sums.split_at(LANES);
                    sums = rest;
                    // SAFETY: no other task has these groups' columns of this tile's rows.
                    unsafe { self.write(g, t * TILE + r, of_row, result) }
                }
            }
        }
    }

    /// Writes the sums of group `g` for row `row`.
    ///
    /// # Safety
    /// No other thread writes them.
    unsafe fn write(&self, g: usize, row: usize, sums: &[f32], result: &Output<'_>) {
        let n = LANES.min(self.part.n_out - g * LANES);
        let column = self.part.first_row + g * LANES;
        // SAFETY: `matmul` checked that y has all rows and columns; the rest is the caller's promise.
        let y = unsafe { std::slice::from_raw_parts_mut(result.y.0.add(row * result.stride + column), n) };
        match result.bias {
            Some(bias) => {
                for ((y, sum), bias) in y.iter_mut().zip(sums).zip(&bias[column..]) {
                    *y = sum + bias;
                }
            }
            None => y.copy_from_slice(&sums[..n]),
        }
    }

    /// Calls `f` with a slice of groups, as many as lie together: all, or if they are packed or converted for this product, one by one; and
    /// with where reading goes on.
    fn for_runs(
        &self,
        groups: Range<usize>,
        slice: &Slice,
        mut f: impl FnMut(Layout, Range<usize>, &[u8], *const u8),
    ) {
        let Self { w, part, .. } = self;
        let (own, n) = (part.layout, slice.group_bytes);
        let none = std::ptr::null();
        let layout = if self.x[0].rows > BAND { own.for_many_rows() } else { own };
        let packed = match &part.weights {
            Weights::Packed(packed) => {
                let start = self.expert * part.n_groups * part.group_bytes + slice.start + groups.start * n;
                let packed = &packed.as_slice()[start..];
                if layout == own {
                    // The same groups of the next slice, if it is as long.
                    let is_last = slice.columns.end == w.n_in;
                    let next = if is_last { none } else { packed.as_ptr().wrapping_add(part.n_groups * n) };
                    return f(own, groups.clone(), &packed[..groups.len() * n], next);
                }
                Some(packed)
            }
            Weights::Rows(_) => None,
        };
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(scratch.len().max(2 * n / LINE), Line::zeroed());
            let (ours, converted) = bytemuck::cast_slice_mut(&mut scratch[..2 * n / LINE]).split_at_mut(n);
            for (i, g) in groups.enumerate() {
                let group = match packed {
                    Some(packed) => &packed[i * n..][..n],
                    None => {
                        part.pack(ours, slice.columns.clone(), self.expert, g);
                        &*ours
                    }
                };
                if layout == own {
                    f(own, g..g + 1, group, none);
                    continue;
                }
                // SAFETY: `Matrix::new` checked that the instruction set is available.
                unsafe { own.convert_for_many_rows(w.isa, converted, group) }
                let next = packed.map_or(none, |packed| packed.as_ptr().wrapping_add((i + 1) * n));
                f(layout, g..g + 1, converted, next);
            }
        });
    }
}
