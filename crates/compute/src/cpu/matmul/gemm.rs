//! The matmul of any number of rows of activations with a weight.

use super::activations::{Activations, BAND, TILE, Tile, TileRows};
use super::layout::{Layout, Panels};
use super::matrix::{Matrix, Part, Slice, Weights, columns};
use super::sums::Sums;
use crate::cpu::memory::Line;
use crate::cpu::parallel::Shared;
use crate::cpu::simd::{LANES, LINE};
use crate::cpu::threads::Pool;
use bytemuck::Zeroable;
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// Room for a packed and a converted panel.
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// What is multiplied.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// Activations: `[.., w.n_in()]`, row-major.
    pub x: &'a [f32],
    /// For each row of the result, the row of `x` that it is made of; `None` where they are the same.
    pub sources: Option<&'a [u32]>,
    /// The weight.
    pub w: &'a Matrix,
    /// Which expert multiplies which rows, in the order of the rows; one group for a plain matrix.
    pub groups: &'a [Group],
    /// Added to each row: `[n_experts, w.n_out()]`.
    pub bias: Option<&'a [f32]>,
}

/// Rows of a result that are made by one expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number; 0 for a plain matrix.
    pub expert: usize,
    /// At least one row.
    pub rows: Range<usize>,
}

/// `y[i, o] = Σ_k x[sources[i], k] · w[expert of i, o, k] + bias[expert of i, o]`
///
/// `y`: `[m, w.n_out()]`, row-major. All groups are one job of the pool.
///
/// Panics if the slices' lengths disagree with the shapes, if groups are not all rows in their order, if there is no such expert or source, or if
/// a worker panicked.
pub fn matmul(pool: &Pool, y: &mut [f32], operands: Operands<'_>, scratch: &mut Activations) {
    let Operands { x, sources, w, groups, bias } = operands;
    if y.is_empty() {
        return;
    }
    let m = y.len() / w.n_out.max(1);
    let n_rows = sources.map_or(m, |sources| sources.len());
    assert_eq!((y.len(), n_rows), (m * w.n_out, m), "[{m}, {}] from {n_rows} rows", w.n_out);
    assert!(sources.is_some() || x.len() == m * w.n_in, "[{m}, {}] from {} numbers", w.n_in, x.len());
    if let Some(bias) = bias {
        assert_eq!(bias.len(), w.n_experts * w.n_out, "bias");
    }
    let elements =
        if w.parts.iter().all(|part| part.layout.activations().is_int8()) { INT8_BLOCK } else { FLOAT_BLOCK };
    let most_tiles = (elements / (TILE * w.n_in.max(1))).max(1);
    let mut blocks = Vec::with_capacity(groups.len());
    scratch.clear();
    let mut end = 0;
    for Group { expert, rows } in groups {
        assert!(*expert < w.n_experts, "expert {expert} of {}", w.n_experts);
        assert!(rows.start == end && rows.end > end, "rows {rows:?} after {end}");
        end = rows.end;
        let tiles = scratch.push(rows.clone(), |row| sources.map_or(row as u32, |sources| sources[row]));
        let n_blocks = tiles.len().div_ceil(most_tiles);
        let step = tiles.len().div_ceil(n_blocks);
        let cut = tiles.clone().step_by(step).map(|t| t..tiles.end.min(t + step));
        blocks.extend(cut.map(|tiles| Block { expert: *expert, tiles }));
    }
    assert_eq!(end, m, "rows of all groups");
    let mut prepared = Vec::new();
    for part in &w.parts {
        let layout = part.layout.activations();
        if !prepared.contains(&layout) {
            scratch.prepare(layout, w.isa, pool, x, w.n_in);
            prepared.push(layout);
        }
    }

    let last = &w.parts[w.parts.len() - 1];
    let n_panels = last.first_panel + last.n_panels;
    let tasks: Vec<Task<'_>> = w.parts.iter().map(|part| Task::new(w, bias, part, scratch)).collect();
    let y = Shared::new(y);
    // Blocks may have different numbers of tiles.
    let quarters = if blocks.len() == 1 { 3 } else { 2 };
    pool.for_each_share(blocks.len() * n_panels, quarters, |range| {
        let mut item = range.start;
        while item < range.end {
            let (block, p) = (&blocks[item / n_panels], item % n_panels);
            let panels = p..n_panels.min(p + range.end - item);
            item += panels.len();
            for task in &tasks {
                let first = task.part.first_panel;
                let own = panels.start.max(first)..panels.end.min(first + task.part.n_panels);
                if !own.is_empty() {
                    task.run(own.start - first..own.end - first, block, &y);
                }
            }
        }
    });
}

