//! Weights, packed or as they are in a file.

use super::layout::Layout;
use super::layouts;
use crate::cpu::isa::Isa;
use crate::cpu::memory::Memory;
use crate::cpu::parallel::Shared;
use crate::cpu::simd::LANES;
use crate::cpu::threads::Pool;
use crate::{DType, Error, MatrixPart, Result};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// How a matrix is prepared.
#[derive(Clone, Copy, Debug)]
pub struct MatrixOptions {
    /// Instructions to multiply with; must be available.
    pub isa: Isa,
    /// Keep activations in `f32` and multiply with decoded weights, for results that can be compared.
    pub exact: bool,
    /// Interleave the rows now, into memory of our own; otherwise at each matmul, from the file's pages.
    pub repack: bool,
}

/// A weight: one or several matrices stacked along their outputs, once or once per expert.
pub struct Matrix {
    names: Vec<Arc<str>>,
    pub(super) parts: Vec<Part>,
    pub(super) n_experts: usize,
    pub(super) n_out: usize,
    pub(super) n_in: usize,
    /// An instruction set that the processor has.
    pub(super) isa: Isa,
}

/// One of the matrices that are stacked.
pub(super) struct Part {
    dtype: DType,
    pub(super) layout: &'static dyn Layout,
    pub(super) n_out: usize,
    /// Outputs of the parts before this one.
    pub(super) first_row: usize,
    /// Panels of the parts before this one, and of this one.
    pub(super) first_panel: usize,
    pub(super) n_panels: usize,
    row_bytes: usize,
    /// Of a panel with all its slices.
    pub(super) panel_bytes: usize,
    pub(super) weights: Weights,
}

pub(super) enum Weights {
    /// Slices of panels of 16 rows: [n_experts, n_slices, n_panels, bytes of the slice of a panel]
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
        let mut names: Vec<Arc<str>> = Vec::new();
        let (mut n_out, mut n_panels) = (0, 0);
        for part in parts {
            check(&part, n_experts, n_in)?;
            if !names.contains(&part.name) {
                names.push(part.name.clone());
            }
            let part = Part::new(part, n_out, n_panels, options);
            (n_out, n_panels) = (n_out + part.n_out, n_panels + part.n_panels);
            made.push(part);
        }
        let mut this = Self { names, parts: made, n_experts, n_out, n_in, isa: options.isa };
        if options.repack {
            this.pack(n_panels, pool)?;
        }
        Ok(this)
    }

    /// Interleaves the rows of the parts that gain by it.
    ///
    /// The panels of all parts are shared out as [`matmul`](super::matmul) does: where memory has several nodes, the thread that writes a
    /// page has it near, and reads it later.
    fn pack(&mut self, n_panels: usize, pool: &Pool) -> Result<()> {
        let mut packed = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let n = if part.gains_by_packing() { self.n_experts * part.n_panels } else { 0 };
            packed.push(Memory::zeroed(n * part.panel_bytes, || "packed weights".into())?);
        }
        let outs: Vec<Shared<'_, u8>> =
            packed.iter_mut().map(|memory| Shared::new(memory.as_mut_slice())).collect();
        pool.for_each_chunk(n_panels, if self.n_experts == 1 { 4 } else { 1 }, |range| {
            for p in range {
                let at = self.part_of(p);
                let (part, out) = (&self.parts[at], &outs[at]);
                if !part.gains_by_packing() {
                    continue;
                }
                let p = p - part.first_panel;
                for expert in 0..self.n_experts {
                    for slice in part.slices(self.n_in) {
                        let start = part.start_of(expert, &slice) + p * slice.panel_bytes;
                        // SAFETY: the buffer has all panels of all slices and experts; each slice of a panel is written by the one call
                        // whose range holds the panel.
                        let panel = unsafe { out.slice(start, slice.panel_bytes) };
                        part.pack(panel, slice.columns, expert, p);
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

    /// Number of the part that has panel `panel` of all.
    fn part_of(&self, panel: usize) -> usize {
        self.parts.partition_point(|p| p.first_panel + p.n_panels <= panel)
    }

    /// The tensors that the parts are, or are parts of, each once.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
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

    /// Bytes of the weights of all experts: what stays in memory, and for a plain matrix what one matmul reads.
    pub fn bytes(&self) -> usize {
        self.parts
            .iter()
            .map(|p| match &p.weights {
                Weights::Packed(_) => self.n_experts * p.n_panels * p.panel_bytes,
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
        match &part.weights {
            Weights::Rows(bytes) => {
                let bytes = &bytes[(expert * part.n_out + row) * part.row_bytes..][..part.row_bytes];
                (part.dtype.spec().dequantize)(bytes, out);
            }
            Weights::Packed(packed) => {
                for slice in part.slices(self.n_in) {
                    let start = part.start_of(expert, &slice) + row / LANES * slice.panel_bytes;
                    let panel = &packed.as_slice()[start..][..slice.panel_bytes];
                    part.layout.dequantize(&mut out[slice.columns], panel, row % LANES);
                }
            }
        }
    }
}

/// Bytes that a part of `[n_experts, n_out, n_in]` takes once it is packed, which differ from a file's where codes are spread; 0 where it
/// stays in the file.
pub fn packed_bytes(dtype: DType, [n_experts, n_out, n_in]: [usize; 3], options: MatrixOptions) -> usize {
    let layout = layouts::select(dtype, options.isa, options.exact);
    if !options.repack || !layout.keeps_size() {
        return 0;
    }
    n_experts.saturating_mul(n_out.div_ceil(LANES)).saturating_mul(panel_bytes(layout, n_in))
}

/// Bytes of a panel of rows of `n_in` elements, all slices together.
fn panel_bytes(layout: &dyn Layout, n_in: usize) -> usize {
    columns(layout, n_in).map(|columns| layout.panel_bytes(columns.len())).sum()
}

/// Checks a part by itself and against the first part's shape.
fn check(part: &MatrixPart, n_experts: usize, n_in: usize) -> Result<()> {
    part.check()?;
    if (part.n_experts, part.n_in) == (n_experts, n_in) {
        return Ok(());
    }
    Err(Error::WrongSize {
        what: "a weight matrix that is stacked on another".into(),
        dtype: part.dtype,
        shape: vec![n_experts, part.n_out, n_in],
        expected: part.dtype.bytes_for(n_in).unwrap_or(usize::MAX).saturating_mul(n_experts * part.n_out),
        found: part.bytes.len(),
    })
}

/// Columns of a slice. One row's activations for so many, with their scales and sums, stay in the first-level cache (32 KiB) while the
/// slice's lines of a panel, at most 17 KiB, pass through it. Were they fetched anew for each panel, those fetches would come between
/// those of the weights, which cost a third of the speed at which one core reads memory.
const SLICE: usize = 1024;

impl Part {
    fn new(part: MatrixPart, first_row: usize, first_panel: usize, options: MatrixOptions) -> Self {
        let MatrixPart { dtype, n_out, n_in, bytes, .. } = part;
        let layout = layouts::select(dtype, options.isa, options.exact);
        Self {
            dtype,
            layout,
            n_out,
            first_row,
            first_panel,
            n_panels: n_out.div_ceil(LANES),
            row_bytes: n_in / dtype.block_len() * dtype.spec().block_bytes,
            panel_bytes: panel_bytes(layout, n_in),
            weights: Weights::Rows(bytes),
        }
    }

    /// The slices of rows of `n_in` elements.
    pub(super) fn slices(&self, n_in: usize) -> impl Iterator<Item = Slice> {
        let mut start = 0;
        columns(self.layout, n_in).map(move |columns| {
            let panel_bytes = self.layout.panel_bytes(columns.len());
            let slice = Slice { columns, start, panel_bytes };
            start += self.n_panels * panel_bytes;
            slice
        })
    }

    /// Where the panels of a slice begin in packed weights, in bytes.
    pub(super) fn start_of(&self, expert: usize, slice: &Slice) -> usize {
        expert * self.n_panels * self.panel_bytes + slice.start
    }

    fn gains_by_packing(&self) -> bool {
        self.layout.keeps_size() && self.panel_bytes > 0
    }

    /// Interleaves some columns of the rows of a panel, from the file's rows.
    pub(super) fn pack(&self, panel: &mut [u8], columns: Range<usize>, expert: usize, p: usize) {
        let Weights::Rows(bytes) = &self.weights else { return };
        let first = p * LANES;
        let n = LANES.min(self.n_out - first);
        if n < LANES {
            panel.fill(0);
        }
        let spec = self.dtype.spec();
        let bytes_of = |columns: usize| columns / spec.block_len * spec.block_bytes;
        let rows = &bytes[(expert * self.n_out + first) * self.row_bytes..][..n * self.row_bytes];
        for (lane, row) in rows.chunks_exact(self.row_bytes).enumerate() {
            let row = &row[bytes_of(columns.start)..][..bytes_of(columns.len())];
            self.layout.pack(panel, lane, row);
        }
    }
}

/// Columns of a part, and where they stand in the memory of an expert.
pub(super) struct Slice {
    pub(super) columns: Range<usize>,
    /// Bytes before its first panel.
    start: usize,
    /// Bytes of each of its panels.
    pub(super) panel_bytes: usize,
}

/// The columns of the slices of a row of `n_in` elements; the last one may have fewer.
pub(super) fn columns(layout: &dyn Layout, n_in: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let step = if layout.activations().is_int8() { SLICE.min(n_in) } else { n_in };
    (0..n_in).step_by(step.max(1)).map(move |start| start..n_in.min(start + step))
}