/// Tiles that an expert multiplies together.
struct Block {
    expert: usize,
    tiles: Range<usize>,
}

/// Activations of 8 bits, in elements, that a block of tiles holds: they stay in a core's second-level cache while the weights of a
/// share are read.
const INT8_BLOCK: usize = 512 << 10;

/// The same for floats and BF16 numbers. A band of these computes so long with each line that it may come from the third-level
/// cache; what counts is that the weights are read rarely.
const FLOAT_BLOCK: usize = 4 << 20;

/// Rows of 16 sums that are kept at a time for one tile: they stay in the first-level cache.
const SUMS: usize = 256;

/// Tiles whose sums are kept at a time, where a panel is packed or converted for them.
const TILES: usize = 16;

/// The matmul with one part of a weight.
struct Task<'a> {
    w: &'a Matrix,
    part: &'a Part,
    bias: Option<&'a [f32]>,
    tiles: &'a [TileRows],
    /// Activations: [n_slices, n_tiles]
    x: Vec<Tile<'a>>,
}

impl<'a> Task<'a> {
    fn new(w: &'a Matrix, bias: Option<&'a [f32]>, part: &'a Part, scratch: &'a Activations) -> Self {
        let layout = part.layout.activations();
        let (tiles, prepared) = (scratch.tiles(), scratch.get(layout));
        let of_slice =
            |columns: Range<usize>| tiles.iter().map(move |&t| prepared.tile(layout, t, columns.clone()));
        let x = columns(part.layout, w.n_in).flat_map(of_slice).collect();
        Self { w, part, bias, tiles, x }
    }

    /// Multiplies panels of the part by the tiles of a block. Each panel and tile is given to one call.
    fn run(&self, panels: Range<usize>, block: &Block, y: &Shared<'_, f32>) {
        let &Block { expert, ref tiles } = block;
        if tiles.len() == 1 {
            let step = SUMS / self.x[tiles.start].rows;
            for start in panels.clone().step_by(step) {
                self.multiply::<SUMS>(expert, start..panels.end.min(start + step), tiles.clone(), y);
            }
            return;
        }
        // A panel stays in the caches while it is multiplied with tile after tile, and so do the sums of one tile. Without slices each tile
        // is visited once, and a panel that is packed or converted here serves up to TILES tiles.
        let packed = matches!(self.part.weights, Weights::Packed(_));
        for p in panels {
            if packed && self.x.len() > self.tiles.len() {
                tiles.clone().for_each(|t| self.multiply::<SUMS>(expert, p..p + 1, t..t + 1, y));
                continue;
            }
            for start in tiles.clone().step_by(TILES) {
                let tiles = start..tiles.end.min(start + TILES);
                self.multiply::<{ TILES * TILE }>(expert, p..p + 1, tiles, y);
            }
        }
    }

    /// Multiplies panels and tiles that together have at most `N` rows of sums.
    fn multiply<const N: usize>(
        &self,
        expert: usize,
        panels: Range<usize>,
        tiles: Range<usize>,
        y: &Shared<'_, f32>,
    ) {
        let rows: usize = self.x[tiles.clone()].iter().map(|x| x.rows).sum();
        let mut sums = Sums::<N>::uninit();
        // [tiles][panels, rows of the tile, 16]
        let sums = sums.zeroed(panels.len() * rows);
        for (slice, x) in self.part.slices(self.w.n_in).zip(self.x.chunks_exact(self.tiles.len())) {
            let many_rows = x[tiles.start].rows > BAND;
            self.for_runs(expert, panels.clone(), &slice, many_rows, |layout, first, run| {
                let mut sums = &mut sums[..];
                for x in &x[tiles.clone()] {
                    let (of_tile, rest) = sums.split_at_mut(panels.len() * x.rows * LANES);
                    sums = rest;
                    let first = (first - panels.start) * x.rows * LANES;
                    let y = &mut of_tile[first..][..run.n * x.rows * LANES];
                    // SAFETY: `Matrix::new` checked that the processor has the instruction set.
                    unsafe { layout.multiply(self.w.isa, y, run, *x) }
                }
            });
        }
        let mut sums = &sums[..];
        for t in tiles {
            let TileRows { first, n, .. } = self.tiles[t];
            for p in panels.clone() {
                for row in first..first + n {
                    let (of_row, rest) = sums.split_at(LANES);
                    sums = rest;
                    self.write(expert, p, row, of_row, y);
                }
            }
        }
    }

    /// Writes the sums of panel `p` for row `row`.
    fn write(&self, expert: usize, p: usize, row: usize, sums: &[f32], y: &Shared<'_, f32>) {
        let n = LANES.min(self.part.n_out - p * LANES);
        let column = self.part.first_row + p * LANES;
        // SAFETY: `matmul` checked that y is [m, n_out], and panel and row are below; each panel and tile is given to one call of `run`, so
        // no other call writes these columns of this row.
        let y = unsafe { y.slice(row * self.w.n_out + column, n) };
        let bias = self.bias.map(|bias| &bias[expert * self.w.n_out + column..][..n]);
        // Of a whole panel with a known length, so that this is a vector's copy and not a call.
        match (y.as_chunks_mut::<LANES>().0, sums.as_chunks::<LANES>().0) {
            ([y], [sums]) => match bias.map(|bias| bias.as_chunks::<LANES>().0) {
                Some([bias]) => *y = std::array::from_fn(|i| sums[i] + bias[i]),
                _ => *y = *sums,
            },
            _ => (0..n).for_each(|i| y[i] = sums[i] + bias.map_or(0.0, |bias| bias[i])),
        }
    }

    /// Calls `f(layout, first, panels)` for runs of panels of a slice that lie together, each from panel `first` on: all at once, or if they
    /// are packed or converted for this matmul, one by one.
    fn for_runs(
        &self,
        expert: usize,
        panels: Range<usize>,
        slice: &Slice,
        many_rows: bool,
        mut f: impl FnMut(&'static dyn Layout, usize, Panels<'_>),
    ) {
        let Self { w, part, .. } = self;
        let (own, n, n_in) = (part.layout, slice.panel_bytes, slice.columns.len());
        let none = std::ptr::null();
        let converted_to = if many_rows { own.for_many_rows() } else { None };
        let packed = match &part.weights {
            Weights::Packed(packed) => {
                Some(&packed.as_slice()[part.start_of(expert, slice) + panels.start * n..])
            }
            Weights::Rows(_) => None,
        };
        if let (Some(packed), None) = (packed, converted_to) {
            // The same panels of the next slice, if it is as long.
            let is_last = slice.columns.end == w.n_in;
            let next = if is_last { none } else { packed.as_ptr().wrapping_add(part.n_panels * n) };
            let bytes = &packed[..panels.len() * n];
            return f(own, panels.start, Panels { bytes, n: panels.len(), n_in, next });
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(scratch.len().max(2 * n / LINE), Line::zeroed());
            let (ours, converted) = bytemuck::cast_slice_mut(&mut scratch[..2 * n / LINE]).split_at_mut(n);
            for (i, p) in panels.enumerate() {
                let panel = match packed {
                    Some(packed) => &packed[i * n..][..n],
                    None => {
                        part.pack(ours, slice.columns.clone(), expert, p);
                        &*ours
                    }
                };
                let Some(layout) = converted_to else {
                    f(own, p, Panels { bytes: panel, n: 1, n_in, next: none });
                    continue;
                };
                // SAFETY: `Matrix::new` checked that the processor has the instruction set.
                unsafe { layout.convert(w.isa, converted, panel) }
                let next = packed.map_or(none, |packed| packed.as_ptr().wrapping_add((i + 1) * n));
                f(layout, p, Panels { bytes: converted, n: 1, n_in, next });
            }
        });
    }
}
